"""The HTML page of a reproduction, and the index of several: made from the kept result alone, so at any time anew."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from unskew.experiments import page
from unskew.report import measured, svg
from unskew.report.beside import Pair, beside
from unskew.report.curves import Line, curves

Result = Mapping[str, Any]
"""What `<experiment>.json` holds."""


def document(found: Result) -> str:
    """One self-contained page."""
    methods = list(dict.fromkeys(e["method"] for e in found["entries"]))
    of = svg.colours(methods, [])
    noun = page.noun_of(found)
    head, lines = page.table(found)
    return _render(
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
    return _render("experiments.html.j2", noun="score", found=told, title=title, has=has)


def _render(name: str, **facts: Any) -> str:
    loader = PackageLoader("unskew.report")
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return made.get_template(name).render(**facts)


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
        drawn = _both(partial(beside, pairs, label)) if any(p.paper == p.paper for p in pairs) else Markup()
        told.append((row, found["rows"][row]["note"], drawn, _drawn(found, lines, "round")))
    return told


def _line(found: Result, method: str, colour: str, seeds: Sequence[Sequence[Sequence[float]]]) -> Line | None:
    """Mean and deviation over seeds, at the rounds all of them have."""
    known = [{point[0]: point[1] for point in series} for series in seeds if series]
    x = sorted(set.intersection(*(set(k) for k in known))) if known else []
    if not x:
        return None
    values = np.array([[k[t] for t in x] for k in known]) / (100 if found["unit"] == "percent" else 1)
    band = values.std(0, ddof=1) if len(known) > 1 else np.zeros(len(x))
    return Line(method, colour, np.array(x, dtype=float), values.mean(0), band)


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
        return _both(partial(curves, lines, x, f"{page.noun_of(found)}, %", **unit))
    return _both(partial(measured.series, lines, page.noun_of(found), x_label=x))


def _both(draw: Any) -> Markup:
    """Drawn wide and narrow. The drawings escape what they write, so this text is markup."""
    return Markup(draw(width=svg.WIDE) + draw(width=svg.NARROW))


def _nan(value: float | None) -> float:
    return math.nan if value is None else value
