"""On which terms the runs of a table were scored: after how many of their rounds they ended, on which samples and at which clients.

Without these sentences a run that patience ended in round 8 stands beside one of 40 rounds, and scores on held-out training
samples pass for those of the test set.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from unskew.engine.server.scored import WHY, Scored
from unskew.report.runs import RunData

MOST = 4
"""Unfinished runs that are named."""


@dataclass(frozen=True)
class Terms:
    """Of the runs of one method. rounds: that were asked for. ended: by seed, the last round of each, where one of them was
    ended before; else nothing. judged: whether patience did that, which looks at the scores themselves. unfinished: by seed, the
    round that a run has come to which is still to go on. held_out: the share of the training samples that stands for the test
    set; 0 where the test set itself does. scored: by seed, at how many clients, where that was not all of them."""

    rounds: int = 0
    ended: Mapping[int, int] = field(default_factory=dict[int, int])
    judged: bool = False
    unfinished: Mapping[int, int] = field(default_factory=dict[int, int])
    held_out: float = 0.0
    scored: Mapping[int, Scored] = field(default_factory=dict[int, Scored])


def terms_of(runs: Sequence[RunData]) -> Terms:
    """runs: of one method, one per seed."""
    early = any(run.planned < run.asked for run in runs)
    return Terms(
        rounds=max(run.asked for run in runs),
        ended={run.seed: run.planned for run in runs} if early else {},
        judged=early and any(run.config.get("patience") for run in runs),
        unfinished={run.seed: run.rounds for run in runs if not run.finished},
        held_out=max(float(run.config.get("validation") or 0.0) for run in runs),
        scored={run.seed: scored for run in runs if run.finished and (scored := run.scored_at)},
    )


def sentences(terms: Mapping[str, Terms]) -> list[str]:
    """What is to be said of these methods' runs; nothing where all trained every round and were scored on the test set."""
    lines = []
    if shares := sorted({one.held_out for one in terms.values()} - {0.0}):
        named = " and ".join(f"{share:.0%}" for share in shares)
        lines.append(f"Scored on {named} of the training samples, which were held out, and not on the test set.")
    if at_fewer := {method: [*one.scored.values()] for method, one in terms.items() if one.scored}:
        each = ", ".join(_at(method, scored) for method, scored in at_fewer.items())
        lines.append(f"Scored at fewer clients than have test samples, as {WHY}: {each}.")
    if early := {method: one for method, one in terms.items() if one.ended}:
        each = ", ".join(f"{m} after {span(one.ended.values())} of {one.rounds}" for m, one in early.items())
        judged = " Patience judged by the scores of this table." if any(one.judged for one in early.values()) else ""
        lines.append(f"Ended before their last round: {each}.{judged}")
    if half := [(m, one, seed) for m, one in terms.items() for seed in one.unfinished]:
        each = ", ".join(
            f"{m} seed {seed} (round {one.unfinished[seed]} of {one.rounds})" for m, one, seed in half[:MOST]
        )
        lines.append(
            f"Not finished, and scored by the rounds that there are: {each}{', …' if len(half) > MOST else ''}."
        )
    return lines


def _at(method: str, scored: Sequence[Scored]) -> str:
    """`FedBN at 12 to 14 of 20`."""
    own = " (personal)" if all(one.own for one in scored) else ""
    return f"{method}{own} at {span([one.there for one in scored])} of {span([one.of for one in scored])}"


def span(rounds: Collection[int]) -> str:
    """`12`, or `8 to 12`."""
    first, *_, last = [*sorted(rounds), max(rounds)]
    return f"{first}" if first == last else f"{first} to {last}"
