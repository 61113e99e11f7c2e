"""The pages of reproductions: each result as JSON, Markdown, HTML, CSV and LaTeX, and an index of a folder.

Pages are made from the stored result alone, so they can be made again at any time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
from markupsafe import Markup

from unskew.errors import DataError, UsageError, excerpt
from unskew.experiments import tables, wording
from unskew.experiments.result import REQUIRED, TableResult
from unskew.report.figures import svg
from unskew.report.figures.curves import curves, series
from unskew.report.figures.method_rows import Pair, paper_scores
from unskew.report.figures.svg import Line, mean_line
from unskew.report.sections import both_widths, render
from unskew.system import disk


def markdown_page(result: TableResult) -> str:
    """The page of one result."""
    paper, log_note = bool(result["paper"]), tables.log_note(result)
    log = f"## Beside the published log\n\n{_table(*tables.log_table(result))}\n\n{log_note}"
    return _page(
        f"# {result['title']}",
        f"{result['paper']}." if paper else "",
        f"```sh\n{result['command']}\n```",
        f"Made with unskew {result['unskew']} on {result['date']}: {result['machine']}; "
        f"{result['hours']:.2f} hours of training in all runs.{wording.makers(result)}",
        _table(*tables.table(result)),
        wording.note(result),
        _claims(result),
        log if log_note else "",
        _privacy(result),
        _list("What differs" if paper else "Notes", wording.notes(result)),
        _list("What the paper leaves open, and our choice" if paper else "Choices", result["open"]),
        f"## What we found\n\n{result['finding']}" if result["finding"] else "",
    )


def markdown_index(results: Sequence[TableResult], folder: str, written: Mapping[str, str]) -> str:
    """The page that links to the others. folder: their folder, for the command on the page.

    written: the titles, by file name, of handwritten pages in that folder.
    """
    title, contents = wording.index_title(results)
    lines = [
        [
            f"[{name}]({result['page']}.md)",
            wording.rows(result),
            str(result["seeds"]),
            wording.rounds(result),
            wording.summary(result),
            f"{result['date']}, {result['unskew']}",
        ]
        for result, name in zip(results, wording.titles(results))
    ]
    links = ", ".join(f"[{title}]({name})" for name, title in written.items())
    return _page(
        f"# {title}",
        f"Each page has the command that made it, {contents}. The `.json` beside it has every number and"
        f" curve. `unskew report {folder}` makes HTML pages from these files.",
        f"Read first: {links}." if links else "",
        _table(["table", "rows", "seeds", "rounds", "claims", "when"], lines),
    )


def _page(*sections: str) -> str:
    return "\n\n".join(section for section in sections if section) + "\n"


def _claims(result: TableResult) -> str:
    if not result["claims"]:
        return ""
    points = " in points" if result["unit"] == "percent" else ""
    head = ["claim", "here", f"margin{points} by row or step (95 % interval)"]
    if result["paper"]:
        head = ["the paper says", "here", f"{head[2]} [the paper's]"]
    lines = [
        [claim["text"], wording.verdict(claim), wording.margins(claim, result["unit"])]
        for claim in result["claims"]
        if claim["verdict"] != "not run"
    ]
    absent = [claim["text"] for claim in result["claims"] if claim["verdict"] == "not run"]
    not_run = f"Not run: {'; '.join(map(_cell, absent))}." if absent else ""
    parts = ["## Claims", _table(head, lines) if lines else "", not_run, wording.rules(result)]
    return "\n\n".join(filter(None, parts))


def _privacy(result: TableResult) -> str:
    lines = [
        [row, method, release, epsilon, reading]
        for row, method, release, readings in wording.privacy(result)
        for epsilon, reading in readings
    ]
    if not lines:
        return ""
    table = _table(["row", "method", "release", "epsilon", "reading"], lines)
    return f"## Differential privacy of what is shared\n\n{wording.EPSILON}\n\n{table}"


def _list(title: str, items: Sequence[str]) -> str:
    return f"## {title}\n\n" + "\n".join(f"- {item}" for item in items) if items else ""


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
        *(f"| {' | '.join(map(_cell, line))} |" for line in lines),
    ]
    return "\n".join(rows)


def _cell(text: str) -> str:
    """The text in one line, with bars escaped."""
    return " ".join(text.split()).replace("|", "\\|")


Colours = Mapping[str, str]
"""The CSS classes of a colour, by method."""


def html_page(result: TableResult) -> str:
    """One self-contained page."""
    methods = list(dict.fromkeys(entry["method"] for entry in result["entries"]))
    colours = svg.colours(methods, [])
    head, lines = tables.table(result)
    return render(
        "experiment.html.j2",
        result=result,
        summary=wording.summary(result),
        cards=_cards(result),
        head=head,
        grey=head.index("paper") if result["scale"] != 1 and "paper" in head else -1,
        log=tables.log_table(result),
        log_note=tables.log_note(result),
        lines=[(line, colours[line[1]], i and line[0] == lines[i - 1][0]) for i, line in enumerate(lines)],
        note=wording.note(result),
        claims=[(c, wording.verdict(c), wording.margins(c, result["unit"])) for c in result["claims"]],
        judged=wording.rules(result),
        published=wording.has_paper_numbers(result),
        privacy=wording.privacy(result),
        epsilon=wording.EPSILON,
        sweeps=_sweeps(result, colours),
        rows=_rows(result, colours),
        latex=tables.latex(result),
        csv=tables.as_csv(result),
        notes=wording.notes(result),
        makers=wording.makers(result),
    )


def html_index(results: Sequence[TableResult]) -> str:
    """The page that links to the others in the same folder."""
    title, contents = wording.index_title(results)
    lines = [
        (r, name, wording.rows(r), wording.rounds(r), wording.summary(r), wording.claim_counts(r))
        for r, name in zip(results, wording.titles(results))
    ]
    return render("experiments.html.j2", results=lines, title=title, contents=contents)


def _cards(result: TableResult) -> list[tuple[str, str]]:
    rows, methods = ({entry[name] for entry in result["entries"]} for name in ("row", "method"))
    hours, seeds = result["hours"], result["seeds"]
    cards = [
        (str(len(rows)), "row run" if len(rows) == 1 else "rows run"),
        (str(len(methods)), "method" if len(methods) == 1 else "methods"),
        (str(seeds), "seed" if seeds == 1 else "seeds"),
        (f"{hours:.1f} h" if hours >= 1 else f"{60 * hours:.0f} min", "of training"),
    ]
    if result["scale"] != 1:
        cards.append((f"{result['scale']:g}", f"of the {wording.source(result)}'s rounds"))
    return [*cards, (result["date"], f"unskew {result['unskew']}")]


def _rows(result: TableResult, colours: Colours) -> list[tuple[str, str, str, Markup, Markup]]:
    """(row, note, quantity, picture of the paper's numbers and ours, picture of the curves) by row."""
    rows = []
    for row in dict.fromkeys(entry["row"] for entry in result["entries"]):
        note, quantity = result["rows"][row]["note"], wording.quantity(result, row)
        pictures = _paper_comparison(result, row, colours), _curves(result, row, colours)
        rows.append((row, note, quantity, *pictures))
    return rows


def _paper_comparison(result: TableResult, row: str, colours: Colours) -> Markup:
    """A picture of the paper's numbers and ours; empty if the paper has no number for the row."""
    equal = result["scale"] == 1
    pairs = []
    for e in result["entries"]:
        if e["row"] == row:
            paper, mean, std = map(_nan, (e["paper"], e["ours"]["mean"], e["ours"]["std"]))
            pairs.append(Pair(e["method"], colours[e["method"]], paper, mean, std, equal))
    if all(math.isnan(pair.paper) for pair in pairs):
        return Markup()
    unit = ", %" if result["unit"] == "percent" else ""
    ring = "the paper" if equal else "the paper after all rounds"
    title = f"{wording.quantity(result, row)}{unit}; ring: {ring}, dot: here"
    return both_widths(partial(paper_scores, pairs, title))


def _curves(result: TableResult, row: str, colours: Colours) -> Markup:
    """Means and standard deviations over seeds at their common rounds, and the published log."""
    if result["rows"][row].get("attack"):
        return Markup()  # one value, after the last round
    lines = []
    for method, seeds in result["curves"].get(row, {}).items():
        columns = [np.array(points, dtype=float).reshape(-1, 2).T for points in seeds]
        scaled = [(rounds, values / _divisor(result)) for rounds, values in columns]
        if method in colours and (line := mean_line(method, colours[method], scaled)):
            lines.append(line)
    for where, method, log, _ in tables.log_pairs(result):
        if where == row:
            x, y = (np.array(values, dtype=float) for values in zip(*log.items()))
            lines.append(Line(f"{method}, log", "ref", x, y / _divisor(result), 0 * y, dashed=True))
    return _axis(result, lines, ("round", wording.quantity(result)))


def _sweeps(result: TableResult, colours: Colours) -> list[tuple[str, str, Markup]]:
    """(panel, quantity, picture) of the score against the experiment's axis."""
    panels: dict[str, dict[str, list[tuple[float, float, float]]]] = {}
    quantities: dict[str, str] = {}
    for entry in result["entries"]:
        row, mean = result["rows"][entry["row"]], entry["ours"]["mean"]
        if row["x"] is not None and mean is not None:
            points = panels.setdefault(row["panel"], {}).setdefault(entry["method"], [])
            points.append((float(row["x"]), mean, entry["ours"]["std"] or 0.0))
            quantities[row["panel"]] = wording.quantity(result, entry["row"])
    pictures = []
    for panel, methods in panels.items():
        lines = []
        for method, points in methods.items():
            x, y, band = (np.array(values, dtype=float) for values in zip(*sorted(points)))
            lines.append(Line(method, colours[method], x, y / _divisor(result), band / _divisor(result)))
        if any(len(line.x) > 1 for line in lines):
            measured = quantities[panel]
            pictures.append((panel, measured, _axis(result, lines, (result["axis"], measured))))
    return pictures


def _divisor(result: TableResult) -> int:
    """The divisor from stored values to drawn ones, which are shares and not percent."""
    return 100 if result["unit"] == "percent" else 1


def _axis(result: TableResult, lines: Sequence[Line], labels: tuple[str, str]) -> Markup:
    """A picture of lines. labels: of the x axis and of the y axis."""
    x, y = labels
    if not lines:
        return Markup()
    if result["unit"] == "percent":
        unit = {} if x == "round" else {"unit": lambda v: f"{v:g}"}
        return both_widths(partial(curves, lines, x, f"{y}, %", **unit))
    return both_widths(partial(series, lines, y, x_label=x))


def _nan(value: float | None) -> float:
    return math.nan if value is None else value


def write_result(folder: Path, result: TableResult) -> Path:
    """Write a result as .json, .md, .html, .csv and .tex, and the folder's index; return the HTML path."""
    folder.mkdir(parents=True, exist_ok=True)
    disk.replace(folder / f"{result['page']}.json", _as_json(result))
    page = write_pages(folder, result)
    write_index(folder, results_in(folder))
    return page


def write_documentation(folder: Path, result: TableResult) -> None:
    """Write a result as .json and .md, and a README.md that links to all results in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    disk.replace(folder / f"{result['page']}.json", _as_json(result))
    disk.replace(folder / f"{result['page']}.md", markdown_page(result))
    index = markdown_index(results_in(folder), folder.as_posix(), other_pages(folder))
    disk.replace(folder / "README.md", index)


def other_pages(folder: Path) -> dict[str, str]:
    """The titles of handwritten pages in a folder, by file name."""
    pages = [page for page in sorted(folder.glob("*.md")) if not page.with_suffix(".json").exists()]
    return {
        page.name: page.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
        for page in pages
        if page.name != "README.md"
    }


def write_pages(folder: Path, result: TableResult) -> Path:
    """Write the pages of a result: .md, .csv, .tex and .html; return the HTML path."""
    writers = {"md": markdown_page, "csv": tables.as_csv, "tex": tables.latex, "html": html_page}
    for ending, write in writers.items():
        disk.replace(folder / f"{result['page']}.{ending}", write(result))
    return folder / f"{result['page']}.html"


def write_index(folder: Path, results: Sequence[TableResult]) -> Path:
    """Write `index.html`, which links to the pages in its folder; return its path."""
    disk.replace(folder / "index.html", html_index(results))
    return folder / "index.html"


def results_in(folder: Path) -> list[TableResult]:
    """Every result in a folder, ordered by name. Raises DataError (E401) for a damaged file, and for a page
    outside the folder, since a file may come from a stranger."""
    return [result for path in sorted(folder.glob("*.json")) if (result := read_result(path))]


def read_result(path: Path) -> TableResult | None:
    """The result in a JSON file; None for another one. Raises as `results_in` does."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError("E401", f"{path} is not a result of `unskew reproduce`: {error}.") from error
    if not (isinstance(content, dict) and content.keys() >= REQUIRED):
        return None
    try:
        disk.check_name(str(content["page"]))
    except UsageError:
        text = f"{path} names its page {excerpt(content['page'])}, which can be no file in this folder"
        raise DataError("E401", f"{text}; name it as `unskew reproduce --page` would.") from None
    return cast(TableResult, content)


def _as_json(result: TableResult) -> str:
    """The result as JSON with one line for each entry, claim and curve."""
    parts = []
    for key, value in result.items():
        if key in ("entries", "claims") and value:
            lines = ",\n".join(f"  {json.dumps(item)}" for item in value)  # type: ignore[union-attr]
            parts.append(f' "{key}": [\n{lines}\n ]')
        elif key != "curves":
            text = json.dumps(value, indent=1).replace("\n", "\n ")
            parts.append(f" {json.dumps(key)}: {text}")
    rows = []
    for row, methods in result["curves"].items():
        lines = (f"   {json.dumps(m)}: {json.dumps(s, separators=(',', ':'))}" for m, s in methods.items())
        rows.append(f"  {json.dumps(row)}: {{\n" + ",\n".join(lines) + "\n  }")
    parts.append(' "curves": {\n' + ",\n".join(rows) + "\n }")
    return "{\n" + ",\n".join(parts) + "\n}\n"
