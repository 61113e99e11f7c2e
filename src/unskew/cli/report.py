"""`unskew report`: the page of one run, of several, or of a comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    runs: Annotated[
        list[Path], typer.Argument(help="folders of runs, one of a comparison, or one of kept reproductions")
    ],
    out: Annotated[
        Path | None, typer.Option(help="where to write the page; default: report.html in the first folder")
    ] = None,
) -> None:
    """Write one self-contained HTML page; of kept reproductions one each, and an index."""
    from unskew.experiments import kept
    from unskew.report import page

    trained = any((runs[0] / name).exists() for name in ("config.yaml", "compare.yaml"))
    if len(runs) == 1 and not trained and (found := kept.results(runs[0])):
        target = out or runs[0]
        target.mkdir(parents=True, exist_ok=True)
        for result in found:
            kept.pages(target, result)
        print(kept.index(target, found))
        return

    target = out or runs[0] / "report.html"
    print(page.write_report(runs[0] if len(runs) == 1 else runs, target))
