"""The pictures and the table of a report as files for papers and slides.

On a page, pictures have classes, and the style sheet defines their look on light and dark screens. Drawing
programs and typesetting cannot use such a sheet, so each shape in a file has the attributes that the sheet
defines for paper.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

from unskew.errors import MissingPackage, UsageError, excerpt
from unskew.report import page, sections
from unskew.report.analysis import results_table
from unskew.report.analysis.runs import read_runs, requested_target
from unskew.report.sections import Section, context_of, render
from unskew.system import disk

NAMESPACE = "http://www.w3.org/2000/svg"
WIDTHS = {1: 85.0, 2: 178.0}
"""Widths in mm of a picture over one and over two columns of a journal."""
SIZES = {1: "narrow", 2: "wide"}
IGNORED_STYLES = {
    "display",
    "width",
    "height",
    "overflow",
    "outline-offset",
    "border-radius",
    "font-variant-numeric",
}
IGNORED_STYLES |= {"pointer-events", "max-width", "margin", "paint-order"}
"""Properties of the sheet without a meaning in a file, or unknown to some programs."""
_SVG = re.compile(r'<svg class="(narrow|wide)".*?</svg>', re.DOTALL)
_RULE = re.compile(r"([^{}]+)\{([^{}]*)\}")


@dataclass(frozen=True)
class Picture:
    """A picture. name: of its file without ending. label: its description. source: its markup on the page."""

    name: str
    label: str
    source: str

    def text(self, columns: int = 2, font: str = "Helvetica, Arial, sans-serif") -> str:
        """The text of the file for this number of columns."""
        root = ElementTree.fromstring(self.source)
        _dress(root, "", Style.of_page())
        left, top, width, height = map(float, root.get("viewBox", "0 0 1 1").split())
        wide = WIDTHS[columns]
        facts = {"xmlns": NAMESPACE, "width": f"{wide:g}mm", "height": f"{wide * height / width:.1f}mm"}
        facts |= {"viewBox": f"{left:g} {top:g} {width:g} {height:g}", "font-family": font}
        root.attrib.clear()
        root.attrib.update(facts)
        title = ElementTree.Element("title")
        title.text = self.label
        root.insert(0, title)
        return (
            '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"
        )


def pictures(sections: Sequence[Section], columns: int = 2) -> list[Picture]:
    """The pictures of these sections, named after them, for this number of columns."""
    drawn = []
    for section in sections:
        sources = [m.group() for m in _SVG.finditer(section.html) if m.group(1) == SIZES[columns]]
        for k, source in enumerate(sources, 1):
            label = ElementTree.fromstring(source).get("aria-label", "")
            drawn.append(Picture(section.anchor + f"-{k}" * (len(sources) > 1), label, source))
    return drawn


@dataclass(frozen=True)
class Rule:
    """A rule of the sheet for elements with this tag ("" for any) and all these classes."""

    tag: str
    classes: frozenset[str]
    says: Mapping[str, str]

    @property
    def weight(self) -> tuple[int, int]:
        """The order in which rules apply, as in CSS: the number of classes, then whether there is a tag."""
        return len(self.classes), bool(self.tag)

    def fits(self, tag: str, classes: set[str]) -> bool:
        """Whether the rule applies to an element with this tag and these classes."""
        return self.tag in ("", tag) and self.classes <= classes


@dataclass(frozen=True)
class Style:
    """The style of pictures. rules: by rising precedence. colours: the sheet's variables on paper."""

    rules: tuple[Rule, ...]
    colours: Mapping[str, str]

    @staticmethod
    @cache
    def of_page() -> Style:
        """The style of pictures in the page's style sheet."""
        sheet = str(render("style.css.j2"))
        usual = re.sub(r"@media[^{]*\{(?:[^{}]*\{[^{}]*\})*\s*\}", "", sheet)
        colours, rules = dict[str, str](), list[Rule]()
        for selectors, body in _RULE.findall(usual):
            says = dict(_declarations(body))
            if selectors.strip() == ":root":
                colours |= says
            for selector in selectors.split(","):
                rules += _rule(selector.strip(), says)
        colours["--card"] = "#ffffff"
        return Style(tuple(sorted(rules, key=lambda rule: rule.weight)), colours)

    def of(self, tag: str, classes: set[str]) -> dict[str, str]:
        """All properties of an element."""
        says = dict[str, str]()
        for rule in self.rules:
            if rule.fits(tag, classes):
                says |= rule.says
        return says


