"""The final table: one row of scores per method, and which method leads.

The mean of the last ten rounds ranks the methods, because the best round is chosen on the test set and the last one
is noisy; in runs of fewer than 30 rounds the last one does. Every other score of the table is taken over the same rounds.
References (`local`, `centralised`) have a row and do not compete. The leader was chosen with the same numbers that it is
tested with, so a p just below 0.05 is weak evidence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from unskew.report.further import Further, further
from unskew.report.numbers import plural
from unskew.report.runs import RunData, by_method
from unskew.report.stats import (
    NAN,
    NO_SCORE,
    Score,
    bytes_to,
    final,
    holm,
    last_best_mean10,
    last_ranks,
    paired_p,
    rounds_to,
    stability,
    trained,
)
from unskew.report.terms import Terms, terms_of
from unskew.scores import kind

TARGET_SHARE = 0.95
"""The default target is this share of the best method's final score."""


@dataclass(frozen=True)
class Gap:
    """A method against the leader, over the seeds that both have.

    behind: by how much the leader's mean score is better, NaN without such seeds. lost, seeds: in how many of them the leader
    was ahead. p: Holm-corrected, NaN with fewer than five.
    """

    behind: float
    lost: int
    seeds: int
    p: float


@dataclass(frozen=True)
class MethodSummary:
    """One method over its n seeds; scores in [0, 1] or in their own unit, bytes of all clients in the whole run.

    metric: the main score, such as "accuracy". last, best, mean10, stability, macro_f1, worst_class, dice_both, mae, r2: of the
    global model on the global test set. clients, worst, spread: mean, worst and standard deviation over clients of the
    global model on their own test rows. personal: mean over clients of their own models. All but last, best, mean10 and
    stability are of the last round if `by_last`, else means over the last ten. up, down: mean over seeds. to_target,
    rounds_to: bytes and rounds until the target, over the `reached` seeds that got there. final: the score that ranks.
    at_clients: by seed, the mean over clients, on their own test rows, of the model that serves them better: the global
    one or their own. received, used: replies over all seeds; untrained: the seeds in which too few were used.
    further: the metrics that were asked for beside the main score. terms: after how many rounds its runs ended, and on which
    samples they were scored. doubt: why the scores say little, where in some seeds many replies were dropped. gap: how it differs from the leader; None for the leader and for references.
    """

    method: str
    n: int
    last: Score
    best: Score
    mean10: Score
    stability: Score
    clients: Score
    worst: Score
    spread: Score
    personal: Score
    macro_f1: Score
    worst_class: Score
    up: float
    down: float
    to_target: Score
    target: float
    reached: int
    reference: bool
    leads: bool
    dice_both: Score = NO_SCORE
    mae: Score = NO_SCORE
    r2: Score = NO_SCORE
    rounds_to: Score = NO_SCORE
    final: Score = NO_SCORE
    gap: Gap | None = None
    received: int = 0
    used: int = 0
    untrained: int = 0
    metric: str = "accuracy"
    by_last: bool = False
    doubt: str = ""
    at_clients: dict[int, float] = field(default_factory=dict)
    further: Further = field(default_factory=dict)
    terms: Terms = Terms()


def summary_table(runs: Sequence[RunData], target: float | None = None) -> list[MethodSummary]:
    """One summary per method, in the order given. target: a score; default: `target_of(runs)`."""
    target = target_of(runs) if target is None else target
    leader = leader_of(runs)
    gaps = against(runs, leader) if leader else {}
    by_last = last_ranks(runs)
    return [
        replace(_scored(group, by_last, target), leads=method == leader, gap=gaps.get(method))
        for method, group in by_method(runs).items()
    ]


def target_of(runs: Sequence[RunData]) -> float:
    """95 % of the best method's final score, rounded to a tenth of a percent; NaN if no method competes.

    Where lower is better, so much above it that it is 95 % of the target, in three digits.
    """
    finals, which = _finals(runs), kind(runs[0].metric)
    if not finals:
        return NAN
    best = which.best(finals.values())
    return float(f"{best / TARGET_SHARE:.3g}") if which.lower else round(TARGET_SHARE * best, 3)


def leader_of(runs: Sequence[RunData]) -> str:
    """The method with the best final score; "" if none competes."""
    finals, which = _finals(runs), kind(runs[0].metric)
    return max(finals, key=lambda method: which.ahead(finals[method], 0.0), default="")


def _finals(runs: Sequence[RunData]) -> dict[str, float]:
    """The mean over seeds of each competing method's final score; without those that have none."""
    by_last = last_ranks(runs)
    scores = {m: Score.of([final(r, by_last) for r in g]) for m, g in by_method(runs).items() if not g[0].is_reference}
    return {method: score.mean for method, score in scores.items() if score.n}


