"""docs/data-sets.md: the named sets, and every setting of partitions, feature skews and availabilities."""

from __future__ import annotations

import inspect
import sys

from unskew import sources
from unskew.data.availability import Options
from unskew.data.presence import KINDS
from unskew.data.registry import files, reader_of
from unskew.data.shifts import SHIFTS
from unskew.data.skew import partitions
from unskew.markdown import arguments_table, table


def page() -> str:
    """The page as Markdown."""
    sections = [
        "# Data sets, partitions, feature skews and availabilities",
        "This page is made from the code; [data.md](data.md) explains how the pieces fit together.",
        "## Named sets",
        "Every set but `digits` is a NumPy archive, `NAME.npz`, in the folder that the environment variable "
        "`UNSKEW_DATA` names; nothing is downloaded. Arguments follow the name: `office_caltech10(size=128)`.",
        _sets(),
        arguments_table("set", {name: reader_of(name) for name in files()}),
        "## Partitions: `--skew`",
        "Options follow after commas: `dirichlet:0.1,min=10`.",
        table(("example", "how samples are dealt out"), _partitions()),
        arguments_table("partition", partitions()),
        "## Feature skews: `--skew iid+...`",
        "A sample x of client k becomes what the table says, where s is the strength, u a level between -1 and 1 that "
        "is spread evenly over clients, and v = (1 + u) / 2.",
        table(("example", "what a sample x becomes"), ((f"`{k.example}`", _summary(k)) for k in SHIFTS.values())),
        arguments_table("feature skew", SHIFTS),
        "## Availabilities: `--availability`",
        table(("example", "who answers"), ((f"`{k.example}`", _summary(k)) for k in KINDS.values())),
        arguments_table("availability", {**KINDS, "every kind": Options}),
    ]
    return "\n\n".join(sections) + "\n"


def _sets() -> str:
    rows = []
    for name, path in files().items():
        summary, _, rest = sources.docstring(path).partition("\n")
        rows.append((f"`{name}`", summary, " ".join(rest.split()), sources.constant(path, "SOURCE", "")))
    return table(("set", "what it is", "arrays of its archive", "where to get it"), rows)


def _partitions() -> list[tuple[str, str]]:
    """The first lines of the files, which say what each partition does; of `domain`, the class's own."""
    rows = []
    for kind in partitions().values():
        module = inspect.cleandoc(sys.modules[kind.__module__].__doc__ or "").split("\n")[0]
        alone = kind.__module__.endswith(f".{kind.name}")
        rows.append((f"`{kind.example}`", module if alone else _summary(kind)))
    return rows


def _summary(kind: type) -> str:
    return inspect.cleandoc(kind.__doc__ or "").split("\n")[0]
