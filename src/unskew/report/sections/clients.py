"""The score of each client after the last round: a row of dots for each method, and a table by name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from unskew.data.samples.reading_notes import abbreviate
from unskew.report.analysis.number_formats import capitalise, noun, plural, with_unit
from unskew.report.analysis.runs import RunData
from unskew.report.analysis.summary import SURE, best_at_clients
from unskew.report.figures.svg import (
    WIDTH,
    Scale,
    data_attribute,
    dots,
    ends_of,
    group,
    line,
    plain_number,
    score_range,
    shorten,
    svg,
    text,
    x_axis,
)
from unskew.report.sections import AT_CLIENTS, Context, Scope, Section, render
from unskew.round.run import LOCAL
from unskew.scores import Kind, kind

ORDER = 30
MOST_ROWS = 50
"""The most clients in a table; pictures show more."""
MOST_NAMES = 10
WORTH = (
    " Clear is a gain over training alone whose 95 % interval (Agresti and Caffo, 2000) leaves out 0; among"
    " many clients one in twenty may be called clear by chance."
)


def build(context: Context) -> Section | None:
    """A tab per scope with a dot per client, and a table by name; None if no client was scored."""
    panels = [panel for scope in AT_CLIENTS if (panel := _panel(context, scope))]
    heads, rows, lead, note = _table(context)
    if not panels and not rows:
        return None
    dots_note = ""
    if panels:
        seeds = " of one seed" if context.seeds > 1 else ""
        dots_note = f"A dot is a client{seeds} after the last round, the bar the mean, the ring the worst."
    html = render("clients.html.j2", group="spread", panels=panels, heads=heads, rows=rows)
    notes = "\n".join(filter(None, (dots_note, note)))
    return Section("Every client", "clients", html, lead=lead, note=notes, link="Clients")


Rows = list[tuple[str, str, list[str]]]
"""(client, number of test samples, cells)."""


def _table(context: Context) -> tuple[list[str], Rows, str, str]:
    """(headings, a row per client, lead, note) for the first seed; empty without scores of named clients or
    without their numbers of samples."""
    sizes = context.first.federation.get("sizes", {}).get("test", [])
    names = context.first.federation.get("names", [])
    runs = {
        method: run
        for method, group in context.methods.items()
        for run in group
        if run.seed == context.first.seed and run.federation.get("sizes", {}).get("test", []) == sizes
    }
    scores = {m: r.per_client("personal@client") or r.per_client("global@client") for m, r in runs.items()}
    if not 2 <= len(names) <= MOST_ROWS or not any(scores.values()) or not any(sizes):
        return [], [], "", ""
    best = best_at_clients(context.summaries)
    pair = (best[0], LOCAL) if best and context.metric == "accuracy" else ("", "")
    federated, alone = (scores.get(method, {}) for method in pair)
    rows, verdicts = Rows(), list[str]()
    for k, (name, n) in enumerate(zip(names, sizes)):
        if not n:
            continue
        cells = [with_unit(by.get(k, math.nan), context.metric).removesuffix(" %") for by in scores.values()]
        if k in federated and k in alone:
            verdicts.append(verdict(n, federated[k], alone[k]))
            cells += [f"{100 * (federated[k] - alone[k]):+.1f}", verdicts[-1]]
        rows.append((name, f"{n:,}", cells))
    heads = [*scores, *((f"{pair[0]} over {LOCAL}", "worth it") if verdicts else ())]
    seed = f" Seed {context.first.seed}." if context.seeds > 1 else ""
    share = kind(context.metric).share
    score = capitalise(context.score) + (" in %" if share else "")
    example = ": with 25 of them, 80 % may as well be 64 or 96 %" if share else ""
    note = (
        f"In the table: {score} on the client's own test samples after the last round, with the model that"
        f" the client would use.{seed} A score on few samples is uncertain{example}."
        f"{WORTH if verdicts else ''}{_absent(names, sizes)}"
    )
    return heads, rows, _lead(pair[0], verdicts) if verdicts else "", note


def _panel(context: Context, scope: Scope) -> tuple[str, str, Markup] | None:
    """(title, description, picture); None unless a method has at least two clients with a score."""
    strips = [
        _strip(method, context.colours[method], group, scope.key)
        for method, group in context.methods.items()
        if len(group[0].per_client(scope.key)) > 1
    ]
    if not strips:
        return None
    metric = strips[0].metric
    label = kind(metric).of(f"{noun(metric)} on the client's own test rows, last round")
    return scope.title, f"{scope.meaning}.", Markup(client_scores(strips, label))


def _strip(method: str, colour: str, group: Sequence[RunData], scope: str) -> Strip:
    """The clients of all seeds, which differ between seeds because each partitions the data anew."""
    clients, values, seeds = [], [], []
    for run in group:
        names = run.federation.get("names", [])
        seed = f", seed {run.seed}" if len(group) > 1 else ""
        for k, value in sorted(run.per_client(scope).items()):
            clients.append((names[k] if k < len(names) else f"client {k}") + seed)
            values.append(value)
            seeds += [run.seed] if len(group) > 1 else []
    return Strip(method, colour, clients, values, group[0].metric, seeds)


@dataclass(frozen=True)
class Strip:
    """The clients of a method over all seeds: names and scores. colour: CSS classes. metric: the score.
    seeds: of each client, or empty for one seed."""

    name: str
    colour: str
    clients: Sequence[str]
    values: Sequence[float]
    metric: str = "accuracy"
    seeds: Sequence[int] = ()

    @property
    def kind(self) -> Kind:
        """The kind of the score."""
        return kind(self.metric)

    def text(self, value: float) -> str:
        """A value of the score with its unit."""
        return f"{self.kind.digits(value)}{self.kind.unit}"


def client_scores(strips: Sequence[Strip], x_label: str) -> str:
    """A row of dots per method, one per client; the bar is the mean, and the ring the worst client."""
    strips = [s for s in strips if len(s.values)]
    if not strips:
        return ""
    share, (left, row, top, bottom) = strips[0].kind.share, (150, 64, 6, 58)
    height = top + bottom + row * len(strips)
    low, high = ends_of(v for s in strips for v in s.values)
    if share:
        low, high = (0.0 if low < 0.5 else math.floor(low * 10 - 0.5) / 10), 1.0
    else:
        low, high, _ = score_range(low, high, share=False)
    x = Scale(low, high, left + 8, WIDTH - 18)
    tick = (lambda v: f"{100 * v:.0f}") if share else plain_number
    parts = [x_axis(x, height - bottom + 8, top, x_label, tick, 10)]
    rows, words, names = [], [], list(dict.fromkeys(n for s in strips for n in s.clients))
    for i, s in enumerate(strips):
        middle = top + row * (i + 0.5) + 4
        places = _swarm([float(v) for v in np.atleast_1d(x(np.array(s.values)))], row * 0.21)
        many = " many" if len(places) > 300 else ""
        drawn = dots([(a, middle + dy) for a, dy in places], f"{many} {s.colour}", s.seeds)
        label = text(left - 14, middle, shorten(s.name, 16), "label", "end")
        count = text(left - 14, middle + 15, plural(len(s.values), "dot"), "tick", "end")
        parts.append(group(s.colour, [label, count, drawn, _mean_and_worst(s, x, middle, row)]))
        rows.append({"n": s.name, "c": s.colour, "y": round(middle, 1), "d": _for_script(s, places, names)})
        mean, worst = float(np.mean(s.values)), s.kind.worst(s.values)
        words.append(f"{s.name}: mean {s.text(mean)}, worst {s.text(worst)}")
    script = data_attribute("dots", {"h": row, "k": names, "r": rows, **({} if share else {"u": ""})})
    return svg(height, f"Every client. {'; '.join(words)}", parts, script)


def _swarm(x: Sequence[float], half: float) -> list[tuple[float, float]]:
    """(x, dy) of dots; overlapping dots are stacked around the row's middle, up to `half` away from it."""
    columns: dict[int, list[int]] = {}
    for i in np.argsort(x, kind="stable").tolist():
        columns.setdefault(round(x[i] / 5.0), []).append(i)
    places = [(0.0, 0.0)] * len(x)
    for members in columns.values():
        gap = min(5.4, 2 * half / max(1, len(members) - 1))
        for j, i in enumerate(members):
            places[i] = (x[i], (j // 2 + j % 2) * (1 if j % 2 else -1) * gap)
    return places


def _mean_and_worst(s: Strip, x: Scale, middle: float, row: float) -> str:
    mean, worst = float(np.mean(s.values)), s.kind.worst(s.values)
    ring, bar = float(x(worst)), float(x(mean))
    equal = sum(abs(v - worst) <= 1e-9 for v in s.values)
    named = s.clients[list(s.values).index(worst)] if equal == 1 else plural(equal, "client")
    words = f"worst {s.text(worst)}: {shorten(named, 22)}"
    left_of_ring = ring + 6.2 * len(words) > WIDTH
    place = ring + (6 if left_of_ring else -6)
    return "".join(
        [
            line(bar, middle - row * 0.32, bar, middle + row * 0.32, f"mean {s.colour}"),
            f'<circle class="ring {s.colour}" cx="{ring:.1f}" cy="{middle:.1f}" r="6"/>',
            text(place, middle + row * 0.43, words, "note", "end" if left_of_ring else ""),
            text(bar + 5, middle - row * 0.3, s.kind.digits(mean), "value"),
        ]
    )


def _for_script(s: Strip, places: Sequence[tuple[float, float]], names: Sequence[str]) -> list[list[float]]:
    """The data of the script's tooltip per dot: x, dy, index of the name, score (percent of a share),
    and the seed if there are several."""
    factor, digits = (100, 1) if s.kind.share else (1, 6)
    indices = {n: i for i, n in enumerate(names)}
    return [
        [round(x, 1), round(dy, 1), indices[name], round(factor * v, digits), *s.seeds[i : i + 1]]
        for i, ((x, dy), name, v) in enumerate(zip(places, s.clients, s.values))
        if math.isfinite(v)  # JSON has no other numbers
    ]


def verdict(n: int, federated: float, alone: float) -> str:
    """Whether the gain of accuracies in [0, 1] on n samples is clear by the interval of Agresti and Caffo
    (2000): "yes", "no" or "unclear".

    With one success and one failure added to each, |p - q| exceeds 1.96 sqrt((p(1-p) + q(1-q)) / (n+2)).
    """
    p, q = ((share * n + 1) / (n + 2) for share in (federated, alone))
    if abs(p - q) <= SURE * math.sqrt((p * (1 - p) + q * (1 - q)) / (n + 2)):
        return "unclear"
    return "yes" if p > q else "no"


def _lead(method: str, verdicts: Sequence[str]) -> str:
    better, worse, unclear = map(verdicts.count, ("yes", "no", "unclear"))
    return (
        f"With {method}, the best of these methods at the clients, federating is clearly better than training"
        f" alone at {better} of {len(verdicts)} clients and clearly worse at {worse}; at {unclear} the test"
        " samples are too few to say."
    )


def _absent(names: Sequence[str], sizes: Sequence[int]) -> str:
    """A sentence, after a space, on the clients that have no row; "" if all have one."""
    absent = [name for name, size in zip(names, sizes) if not size]
    if not absent:
        return ""
    have = "has" if len(absent) == 1 else "have"
    return (
        f" {len(absent)} of {len(names)} clients {have} no test samples and no row:"
        f" {abbreviate(absent, MOST_NAMES)}."
    )
