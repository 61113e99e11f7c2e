"""The pages of reproductions: each result as JSON, Markdown, HTML, CSV and LaTeX, and an index of a folder.

Pages are made from the stored result alone, so they can be made again at any time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from unskew.errors import DataError, UsageError, excerpt
from unskew.experiments import tables, wording
from unskew.experiments.result import REQUIRED, TableResult
from unskew.experiments.tables import table
from unskew.report.figures import svg
from unskew.report.figures.curves import curves, series
from unskew.report.figures.rows import Pair, paper_scores
from unskew.report.figures.svg import Line, mean_line
from unskew.report.sections import both_widths, render
from unskew.system import disk


def markdown_page(result: TableResult) -> str:
    """The page of one result."""
    head, lines = table(result)
    sections = [
        f"# {result['title']}",
        f"{result['paper']}." if result["paper"] else "",
        f"```sh\n{result['command']}\n```",
        (
            f"Made with unskew {result['unskew']} on {result['date']}: {result['machine']}; "
            f"{result['hours']:.2f} hours of training in all runs.{wording.makers(result)}"
        ),
        _table(head, lines),
        wording.note(result),
        _claims(result),
        _logs(result),
        _privacy(result),
        _list("What differs" if result["paper"] else "Notes", wording.notes(result)),
        _list("What the paper leaves open, and our choice" if result["paper"] else "Choices", result["open"]),
        f"## What we found\n\n{result['finding']}" if result["finding"] else "",
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


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
    sections = [
        f"# {title}",
        (
            f"Each page has the command that made it, {contents}. The `.json` beside it has every number and"
            f" curve. `unskew report {folder}` makes HTML pages from these files."
        ),
        (
            f"Read first: {', '.join(f'[{title}]({name})' for name, title in written.items())}."
            if written
            else ""
        ),
        _table(["table", "rows", "seeds", "rounds", "claims", "when"], lines),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _claims(result: TableResult) -> str:
    if not result["claims"]:
        return ""
    points = " in points" if result["unit"] == "percent" else ""
    paper = " [the paper's]" if result["paper"] else ""
    head = [
        "the paper says" if result["paper"] else "claim",
        "here",
        f"margin{points} by row or step (95 % interval){paper}",
    ]
    lines = [
        [claim["text"], wording.verdict(claim), wording.margins(claim, result["unit"])]
        for claim in result["claims"]
        if claim["verdict"] != "not run"
    ]
    absent = [claim["text"] for claim in result["claims"] if claim["verdict"] == "not run"]
    parts = [
        "## Claims",
        _table(head, lines) if lines else "",
        f"Not run: {'; '.join(map(_cell, absent))}." if absent else "",
        wording.rules(result),
    ]
    return "\n\n".join(filter(None, parts))


def _logs(result: TableResult) -> str:
    note = tables.log_note(result)
    return f"## Beside the published log\n\n{_table(*tables.log_table(result))}\n\n{note}" if note else ""


def _privacy(result: TableResult) -> str:
    lines = [
        [row, method, release, epsilon, reading]
        for row, method, release, readings in wording.privacy(result)
        for epsilon, reading in readings
    ]
    if not lines:
        return ""
    head = ["row", "method", "release", "epsilon", "reading"]
    return f"## Differential privacy of what is shared\n\n{wording.EPSILON}\n\n{_table(head, lines)}"


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
    rows = len({entry["row"] for entry in result["entries"]})
    methods = len({entry["method"] for entry in result["entries"]})
    counts = {"row": rows, "method": methods, "seed": result["seeds"]}
    cards = [(str(n), noun + "s" * (n != 1) + " run" * (noun == "row")) for noun, n in counts.items()]
    hours = result["hours"]
    cards.append((f"{hours:.1f} h" if hours >= 1 else f"{60 * hours:.0f} min", "of training"))
    if result["scale"] != 1:
        cards.append((f"{result['scale']:g}", f"of the {wording.source(result)}'s rounds"))
    return [*cards, (result["date"], f"unskew {result['unskew']}")]


def _rows(result: TableResult, colours: Colours) -> list[tuple[str, str, str, Markup, Markup]]:
    """(row, note, quantity, picture of the paper's numbers and ours, picture of the curves) by row."""
    return [
        (
            row,
            result["rows"][row]["note"],
            wording.quantity(result, row),
            _paper_comparison(result, row, colours),
            _curves(result, row, colours),
        )
        for row in dict.fromkeys(entry["row"] for entry in result["entries"])
    ]


def _paper_comparison(result: TableResult, row: str, colours: Colours) -> Markup:
    """A picture of the paper's numbers and ours; empty if the paper has no number for the row."""
    equal = result["scale"] == 1
    pairs = [
        Pair(
            e["method"],
            colours[e["method"]],
            _nan(e["paper"]),
            _nan(e["ours"]["mean"]),
            _nan(e["ours"]["std"]),
            equal,
        )
        for e in result["entries"]
        if e["row"] == row
    ]
    if all(math.isnan(pair.paper) for pair in pairs):
        return Markup()
    unit = ", %" if result["unit"] == "percent" else ""
    ring = "the paper" if equal else "the paper after all rounds"
    return both_widths(
        partial(paper_scores, pairs, f"{wording.quantity(result, row)}{unit}; ring: {ring}, dot: here")
    )


def _curves(result: TableResult, row: str, colours: Colours) -> Markup:
    by_method = result["curves"].get(row, {})
    if result["rows"][row].get("attack"):
        return Markup()  # one value, after the last round
    lines = [
        _line(result, method, colours[method], seeds)
        for method, seeds in by_method.items()
        if method in colours
    ]
    for where, method, log, _ in tables.log_pairs(result):
        if where == row:
            x, y = (np.array(values, dtype=float) for values in zip(*log.items()))
            lines.append(Line(f"{method}, log", "ref", x, y / _divisor(result), 0 * y, dashed=True))
    return _axis(result, [line for line in lines if line is not None], ("round", wording.quantity(result)))


def _line(
    result: TableResult, method: str, colour: str, seeds: Sequence[Sequence[Sequence[float]]]
) -> Line | None:
    """Mean and standard deviation over seeds at their common rounds; None without common rounds."""
    columns = [np.array(points, dtype=float).reshape(-1, 2).T for points in seeds]
    return mean_line(method, colour, [(rounds, values / _divisor(result)) for rounds, values in columns])


def _sweeps(result: TableResult, colours: Colours) -> list[tuple[str, str, Markup]]:
    """(panel, quantity, picture) of the score against the experiment's axis."""
    panels: dict[str, dict[str, list[tuple[float, float, float]]]] = {}
    quantities: dict[str, str] = {}
    for entry in result["entries"]:
        row, mean = result["rows"][entry["row"]], entry["ours"]["mean"]
        if row["x"] is not None and mean is not None:
            methods = panels.setdefault(row["panel"], {})
            quantities[row["panel"]] = wording.quantity(result, entry["row"])
            methods.setdefault(entry["method"], []).append(
                (float(row["x"]), mean, entry["ours"]["std"] or 0.0)
            )
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
    disk.replace(
        folder / "README.md", markdown_index(results_in(folder), folder.as_posix(), other_pages(folder))
    )


def other_pages(folder: Path) -> dict[str, str]:
    """The titles of handwritten pages in a folder, by file name."""
    pages = [
        p
        for p in sorted(folder.glob("*.md"))
        if p.name != "README.md" and not p.with_suffix(".json").exists()
    ]
    return {page.name: page.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ") for page in pages}


def write_pages(folder: Path, result: TableResult) -> Path:
    """Write the pages of a result: .md, .csv, .tex and .html; return the HTML path."""
    for ending, write in (
        ("md", markdown_page),
        ("csv", tables.as_csv),
        ("tex", tables.latex),
        ("html", html_page),
    ):
        disk.replace(folder / f"{result['page']}.{ending}", write(result))
    return folder / f"{result['page']}.html"


def write_index(folder: Path, results: Sequence[TableResult]) -> Path:
    """Write `index.html`, which links to the pages in its folder; return its path."""
    disk.replace(folder / "index.html", html_index(results))
    return folder / "index.html"


def results_in(folder: Path) -> list[TableResult]:
    """Every result in a folder, ordered by name. Raises DataError (E401) for a damaged file."""
    results: list[TableResult] = []
    for path in sorted(folder.glob("*.json")):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError("E401", f"{path} is not a result of `unskew reproduce`: {error}.") from error
        if isinstance(content, dict) and content.keys() >= REQUIRED:
            _check_page(path, content["page"])
            results.append(content)  # type: ignore[arg-type]
    return results


def _check_page(path: Path, page: object) -> None:
    """Raises DataError (E401) for a page outside the folder, since the file may come from a stranger."""
    try:
        disk.check_name(str(page))
    except UsageError:
        text = f"{path} names its page {excerpt(page)}, which no file in this folder could be called"
        raise DataError("E401", f"{text}; name it as `unskew reproduce --page` would.") from None


def _as_json(result: TableResult) -> str:
    """The result as JSON with one line for each entry, claim and curve."""
    parts = [
        f" {json.dumps(key)}: {_lines(value) if key in ('entries', 'claims') else _indented(value)}"
        for key, value in result.items()
        if key != "curves"
    ]
    curves = [
        f"  {json.dumps(row)}: {{\n"
        + ",\n".join(
            f"   {json.dumps(m)}: {json.dumps(s, separators=(',', ':'))}" for m, s in methods.items()
        )
        + "\n  }"
        for row, methods in result["curves"].items()
    ]
    parts.append(' "curves": {\n' + ",\n".join(curves) + "\n }")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _lines(items: Any) -> str:
    return "[\n" + ",\n".join(f"  {json.dumps(item)}" for item in items) + "\n ]" if items else "[]"


def _indented(value: Any) -> str:
    return json.dumps(value, indent=1).replace("\n", "\n ")