def against(runs: Sequence[RunData], leader: str) -> dict[str, Gap]:
    """Every other competing method against the leader, paired by seed."""
    by_last = last_ranks(runs)
    finals = {m: {r.seed: final(r, by_last) for r in g} for m, g in by_method(runs).items() if not g[0].is_reference}
    others, which = [m for m in finals if m != leader], kind(runs[0].metric)
    gaps: dict[str, Gap] = {}
    for method in others:
        seeds = sorted(finals[leader].keys() & finals[method].keys())
        pairs = [(finals[leader][s], finals[method][s]) for s in seeds]
        pairs = [pair for pair in pairs if not any(map(math.isnan, pair))]
        ahead = [which.ahead(theirs, ours) for theirs, ours in pairs]
        p = paired_p(*zip(*pairs)) if pairs else NAN
        gaps[method] = Gap(float(np.mean(ahead)) if ahead else NAN, sum(a > 0 for a in ahead), len(ahead), p)
    corrected = holm([gap.p for gap in gaps.values()])
    return {method: replace(gap, p=p) for (method, gap), p in zip(gaps.items(), corrected, strict=True)}


def _scored(runs: Sequence[RunData], by_last: bool, target: float) -> MethodSummary:
    """The summary of one method from its runs, one per seed, as if it competed with nobody."""
    last, best, tail = zip(*(last_best_mean10(*trained(r), r.metric) for r in runs))

    def score(scope: str, metric: str) -> Score:
        return Score.of([final(r, by_last, scope, metric) for r in runs])

    def at_clients(scope: str, metric: str) -> Score:
        return NO_SCORE if _pooled(runs) else score(scope, metric)

    to_target = Score.of([bytes_to(r, target) for r in runs])
    return MethodSummary(
        runs[0].method,
        len(runs),
        last=Score.of(last),
        best=Score.of(best),
        mean10=Score.of(tail),
        final=Score.of([final(r, by_last) for r in runs]),
        stability=Score.of([stability(*trained(r)) for r in runs]),
        clients=at_clients("global@client", "mean"),
        worst=at_clients("global@client", "worst"),
        spread=at_clients("global@client", "std"),
        personal=at_clients("personal@client", "mean"),
        macro_f1=score("global", "macro_f1"),
        worst_class=score("global", "worst_class"),
        dice_both=score("global", "dice_both"),
        mae=score("global", "mae"),
        r2=score("global", "r2"),
        up=_mean_bytes(runs, "up"),
        down=_mean_bytes(runs, "down"),
        to_target=to_target,
        rounds_to=Score.of([rounds_to(r, target) for r in runs]),
        received=sum(r.replies.received for r in runs),
        used=sum(r.replies.used for r in runs),
        untrained=sum(not r.replies.enough for r in runs),
        target=target,
        reached=to_target.n,
        reference=runs[0].is_reference,
        leads=False,
        metric=runs[0].metric,
        by_last=by_last,
        doubt=_doubt(runs),
        at_clients=_at_clients(runs, by_last),
        further=further(runs, by_last),
        terms=terms_of(runs),
    )


def _pooled(runs: Sequence[RunData]) -> bool:
    """Whether all data are one client's: a mean and a worst over clients would be the global score under other names."""
    return runs[0].federation.get("clients") == 1


def _doubt(runs: Sequence[RunData]) -> str:
    """In how many runs many replies were dropped, and the likeliest cause in the first of them; "" if in none."""
    doubtful = [r for r in runs if r.doubt]
    if not doubtful:
        return ""
    first, runs_ = doubtful[0], f"{len(doubtful)} of {plural(len(runs), 'run')}"
    return f"{first.method}, {runs_}, such as seed {first.seed}: {first.doubt}"


def _at_clients(runs: Sequence[RunData], by_last: bool) -> dict[int, float]:
    """By seed, the mean over clients of the global model or of their own ones, whichever serves them better."""
    if _pooled(runs):
        return {}
    candidates = []
    for scope in ("global@client", "personal@client"):
        scores = {r.seed: final(r, by_last, scope, "mean") for r in runs}
        candidates.append({seed: score for seed, score in scores.items() if not math.isnan(score)})
    which = kind(runs[0].metric)
    return max(candidates, key=lambda by: which.ahead(Score.of([*by.values()]).mean, 0.0) if by else -math.inf)


def _mean_bytes(runs: Sequence[RunData], way: str) -> float:
    """Mean over seeds of the bytes of all clients in the whole run."""
    totals = [r.bytes_by_round(way)[1] for r in runs]
    return float(np.mean([total[-1] if len(total) else 0 for total in totals]))