def _rule(selector: str, says: Mapping[str, str]) -> Iterator[Rule]:
    """The rule of a selector of the forms `svg TAG.CLASS` and `.CLASS`, which the sheet uses for pictures."""
    inside = re.fullmatch(r"svg (\w*)((?:\.[\w-]+)*)", selector)
    hue = re.fullmatch(r"()((?:\.(?:m\d|ref)))", selector)
    if match := inside or hue:
        yield Rule(match.group(1), frozenset(filter(None, match.group(2).split("."))), says)


def _declarations(body: str) -> Iterator[tuple[str, str]]:
    for part in filter(None, map(str.strip, body.split(";"))):
        name, _, value = part.partition(":")
        if name.strip() == "font":  # `12px family, family`: the family is the file's
            yield "font-size", value.split()[0]
        else:
            yield name.strip(), value.strip()


def _dress(element: ElementTree.Element, hue: str, style: Style) -> None:
    """Write the style of an element and of its children into attributes. hue: the colour of its method."""
    says = style.of(element.tag, set(element.get("class", "").split()))
    hue = _resolve(says.get("--m", hue), hue, style)
    for name in [n for n in element.attrib if n in ("class", "role", "aria-label") or n.startswith("data-")]:
        del element.attrib[name]
    for name, value in says.items():
        if name not in IGNORED_STYLES and not name.startswith("--"):
            element.set(name, _resolve(value, hue, style))
    for child in list(element):
        if child.tag == "title":  # a tooltip
            element.remove(child)
            continue
        _dress(child, hue, style)
    for place, child in reversed(list(enumerate(element))):
        if child.tag == "text" and child.get("stroke"):
            element.insert(place, _outline(child))


def _outline(text: ElementTree.Element) -> ElementTree.Element:
    """The outline of a text as an element to draw below it; the text itself loses its outline."""
    below = copy.deepcopy(text)
    for part in below.iter():
        part.set("fill", text.get("stroke", "none"))
    for part in text.iter():
        for name in [n for n in part.attrib if n.startswith("stroke")]:
            del part.attrib[name]
    return below


def _resolve(value: str, hue: str, style: Style) -> str:
    """The value with the sheet's variables replaced; --m is the hue."""
    while match := re.search(r"var\((--[\w-]+)\)", value):
        name = match.group(1)
        value = value.replace(match.group(), hue if name == "--m" else style.colours.get(name, "#000000"))
    return value


MOST_LABEL = 100
"""The most characters of a file's description."""
FORMATS = ("svg", "pdf")


def write_figures(
    runs: Sequence[Path | str],
    out: Path | str | None = None,
    format: Literal["svg", "pdf"] = "svg",
    columns: int = 2,
    font: str = "Helvetica, Arial, sans-serif",
    say: Callable[[str], None] = lambda _: None,
) -> list[tuple[Path, str]]:
    """Write the pictures of these runs' report, and its table as `table.tex` and `table.csv`, to a folder.

    out: the folder; default: `figures` in the first folder of runs.
    Returns every file with its description. say: receives a sentence for each run with changed records.
    Raises StateError as `write_report` does; UsageError: E133 for PDF without CairoSVG, E109 for another
    format, E161 if the folder cannot be written.
    """
    if format not in FORMATS:
        raise UsageError("E109", f"format must be {' or '.join(map(repr, FORMATS))}; got {excerpt(format)}.")
    convert = _to_pdf() if format == "pdf" else str.encode
    out = Path(out).expanduser() if out else disk.folder_below(Path(runs[0]) / "figures")
    context = context_of(read_runs([Path(p) for p in runs]), "figures", requested_target(runs))
    for sentence in page.altered_records(context.runs):
        say(sentence)
    drawn = pictures(sections.build(context), columns)
    written = [
        (out / "table.tex", "the table for LaTeX, with booktabs"),
        (out / "table.csv", "all its numbers"),
    ]
    disk.write_output(written[0][0], results_table.latex(context.summaries))
    disk.write_output(written[1][0], results_table.as_csv(context.summaries))
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
        instead = f"Cairo is your system's package libcairo2 ({error}), and --format svg needs neither"
        raise MissingPackage("PDF", "CairoSVG with Cairo", "figures", instead) from error
    return lambda text: cairosvg.svg2pdf(bytestring=text.encode())  # type: ignore[no-any-return]
