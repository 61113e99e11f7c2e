"""The summary of each method over its seeds, which method leads, and whether federating pays.

Methods are ranked by the mean of the last ten rounds, because the best round is chosen on the test set and
the last one is noisy; runs of fewer than 30 rounds are ranked by the last round. All other scores of the
table are taken over the same rounds. References (`local`, `centralised`) have a row and do not compete. The
leader is tested on the numbers by which it was chosen, so a p just below 0.05 is weak evidence.

The terms of scoring are the last rounds of runs, the samples and the clients of their scores. A run without a
value of a metric in its last evaluated round has no value, because a value of an earlier round is not its
result.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from unskew.report.analysis.number_formats import plural, with_unit
from unskew.report.analysis.runs import EVALUATED, RunData, by_method
from unskew.report.analysis.stats import (
    NAN,
    NO_SCORE,
    Score,
    bytes_to,
    common_seeds,
    final,
    holm,
    last_best_mean10,
    paired_p,
    ranks_by_last_round,
    rounds_to,
    stability,
    trained_rounds,
)
from unskew.round.run import LOCAL
from unskew.runs.score_coverage import MISSING_REASON, lost_replies
from unskew.scores import MAIN, kind, of_setting, significant


@dataclass(frozen=True)
class ScopedScore:
    """A metric in one scope, over seeds.

    clients, defined: the number of clients with test rows, and of those at which the metric is defined in the
    last round, the smallest over seeds; both 0 if the score is not a mean over clients.
    """

    score: Score
    defined: int = 0
    clients: int = 0


ExtraScores: TypeAlias = Mapping[str, Mapping[str, ScopedScore]]
"""By name of the metric in metrics.jsonl and by scope, without scopes in which no seed has a value."""


def requested_metrics(runs: Sequence[RunData]) -> list[str]:
    """The requested metrics of runs that have any value, by their names in metrics.jsonl."""
    known = dict.fromkeys(metric for run in runs for scope, metric in run.metrics if scope in EVALUATED)
    named = (of_setting(str(run.config.get("metrics", "none")), run.task, known) for run in runs)
    return list(dict.fromkeys(metric for metrics in named for metric in metrics))


def extra_scores(runs: Sequence[RunData], by_last: bool) -> ExtraScores:
    """The requested metrics of one method. by_last: `ranks_by_last_round` of all compared runs."""
    table = {
        metric: {scope: _in_scope(runs, scope, metric, by_last) for scope in EVALUATED}
        for metric in requested_metrics(runs)
    }
    return {
        metric: {scope: score for scope, score in row.items() if score.score.n}
        for metric, row in table.items()
    }


def _in_scope(runs: Sequence[RunData], scope: str, metric: str, by_last: bool) -> ScopedScore:
    score = Score.of(
        [final(run, by_last, scope, metric) if _has_last_value(run, scope, metric) else NAN for run in runs]
    )
    if scope == "global" or not score.n:
        return ScopedScore(score)
    counts = [(len(run.per_client(scope, metric)), len(run.per_client(scope))) for run in runs]
    return ScopedScore(score, *min(counts, key=lambda count: count[0]))


def _has_last_value(run: RunData, scope: str, metric: str) -> bool:
    """Whether the last evaluated round of this scope has a value."""
    main = MAIN[run.task] if scope == "global" else "mean"
    (evaluated, _), (rounds, _) = run.series(scope, main), run.series(scope, metric)
    return len(rounds) > 0 and (not len(evaluated) or rounds[-1] >= evaluated[-1])


def remarks_on(name: str, runs: Sequence[RunData]) -> list[str]:
    """Sentences on unusual terms of scoring of a method's runs: other samples than the test set, and
    fewer rounds, replies or clients. name: of the method in the sentences."""
    lines = list[str]()
    if held_out := max(float(run.config.get("validation") or 0.0) for run in runs):
        lines.append(
            f"Scored on {held_out:.0%} of the training samples, which were held out, and not on the test set."
        )
    received, used = (sum(getattr(run.replies, count) for run in runs) for count in ("received", "used"))
    untrained, asked = sum(not run.replies.enough for run in runs), max(run.asked for run in runs)
    lines.append(lost_replies(name, received, used, untrained, len(runs)))
    if scored := [run.scored_at for run in runs if run.finished and run.scored_at]:
        own = " (personal)" if all(one.own for one in scored) else ""
        there, of = (range_text([getattr(one, count) for one in scored]) for count in ("there", "of"))
        lines.append(
            f"{name}{own} was scored at {there} of {of} clients with test samples, as {MISSING_REASON}."
        )
    if any(run.planned < run.asked for run in runs):
        judged = ", judged by these scores" if any(run.config.get("patience") for run in runs) else ""
        rounds = range_text([run.planned for run in runs])
        lines.append(f"{name} ended after {rounds} of {asked} rounds{judged}.")
    if half := [f"seed {run.seed} (round {run.rounds} of {asked})" for run in runs if not run.finished]:
        more = ", …" if len(half) > MOST_NAMED else ""
        named = f"{', '.join(half[:MOST_NAMED])}{more}"
        lines.append(f"{name} is not finished, and scored by the rounds that there are: {named}.")
    return [line for line in lines if line]


def range_text(rounds: Collection[int]) -> str:
    """`12`, or `8 to 12`."""
    first, last = min(rounds), max(rounds)
    return f"{first}" if first == last else f"{first} to {last}"


MOST_NAMED = 4
"""The most unfinished runs that a sentence names."""
TARGET_SHARE = 0.95
"""The default target is this share of the best method's final score."""


