"""One self-contained HTML page about a run, several runs, or a comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from unskew import disk
from unskew.report import figures, measured, svg, tables, words
from unskew.report.buffer import histograms_of
from unskew.report.curves import Line, curves
from unskew.report.figures import Reach, Strip
from unskew.report.numbers import MISSING, noun, percent, size
from unskew.report.read import RunData, Series, read_runs, told_apart
from unskew.report.stats import (
    REFERENCES,
    Row,
    Score,
    by_method,
    bytes_to,
    is_reference,
    mean10,
    summary_table,
    target_of,
)

SCOPES = (
    ("global", "", "Global", "The global model on the global test set."),
    (
        "global@client",
        "mean",
        "Global at clients",
        "The global model on each client's own test rows; mean over clients.",
    ),
    (
        "personal@client",
        "mean",
        "Personal",
        "Each client's own model, with what it keeps to itself, on its own test rows; mean over clients.",
    ),
)
Pictures = Markup
"""A picture for a desk and the same for a telephone; the style sheet shows one of them."""


def write_report(paths: Path | str | Sequence[Path | str], out: Path | str, target: float | None = None) -> Path:
    """Read run folders, comparison folders, or both, and write the page to `out`; returns its path.

    target: the accuracy of "bytes to reach it"; default: 95 % of the best method's. Raises StateError where a folder
    is neither, or is damaged.
    """
    paths = [Path(paths)] if isinstance(paths, (str, Path)) else [Path(p) for p in paths]
    out = Path(out)
    disk.replace(out, page(read_runs(paths), " and ".join(_name(p) for p in paths), target))
    return out


def _name(path: Path) -> str:
    return path.name or path.resolve().name


def page(runs: Sequence[RunData], name: str, target: float | None = None) -> str:
    """The page's text. target: the accuracy of "bytes to reach it"; default: 95 % of the best method's."""
    runs = told_apart(list(runs))
    given = target is not None
    target = target_of(runs) if target is None else target
    rows = summary_table(runs, target)
    of = svg.colours(list(by_method(runs)), [m for m, g in by_method(runs).items() if is_reference(g)])
    first = words.competing(runs)
    same, differing = words.settings(runs)
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            name=name,
            runs=len(runs),
            result=words.result(rows, runs),
            cards=words.cards(rows, runs),
            warnings=words.warnings(runs),
            rows=[(r, tables.cells(r), of[r.method]) for r in rows],
            groups=tables.groups(rows),
            noun=noun(first.metric),
            columns=len(tables.head(rows)) - (len(rows) == 1),
            head=tables.head(rows),
            caption=tables.caption(rows),
            note=tables.note(rows),
            more=_more(rows),
            target=target,
            latex=tables.latex(rows),
            csv=tables.as_csv(rows),
            scopes=_scopes(runs, of),
            spreads=_spreads(runs, of),
            by_bytes=_both(partial(_by_bytes, runs, of)),
            reach=_both(partial(_reach, runs, of, target)),
            ledger=words.ledger(runs),
            privacy=words.privacy(runs),
            partition=_both(partial(figures.partition_map, first.federation)),
            split=words.split(first) if first.federation.get("labels") else "",
            attendance=_both(partial(figures.attendance, first.attendance, first.federation.get("clients", 0))),
            answered=words.answered(first, others=len(rows) > 1),
            histograms=_histograms(runs),
            measured=_measured(runs),
            measured_series=_measured_series(runs, of),
            measured_pictures=_measured_pictures(runs),
            differing=differing,
            methods=list(by_method(runs)),
            config=yaml.safe_dump(same, sort_keys=False, allow_unicode=True),
            env=first.env,
            command=words.command(runs),
            events=[(r, e) for r in runs for e in r.events if e.get("code") != "round"][:200],
            given_target=given,
            seeds=len({r.seed for r in runs}),
        )
    )


def _environment() -> Environment:
    loader = PackageLoader("unskew.report")
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters["percent"] = percent
    return made


def _both(draw: Callable[..., str]) -> Pictures:
    """Drawn wide and narrow. The drawings escape what they write, so this text is markup."""
    return Markup(draw(width=svg.WIDE) + draw(width=svg.NARROW))


def _more(rows: Sequence[Row]) -> list[tuple[str, list[str]]]:
    """A second table, folded: per method what the first has no room for. [(title, values)]"""
    found: list[tuple[str, Callable[[Row], Score]]] = [
        ("macro-F1", lambda r: r.macro_f1),
        ("worst class", lambda r: r.worst_class),
        ("Dice of both classes", lambda r: r.dice_both),
        ("spread over clients", lambda r: r.spread),
        ("stability", lambda r: r.stability),
    ]
    told = [(title, [percent(of(r)) for r in rows]) for title, of in found if any(of(r).n for r in rows)]
    if any(r.rounds_to.n and not r.reference for r in rows):
        told.append((f"rounds to {100 * rows[0].target:.1f} %", [_rounds(r) for r in rows]))
    return told


def _rounds(row: Row) -> str:
    """Rounds until the target; in brackets the seeds that reached it, where not all did."""
    if row.reference or not row.rounds_to.n:
        return MISSING
    s = row.rounds_to
    told = f"{s.mean:.1f} ± {s.std:.1f}" if s.n > 1 else f"{s.mean:.0f}"
    return told + (f" ({s.n}/{row.n})" if s.n < row.n else "")


def _scopes(runs: Sequence[RunData], of: dict[str, str]) -> list[tuple[str, str, str, Pictures]]:
    """(scope, title, what it is, picture) of each scope that has values."""
    found = []
    for scope, metric, title, told in SCOPES:
        groups = by_method(runs).items()
        lines = [_line(m, of[m], g, [r.series(scope, metric or r.metric) for r in g]) for m, g in groups]
        drawn = [c for c in lines if c and (len(c.x) > 1 or c.x[0] > 0)]
        if drawn:
            score = noun(runs[0].metric)
            label = f"{score}, %" if scope == "global" else f"{score}, % (mean over clients)"
            found.append((scope, title, told, _both(partial(curves, drawn, "round", label))))
    return found


def _line(method: str, colour: str, group: Sequence[RunData], series: Sequence[Series]) -> Line | None:
    """Mean and deviation over seeds, at the rounds all of them have."""
    known = [dict(zip(t.tolist(), v.tolist())) for t, v in series if len(t)]
    x = np.array(sorted(set.intersection(*(set(k) for k in known)))) if known else np.array([])
    if not len(x):
        return None
    values = np.array([[k[t] for t in x.tolist()] for k in known])
    band = values.std(0, ddof=1) if len(known) > 1 else np.zeros(len(x))
    return Line(method, colour, x, values.mean(0), band, group[0].config.get("method") in REFERENCES)


def _by_bytes(runs: Sequence[RunData], of: dict[str, str], *, width: int) -> str:
    """The global score against bytes of all clients so far; both are means over seeds at equal rounds."""
    lines = []
    for method, group in by_method(runs).items():
        line = _line(method, of[method], group, [r.series("global", r.metric) for r in group])
        if is_reference(group) or line is None:
            continue
        sent = [_bytes_at(r, line.x) for r in group]
        x = np.mean(sent, axis=0)
        kept = x > 0
        lines.append(Line(method, of[method], x[kept], line.y[kept], line.band[kept]))
    label = (
        "bytes of all clients so far, both ways (log scale)" if width == svg.WIDE else "bytes, both ways (log scale)"
    )
    return curves(lines, label, f"global {noun(runs[0].metric)}, %", width=width, log_x=True, unit=size)


def _bytes_at(run: RunData, rounds: np.ndarray) -> np.ndarray:
    at, total = run.bytes_by_round()
    if not len(at):
        return np.zeros(len(rounds))
    return np.concatenate([[0.0], total])[np.searchsorted(at, rounds, side="right")]


def _reach(runs: Sequence[RunData], of: dict[str, str], target: float, *, width: int) -> str:
    rows = []
    for method, group in by_method(runs).items():
        if not is_reference(group) and not np.isnan(mean10(group[0])):
            needed = [bytes_to(r, target) for r in group]
            rows.append(Reach(method, of[method], [b for b in needed if b == b], len(group)))
    return figures.reach(rows, target, noun(runs[0].metric), width=width)


def _spreads(runs: Sequence[RunData], of: dict[str, str]) -> list[tuple[str, str, Pictures]]:
    """(scope, what it is, picture) of the last round's clients."""
    found = []
    for scope, _, title, told in SCOPES[1:]:
        strips = [_strip(m, of[m], g, scope) for m, g in by_method(runs).items() if len(g[0].per_client(scope)) > 1]
        if strips:
            label = f"{noun(runs[0].metric)} on the client's own test rows, last round, %"
            found.append(
                (title, told.removesuffix("; mean over clients.") + ".", _both(partial(_spread, strips, label)))
            )
    return found


