"""The runs of a comparison: every method with every seed, written to compare.yaml so that it can be resumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, MinLen

from unskew import arguments, config, disk, documents
from unskew.cluster.place import HERE
from unskew.comparison.watch import Cell
from unskew.config import Settings
from unskew.disk import slug
from unskew.engine import resolve
from unskew.engine.disk.sameness import check_same
from unskew.errors import StateError, UsageError, printable, suggestion

FILE = "compare.yaml"


@dataclass(frozen=True)
class Plan:
    """What compare.yaml holds."""

    methods: Annotated[tuple[str, ...], MinLen(1), "texts of methods"]
    seeds: Annotated[tuple[Annotated[int, Ge(0)], ...], MinLen(1), "of every method"]
    settings: Annotated[dict[str, Any], "those that all methods share"]
    processes: Annotated[int, Ge(0), "how many runs at a time; 0: one on each core, or one on a GPU"] = 0
    target: Annotated[float | None, "score for the column 'bytes to reach it'"] = None
    privacy: Annotated[bool, "attack every run when all are finished"] = False
    on: Annotated[str, "where runs train: here, or a Ray cluster"] = HERE
    tune: Annotated[int, Ge(0), "trials of every method that choose its settings first; 0: none"] = 0


def plan_cells(
    parent: Path,
    methods: Sequence[str],
    seeds: Sequence[int],
    options: dict[str, Any],
    tuned: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[Cell]:
    """The runs of a comparison, each in a folder of its own under `parent`; nothing is written.

    options: settings that all methods share. tuned: by method, settings of its own, as `with_point` takes them.
    Raises UsageError for a method or a setting that cannot be read, for arguments that no method has (E102) and for equal
    methods (E119), StateError (E112) for a folder with another run.
    """
    cells, unused, known = [], dict(options.get("set") or {}), dict[str, str]()
    if not methods or not seeds:
        raise UsageError("E109", "a comparison needs at least one method and one seed.")
    for method in methods:
        base = config.build({**options, "method": method})
        meant = resolve.arguments_for(method, base.set)
        unused = {part: values for part, values in unused.items() if part not in meant}
        in_full = resolve.compared(base.replace(set=meant))
        if (first := known.setdefault(in_full.method, method)) != method:
            text = f"'{first}' and '{method}' are one method, {in_full.method}"
            raise UsageError("E119", f"{text}, whose rows would compete with each other; name it once.")
        base = with_point(in_full, (tuned or {}).get(method, {}))
        for seed in seeds:
            cells.append(Cell(method, seed, parent / f"{slug(method)}--s{seed}", base.replace(seed=seed)))
    if unused:
        part = next(iter(unused))
        raise UsageError("E102", f"--set names '{part}', which is a part of none of them.{suggestion(part, methods)}")
    if len({cell.path for cell in cells}) < len(cells):
        twice = next((m for m in methods if list(methods).count(m) > 1), "")
        added = f" '{twice}' is a reference, which is added already." if resolve.is_reference(twice) else ""
        raise UsageError("E119", f"two of the methods to compare are the same; name each once.{added}")
    for cell in cells:
        if (cell.path / "config.yaml").exists():
            check_same(cell.path, cell.settings)
    return cells


def watched(parent: Path, plan: Plan) -> list[Cell]:
    """The runs of a comparison, for whoever only follows them: no method is read, so that its file may be out of reach."""
    shared = _alone(plan.settings)
    return [
        Cell(printable(m), seed, parent / f"{slug(m)}--s{seed}", shared) for m in plan.methods for seed in plan.seeds
    ]


def with_point(settings: Settings, point: Mapping[str, Any]) -> Settings:
    """The settings of a run with other values: a setting by its name, a Part's argument as `part.argument`.

    Raises UsageError (E102, E109) for values that do not go together.
    """
    arguments: dict[str, dict[str, Any]] = {}
    for name, value in point.items():
        part, dot, argument = name.partition(".")
        if dot:
            arguments.setdefault(part, {})[argument] = value
    own = {name: value for name, value in point.items() if "." not in name}
    return settings.replace(**own, method=resolve.written(settings.method, arguments)) if point else settings


def describe(parent: Path, plan: Plan) -> None:
    """Write compare.yaml, from which a comparison is resumed.

    Raises StateError (E112) where runs of other methods or seeds have begun there with other settings than these have: they
    would stand in one table.
    """
    if (parent / FILE).is_file() and any(parent.glob("*--s*/metrics.jsonl")):
        before, now = (_alone(settings) for settings in (described(parent).settings, plan.settings))
        config.check_same(before, now, parent)
    values = config.build({**plan.settings, "method": "fedavg"}).as_dict()
    shared = {name: value for name, value in values.items() if name not in ("method", "seed")}
    parent.mkdir(parents=True, exist_ok=True)
    lists = {"methods": list(plan.methods), "seeds": list(plan.seeds)}
    disk.replace(parent / FILE, documents.dump({**asdict(plan), **lists, "settings": shared}))


def _alone(settings: Mapping[str, Any]) -> Settings:
    """What all methods share; further arguments of Parts are each method's own."""
    return config.build({**settings, "method": "fedavg", "set": {}})


def described(parent: Path) -> Plan:
    """The comparison that has begun in this folder. Raises StateError (E117) where there is none, UsageError (E111) for a
    damaged file."""
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
