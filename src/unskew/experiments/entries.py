"""The numbers of a table and the verdicts on its claims.

ours            mean and sample standard deviation over seeds of the score that the paper reports
vs best other   difference to the best other method of the row, with a two-sided paired t-test over seeds;
p-values are
                Holm-corrected within the row

A claim holds in a row if the means over seeds do; a claim along rows holds at a step from one row to the
next. It is reproduced if it holds in every row, or at every step, that was run. Scores of attacks have
intervals over the samples that were attacked; where the margin between such scores may be chance, the claim
is neither held nor refuted there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from unskew.errors import UsageError
from unskew.experiments import attack_findings
from unskew.experiments.experiment import Claim, Experiment, Scores, TableRow, Trend, margins
from unskew.report.analysis import stats
from unskew.report.analysis.runs import RunData
from unskew.report.analysis.stats import Score
from unskew.scores import MAIN, Kind, kind

Runs = Mapping[tuple[str, str], Sequence[RunData]]
"""The runs of a table by row and method, one per seed."""
SCORES = ("last", "best", "mean10", "stability")


@dataclass(frozen=True)
class Bounds:
    """What stands beside an attack's score, in the table's unit, as means over seeds; NaN stands for no
    number.

    low, high: the 95 % interval over samples. floor: the score without the payload; ceiling: with the raw
    input instead.
    """

    low: float
    high: float
    floor: float
    ceiling: float


@dataclass(frozen=True)
class Entry:
    """One method in one row; scores in the table's unit.

    paper: the published number, NaN if there is none. ours: the score that the paper reports, the others are
    beside it.
    megabytes: sent and received by all clients in one run. ahead: points ahead of the best other method, over
    the seeds in which both have a score; p: of that difference; both NaN where there is no other method, p
    also with fewer than five
    seeds. bounds: of a row that reports an attack, what `Bounds` says of its score. lower: whether less of it
    is better.
    """

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
    bounds: Bounds | None = None
    lower: bool = False

    @property
    def gap(self) -> float:
        """Our number minus the paper's."""
        return self.ours.mean - self.paper


def entries_of(experiment: Experiment, runs: Runs) -> list[Entry]:
    """One entry for each row and method that was run, in the experiment's order."""
    entries: list[Entry] = []
    for row in experiment.rows:
        methods = [method for method in experiment.methods if _is_scored(row, runs.get((row.name, method)))]
        entries += _entries_of_row(experiment, row, {method: runs[row.name, method] for method in methods})
    return entries


def _entries_of_row(
    experiment: Experiment, row: TableRow, runs: Mapping[str, Sequence[RunData]]
) -> list[Entry]:
    by_seed = {
        method: {run.seed: scores_of(run, experiment, row) for run in group} for method, group in runs.items()
    }
    reported = {
        m: {seed: s[experiment.measure] for seed, s in scores.items()} for m, scores in by_seed.items()
    }
    means = {method: Score.of(list(values.values())).mean for method, values in reported.items()}
    main = next(iter(runs.values()))[0].metric if runs else "accuracy"
    which = kind("attack" if row.attack else quantity_of(experiment, row, main))
    leads = {method: _lead(method, means, reported, which) for method in runs}
    corrected = dict(zip(runs, stats.holm([leads[method][1] for method in runs])))
    entries = []
    for method, group in runs.items():
        over_seeds = {
            name: Score.of([scores[name] for scores in by_seed[method].values()]) for name in SCORES
        }
        entries.append(
            Entry(
                row=row.name,
                method=method,
                paper=row.published.get(method, math.nan),
                ours=over_seeds[experiment.measure],
                **over_seeds,
                megabytes=sum(map(_megabytes, group)) / len(group),
                ahead=leads[method][0],
                p=corrected[method],
                bounds=_bounds(experiment, row, group),
                lower=which.lower,
            )
        )
    return entries