@dataclass(frozen=True)
class Gap:
    """A method in comparison with the leader, over their common seeds.

    behind: the lead of the leader's mean score, NaN without common seeds. seeds: their number. lost: the
    number of seeds in which the leader was ahead. p: Holm-corrected, NaN with fewer than five seeds.
    """

    behind: float
    lost: int
    seeds: int
    p: float


@dataclass(frozen=True)
class MethodSummary:
    """One method over its n seeds; scores in [0, 1] or in their own unit, bytes of all clients in the whole
    run.

    metric: the main score, such as "accuracy". last, best, mean10, stability, macro_f1, worst_class,
    dice_both, mae, r2: of the global model on the global test set. clients, worst, spread: mean, worst and
    standard deviation over clients of the global model on their own test rows. personal: mean over clients of
    their own models. All but last, best, mean10 and stability are of the last round if `by_last`, else means
    over the last ten. up, down: mean over seeds. to_target, rounds_to: bytes and rounds until the target,
    over the `reached` seeds that attained it. final: the score that ranks. at_clients: by seed, the mean over
    clients, on their own test rows, of the global model or of their own models, whichever is better;
    client_tests: how many rows these are, or groups of rows if `grouped`.
    untrained: seeds in which too few replies were used. further: requested metrics besides the main score.
    remarks: sentences on the terms of scoring. doubt: a reason to distrust the scores, if many replies were
    dropped. gap: to the leader; None for the leader and for references.
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
    untrained: int = 0
    metric: str = "accuracy"
    by_last: bool = False
    doubt: str = ""
    at_clients: dict[int, float] = field(default_factory=dict)
    client_tests: int = 0
    grouped: bool = False
    further: ExtraScores = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


def summary_table(runs: Sequence[RunData], target: float | None = None) -> list[MethodSummary]:
    """One summary per method, in order. target: a score; default: `target_of(runs)`."""
    target = target_of(runs) if target is None else target
    leader = leader_of(runs)
    gaps = gaps_to(runs, leader) if leader else {}
    by_last = ranks_by_last_round(runs)
    return [
        replace(_scored(group, by_last, target), leads=method == leader, gap=gaps.get(method))
        for method, group in by_method(runs).items()
    ]


def target_of(runs: Sequence[RunData]) -> float:
    """95 % of the best method's final score, rounded to a tenth of a percent; NaN if no method competes.

    If lower is better, the best score divided by 0.95, in three digits.
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
    """The mean final score over seeds of each competing method that has one."""
    means = {method: Score.of([*by_seed.values()]).mean for method, by_seed in _finals_by_seed(runs).items()}
    return {method: mean for method, mean in means.items() if not math.isnan(mean)}


