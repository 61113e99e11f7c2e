"""What the runs say of a table and its claims.

Ours: mean and sample standard deviation over seeds of the score the paper reports, with the two others beside it.
vs best other: difference to the best other method, with a two-sided paired t-test over seeds, Holm-corrected in a row.
A claim holds in a row if the means do, one along rows from a row to the next. It is reproduced if it holds in every
row, or at every step, that was run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from unskew.experiments.claims import Claim, Trend
from unskew.experiments.plan import Experiment, Row
from unskew.report import stats
from unskew.report.runs import RunData
from unskew.report.stats import Score


@dataclass(frozen=True)
class Entry:
    """One method in one row; scores in the table's unit. paper: NaN where it gives none. p: against the best other method."""

    row: str
    method: str
    paper: float
    ours: Score
    last: Score
    best: Score
    mean10: Score
    stability: Score
    megabytes: float
    ahead: float
    p: float

    @property
    def gap(self) -> float:
        return self.ours.mean - self.paper


@dataclass(frozen=True)
class Verdict:
    """A claim, by row or step the margin in points (negative: the other way round), and in how many it holds."""

    claim: Claim | Trend
    margins: dict[str, float]
    papers: dict[str, float]

    @property
    def held(self) -> int:
        return sum(m >= self.claim.by for m in self.margins.values())

    @property
    def word(self) -> str:
        if not self.margins:
            return "not run"
        if self.held == len(self.margins):
            return "reproduced"
        of = f"{self.held} of {len(self.margins)} {self.claim.places}"
        return f"reproduced in {of}" if self.held else "not reproduced"


def entries(made: Experiment, runs: Mapping[tuple[str, str], Sequence[RunData]]) -> list[Entry]:
    """One per row and method that was run; runs by (row, method), one a seed."""
    found = []
    for row in made.rows:
        methods = [m for m in made.methods if runs.get((row.name, m))]
        series = {m: {r.seed: scores_of(r, made, row) for r in runs[row.name, m]} for m in methods}
        means = {m: Score.of([s[made.measure] for s in series[m].values()]).mean for m in methods}
        tests = {m: _against_best_other(m, means, series, made.measure) for m in methods}
        corrected = dict(zip(methods, stats.holm([tests[m][1] for m in methods])))
        for m in methods:
            of = {k: Score.of([s[k] for s in series[m].values()]) for k in ("last", "best", "mean10", "stability")}
            sent = [sum(r.bytes_by_round(way)[1][-1] for way in ("up", "down")) / 1e6 for r in runs[row.name, m]]
            found.append(
                Entry(
                    row.name,
                    m,
                    row.published.get(m, math.nan),
                    of[made.measure],
                    *of.values(),
                    sum(sent) / len(sent),
                    tests[m][0],
                    corrected[m],
                )
            )
    return found


def verdicts(made: Experiment, found: Sequence[Entry]) -> list[Verdict]:
    """Every claim on what was run; a row without all the methods a claim speaks of says nothing of it."""
    told = []
    for claim in made.claims:
        ours, papers = ({r.name: {} for r in made.rows} for _ in range(2))
        for e in found:
            ours[e.row][e.method] = _of(e, claim.measure)
            papers[e.row][e.method] = e.paper if claim.measure in ("", made.measure) else math.nan
        margins, theirs = claim.margins(ours), claim.margins(papers)
        told.append(Verdict(claim, margins, {at: theirs.get(at, math.nan) for at in margins}))
    return told


def as_json(
    made: Experiment,
    found: Sequence[Entry],
    told: Sequence[Verdict],
    runs: Mapping[tuple[str, str], Sequence[RunData]],
    facts: dict[str, Any],
) -> dict[str, Any]:
    """What is kept of a reproduction: numbers, verdicts, curves, and how they came about; NaN becomes null.

    Every page is made from this alone.
    """
    return _clean(
        {
            "experiment": made.name,
            **{
                n: getattr(made, n) for n in ("title", "paper", "measure", "unit", "metric", "scope", "axis", "finding")
            },
            **facts,
            "rows": {r.name: {"note": r.note, "x": r.x, "panel": r.panel} for r in made.rows},
            "entries": [{**asdict(e), "gap": e.gap} for e in found],
            "claims": [
                {"text": v.claim.text, "verdict": v.word, "margins": v.margins, "paper": v.papers} for v in told
            ],
            "open": list(made.open),
            "privacy": privacy(runs),
            "curves": curves(made, runs),
        }
    )


def privacy(runs: Mapping[tuple[str, str], Sequence[RunData]]) -> dict[str, dict[str, dict[str, Any]]]:
    """By row, method and part: what the release amounts to, of the seed that it protects least."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for (row, method), group in runs.items():
        for part in dict.fromkeys(p for r in group for p in r.privacy):
            told = max((r.privacy[part] for r in group if part in r.privacy), key=_largest)
            found.setdefault(row, {}).setdefault(method, {})[part] = {n: told[n] for n in ("release", "epsilons")}
    return found


def _largest(account: Mapping[str, Any]) -> float:
    return max((e["epsilon"] for e in account["epsilons"] if e["epsilon"] is not None), default=0.0)


def curves(
    made: Experiment, runs: Mapping[tuple[str, str], Sequence[RunData]]
) -> dict[str, dict[str, list[list[list[float]]]]]:
    """By row and method the seeds' series [[round, value], ...] in the table's unit."""
    found: dict[str, dict[str, list[list[list[float]]]]] = {}
    for (row, method), group in runs.items():
        series = [series_of(r, made, made.row(row)) for r in group]
        told = [[[int(t), float(f"{v:.4g}")] for t, v in zip(*s)] for s in series]
        found.setdefault(row, {})[method] = told
    return found


def series_of(run: RunData, made: Experiment, row: Row) -> tuple[Any, Any]:
    """(rounds, values in the table's unit) of what a row tells of; empty where a scaled run ends before the row's round."""
    rounds, values = stats.trained(run, row.scope or made.scope, row.metric or made.metric)
    reached = len(rounds) > 0 and rounds[-1] >= row.at
    kept = (rounds <= (row.at or math.inf)) & reached
    return rounds[kept], values[kept] * (100 if made.unit == "percent" else 1)


def scores_of(run: RunData, made: Experiment, row: Row) -> dict[str, float]:
    rounds, values = series_of(run, made, row)
    last, best, mean10 = stats.last_best_mean10(rounds, values)
    return {"last": last, "best": best, "mean10": mean10, "stability": stats.stability(rounds, values)}


def _against_best_other(
    method: str, means: Mapping[str, float], series: Mapping[str, Mapping[int, dict[str, float]]], measure: str
) -> tuple[float, float]:
    """(points ahead of the best other method, p); NaN without another or with one seed."""
    others = [m for m in means if m != method and not math.isnan(means[m])]
    if not others:
        return math.nan, math.nan
    best = max(others, key=lambda m: means[m])
    seeds = sorted(series[method].keys() & series[best].keys())
    pairs = [(series[method][s][measure], series[best][s][measure]) for s in seeds]
    p = stats.paired_p(*zip(*pairs)) if len(pairs) > 1 else math.nan
    return means[method] - means[best], p


def _of(entry: Entry, measure: str) -> float:
    return (getattr(entry, measure) if measure else entry.ours).mean


def _clean(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _clean(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_clean(v) for v in value]
    if isinstance(value, float):
        return None if math.isnan(value) else float(f"{value:.6g}")
    return value
