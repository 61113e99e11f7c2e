"""The page docs/data-sets.md: named sets, a user's own data, partitions, feature shifts and availabilities."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

from unskew.data.clients.availability import PRESENCE_KINDS, Options
from unskew.data.registry import READERS, files, reader_of
from unskew.data.skew import SHIFTS, partitions
from unskew.formats import arguments
from unskew.formats.markdown import table
from unskew.system import python_files

MEANINGS = {
    "label": "the column of labels",
    "site": "the column of sites",
    "classes": "the names of all classes, in their order",
    "target": "the number to predict, a column or what y is called; or several numbers or labels, 'fever,cough'",
    "center": "number subtracted from the target, [1, 2] of several; by default the training samples' mean",
    "group": "the column of groups, such as patients, that no split divides, or none",
    "x": "the columns to train on; by default all others",
    "drop": "columns to leave out",
    "weight": "the column of weights of samples in the loss of training",
    "missing": "what becomes of empty cells; median and indicator fill them",
    "scale": "divisor of the target; by default the training samples' standard deviation",
}
"""The meanings of arguments that readers share."""


def page() -> str:
    """The page as Markdown."""
    sections = [
        "# Data sets, partitions, feature skews and availabilities",
        "This page is made from the code; [data.md](data.md) explains how the pieces fit together.",
        "## Named sets",
        (
            "Every set but `digits`, `diabetes` and `two_digits` is a NumPy archive, `NAME.npz`, in the folder that the environment"
            " variable `UNSKEW_DATA` names; `unskew data get NAME` makes some of them. Arguments follow the"
            " name: `office_caltech10(size=128)`."
        ),
        _set_table(),
        arguments_table("set", {name: reader_of(name) for name in files()}),
        "## Data of your own",
        (
            "Arguments follow the path in brackets, `scans/(size=128)`; [data.md](data.md) says what of your"
            " own is read, and how."
        ),
        (
            "Tables are .csv and .tsv files, and folders with train.csv; folders hold images or sounds; volumes"
            " are NIfTI; arrays are .npz archives and folders of .npy files."
        ),
        _reader_arguments(),
        "## Partitions: `--skew`",
        "Options follow after commas: `dirichlet:0.1,min=10`.",
        table(("example", "how samples are dealt out"), _partition_rows()),
        arguments_table("partition", partitions()),
        "## Feature skews: `--skew iid+...`",
        (
            "A sample x of client k becomes what the table says, where s is the strength, u a level between"
            " -1 and 1 that is spread evenly over clients, and v = (1 + u) / 2."
        ),
        table(
            ("example", "what a sample x becomes"),
            ((f"`{k.example}`", _first_line(k)) for k in SHIFTS.values()),
        ),
        arguments_table("feature skew", SHIFTS),
        "## Availabilities: `--availability`",
        table(
            ("example", "who answers"), ((f"`{k.example}`", _first_line(k)) for k in PRESENCE_KINDS.values())
        ),
        arguments_table("availability", {**PRESENCE_KINDS, "every kind": Options}),
    ]
    return "\n\n".join(sections) + "\n"


def arguments_table(owner: str, kinds: Mapping[str, Callable[..., Any]]) -> str:
    """A table of the arguments of functions or dataclasses. owner: the heading of the column of names."""
    rows = (
        (f"`{name}`", f"`{a.name}`", a.type, a.range, _default(a), a.meaning)
        for name, kind in kinds.items()
        for a in arguments.of(kind)
    )
    return table((owner, "argument", "type", "range", "default", "meaning"), rows)


def _default(argument: arguments.Argument) -> str:
    return "required" if argument.default is arguments.REQUIRED else f"`{argument.default}`"


def _set_table() -> str:
    rows = []
    for name, path in files().items():
        summary, _, rest = python_files.docstring(path).partition("\n")
        rows.append((f"`{name}`", summary, " ".join(rest.split()), python_files.constant(path, "SOURCE", "")))
    return table(("set", "what it is", "arrays of its archive", "where to get it"), rows)


def _reader_arguments() -> str:
    """The arguments of the readers, each with the kinds of data that accept it."""
    kinds: dict[tuple[str, ...], list[str]] = {}
    for kind, reader in READERS.items():
        for a in arguments.of(reader):
            default = f"`{a.default}`" if a.default else ""
            row = (
                f"`{a.name}`",
                a.type.replace("Sequence", "list of texts"),
                a.range,
                default,
                a.meaning or MEANINGS[a.name],
            )
            kinds.setdefault(row, []).append(kind)
    rows = sorted((row[0], ", ".join(names), *row[1:]) for row, names in kinds.items())
    return table(("argument", "of", "type", "range", "default", "meaning"), rows)


def _partition_rows() -> list[tuple[str, str]]:
    """The first line of each partition's file as its description; that of the class in a file of several."""
    rows, modules = [], [kind.__module__ for kind in partitions().values()]
    for kind in partitions().values():
        module = inspect.cleandoc(sys.modules[kind.__module__].__doc__ or "").split("\n")[0]
        single = modules.count(kind.__module__) == 1
        rows.append((f"`{kind.example}`", module if single else _first_line(kind)))
    return rows


def _first_line(kind: type) -> str:
    return inspect.cleandoc(kind.__doc__ or "").split("\n")[0]
