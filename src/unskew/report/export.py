"""A report's pictures and table as files for a paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from unskew import disk
from unskew.errors import UsageError, excerpt
from unskew.report import headline, sections, tables
from unskew.report.context import context_of
from unskew.report.read import asked_target, read_runs
from unskew.report.standalone import pictures

MOST_LABEL = 100
"""Characters of what is said of a file."""


FORMATS = ("svg", "pdf")


def write_figures(
    runs: Sequence[Path | str],
    out: Path | str,
    format: Literal["svg", "pdf"] = "svg",
    columns: int = 2,
    font: str = "Helvetica, Arial, sans-serif",
    say: Callable[[str], None] = lambda _: None,
) -> list[tuple[Path, str]]:
    """Write the pictures of these runs' report, and its table as `table.tex` and `table.csv`, to a folder.

    Returns every file with what it shows. say: is told of runs whose records have been changed. Raises StateError as `write_report` does; UsageError (E157) for PDF without CairoSVG,
    E109 for another format, E161 where nothing can be written.
    """
    if format not in FORMATS:
        raise UsageError("E109", f"format must be {' or '.join(map(repr, FORMATS))}; got {excerpt(format)}.")
    convert, out = _to_pdf() if format == "pdf" else str.encode, Path(out)
    context = context_of(read_runs([Path(p) for p in runs]), "figures", asked_target(runs))
    for sentence in headline.altered(context.runs):
        say(sentence)
    drawn = pictures(sections.build(context), columns)
    written = [(out / "table.tex", "the table for LaTeX, with booktabs"), (out / "table.csv", "all its numbers")]
    disk.write_output(written[0][0], tables.latex(context.summaries))
    disk.write_output(written[1][0], tables.as_csv(context.summaries))
    for picture in drawn:
        path = out / f"{picture.name}.{format}"
        disk.write_output(path, convert(picture.text(columns, font)))
        written.append((path, picture.label[:MOST_LABEL]))
    return written


def _to_pdf() -> Callable[[str], bytes]:
    """A function from SVG text to the bytes of a PDF file."""
    try:
        import cairosvg  # pyright: ignore[reportMissingImports]
    except (ImportError, OSError) as error:  # OSError: the library is there, and Cairo itself is not
        text = "PDF needs CairoSVG and Cairo: pip install 'unskew[figures]', and your system's package libcairo2"
        raise UsageError("E157", f"{text} ({error}); --format svg needs nothing.") from error
    return lambda text: cairosvg.svg2pdf(bytestring=text.encode())  # type: ignore[no-any-return]
