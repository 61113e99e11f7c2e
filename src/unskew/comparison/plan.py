"""The plan of a comparison: every method with every seed, written to compare.yaml so that it can be resumed.

A separate process trains each run and reads everything from files. So methods and models must be texts, and
data in memory are written to a file in the comparison's folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, MinLen
from torch import nn

from unskew import config
from unskew.comparison import cluster
from unskew.comparison.cluster import HERE, Cluster
from unskew.comparison.progress import Cell
from unskew.config import Settings
from unskew.core.method import Method
from unskew.core.part import Part
from unskew.data.clients.federation import Federation
from unskew.data.python_objects import settings_of, take
from unskew.data.readers.from_npz import save_dataset
from unskew.errors import StateError, UnskewError, UsageError, excerpt, printable, suggestion
from unskew.formats import arguments, documents
from unskew.round import run
from unskew.runs import object_digests, resolve
from unskew.runs.run_folder import check_same
from unskew.system import disk
from unskew.system.disk import slug

DATA_FILE = "data.npz"
OWN_PROCESS = "and each run of a comparison has a process of its own"


def methods_as_text(methods: Iterable[Method | Part | str | os.PathLike[str]]) -> list[str]:
    """The texts of methods. Raises UsageError (E109) for a Part that other processes cannot find by name."""
    if isinstance(methods, str | os.PathLike | Method | Part):
        raise UsageError(
            "E109", f"compare takes a list of methods, such as ['fedavg', 'fedprox']; got {excerpt(methods)}."
        )
    return [_method_text(m) for m in methods]


def _method_text(method: Method | Part | str | os.PathLike[str]) -> str:
    if isinstance(method, str | os.PathLike):
        return os.fspath(method)
    object_digests.check_method(method)
    parts = method.parts if isinstance(method, Method) else (method,)
    text = str(Method(*parts)) if parts else "fedavg"
    try:
        again = resolve.parts_of(text).parts
    except UnskewError:
        again = ()
    if again != parts:
        remedy = "put the Part into a file and name that: compare(['my_part.py', ...])."
        raise UsageError("E109", f"{excerpt(text)} is a Part of this process alone, {OWN_PROCESS}; {remedy}")
    return text


def model_as_text(model: Any) -> str:
    """The text of a model. Raises UsageError (E109) for a module, which exists in this process only."""
    if isinstance(model, nn.Module):
        remedy = "put the function that builds it into a file and name that: model='my_model.py:function'."
        kind = type(model).__name__
        raise UsageError("E109", f"a {kind} was given as model, {OWN_PROCESS}; {remedy}")
    return os.fspath(model)


def data_as_text(
    data: Any, parent: Path, label: str, site: str, target: str = "", group: Any = ""
) -> dict[str, str]:
    """The settings `data` and, for divided data, `skew`.

    Data in memory are written to `data.npz` in the comparison's folder. Raises UsageError (E109) for a
    Federation, and as `take` does.
    """
    if isinstance(data, str | os.PathLike):
        return settings_of(data, label, site, target, group)[1]
    dataset = take(data, label=label, site=site, target=target, group=group)
    if isinstance(dataset, Federation):
        text = "a Federation is dealt out already, and each run of a comparison deals out for itself"
        raise UsageError("E109", f"{text}; give the Dataset and a skew, or a list of the clients' sets.")
    save_dataset(dataset, parent / DATA_FILE)
    return {**settings_of(dataset, "", site)[1], "data": str(parent / DATA_FILE)}


FILE = "compare.yaml"


@dataclass(frozen=True)
class Plan:
    """The content of compare.yaml."""

    methods: Annotated[tuple[str, ...], MinLen(1), "texts of methods"]
    seeds: Annotated[tuple[Annotated[int, Ge(0)], ...], MinLen(1), "of every method"]
    settings: Annotated[dict[str, Any], "those that all methods share"]
    processes: Annotated[int, Ge(0), "how many runs at a time; 0: one on each core, or one on a GPU"] = 0
    target: Annotated[float | None, "score for the column 'bytes to reach it'"] = None
    privacy: Annotated[bool, "attack every run when all are finished"] = False
    on: Annotated[str, "where runs train: here, or a Ray cluster"] = HERE
    tune: Annotated[int, Ge(0), "trials of every method that choose its settings first; 0: none"] = 0

    @cached_property
    def cluster(self) -> Cluster | None:
        """The cluster that `on` names; None for this machine. Raises UsageError (E172)."""
        return cluster.parse(self.on)


def plan_cells(
    parent: Path,
    methods: Sequence[str],
    seeds: Sequence[int],
    options: dict[str, Any],
    tuned: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[Cell]:
    """The runs of a comparison, each with a folder under `parent`. Nothing is written.

    options: settings that all methods share. tuned: further settings for each method, as for `with_point`.
    Raises UsageError for an invalid method or setting, for arguments that no method has (E102) and for equal
    methods (E109), and StateError (E112) for a folder with another run.
    """
    cells, unused, known = [], dict(options.get("set") or {}), dict[str, str]()
    if not methods or not seeds:
        raise UsageError("E109", "a comparison needs at least one method and one seed.")
    for method in methods:
        base = config.build({**options, "method": method})
        meant = resolve.arguments_for(method, base.set)
        unused = {part: values for part, values in unused.items() if part not in meant}
        in_full = resolve.comparison_settings(base.replace(set=meant))
        if (first := known.setdefault(in_full.method, method)) != method:
            text = f"'{first}' and '{method}' are one method, {in_full.method}"
            raise UsageError("E109", f"{text}, whose rows would compete with each other; name it once.")
        base = with_point(in_full, (tuned or {}).get(method, {}))
        cells += [Cell(method, s, _folder_of(parent, method, s), base.replace(seed=s)) for s in seeds]
    if unused:
        part = next(iter(unused))
        raise UsageError(
            "E102", f"--set names '{part}', which is a part of none of them.{suggestion(part, methods)}"
        )
    if len({cell.path for cell in cells}) < len(cells):
        twice = next((m for m in methods if list(methods).count(m) > 1), "")
        added = f" '{twice}' is a reference, which is added already." if run.is_reference(twice) else ""
        raise UsageError("E109", f"two of the methods to compare are the same; name each once.{added}")
    for cell in cells:
        if (cell.path / "config.yaml").exists():
            check_same(cell.path, cell.settings)
    return cells


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


def with_point(settings: Settings, point: Mapping[str, Any]) -> Settings:
    """The settings with the values of a point: settings by name, arguments of Parts as `part.argument`.

    Raises UsageError (E102, E109) for values that contradict each other.
    """
    by_part: dict[str, dict[str, Any]] = {}
    own: dict[str, Any] = {}
    for name, value in point.items():
        part, dot, argument = name.partition(".")
        values = by_part.setdefault(part, {}) if dot else own
        values[argument or part] = value
    return (
        settings.replace(**own, method=resolve.method_text(settings.method, by_part)) if point else settings
    )


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
