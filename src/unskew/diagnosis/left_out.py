"""How good advice is: for every setting of the evidence in turn, what the others would have advised for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np

from unskew.diagnosis.advice import advised, nearest, ranking
from unskew.diagnosis.diagnose import METHODS
from unskew.diagnosis.evidence import FEDAVG, LOCAL, Goal, Setting, settings


@dataclass(frozen=True)
class Trial:
    """One setting that was left out. named: the method that the others advise; rank: its place among all that ran there.

    best: the method with the best mean score there. lost: by how much the named one was behind it, as a share.
    expected, gained: the gain over FedAvg that was expected of the named one, NaN for training alone, and the one that it had.
    """

    setting: str
    goal: Goal
    named: str
    rank: int
    of: int
    best: str
    lost: float
    expected: float
    gained: float


def trials(goal: Goal, methods: Sequence[str], known: Sequence[Setting] | None = None, always: str = "") -> list[Trial]:
    """A trial for every setting. methods: those among which advice chooses, FedAvg among them.

    always: a method that is named everywhere, whatever the others advise.
    """
    known = settings() if known is None else known
    return [_trial(goal, methods, left, [s for s in known if s is not left], always) for left in known]


def _trial(goal: Goal, methods: Sequence[str], left: Setting, others: Sequence[Setting], always: str) -> Trial:
    scores = {m: float(np.mean(list(left.scores[m].of(goal).values()))) for m in methods if _ran(left, m, goal)}
    order = sorted(scores, key=lambda m: -scores[m])
    ranked = ranking(goal, [m for m in scores if m != LOCAL], nearest(left.skews, others))
    named = always or advised(goal, ranked)
    over_fedavg = next((e.over_fedavg.mean for e in ranked if e.method == named), math.nan)
    return Trial(
        left.name,
        goal,
        named,
        order.index(named) + 1,
        len(order),
        order[0],
        scores[order[0]] - scores[named],
        over_fedavg,
        scores[named] - scores[FEDAVG],
    )


def _ran(setting: Setting, method: str, goal: Goal) -> bool:
    return method in setting.scores and bool(setting.scores[method].of(goal))


def candidates(goal: Goal) -> tuple[str, ...]:
    """The methods among which a trial advises: those of a diagnosis, and at the sites training alone, too."""
    return METHODS if goal == "one" else (*METHODS, LOCAL)


def table() -> str:
    """The trials of both goals as text."""
    lines = []
    for goal in get_args(Goal):
        every = trials(goal, candidates(goal))
        lines += [f"{goal}: best or second-best in {sum(t.rank <= 2 for t in every)} of {len(every)} settings"]
        lines += [
            f"  {t.setting:<24}{t.named:<12}rank {t.rank} of {t.of:<3} best {t.best:<12}{100 * t.lost:5.1f} points behind,"
            f" gain {100 * t.expected:+.1f} expected, {100 * t.gained:+.1f} measured"
            for t in every
        ]
    return "\n".join(lines)
