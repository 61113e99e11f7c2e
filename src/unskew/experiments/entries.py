"""The numbers of a table.

ours            mean and sample standard deviation over seeds of the score that the paper reports
vs best other   difference to the best other method of the row, with a two-sided paired t-test over seeds;
                p-values are Holm-corrected within the row
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from unskew.errors import UsageError
from unskew.experiments import attack_findings
from unskew.experiments.experiment import Experiment, TableRow
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
    rounds, and its standard deviation over the last quarter of the rounds, at most 50.
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
    return {"last": last, "best": best, "mean10": mean10, "stability": stability(rounds, values)}


def stability(rounds: np.ndarray, values: np.ndarray) -> float:
    """Sample standard deviation over the last quarter of the rounds, at most 50; NaN for fewer than two
    values."""
    quarter = int(rounds[-1]) // 4 if len(rounds) else 0
    return stats.stability(rounds, values, min(stats.STABILITY_ROUNDS, quarter))


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