def _finals_by_seed(runs: Sequence[RunData]) -> dict[str, dict[int, float]]:
    """The final score of each competing method by seed."""
    by_last = ranks_by_last_round(runs)
    groups = by_method([run for run in runs if not run.is_reference])
    return {method: {r.seed: final(r, by_last) for r in group} for method, group in groups.items()}


def gaps_to(runs: Sequence[RunData], leader: str) -> dict[str, Gap]:
    """The gaps of all other competing methods to the leader, paired by seed."""
    finals, which = _finals_by_seed(runs), kind(runs[0].metric)
    gaps: dict[str, Gap] = {}
    for method in [m for m in finals if m != leader]:
        best, ours = common_seeds(finals[leader], finals[method])
        ahead = which.ahead(1.0, 0.0) * (best - ours)
        behind = float(ahead.mean()) if len(ahead) else NAN
        gaps[method] = Gap(behind, int((ahead > 0).sum()), len(ahead), paired_p(best.tolist(), ours.tolist()))
    corrected = holm([gap.p for gap in gaps.values()])
    return {method: replace(gap, p=p) for (method, gap), p in zip(gaps.items(), corrected, strict=True)}


def _scored(runs: Sequence[RunData], by_last: bool, target: float) -> MethodSummary:
    """The summary of one method from its runs, one per seed, without a comparison to other methods."""
    last, best, tail = zip(*(last_best_mean10(*trained_rounds(r), r.metric) for r in runs))

    def score(scope: str, metric: str) -> Score:
        return Score.of([final(r, by_last, scope, metric) for r in runs])

    def at_clients(scope: str, metric: str) -> Score:
        return NO_SCORE if _pooled(runs) else score(scope, metric)

    to_target = Score.of([bytes_to(r, target) for r in runs])
    groups = int(runs[0].federation.get("test_groups", 0))
    return MethodSummary(
        runs[0].method,
        len(runs),
        last=Score.of(last),
        best=Score.of(best),
        mean10=Score.of(tail),
        final=Score.of([final(r, by_last) for r in runs]),
        stability=Score.of([stability(*trained_rounds(r)) for r in runs]),
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
        untrained=sum(not r.replies.enough for r in runs),
        target=target,
        reached=to_target.n,
        reference=runs[0].is_reference,
        leads=False,
        metric=runs[0].metric,
        by_last=by_last,
        doubt=_doubt(runs),
        at_clients=_at_clients(runs, by_last),
        client_tests=groups or sum(runs[0].federation.get("sizes", {}).get("test", [])),
        grouped=groups > 0,
        further=extra_scores(runs, by_last),
        remarks=tuple(remarks_on(runs[0].method, runs)),
    )


def _pooled(runs: Sequence[RunData]) -> bool:
    """Whether there is a single client, so that scores over clients repeat the global score."""
    return runs[0].federation.get("clients") == 1


def _doubt(runs: Sequence[RunData]) -> str:
    """The number of doubtful runs and the doubt of the first one; "" without any."""
    doubtful = [r for r in runs if r.doubt]
    if not doubtful:
        return ""
    first, share = doubtful[0], f"{len(doubtful)} of {plural(len(runs), 'run')}"
    return f"{first.method}, {share}, such as seed {first.seed}: {first.doubt}"


def _at_clients(runs: Sequence[RunData], by_last: bool) -> dict[int, float]:
    """By seed, the mean over clients of the global model or of their own models, whichever is better."""
    if _pooled(runs):
        return {}
    candidates = []
    for scope in ("global@client", "personal@client"):
        scores = {r.seed: final(r, by_last, scope, "mean") for r in runs}
        candidates.append({seed: score for seed, score in scores.items() if not math.isnan(score)})
    which = kind(runs[0].metric)
    return max(
        candidates,
        key=lambda scores: which.ahead(Score.of([*scores.values()]).mean, 0.0) if scores else -math.inf,
    )


def _mean_bytes(runs: Sequence[RunData], way: str) -> float:
    """Mean over seeds of the bytes of all clients in the whole run."""
    totals = [r.bytes_by_round(way)[1] for r in runs]
    return float(np.mean([total[-1] if len(total) else 0 for total in totals]))


