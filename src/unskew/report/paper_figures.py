"""The pictures and the table of a report as files for papers and slides.

On a page, pictures have classes, and the style sheet defines their look on light and dark screens. A file
contains the sheet's rules for pictures with the colours of paper in place of the sheet's variables, because
drawing programs do not know variables.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path

from unskew.report import page, sections
from unskew.report.analysis import results_table
from unskew.report.analysis.runs import read_runs, requested_target
from unskew.report.figures.svg import escape_xml
from unskew.report.sections import Section, context_of, render
from unskew.system import disk

WIDTH_MM = 178.0
"""The width of a picture in a file: two columns of a journal."""
FONT = "Helvetica, Arial, sans-serif"
MOST_LABEL = 100
"""The most characters of a file's description."""
_SVG = re.compile(r'<svg viewBox="0 0 (\d+) (\d+)".*? aria-label="([^"]*)".*?</svg>', re.DOTALL)
_RULE = re.compile(r"([^{}]+)\{([^{}]*)\}")


def pictures(sections: Iterable[Section], font: str = FONT) -> dict[str, tuple[str, str]]:
    """By name of a file without ending: (text of the SVG file, description) of every picture of the
    sections."""
    drawn = {}
    for section in sections:
        matches = list(_SVG.finditer(section.html))
        for k, match in enumerate(matches, 1):
            name = section.anchor + f"-{k}" * (len(matches) > 1)
            drawn[name] = _file(match, font), html.unescape(match.group(3))
    return drawn


def _file(picture: re.Match[str], font: str) -> str:
    """The SVG file of a picture on the page."""
    width, height = map(float, picture.group(1, 2))
    source = re.sub(r" data-\w+='[^']*'", "", picture.group())
    hues = set(re.findall(r"\b(?:m\d|ref|q\d)\b", " ".join(re.findall(r'class="([^"]*)"', source))))
    head, _, rest = source.partition(">")
    size = f'width="{WIDTH_MM:g}mm" height="{WIDTH_MM * height / width:.1f}mm"'
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{escape_xml(font)}"'
        f"{head.removeprefix('<svg')}><title>{picture.group(3)}</title><style>{_style(hues)}</style>{rest}\n"
    )


def _style(hues: Iterable[str]) -> str:
    """The rules of the page's sheet for pictures. hues: the classes of colours in the picture, of which each
    has a copy of every rule with the colour of a method."""
    rules, colours = _sheet()
    lines = []
    for selector, body in rules:
        if "var(--m)" not in body:
            lines.append(f"{selector}{{{_resolved(body, colours)}}}")
            continue
        for hue in sorted(hues):
            colour = colours["--map" if hue[0] == "q" else "--cref" if hue == "ref" else f"--c{hue[1:]}"]
            own = _resolved(body.replace("var(--m)", colour), colours)
            lines.append(f"{selector}.{hue},.{hue} {selector}{{{own}}}")
    return "\n".join(lines)


@cache
def _sheet() -> tuple[list[tuple[str, str]], dict[str, str]]:
    """((selector, properties) of every rule for parts of pictures, the sheet's variables on paper)."""
    sheet = re.sub(r"@media[^{]*\{(?:[^{}]*\{[^{}]*\})*\s*\}", "", str(render("style.css.j2")))
    colours, rules = dict[str, str](), list[tuple[str, str]]()
    for selectors, body in _RULE.findall(sheet):
        if selectors.strip() == ":root":
            colours |= dict(re.findall(r"(--[\w-]+):\s*([^;]+);", body))
        if "paint-order" in body:  # the halo of a text, which other programs would draw over it
            continue
        properties = re.sub(r"font: (\S+) [^;]*", r"font-size: \1", body).strip()  # the family is the file's
        names = (selector.strip() for selector in selectors.split(","))
        rules += [(name.removeprefix("svg "), properties) for name in names if name.startswith("svg ")]
    return rules, colours | {"--card": "#ffffff"}


def _resolved(body: str, colours: dict[str, str]) -> str:
    return re.sub(r"var\((--[\w-]+)\)", lambda match: colours.get(match.group(1), "#000000"), body)


def write_figures(
    runs: Sequence[Path | str],
    out: Path | str | None = None,
    font: str = FONT,
    say: Callable[[str], None] = lambda _: None,
) -> list[tuple[Path, str]]:
    """Write the pictures of these runs' report, and its table as `table.tex` and `table.csv`, to a folder.

    out: the folder; default: `figures` in the first folder of runs.
    Returns every file with its description. say: receives a sentence for each run with changed records.
    Raises StateError as `write_report` does, and UsageError (E161) if the folder cannot be written.
    """
    out = Path(out).expanduser() if out else disk.folder_below(Path(runs[0]) / "figures")
    context = context_of(read_runs([Path(p) for p in runs]), "figures", requested_target(runs))
    for sentence in page.altered_records(context.runs):
        say(sentence)
    drawn = pictures(sections.build(context), font)
    written = [
        (out / "table.tex", "the table for LaTeX, with booktabs"),
        (out / "table.csv", "all its numbers"),
    ]
    disk.write_output(written[0][0], results_table.latex(context.summaries))
    disk.write_output(written[1][0], results_table.as_csv(context.summaries))
    for name, (text, label) in drawn.items():
        path = out / f"{name}.svg"
        disk.write_output(path, text)
        written.append((path, label[:MOST_LABEL]))
    return written