def _spread(strips: Sequence[Strip], label: str, *, width: int) -> str:
    short = f"{label.split()[0]}, last round, %"
    return figures.spread(strips, label if width == svg.WIDE else short, width=width)


def _strip(method: str, colour: str, group: Sequence[RunData], scope: str) -> Strip:
    """Clients of all seeds: another seed deals the data out anew, so its clients are others."""
    clients, values = [], []
    for run in group:
        names = run.federation.get("names", [])
        for k, v in sorted(run.per_client(scope).items()):
            clients.append(
                (names[k] if k < len(names) else f"client {k}") + (f", seed {run.seed}" if len(group) > 1 else "")
            )
            values.append(v)
    return Strip(method, colour, clients, values)


def _measured(runs: Sequence[RunData]) -> list[tuple[str, list[str]]]:
    """Per measure its last value for each method. [(what, values)]"""
    found = []
    for metric, told in measured.TOLD.items():
        ends = [[r.series("measure", metric)[1][-1:] for r in g] for g in by_method(runs).values()]
        values = [Score.of([float(v[0]) for v in group if len(v)]) for group in ends]
        if any(v.n for v in values):
            found.append((told, [measured.number(v) for v in values]))
    return found


def _measured_series(runs: Sequence[RunData], of: dict[str, str]) -> list[tuple[str, Pictures]]:
    """(what, picture) of every measure taken in more than one round."""
    found = []
    for metric, told in measured.TOLD.items():
        groups = by_method(runs).items()
        lines = [_line(m, of[m], g, [r.series("measure", metric) for r in g]) for m, g in groups]
        if drawn := _both(partial(measured.series, [c for c in lines if c], told)):
            found.append((told, drawn))
    return found


def _measured_pictures(runs: Sequence[RunData]) -> list[tuple[str, Pictures]]:
    """(title, picture) of the matrices and planes of every method's first seed."""
    found = []
    for method, group in by_method(runs).items():
        run = group[0]
        sheet = partial(measured.sheet, classes=run.federation.get("classes", []))
        for name, title, draw in (
            ("cross_site", "Local models at other sites, %", measured.pairs),
            ("exposure", "Who has received something of whose", partial(measured.exposed, rounds=run.planned)),
            ("received", "What clients receive of others' inputs", sheet),
            ("tsne", "Test features in the plane (t-SNE)", measured.scatter),
        ):
            if name in run.measures and (drawn := _both(partial(draw, run.measures[name]))):
                found.append((f"{method}: {title}", drawn))
    return found


def _histograms(runs: Sequence[RunData]) -> list[tuple[str, Pictures]]:
    """(method, picture) of the first seed of every method that shares a buffer."""
    found = []
    for method, group in by_method(runs).items():
        if shares := histograms_of(group[0]):
            classes = group[0].federation.get("classes", [])
            found.append((method, _both(partial(figures.histograms, shares, classes))))
    return found
