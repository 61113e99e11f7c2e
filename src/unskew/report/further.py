"""The metrics that were asked for beside the main score, of one method over its seeds, by scope.

A run whose last evaluated round has no value of a metric has none at all: an earlier round's is not its result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from unskew.report.runs import EVALUATED, RunData
from unskew.report.stats import NAN, Score, final
from unskew.scores import MAIN, of_setting


@dataclass(frozen=True)
class InScope:
    """A metric in one scope, over seeds.

    defined, clients: at how many of the clients with test rows it is defined in the last round, the fewest over seeds; 0 of 0
    where the score is not a mean over clients.
    """

    score: Score
    defined: int = 0
    clients: int = 0


Further: TypeAlias = Mapping[str, Mapping[str, InScope]]
"""By the metric's name in metrics.jsonl and by scope; a scope in which it is defined for no seed is left out."""


def asked(runs: Sequence[RunData]) -> list[str]:
    """The metrics that these runs were asked for and that are defined anywhere, by their names in metrics.jsonl."""
    known = dict.fromkeys(metric for run in runs for scope, metric in run.metrics if scope in EVALUATED)
    named = (of_setting(str(run.config.get("metrics", "none")), run.task, known) for run in runs)
    return list(dict.fromkeys(metric for metrics in named for metric in metrics))


def further(runs: Sequence[RunData], by_last: bool) -> Further:
    """Of the runs of one method. by_last: what `last_ranks` says of all runs that are compared."""
    table = {metric: {scope: _in_scope(runs, scope, metric, by_last) for scope in EVALUATED} for metric in asked(runs)}
    return {metric: {scope: of for scope, of in row.items() if of.score.n} for metric, row in table.items()}


def _in_scope(runs: Sequence[RunData], scope: str, metric: str, by_last: bool) -> InScope:
    score = Score.of([final(run, by_last, scope, metric) if _lasts(run, scope, metric) else NAN for run in runs])
    if scope == "global" or not score.n:
        return InScope(score)
    counts = [(len(run.per_client(scope, metric)), len(run.per_client(scope))) for run in runs]
    return InScope(score, *min(counts, key=lambda count: count[0]))


def _lasts(run: RunData, scope: str, metric: str) -> bool:
    """Whether the last round in which this scope was evaluated has a value."""
    main = MAIN[run.task] if scope == "global" else "mean"
    (evaluated, _), (rounds, _) = run.series(scope, main), run.series(scope, metric)
    return len(rounds) > 0 and (not len(evaluated) or rounds[-1] >= evaluated[-1])
