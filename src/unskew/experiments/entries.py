"""The numbers of a table and the verdicts on its claims.

ours            mean and sample standard deviation over seeds of the score that the paper reports
vs best other   difference to the best other method of the row, with a two-sided paired t-test over seeds;
                p-values are Holm-corrected within the row

A claim holds in a row if it holds for the means over seeds; a claim along rows holds at a step from one row
to the next. It is reproduced if it holds in every row, or at every step, that was run. Scores of attacks have
intervals over the attacked samples; if the margin between two such scores may be chance, the claim is unclear
in that row.
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
    """Reference values of an attack's score in the table's unit, as means over seeds; NaN if missing.

    low, high: the 95 % interval over samples. floor: the score without the payload. ceiling: the score with
    the raw input in place of the payload.
    """

    low: float
    high: float
    floor: float
    ceiling: float


@dataclass(frozen=True)
class Entry:
    """One method in one row; scores in the table's unit.

    paper: the published number, NaN if there is none. ours: our value of the score that the paper reports.
    last, best, mean10, stability: the score in the last round, in the best round, as the mean of the last ten
    rounds, and its standard deviation over late rounds.
    megabytes: sent and received by all clients in one run.
    ahead: points ahead of the best other method over their common seeds; NaN without another method.
    p: the p-value of that difference; NaN without another method or with fewer than five seeds.
    bounds: reference values of an attack's score. lower: whether a lower score is better.
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

    Both are empty if a scaled-down run ends before the round at which the row is read. The score of an attack
    counts as the value of the last round. Raises UsageError (E109) for the main score of another task, and
    for percent of a score that is no share.
    """
    if row.attack:
        value = _attack_value(run, row, "value")
        points = [] if math.isnan(value) else [value]
        return np.full(len(points), run.rounds), np.array(points) * _unit(experiment)
    _check_quantity(run, experiment, row)
    rounds, values = stats.trained_rounds(run, row.scope or experiment.scope, row.metric or experiment.metric)
    reached = len(rounds) > 0 and rounds[-1] >= row.at
    counted = (rounds <= (row.at or math.inf)) & reached
    return rounds[counted], values[counted] * _unit(experiment)


def _check_quantity(run: RunData, experiment: Experiment, row: TableRow) -> None:
    """Raises UsageError (E109) for the main score of another task, and for percent of a score that is no
    share."""
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
    """The last, best, mean10 and stability of one run in a row, in the table's unit."""
    rounds, values = series_of(run, experiment, row)
    last, best, mean10 = stats.last_best_mean10(rounds, values, quantity_of(experiment, row, run.metric))
    return {"last": last, "best": best, "mean10": mean10, "stability": stats.stability(rounds, values)}


def quantity_of(experiment: Experiment, row: TableRow, main: str) -> str:
    """The name of the score that a row reports; `mean` and `worst` over clients are of the `main` score."""
    metric = row.metric or experiment.metric
    return main if metric in ("mean", "worst") else metric


def _unit(experiment: Experiment) -> int:
    """The factor from a score to the table's unit."""
    return 100 if experiment.unit == "percent" else 1


def _is_scored(row: TableRow, group: Sequence[RunData] | None) -> bool:
    """Whether a method was run in this row and the row's attack, if any, fits its runs."""
    return bool(group) and (
        not row.attack or all(attack_findings.fits(run.path, row.attack) for run in group or ())
    )


def _attack_value(run: RunData, row: TableRow, name: str) -> float:
    """A field of the attack's score on a run; NaN if there is none."""
    assert row.attack
    value = (attack_findings.score(run.path, row.attack) or {}).get(name)
    return math.nan if value is None else float(value)


def _bounds(experiment: Experiment, row: TableRow, group: Sequence[RunData]) -> Bounds | None:
    if not row.attack:
        return None
    names = ("low", "high", "floor", "ceiling")
    means = (float(np.mean([_attack_value(run, row, name) for run in group])) for name in names)
    return Bounds(*(mean * _unit(experiment) for mean in means))


def _megabytes(run: RunData) -> float:
    """Sent and received by all clients."""
    sums = (run.bytes_by_round(way)[1] for way in ("up", "down"))
    return sum(float(series[-1]) for series in sums if len(series)) / 1e6


def _lead(
    method: str, means: Mapping[str, float], scores: Mapping[str, Mapping[int, float]], which: Kind
) -> tuple[float, float]:
    """(points ahead of the best other method over common seeds, uncorrected p); NaN without another method.

    means: by method. scores: by method and seed. which: the kind of the score.
    """
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
    """A claim with its margins.

    margins: in points, by row or step; negative if the claim is refuted there. paper: the paper's margins.
    unclear: the rows or steps at which the margin may be chance.
    """

    claim: Claim | Trend
    margins: dict[str, float]
    paper: dict[str, float]
    unclear: frozenset[str] = frozenset()

    @property
    def held(self) -> int:
        """The number of rows or steps at which the claim holds; a tie does not count."""
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
    """A verdict on every claim. Rows without all of the claim's methods do not count for it."""
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
    unclear = frozenset[str]()
    if claim.measure in ("", experiment.measure):  # intervals are known for the table's score only
        unclear = _unclear(claim, by_place, ours, by_name)
    return Verdict(claim, by_place, {place: of_paper.get(place, math.nan) for place in by_place}, unclear)


def _has_other_sign(claim: Claim | Trend, entry: Entry) -> bool:
    """Whether the score enters the margin with the opposite sign, because lower is better."""
    return isinstance(claim, Claim) and claim.measure != "stability" and entry.lower


def _unclear(
    claim: Claim | Trend,
    by_place: Mapping[str, float],
    scores: Scores,
    entries: Mapping[tuple[str, str], Entry],
) -> frozenset[str]:
    """The places at which the 95 % interval of the margin contains the least margin that meets the claim.

    The interval of a difference of independent estimates follows Zou and Donner (Statistics in Medicine
    2008): the squared distances to the ends of the scores' intervals add up. Scores without an interval add
    nothing.
    """
    unclear = set()
    for place, terms in claim.terms(scores).items():
        below, above = 0.0, 0.0
        for sign, row, method in terms:
            entry = entries[row, method]
            less, more = _distances(entry)
            if _has_other_sign(claim, entry) == (sign > 0):  # a subtracted score swaps its distances
                less, more = more, less
            below, above = math.hypot(below, less), math.hypot(above, more)
        if (below or above) and by_place[place] - below <= claim.by <= by_place[place] + above:
            unclear.add(place)
    return frozenset(unclear)


def _distances(entry: Entry) -> tuple[float, float]:
    """The distances from a score to the ends of its 95 % interval; (0, 0) without an interval."""
    if entry.bounds is None or math.isnan(entry.bounds.low) or math.isnan(entry.bounds.high):
        return 0.0, 0.0
    return max(0.0, entry.ours.mean - entry.bounds.low), max(0.0, entry.bounds.high - entry.ours.mean)
