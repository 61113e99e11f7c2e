"""The HTML page of a reproduction, and the index of several: made from the kept result alone, so at any time anew."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from markupsafe import Markup

from unskew.experiments import page
from unskew.report.figures import svg
from unskew.report.figures.beside import Pair, beside
from unskew.report.figures.curves import curves
from unskew.report.figures.lines import Line, mean_line
from unskew.report.figures.series import series
from unskew.report.render import both_widths, render

Result = Mapping[str, Any]
"""What `<experiment>.json` holds."""


def document(found: Result) -> str:
    """One self-contained page."""
    methods = list(dict.fromkeys(e["method"] for e in found["entries"]))
    of = svg.colours(methods, [])
    noun = page.noun_of(found)
    head, lines = page.table(found)
    return render(
        "experiment.html.j2",
        found=found,
        noun=noun,
        summary=page.summary(found),
        cards=_cards(found),
        head=head,
        lines=[(line, of[line[1]], i and line[0] == lines[i - 1][0]) for i, line in enumerate(lines)],
        note=page.note(found),
        claims=[(c, page.margins(c, found["unit"])) for c in found["claims"]],
        privacy=page.privacy(found),
        epsilon=page.EPSILON,
        sweeps=_sweeps(found, of),
        rows=_rows(found, of),
        latex=page.latex(found),
        csv=page.as_csv(found),
        notes=page.notes(found),
        makers=page.makers(found),
    )


def index(found: Sequence[Result]) -> str:
    """The page that leads to the others, which lie beside it."""
    names = page.named(found)
    told = [(r, name, page.rows(r), page.rounds(r), page.summary(r), page.counted(r)) for r, name in zip(found, names)]
    title, has = page.index_title(found)
    return render("experiments.html.j2", noun="score", found=told, title=title, has=has)


def _cards(found: Result) -> list[tuple[str, str]]:
    rows = len({e["row"] for e in found["entries"]})
    methods = len({e["method"] for e in found["entries"]})
    told = [(str(rows), "rows run"), (str(methods), "methods"), (str(found["seeds"]), "seeds")]
    hours = found["hours"]
    told.append((f"{hours:.1f} h" if hours >= 1 else f"{60 * hours:.0f} min", "of training"))
    if found["scale"] != 1:
        told.append((f"{found['scale']:g}", f"of the {'paper' if found['paper'] else 'table'}'s rounds"))
    return [*told, (found["date"], f"unskew {found['unskew']}")]


def _rows(found: Result, of: Mapping[str, str]) -> list[tuple[str, str, Markup, Markup]]:
    """(row, its note, the paper beside ours, the curves) of every row that was run."""
    told = []
    for row in dict.fromkeys(e["row"] for e in found["entries"]):
        here = [e for e in found["entries"] if e["row"] == row]
        pairs = [
            Pair(e["method"], of[e["method"]], _nan(e["paper"]), _nan(e["ours"]["mean"]), _nan(e["ours"]["std"]))
            for e in here
        ]
        unit = ", %" if found["unit"] == "percent" else ""
        lines = [
            made
            for m, seeds in found["curves"].get(row, {}).items()
            if (made := _line(found, m, of[m], seeds)) is not None
        ]
        label = f"{page.noun_of(found)}{unit}; ring: the paper, dot: here"
        drawn = both_widths(partial(beside, pairs, label)) if any(p.paper == p.paper for p in pairs) else Markup()
        told.append((row, found["rows"][row]["note"], drawn, _drawn(found, lines, "round")))
    return told


def _line(found: Result, method: str, colour: str, seeds: Sequence[Sequence[Sequence[float]]]) -> Line | None:
    """Mean and deviation over seeds, at the rounds all of them have."""
    by = 100 if found["unit"] == "percent" else 1
    series = [np.array(points, dtype=float).reshape(-1, 2).T for points in seeds]
    return mean_line(method, colour, [(rounds, values / by) for rounds, values in series])


def _sweeps(found: Result, of: Mapping[str, str]) -> list[tuple[str, Markup]]:
    """(panel, picture) of the score against what the rows vary, where an experiment has an axis."""
    panels: dict[str, dict[str, list[tuple[float, float, float]]]] = {}
    for e in found["entries"]:
        row = found["rows"][e["row"]]
        if row["x"] is None or e["ours"]["mean"] is None:
            continue
        at = (float(row["x"]), e["ours"]["mean"], e["ours"]["std"] or 0.0)
        panels.setdefault(row["panel"], {}).setdefault(e["method"], []).append(at)
    by = 100 if found["unit"] == "percent" else 1
    told = []
    for panel, methods in panels.items():
        lines = []
        for method, points in methods.items():
            x, y, band = (np.array(v, dtype=float) for v in zip(*sorted(points)))
            lines.append(Line(method, of[method], x, y / by, band / by))
        if any(len(c.x) > 1 for c in lines):
            told.append((panel, _drawn(found, lines, found["axis"])))
    return told


def _drawn(found: Result, lines: Sequence[Line], x: str) -> Markup:
    if not lines:
        return Markup()
    if found["unit"] == "percent":
        unit = {} if x == "round" else {"unit": lambda v: f"{v:g}"}
        return both_widths(partial(curves, lines, x, f"{page.noun_of(found)}, %", **unit))
    return both_widths(partial(series, lines, page.noun_of(found), x_label=x))


def _nan(value: float | None) -> float:
    return math.nan if value is None else value
