"""`unskew report`: the page of one run, of several, or of a comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    runs: Annotated[list[Path], typer.Argument(help="folders of runs, or one of a comparison")],
    out: Annotated[
        Path | None, typer.Option(help="where to write the page; default: report.html in the first folder")
    ] = None,
) -> None:
    """Write one self-contained HTML page."""
    from unskew.report import page

    target = out or runs[0] / "report.html"
    print(page.write_report(runs[0] if len(runs) == 1 else runs, target))
