"""`unskew data`: check how unskew reads data, and build data sets from their original archives."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Look at data before training on them; make data sets from their original archives.",
    no_args_is_help=True,
)


@app.callback()
def group() -> None:
    """Look at data before training on them; make data sets from their original archives."""


@app.command("check")
def check(
    data: Annotated[
        str, typer.Argument(help="a path, or a data set by name; arguments in brackets: scans/(size=128)")
    ],
    label: Annotated[str, typer.Option(help="in a table: the column of labels")] = "",
    site: Annotated[str, typer.Option(help="in a table: the column that says where a row is from")] = "",
    target: Annotated[
        str,
        typer.Option(
            help=(
                "the number to predict: a table's column, or what y is called; or several labels, joined by"
                " commas"
            )
        ),
    ] = "",
    group: Annotated[
        str,
        typer.Option(
            help="samples that no split separates: a column, such as patient, or a pattern of files"
        ),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Print how unskew reads the data: samples, values, classes, sites, and what it would change or leave
    out."""
    from unskew.cli.screen import json_of
    from unskew.data import read
    from unskew.data.data_overview import facts, table
    from unskew.data.standardisation import standardise

    roles = (("label", label), ("site", site), ("target", target), ("group", group))
    dataset = read(data, **{name: value for name, value in roles if value})
    scaled = standardise(dataset, always=False)
    if scaled.intake and dataset.intake and scaled.intake != dataset.intake:
        dataset = dataset.with_notes(*scaled.intake.notes)
    if as_json:
        print(json_of(facts(dataset)))
        return
    print(table(dataset))


@app.command("get")
def get(
    name: Annotated[
        str, typer.Argument(help="the data set: cifar10, femnist, pacs, ...; a wrong name lists all")
    ],
    origin: Annotated[
        Path | None, typer.Option("--from", help="the archive or folder that you have downloaded")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="the folder to write to [default: UNSKEW_DATA, or data]")
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(min=8, max=1024, help="side of photographs, which are resized, in pixels [default: 64]"),
    ] = None,
) -> None:
    """Build a data set of the field from its original archive: NAME.npz, and a card with licence, digests and
    counts.

    Nothing is downloaded, nothing is unpacked to a disk, and nothing is unpickled unsafely.
    """
    from unskew.data.downloads.get import get as made_from

    folder = out or Path(os.environ.get("UNSKEW_DATA") or "data")
    got = made_from(name, origin, folder, size)
    for path in got.files:
        print(path)
    for remark in got.remarks:
        print(f"note  {remark}")
    named = os.environ.get("UNSKEW_DATA") and Path(os.environ["UNSKEW_DATA"]).resolve() == folder.resolve()
    print(f"next  unskew data check {name if named else got.files[0]}")
