"""`unskew report`: the page of one run, of several runs, or of a comparison."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from unskew.errors import printable


def report(
    runs: Annotated[tuple[Path, ...], "folders of runs, or of a comparison"],
    out: Annotated[
        Path | None, "where to write the page; report.html in the first folder if left out"
    ] = None,
) -> None:
    """Write one self-contained HTML page."""
    from unskew.report import page

    print(page.write_report(runs[0] if len(runs) == 1 else runs, out or runs[0] / "report.html", say=_warn))


def _warn(text: str) -> None:
    """Print a warning to a stream that does not mix with a command's output."""
    print(f"Warning: {printable(text)}", file=sys.stderr)