def series_of(run: RunData, experiment: Experiment, row: TableRow) -> tuple[np.ndarray, np.ndarray]:
    """(rounds, values in the table's unit) of the quantity that a row reports.

    Both are empty where a scaled-down run ends before the round at which the row is read. What an attack
    found counts as the value of the last round. Raises UsageError (E109) for the main score of another task,
    and for a number in percent.
    """
    if row.attack:
        value = _found(run, row, "value")
        points = [] if math.isnan(value) else [value]
        return np.full(len(points), run.rounds), np.array(points) * _unit(experiment)
    _check_quantity(run, experiment, row)
    rounds, values = stats.trained_rounds(run, row.scope or experiment.scope, row.metric or experiment.metric)
    reached = len(rounds) > 0 and rounds[-1] >= row.at
    kept = (rounds <= (row.at or math.inf)) & reached
    return rounds[kept], values[kept] * _unit(experiment)


def _check_quantity(run: RunData, experiment: Experiment, row: TableRow) -> None:
    """Raises UsageError (E109) for the main score of another task than the run's, and for a number that is no
    share in percent."""
    metric = quantity_of(experiment, row, run.metric)
    where = f"'{experiment.name}', row {row.name}"
    if metric in MAIN.values() and metric != run.metric:
        raise UsageError(
            "E109", f"{where} reports {metric}, and these runs have {run.metric}; say metric: {run.metric}."
        )
    if not kind(metric).share and experiment.unit == "percent":
        raise UsageError(
            "E109", f"{where}: {metric} is a number in a unit of its own, not a share; say unit: number."
        )


def scores_of(run: RunData, experiment: Experiment, row: TableRow) -> dict[str, float]:
    """One run's last, best, mean10 and stability for a row, in the table's unit."""
    rounds, values = series_of(run, experiment, row)
    last, best, mean10 = stats.last_best_mean10(rounds, values, quantity_of(experiment, row, run.metric))
    return {"last": last, "best": best, "mean10": mean10, "stability": stats.stability(rounds, values)}


def quantity_of(experiment: Experiment, row: TableRow, main: str) -> str:
    """The score that a row reports; `mean` and `worst` over clients are those of the main one."""
    metric = row.metric or experiment.metric
    return main if metric in ("mean", "worst") else metric


def _unit(experiment: Experiment) -> int:
    """What turns a score into the table's unit."""
    return 100 if experiment.unit == "percent" else 1


def _is_scored(row: TableRow, group: Sequence[RunData] | None) -> bool:
    """Whether a method was run in this row, and the row's attack fits it."""
    return bool(group) and (
        not row.attack or all(attack_findings.fits(run.path, row.attack) for run in group or ())
    )


def _found(run: RunData, row: TableRow, name: str) -> float:
    """A field of the score that the row's attack has on a run; NaN where there is none."""
    assert row.attack
    value = (attack_findings.score(run.path, row.attack) or {}).get(name)
    return math.nan if value is None else float(value)


def _bounds(experiment: Experiment, row: TableRow, group: Sequence[RunData]) -> Bounds | None:
    if not row.attack:
        return None
    names = ("low", "high", "floor", "ceiling")
    means = (float(np.mean([_found(run, row, name) for run in group])) for name in names)
    return Bounds(*(mean * _unit(experiment) for mean in means))


def _megabytes(run: RunData) -> float:
    """Sent and received by all clients."""
    sums = (run.bytes_by_round(way)[1] for way in ("up", "down"))
    return sum(float(series[-1]) for series in sums if len(series)) / 1e6


def _lead(
    method: str, means: Mapping[str, float], scores: Mapping[str, Mapping[int, float]], which: Kind
) -> tuple[float, float]:
    """(points ahead of the best other method in the seeds that both have, p without correction). scores: by
    method and seed;
    which: the score."""
    others = [other for other in means if other != method and not math.isnan(means[other])]
    if not others:
        return math.nan, math.nan
    best = max(others, key=lambda other: which.ahead(means[other], 0.0))
    both = sorted(scores[method].keys() & scores[best].keys())
    pairs = [(scores[method][seed], scores[best][seed]) for seed in both]
    pairs = [pair for pair in pairs if not any(map(math.isnan, pair))]
    if not pairs:
        return math.nan, math.nan
    ours, theirs = zip(*pairs)
    return which.ahead(float(np.mean(ours)), float(np.mean(theirs))), stats.paired_p(ours, theirs)


