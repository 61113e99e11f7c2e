"""The HTML page of a reproduction, and the index of several; made from the kept result alone, so at any time again."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from markupsafe import Markup

from unskew.experiments import logs, tables, wording
from unskew.experiments.result import TableResult
from unskew.report.figures import svg
from unskew.report.figures.beside import Pair, beside
from unskew.report.figures.curves import curves
from unskew.report.figures.lines import Line, mean_line
from unskew.report.figures.series import series
from unskew.report.render import both_widths, render

Colours = Mapping[str, str]
"""By method."""


def document(result: TableResult) -> str:
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
        log=logs.table(result),
        log_note=logs.note(result),
        lines=[(line, colours[line[1]], i and line[0] == lines[i - 1][0]) for i, line in enumerate(lines)],
        note=wording.note(result),
        claims=[(claim, wording.margins(claim, result["unit"])) for claim in result["claims"]],
        judged=wording.judged(result),
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


def index(results: Sequence[TableResult]) -> str:
    """The page that links to the others, which lie in the same folder."""
    title, contents = wording.index_title(results)
    lines = [
        (r, name, wording.rows(r), wording.rounds(r), wording.summary(r), wording.counted(r))
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
    """(row, its note, what it measures, the paper's numbers beside ours, the curves) of every row that was run."""
    return [
        (
            row,
            result["rows"][row]["note"],
            wording.quantity(result, row),
            _beside_paper(result, row, colours),
            _curves(result, row, colours),
        )
        for row in dict.fromkeys(entry["row"] for entry in result["entries"])
    ]


def _beside_paper(result: TableResult, row: str, colours: Colours) -> Markup:
    """Our numbers of a row beside the paper's; empty where it has none."""
    equal = result["scale"] == 1
    pairs = [
        Pair(
            e["method"], colours[e["method"]], _nan(e["paper"]), _nan(e["ours"]["mean"]), _nan(e["ours"]["std"]), equal
        )
        for e in result["entries"]
        if e["row"] == row
    ]
    if all(math.isnan(pair.paper) for pair in pairs):
        return Markup()
    unit = ", %" if result["unit"] == "percent" else ""
    ring = "the paper" if equal else "the paper after all rounds"
    return both_widths(partial(beside, pairs, f"{wording.quantity(result, row)}{unit}; ring: {ring}, dot: here"))


def _curves(result: TableResult, row: str, colours: Colours) -> Markup:
    by_method = result["curves"].get(row, {})
    if result["rows"][row].get("attack"):
        return Markup()  # one value, after the last round
    lines = [_line(result, method, colours[method], seeds) for method, seeds in by_method.items()]
    for where, method, log, _ in logs.pairs(result):
        if where == row:
            x, y = (np.array(values, dtype=float) for values in zip(*log.items()))
            lines.append(Line(f"{method}, log", "ref", x, y / _divisor(result), 0 * y, dashed=True))
    return _drawn(result, [line for line in lines if line is not None], ("round", wording.quantity(result)))


def _line(result: TableResult, method: str, colour: str, seeds: Sequence[Sequence[Sequence[float]]]) -> Line | None:
    """Mean and standard deviation over seeds, at the rounds that all of them have; None where they share no round."""
    columns = [np.array(points, dtype=float).reshape(-1, 2).T for points in seeds]
    return mean_line(method, colour, [(rounds, values / _divisor(result)) for rounds, values in columns])


def _sweeps(result: TableResult, colours: Colours) -> list[tuple[str, str, Markup]]:
    """(panel, what it measures, picture) of the score against what varies from row to row, where an experiment has an axis."""
    panels: dict[str, dict[str, list[tuple[float, float, float]]]] = {}
    quantities: dict[str, str] = {}
    for entry in result["entries"]:
        row, mean = result["rows"][entry["row"]], entry["ours"]["mean"]
        if row["x"] is not None and mean is not None:
            methods = panels.setdefault(row["panel"], {})
            quantities[row["panel"]] = wording.quantity(result, entry["row"])
            methods.setdefault(entry["method"], []).append((float(row["x"]), mean, entry["ours"]["std"] or 0.0))
    pictures = []
    for panel, methods in panels.items():
        lines = []
        for method, points in methods.items():
            x, y, band = (np.array(values, dtype=float) for values in zip(*sorted(points)))
            lines.append(Line(method, colours[method], x, y / _divisor(result), band / _divisor(result)))
        if any(len(line.x) > 1 for line in lines):
            measured = quantities[panel]
            pictures.append((panel, measured, _drawn(result, lines, (result["axis"], measured))))
    return pictures


def _divisor(result: TableResult) -> int:
    """What turns kept values into those that are drawn: percent into shares."""
    return 100 if result["unit"] == "percent" else 1


def _drawn(result: TableResult, lines: Sequence[Line], labels: tuple[str, str]) -> Markup:
    """labels: of the axis, and what is drawn against it."""
    x, y = labels
    if not lines:
        return Markup()
    if result["unit"] == "percent":
        unit = {} if x == "round" else {"unit": lambda v: f"{v:g}"}
        return both_widths(partial(curves, lines, x, f"{y}, %", **unit))
    return both_widths(partial(series, lines, y, x_label=x))


def _nan(value: float | None) -> float:
    return math.nan if value is None else value
