"""`unskew report`: write the page of one run, of several runs, or of a comparison."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from unskew.errors import printable


def command(
    runs: Annotated[
        list[Path],
        typer.Argument(help="folders of runs, of a comparison, or of kept results of `unskew reproduce`"),
    ],
    out: Annotated[
        Path | None, typer.Option(help="where to write the page; report.html in the first folder if left out")
    ] = None,
) -> None:
    """Write one self-contained HTML page; for stored results of reproduce, one page each and an index."""
    from unskew.experiments import pages
    from unskew.report import page

    trained = any((runs[0] / name).exists() for name in ("config.yaml", "compare.yaml"))
    if len(runs) == 1 and not trained and (results := pages.results_in(runs[0])):
        folder = out or runs[0]
        folder.mkdir(parents=True, exist_ok=True)
        for result in results:
            pages.write_pages(folder, result)
        print(pages.write_index(folder, results))
        return
    print(page.write_report(runs[0] if len(runs) == 1 else runs, out or runs[0] / "report.html", say=warn))


def warn(text: str) -> None:
    """Print a warning to a stream that does not mix with a command's output."""
    print(f"Warning: {printable(text)}", file=sys.stderr)
