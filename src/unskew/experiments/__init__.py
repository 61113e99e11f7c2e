"""Published tables as files, and the options of `unskew reproduce` and of `unskew.reproduce`."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge, Gt, Le


@dataclass(frozen=True)
class Request:
    """A checked request to run a table."""

    table: Annotated[
        str,
        "a table by name, such as flea-table1 (`unskew list experiments` shows all), or a .yaml file of"
        " your own",
    ]
    rows: Annotated[
        tuple[str, ...], "only this row, or all rows whose names begin like this (repeatable)"
    ] = ()
    methods: Annotated[tuple[str, ...], "only these methods of the table (repeatable)"] = ()
    add: Annotated[
        tuple[str, ...], "also this method, such as my_method.py or flea+scaffold (repeatable)"
    ] = ()
    seeds: Annotated[int, Ge(1), "how many seeds, counted from 0"] = 3
    scale: Annotated[float, Gt(0), Le(1), "share of the rounds to run; the result says so"] = 1.0
    processes: Annotated[int, Ge(0), "how many runs at a time; 0: one on each core, or one on a GPU"] = 0
    folder: Annotated[Path, "where runs are kept"] = Path("runs")
    keep: Annotated[Path | None, "also write JSON and Markdown into this folder, and its README.md"] = None
    page: Annotated[str, "name of the result's files; the table's name if left out"] = ""
    anew: Annotated[bool, "repeat the runs that another version of unskew made"] = False
    dry_run: Annotated[bool, "show the runs, then stop"] = False
    file: Annotated[
        tuple[str, ...],
        "a Python file that the table names, which is imported only if it is named here, too (repeatable)",
    ] = ()

    @property
    def command(self) -> str:
        """The command for this result, without options that change no number."""
        words = ["unskew", "reproduce", self.table]
        for name, values in (
            ("rows", self.rows),
            ("methods", self.methods),
            ("add", self.add),
            ("file", self.file),
        ):
            words += [word for value in values for word in (f"--{name}", value)]
        words += ["--seeds", str(self.seeds)]
        if self.scale != 1:
            words += ["--scale", f"{self.scale:g}"]
        if self.page:
            words += ["--page", self.page]
        return shlex.join(words)
