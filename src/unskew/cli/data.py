"""`unskew data check`: what is understood of data, without training on them."""

from __future__ import annotations

import json
from typing import Annotated

import typer

app = typer.Typer(help="Look at data before training on them.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Look at data before training on them."""


@app.command("check")
def check(
    data: Annotated[str, typer.Argument(help="a path, or a data set by name; arguments in brackets: scans/(size=128)")],
    label: Annotated[str, typer.Option(help="in a table: the column of labels")] = "",
    site: Annotated[str, typer.Option(help="in a table: the column that says where a row is from")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Print what is understood of data: samples, values, classes, sites, and what would be changed or left out."""
    from unskew.data import read
    from unskew.data.intake.scale import standardised
    from unskew.data.intake.understood import facts, table

    dataset = read(data, **{name: value for name, value in (("label", label), ("site", site)) if value})
    scaled = standardised(dataset, always=False)
    if scaled.intake and dataset.intake and scaled.intake != dataset.intake:
        dataset = dataset.noted(*scaled.intake.notes)
    if as_json:
        print(json.dumps(facts(dataset)))
        return
    print(table(dataset))