@dataclass(frozen=True)
class Verdict:
    """A claim with its margin in points by row or step, negative where it is refuted.

    paper: the paper's own margins. unclear: the rows or steps whose margin may be chance.
    """

    claim: Claim | Trend
    margins: dict[str, float]
    paper: dict[str, float]
    unclear: frozenset[str] = frozenset()

    @property
    def held(self) -> int:
        """In how many rows, or at how many steps, the claim holds; a tie exceeds nothing."""
        clear = [points for place, points in self.margins.items() if place not in self.unclear]
        return sum(points > 0 and points >= self.claim.by for points in clear)

    @property
    def word(self) -> str:
        """`reproduced`, `reproduced in 2 of 3 rows, unclear in 1`, `not reproduced`, `unclear` or `not
        run`."""
        if not self.margins:
            return "not run"
        if self.held == len(self.margins):
            return "reproduced"
        if len(self.unclear) == len(self.margins):
            return "unclear"
        if not self.held and not self.unclear:
            return "not reproduced"
        share = f"reproduced in {self.held} of {len(self.margins)} {self.claim.places}"
        return f"{share}, unclear in {len(self.unclear)}" if self.unclear else share


def verdicts_of(experiment: Experiment, entries: Sequence[Entry]) -> list[Verdict]:
    """A verdict on every claim. A row that lacks one of the methods a claim mentions does not count for that
    claim."""
    return [_verdict(experiment, claim, entries) for claim in experiment.claims]


def _verdict(experiment: Experiment, claim: Claim | Trend, entries: Sequence[Entry]) -> Verdict:
    ours: dict[str, dict[str, float]] = {row.name: {} for row in experiment.rows}
    papers: dict[str, dict[str, float]] = {row.name: {} for row in experiment.rows}
    for entry in entries:
        ours[entry.row][entry.method] = (getattr(entry, claim.measure) if claim.measure else entry.ours).mean
        published = entry.paper if claim.measure in ("", experiment.measure) else math.nan
        papers[entry.row][entry.method] = published
        if _has_other_sign(claim, entry):
            for scores in (ours, papers):
                scores[entry.row][entry.method] *= -1
    of_paper = margins(claim, papers)
    by_place = margins(claim, ours)
    by_name = {(e.row, e.method): e for e in entries}
    of_attacks = claim.measure in (
        "",
        experiment.measure,
    )  # whose intervals are those of the table's own score
    unclear = _unclear(claim, by_place, ours, by_name) if of_attacks else frozenset[str]()
    return Verdict(claim, by_place, {place: of_paper.get(place, math.nan) for place in by_place}, unclear)


def _has_other_sign(claim: Claim | Trend, entry: Entry) -> bool:
    """Whether a score counts with the other sign, as one does that is better when lower."""
    return isinstance(claim, Claim) and claim.measure != "stability" and entry.lower


def _unclear(
    claim: Claim | Trend,
    by_place: Mapping[str, float],
    scores: Scores,
    entries: Mapping[tuple[str, str], Entry],
) -> frozenset[str]:
    """The places whose margin's 95 % interval holds the least margin at which the claim is met.

    The interval is made of those of the scores, as Zou and Donner (Statistics in Medicine 2008) have it for
    differences
    of independent estimates: the distances to the ends add up by their squares. Scores without an interval
    add nothing.
    """
    unclear = set()
    for place, terms in claim.terms(scores).items():
        below, above = 0.0, 0.0
        for sign, row, method in terms:
            entry = entries[row, method]
            less, more = _distances(entry)
            if _has_other_sign(claim, entry) == (sign > 0):  # what is taken off, or is better when lower
                less, more = more, less
            below, above = math.hypot(below, less), math.hypot(above, more)
        if (below or above) and by_place[place] - below <= claim.by <= by_place[place] + above:
            unclear.add(place)
    return frozenset(unclear)


def _distances(entry: Entry) -> tuple[float, float]:
    """From a score to the ends of its 95 % interval; 0 where it has none."""
    if entry.bounds is None or math.isnan(entry.bounds.low) or math.isnan(entry.bounds.high):
        return 0.0, 0.0
    return max(0.0, entry.ours.mean - entry.bounds.low), max(0.0, entry.bounds.high - entry.ours.mean)
