"""Whether federating pays: the best federated method beside training alone, at the clients themselves.

Both are taken over the rounds that rank methods and paired by seed, g_s = method - alone in seed s. Federating pays where
every g_s is above the sample standard deviation of g over seeds, and does not pay where every -g_s is; with anything in
between, and with one seed, nobody can tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from unskew.engine.resolve import LOCAL
from unskew.report.numbers import one
from unskew.report.summary import MethodSummary
from unskew.scores import kind, significant


def pays(summaries: Sequence[MethodSummary]) -> str:
    """One sentence on whether federating pays for the clients; "" where nobody trained alone in a seed of a method."""
    alone, best = _alone(summaries), best_at_clients(summaries)
    if alone is None or best is None:
        return ""
    method, ours, theirs = best
    which = kind(alone.metric)
    factor, points = (100, "points") if which.share else (1, which.title)
    ahead = factor * which.ahead(1.0, 0.0) * (ours - theirs)
    rounds = "after the last round" if alone.by_last else "over the last ten rounds"
    return (
        f"On the clients' own test samples, in the mean over clients {rounds}, {method} reaches "
        f"{one(float(ours.mean()), alone.metric)} and training alone {one(float(theirs.mean()), alone.metric)}: "
        f"{_judgement(method, ahead, points)}."
    )


def best_at_clients(summaries: Sequence[MethodSummary]) -> tuple[str, np.ndarray, np.ndarray] | None:
    """The federated method that serves clients best, its scores and those of training alone in the seeds that both have,
    [S] each; None where nobody trained alone in a seed of a method."""
    if (alone := _alone(summaries)) is None:
        return None
    paired = [(s.method, *_paired(s.at_clients, alone.at_clients)) for s in summaries if not s.reference]
    which = kind(alone.metric)
    there = (pair for pair in paired if len(pair[1]))
    return max(there, key=lambda pair: which.ahead(float(pair[1].mean()), 0.0), default=None)


def _alone(summaries: Sequence[MethodSummary]) -> MethodSummary | None:
    return next((s for s in summaries if s.method == LOCAL), None)


def _paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> tuple[np.ndarray, np.ndarray]:
    """[S] and [S], the scores of the seeds that both have."""
    seeds = sorted(ours.keys() & theirs.keys())
    return np.array([ours[s] for s in seeds]), np.array([theirs[s] for s in seeds])


def _judgement(method: str, gaps: np.ndarray, points: str) -> str:
    """gaps: [S] by how much the method is ahead of training alone, in each seed. points: what that is counted in."""
    mean, seeds = float(gaps.mean()), len(gaps)
    ahead = method if mean > 0 else "training alone"
    if not gaps.any():
        return "the two are equal"
    if seeds == 1:
        return f"{ahead} is ahead by {_written(abs(mean), points)} {points}, but one seed cannot tell whether federating pays"
    spread = float(gaps.std(ddof=1))
    if (gaps > spread).all():
        return f"federating pays, ahead in all {seeds} seeds by {_span(gaps, points)}"
    if (-gaps > spread).all():
        return f"federating does not pay, for training alone is ahead in all {seeds} seeds by {_span(-gaps, points)}"
    often = int((gaps * np.sign(mean) > 0).sum())
    by = f"{_written(abs(mean), points)} ± {_written(spread, points)} {points} in the mean"
    return f"the two cannot be told apart, for {ahead} is ahead in {often} of {seeds} seeds, by {by}"


def _span(gaps: np.ndarray, points: str) -> str:
    return f"{_written(float(gaps.min()), points)} to {_written(float(gaps.max()), points)} {points}"


def _written(gap: float, points: str) -> str:
    """Points with one decimal; what is in another unit with three digits."""
    return f"{gap:.1f}" if points == "points" else significant(gap, 3)
