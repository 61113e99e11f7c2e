"""`unskew figures`: write the figures of a report as files for a paper."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Le

from unskew.cli.options import with_options
from unskew.cli.report import warn


@dataclass(frozen=True)
class Arguments:
    """The options of the command."""

    runs: Annotated[tuple[str, ...], "folders of runs, or of a comparison"]
    out: Annotated[Path | None, "the folder to write to; figures/ in the first folder if left out"] = None
    format: Annotated[
        Literal["svg", "pdf"], "svg, or pdf, which needs CairoSVG: pip install 'unskew[figures]'"
    ] = "svg"
    columns: Annotated[
        int, Ge(1), Le(2), "draw for one column of a journal's page (85 mm), or for two (178 mm)"
    ] = 2
    font: Annotated[str, "the font of all text, such as 'Times New Roman'"] = "Helvetica, Arial, sans-serif"


@with_options(Arguments)
def command(arguments: Arguments) -> None:
    """Write every figure of a report as a vector file, and its table as LaTeX and CSV, for papers and
    slides."""
    from unskew.report import paper_figures
    from unskew.system import disk

    out = arguments.out or disk.folder_below(Path(arguments.runs[0]) / "figures")
    form = (arguments.format, arguments.columns, arguments.font)
    for path, label in paper_figures.write_figures(arguments.runs, out, *form, say=warn):
        print(f"{path}  {label}")
