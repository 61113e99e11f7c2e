"""The plan of a comparison: every method with every seed, written to compare.yaml so that it can be resumed.

Separate processes train the runs and read everything from files; data in memory are written to a file in the
comparison's folder. Objects that no text stands for train in this process, and the plan keeps their names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, TypeAlias

from annotated_types import Ge, MinLen

from unskew import config
from unskew.comparison.progress import Cell
from unskew.config import Settings
from unskew.core.method import Method
from unskew.core.part import Part
from unskew.data.clients.federation import Federation
from unskew.data.python_objects import settings_of
from unskew.data.readers.from_npz import save_dataset
from unskew.data.samples.dataset import Dataset
from unskew.errors import DataError, StateError, UnskewError, UsageError, excerpt, printable, suggestion
from unskew.formats import arguments, documents
from unskew.measures import NONE
from unskew.records.checkpoints import latest_facts
from unskew.round import run
from unskew.runs import object_digests, resolve
from unskew.runs.assemble import loop_of
from unskew.runs.hardware import check_memory
from unskew.runs.resolve import Objects, check_spelling, dataset_of, reserve_of
from unskew.runs.run_folder import check_objects, check_same, fingerprint
from unskew.system import disk
from unskew.system.disk import slug

DATA_FILE = "data.npz"
AnyMethod: TypeAlias = Method | Part | str | os.PathLike[str]
ObjectsByLabel: TypeAlias = Mapping[str, Objects]
"""The Python objects of the runs of each method, by the label of the method; empty without any."""
NO_OBJECTS: ObjectsByLabel = MappingProxyType({})


@dataclass(frozen=True)
class NamedMethod:
    """A method of a comparison. label: of its row. text: in its runs' settings. method: an object that the
    text does not stand for, or None."""

    label: str
    text: str
    method: Method | None = None


def named_methods(methods: Sequence[AnyMethod] | Mapping[str, AnyMethod]) -> list[NamedMethod]:
    """The methods, each with the label of its row: a key of the mapping, or its text.

    Raises UsageError: E109 for a single method, an empty label or one of a reference, E102 for an object that
    is no method.
    """
    if isinstance(methods, str | os.PathLike | Method | Part):
        raise UsageError(
            "E109", f"compare takes a list of methods, such as ['fedavg', 'fedprox']; got {excerpt(methods)}."
        )
    if not isinstance(methods, Mapping):
        return [_named("", method) for method in methods]
    if not all(isinstance(m, str) and m.strip() and not run.is_reference(m) for m in methods):
        reserved = " and ".join(run.REFERENCES)
        raise UsageError("E109", f"labels are texts other than {reserved}; got {excerpt(list(methods))}.")
    return [_named(label, method) for label, method in methods.items()]


def _named(label: str, method: AnyMethod) -> NamedMethod:
    if isinstance(method, str | os.PathLike):
        text = os.fspath(method)
        return NamedMethod(label or text, text)
    object_digests.check_method(method)
    whole = method if isinstance(method, Method) else Method(method)
    text = str(whole)
    try:
        again = resolve.parts_of(text)
    except UnskewError:
        again = None
    return NamedMethod(label or text, text, None if again == whole else whole)


def objects_of(methods: Sequence[NamedMethod], common: Objects) -> tuple[ObjectsByLabel, tuple[str, ...]]:
    """(the objects of each method's runs by its label, the names of all objects); both empty without any.

    common: the objects of all runs.
    """
    of_all = (("the data", common.data), ("the model", common.model))
    given = [name for name, value in of_all if value is not None]
    given += [f"the function '{name}'" for name in common.metrics]
    given += [f"the method '{m.label}'" for m in methods if m.method is not None]
    return {m.label: common._replace(method=m.method) for m in methods if given}, tuple(given)


def data_as_settings(data: Any, parent: Path, **roles: Any) -> tuple[dict[str, str], Federation | None]:
    """The settings `data` and, for divided data, `skew`; and a Federation, which no text stands for.

    roles: arguments of `take`. Other data in memory are written to `data.npz` in the comparison's folder.
    Raises as `take` does.
    """
    read, settings = settings_of(data, **roles)
    if isinstance(read, Federation):
        return settings, read
    if isinstance(read, Dataset):
        save_dataset(read, parent / DATA_FILE)
        settings["data"] = str(parent / DATA_FILE)
    return settings, None


FILE = "compare.yaml"


@dataclass(frozen=True)
class Plan:
    """The content of compare.yaml."""

    methods: Annotated[tuple[str, ...], MinLen(1), "labels of methods, mostly their texts"]
    seeds: Annotated[tuple[Annotated[int, Ge(0)], ...], MinLen(1), "of every method"]
    settings: Annotated[dict[str, Any], "those that all methods share"]
    processes: Annotated[int, Ge(0), "how many runs at a time; 0: one on each core, or one on a GPU"] = 0
    target: Annotated[float | None, "score for the column 'bytes to reach it'"] = None
    privacy: Annotated[bool, "attack every run when all are finished"] = False
    tune: Annotated[int, Ge(0), "trials of every method that choose its settings first; 0: none"] = 0
    texts: Annotated[dict[str, str], "the texts of methods with other labels"] = field(
        default_factory=dict[str, str]
    )
    given: Annotated[tuple[str, ...], "names of Python objects, without which no run can train"] = ()

    def text_of(self, label: str) -> str:
        """The text of a method."""
        return self.texts.get(label, label)


def plan_cells(
    parent: Path,
    plan: Plan,
    objects: ObjectsByLabel = NO_OBJECTS,
    tuned: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> list[Cell]:
    """The runs of a comparison, each with a folder under `parent`. Nothing is written.

    objects, tuned: by the label of a method; Python objects, and further settings as for `with_point`.
    Raises UsageError for an invalid method or setting, for arguments that no method has (E102) and for equal
    methods (E109), and StateError: E112 for a folder with another run, E156 without the objects of the plan.
    """
    cells, unused, known = [], dict(plan.settings.get("set") or {}), dict[str, str]()
    if not plan.methods or not plan.seeds:
        raise UsageError("E109", "a comparison needs at least one method and one seed.")
    if plan.given and not objects:
        text = f"{parent} was begun from Python with {plan.given[0]} given as an object"
        raise StateError("E156", f"{text}; call unskew.compare there again, with its name.")
    for label in plan.methods:
        text, own = plan.text_of(label), objects.get(label, Objects())
        base = config.build({**plan.settings, "method": text})
        if own.method is not None:
            base = base.replace(set={})
        else:
            meant = resolve.arguments_for(text, base.set)
            unused = {part: values for part, values in unused.items() if part not in meant}
            base = resolve.comparison_settings(base.replace(set=meant))
            if (first := known.setdefault(base.method, label)) != label:
                text = f"'{first}' and '{label}' are one method, {base.method}"
                raise UsageError("E109", f"{text}, whose rows would compete with each other; name it once.")
        seedless = with_point(Cell(label, 0, parent, base, objects=own), tuned.get(label, {}))
        for seed in plan.seeds:
            settings = seedless.settings.replace(seed=seed)
            cells.append(
                replace(seedless, seed=seed, path=_folder_of(parent, label, seed), settings=settings)
            )
    if unused:
        part = next(iter(unused))
        raise UsageError(
            "E102", f"--set names '{part}', which is a part of none of them.{suggestion(part, plan.methods)}"
        )
    if len({cell.path for cell in cells}) < len(cells):
        twice = next((m for m in plan.methods if plan.methods.count(m) > 1), "")
        added = f" '{twice}' is a reference, which is added already." if run.is_reference(twice) else ""
        text = "two of the methods to compare are the same; name each once, or give a dictionary"
        raise UsageError("E109", f"{text}, {{label: method}}.{added}")
    for cell in cells:
        check_started(cell)
    return cells


def check_started(cell: Cell) -> None:
    """Raises StateError (E112) if the run in this folder has other settings, user files or objects."""
    if (cell.path / "config.yaml").exists():
        check_same(cell.path, cell.settings)
        check_objects(latest_facts(cell.path).get("given", {}), cell.digests(), cell.path)


def planned_cells(parent: Path, plan: Plan) -> list[Cell]:
    """The runs of a comparison for display. Methods are not parsed, because their files may be missing."""
    shared = _shared_settings(plan.settings)
    return [
        Cell(printable(m), seed, _folder_of(parent, m, seed), shared)
        for m in plan.methods
        for seed in plan.seeds
    ]


def _folder_of(parent: Path, method: str, seed: int) -> Path:
    return parent / f"{slug(method)}--s{seed}"


def with_point(cell: Cell, point: Mapping[str, Any]) -> Cell:
    """The run with the values of a point: settings by name, arguments of Parts as `part.argument`.

    Raises UsageError (E102, E109) for values that contradict each other.
    """
    if not point:
        return cell
    by_part: dict[str, dict[str, Any]] = {}
    own: dict[str, Any] = {}
    for name, value in point.items():
        part, dot, argument = name.partition(".")
        values = by_part.setdefault(part, {}) if dot else own
        values[argument or part] = value
    settings, objects = cell.settings, cell.objects
    if objects.method is not None:
        parts = cell.method_object().parts
        method = Method(*(replace(part, **by_part.get(part.name, {})) for part in parts))  # type: ignore[type-var]
        objects = objects._replace(method=method)
        return replace(cell, settings=settings.replace(**own, method=str(method)), objects=objects)
    text = resolve.method_text(settings.method, by_part)
    return replace(cell, settings=settings.replace(**own, method=text))


def write_plan(parent: Path, plan: Plan) -> None:
    """Write compare.yaml, from which a comparison is resumed.

    Raises StateError (E112) if the folder has runs with other shared settings, which would be in one table.
    """
    if (parent / FILE).is_file() and any(parent.glob("*--s*/metrics.jsonl")):
        before, now = (_shared_settings(settings) for settings in (read_plan(parent).settings, plan.settings))
        config.check_same(before, now, parent)
    values = config.build({**plan.settings, "method": "fedavg"}).as_dict()
    shared = {name: value for name, value in values.items() if name not in ("method", "seed")}
    parent.mkdir(parents=True, exist_ok=True)
    lists = {"methods": list(plan.methods), "seeds": list(plan.seeds)}
    disk.replace(parent / FILE, documents.dump({**asdict(plan), **lists, "settings": shared}))


def _shared_settings(settings: Mapping[str, Any]) -> Settings:
    """The settings that all methods share, without the arguments of Parts."""
    return config.build({**settings, "method": "fedavg", "set": {}})


def read_plan(parent: Path) -> Plan:
    """The plan of the comparison in a folder. Raises StateError (E117) if there is none, UsageError (E111)
    for a damaged file."""
    file = parent / FILE
    if not file.is_file():
        raise StateError("E117", f"{parent} is no comparison: it has no compare.yaml.")
    values = documents.load(documents.text_of(file), str(file), "E111")
    values = arguments.check(Plan, values if isinstance(values, dict) else {}, str(file), "E111")
    if missing := {"methods", "seeds", "settings"} - set(values):
        raise UsageError("E111", f"{file} is damaged: it lacks {', '.join(sorted(missing))}.")
    if not isinstance(values["settings"], dict):
        raise UsageError("E111", f"{file} is damaged: settings must hold keys and values.")
    return Plan(**values)


def dry_run(cells: Iterable[Cell], on_data: Callable[[Federation], object] = lambda federation: None) -> str:
    """Check one seed of every run that has not begun, and the data of runs that have.

    on_data: a function that is called with every federation that is made.
    Returns the name of the main score; "" if all runs have begun. Raises the error of the first run that
    cannot work, with its method in the text, and StateError (E112) if the data of a run have changed.
    """
    cells, seen, score = list(cells), set[tuple[str, int]](), ""
    cache = _DataCache(on_data)
    check_data(cells, cache)
    for cell in cells:
        same = (cell.settings.replace(seed=0).fingerprint(), id(cell.objects.method))
        if same in seen or (cell.path / "config.yaml").exists():
            continue
        seen.add(same)
        try:
            score = cache.assemble(replace(cell, settings=cell.settings.replace(normalise="none", workers=1)))
        except UnskewError as error:
            raise error.at(cell.method) from None
    return score


def check_data(cells: Sequence[Cell], cache: _DataCache | None = None) -> None:
    """Raises StateError (E112) if data have changed since a run began, because its scores would be compared
    with scores on other data.

    Each data set is checked once. If all runs are finished, missing data are no error.
    """
    asked, cache = set[str](), cache or _DataCache()
    for cell in cells:
        known = latest_facts(cell.path).get("data")
        if known is None or cell.settings.data in asked:
            continue
        asked.add(cell.settings.data)
        try:
            now = fingerprint(cache.federation(cell))
        except DataError:
            if all(one.ended for one in cells):
                continue
            raise
        if now != known:
            text = f"the data {excerpt(cell.settings.data, 60)} are not those that {cell.path} was trained on"
            raise StateError("E112", f"{text}, and scores would be compared; choose another --name.")


class _DataCache:
    """Keeps the last data set and the last federation, which successive runs often share."""

    def __init__(self, on_data: Callable[[Federation], object] = lambda federation: None) -> None:
        self._on_data = on_data
        self._dataset: tuple[str, Dataset] | None = None
        self._federation: tuple[Any, Federation] | None = None

    def assemble(self, cell: Cell) -> str:
        """Assemble a run, and return the name of its main score."""
        settings, method = cell.settings, cell.method_object()
        check_spelling(settings)
        partition = (
            *(settings.data, settings.skew, settings.clients, settings.samples, settings.seed_of_partition),
            *(settings.validation, resolve.pools(settings), reserve_of(method)),
        )
        if self._federation is None or self._federation[0] != partition:
            self._federation = partition, self.federation(cell)
        run = resolve.run_on(self._federation[1], settings, method, *cell.objects[2:])
        check_memory(method, run.fed)
        if settings.measure != NONE:
            loop_of(run).trainer.close()
        return run.task.main_score

    def federation(self, cell: Cell) -> Federation:
        """The federation of a run with scaled samples."""
        settings, data = cell.settings, cell.objects.data
        if data is None:
            if self._dataset is None or self._dataset[0] != settings.data:
                self._dataset = settings.data, dataset_of(settings)
            data = self._dataset[1]
        federation = resolve.federation_of(settings, cell.method_object(), data, cell.objects.model)
        self._on_data(federation)
        return federation
