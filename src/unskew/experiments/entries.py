"""The numbers of a table: for each row and method the scores over seeds, and the comparison with the best other method.

ours            mean and sample standard deviation over seeds of the score that the paper reports
vs best other   difference to the best other method of the row, with a two-sided paired t-test over seeds; p-values are
                Holm-corrected within the row
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from unskew.experiments.experiment import Experiment, TableRow
from unskew.report import stats
from unskew.report.runs import RunData
from unskew.report.stats import Score

Runs = Mapping[tuple[str, str], Sequence[RunData]]
"""The runs of a table by row and method, one per seed."""
SCORES = ("last", "best", "mean10", "stability")


@dataclass(frozen=True)
class Entry:
    """One method in one row; scores in the table's unit.

    paper: the published number, NaN if there is none. ours: the score that the paper reports, the others are beside it.
    megabytes: sent and received by all clients in one run. ahead: points ahead of the best other method; p: of that
    difference; both NaN where there is no other method, p also with fewer than two seeds.
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

    @property
    def gap(self) -> float:
        """Our number minus the paper's."""
        return self.ours.mean - self.paper


def entries_of(experiment: Experiment, runs: Runs) -> list[Entry]:
    """One entry for each row and method that was run, in the experiment's order."""
    entries: list[Entry] = []
    for row in experiment.rows:
        methods = [method for method in experiment.methods if runs.get((row.name, method))]
        entries += _entries_of_row(experiment, row, {method: runs[row.name, method] for method in methods})
    return entries


def _entries_of_row(experiment: Experiment, row: TableRow, runs: Mapping[str, Sequence[RunData]]) -> list[Entry]:
    by_seed = {method: {run.seed: scores_of(run, experiment, row) for run in group} for method, group in runs.items()}
    reported = {m: {seed: s[experiment.measure] for seed, s in scores.items()} for m, scores in by_seed.items()}
    means = {method: Score.of(list(values.values())).mean for method, values in reported.items()}
    leads = {method: _lead(method, means, reported) for method in runs}
    corrected = dict(zip(runs, stats.holm([leads[method][1] for method in runs])))
    entries = []
    for method, group in runs.items():
        over_seeds = {name: Score.of([scores[name] for scores in by_seed[method].values()]) for name in SCORES}
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
            )
        )
    return entries


def series_of(run: RunData, experiment: Experiment, row: TableRow) -> tuple[np.ndarray, np.ndarray]:
    """(rounds, values in the table's unit) of the quantity that a row reports.

    Both are empty where a scaled-down run ends before the round at which the row is read.
    """
    rounds, values = stats.trained(run, row.scope or experiment.scope, row.metric or experiment.metric)
    reached = len(rounds) > 0 and rounds[-1] >= row.at
    kept = (rounds <= (row.at or math.inf)) & reached
    return rounds[kept], values[kept] * (100 if experiment.unit == "percent" else 1)


def scores_of(run: RunData, experiment: Experiment, row: TableRow) -> dict[str, float]:
    """One run's last, best, mean10 and stability for a row, in the table's unit."""
    rounds, values = series_of(run, experiment, row)
    last, best, mean10 = stats.last_best_mean10(rounds, values)
    return {"last": last, "best": best, "mean10": mean10, "stability": stats.stability(rounds, values)}


def _megabytes(run: RunData) -> float:
    """Sent and received by all clients."""
    sums = (run.bytes_by_round(way)[1] for way in ("up", "down"))
    return sum(float(series[-1]) for series in sums if len(series)) / 1e6


def _lead(method: str, means: Mapping[str, float], scores: Mapping[str, Mapping[int, float]]) -> tuple[float, float]:
    """(points ahead of the best other method, p without correction). scores: by method and seed."""
    others = [other for other in means if other != method and not math.isnan(means[other])]
    if not others:
        return math.nan, math.nan
    best = max(others, key=lambda other: means[other])
    seeds = sorted(scores[method].keys() & scores[best].keys())
    p = stats.paired_p([scores[method][seed] for seed in seeds], [scores[best][seed] for seed in seeds])
    return means[method] - means[best], p