def benefit_sentence(summaries: Sequence[MethodSummary]) -> str:
    """A sentence on whether federating pays for the clients; "" without local training in a common seed.

    Whether federating pays is decided by the clients' scores under the best federated method and under local
    training, over the ranking rounds and paired by seed: g_s = method - local in seed s. Federating pays if
    every g_s is above the sample standard deviation of g over seeds, and does not pay if every -g_s is.
    Otherwise, and with one seed, the runs do not decide it. Nor do they if a score is a share and the mean
    lead is within what n test samples vary by chance, 1.96 sqrt((p (1 - p) + q (1 - q)) / (n + 2)) for two
    shares p and q, because all seeds are scored on the same samples. Of samples with groups, such as the
    images of patients, n counts groups, because the answers to samples of one group are alike.
    """
    alone, best = _local_training(summaries), best_at_clients(summaries)
    if alone is None or best is None:
        return ""
    method, ours, theirs = best
    rounds = "after the last round" if alone.by_last else "over the last ten rounds"
    reached, without = (with_unit(float(scores.mean()), alone.metric) for scores in (ours, theirs))
    return (
        f"On the clients' own test samples, in the mean over clients {rounds}, {method} reaches {reached} and"
        f" training alone {without}: {_judgement(method, ours, theirs, alone)}."
    )


def best_at_clients(summaries: Sequence[MethodSummary]) -> tuple[str, np.ndarray, np.ndarray] | None:
    """(method, scores [S], scores of local training [S]) of the best federated method, in common seeds.

    None without local training in a seed of a method.
    """
    if (alone := _local_training(summaries)) is None:
        return None
    paired = [(s.method, *common_seeds(s.at_clients, alone.at_clients)) for s in summaries if not s.reference]
    which = kind(alone.metric)
    nonempty = (pair for pair in paired if len(pair[1]))
    return max(nonempty, key=lambda pair: which.ahead(float(pair[1].mean()), 0.0), default=None)


def _local_training(summaries: Sequence[MethodSummary]) -> MethodSummary | None:
    return next((s for s in summaries if s.method == LOCAL), None)


SURE = 1.96
"""The least number of standard errors of a clear difference."""


def _judgement(method: str, ours: np.ndarray, theirs: np.ndarray, alone: MethodSummary) -> str:
    """The verdict in words. ours, theirs: [S] scores of the method and of local training, in common seeds."""
    which, seeds = kind(alone.metric), len(ours)
    unit = "points" if which.share else which.title
    gaps = (100 if which.share else 1) * which.ahead(1.0, 0.0) * (ours - theirs)

    def text(*values: float) -> str:
        return " to ".join(f"{v:.1f}" if which.share else significant(v, 3) for v in values)

    if not gaps.any():
        return "the two are equal"
    mean = float(gaps.mean())
    ahead, lead = method if mean > 0 else "training alone", f"{text(abs(mean))} {unit}"
    if seeds == 1:
        return f"{ahead} is ahead by {lead}, but one seed cannot tell whether federating pays"
    if which.share and (n := alone.client_tests):
        p, q = float(ours.mean()), float(theirs.mean())
        noise = 100 * SURE * math.sqrt((p * (1 - p) + q * (1 - q)) / (n + 2))
        if abs(mean) <= noise:
            tests = f"{n:,} groups of test samples" if alone.grouped else f"{n:,} test samples"
            return (
                f"the two cannot be told apart, for {ahead} is ahead by {lead} in the mean, and the {tests},"
                f" the same in all seeds, may show {text(noise)} by chance"
            )
    spread, leads = float(gaps.std(ddof=1)), gaps * np.sign(mean)
    if (leads > spread).all():
        by = f"ahead in all {seeds} seeds by {text(float(leads.min()), float(leads.max()))} {unit}"
        if mean > 0:
            return f"federating pays, {by}"
        return f"federating does not pay, for training alone is {by}"
    return (
        f"the two cannot be told apart, for {ahead} is ahead in {int((leads > 0).sum())} of {seeds} seeds, by"
        f" {text(abs(mean))} ± {text(spread)} {unit} in the mean"
    )
