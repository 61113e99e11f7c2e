"""The page docs/evidence.md: settings, their measures, the scores of methods, and a test of recommendations.

Recommendations are tested by leaving out one setting after the other: the remaining settings recommend a
method for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np

from unskew.diagnosis.advice import (
    DEFAULT,
    FEDAVG,
    LOCAL,
    Goal,
    Scores,
    Setting,
    advise,
    nearest,
    plans,
    ranking,
    scores_in,
    settings,
)
from unskew.diagnosis.diagnose import METHODS
from unskew.diagnosis.diagnosis import AIMS
from unskew.formats.markdown import table


@dataclass(frozen=True)
class Trial:
    """A setting that was left out, and the method that the others recommend for it (`named`).

    rank, of: its rank by the mean score among all methods of the setting, and their number. best: the best
    method. lost: the lead of the best method, as a share. expected, gained: the expected and the measured gain
    over FedAvg; `expected` is NaN for local training.
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


def trials(
    goal: Goal, methods: Sequence[str], known: Sequence[Setting] | None = None, always: str = ""
) -> list[Trial]:
    """A trial for every setting. methods: the candidates, with FedAvg.

    always: a method to name in every setting in place of the recommended one.
    """
    known = settings() if known is None else known
    return [
        _left_out_trial(goal, methods, left, [s for s in known if s is not left], always) for left in known
    ]


def _left_out_trial(
    goal: Goal, methods: Sequence[str], left: Setting, others: Sequence[Setting], always: str
) -> Trial:
    scores = {
        m: float(np.mean(list(left.scores[m].of(goal).values()))) for m in methods if _ran(left, m, goal)
    }
    order = sorted(scores, key=lambda m: -scores[m])
    ranked = ranking(goal, [m for m in scores if m != LOCAL], nearest(left.skews, others))
    named = always or advise(goal, ranked)
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
    """The candidates of a trial: the methods of a diagnosis, and local training for the goal `sites`."""
    return METHODS if goal == "one" else (*METHODS, LOCAL)


def trials_table() -> str:
    """The trials of both goals as text."""
    lines = []
    for goal in get_args(Goal):
        every = trials(goal, candidates(goal))
        lines += [
            f"{goal}: best or second-best in {sum(t.rank <= 2 for t in every)} of {len(every)} settings"
        ]
        lines += [
            f"  {t.setting:<24}{t.named:<12}rank {t.rank} of {t.of:<3} best {t.best:<12}{100 * t.lost:5.1f}"
            f" points behind, gain {100 * t.expected:+.1f} expected, {100 * t.gained:+.1f} measured"
            for t in every
        ]
    return "\n".join(lines)


INTRODUCTION = """# The evidence behind `unskew diagnose`

`python tools/evidence.py` runs every method in every setting of `src/unskew/diagnosis/settings.yaml` and writes
`runs.csv` and `skews.csv` beside it; this page is made from them by `python tools/docs.py`. The runs are short (24 rounds of two
local epochs, batches of 16, learning rate 0.05, at most 600 test samples, inputs made smaller), so that one core runs a seed in a
quarter of an hour: they rank methods and do not reproduce any paper. Scores are means of the evaluated rounds among the last
ten, in percent, and means over seeds; the best in a row is bold. A dash: the method cannot run there, or gives no such model."""


def page() -> str:
    """The page as Markdown."""
    known = settings()
    parts = [INTRODUCTION, "## Settings", _measures(known)]
    for goal in AIMS:
        columns = (*METHODS, LOCAL) if goal == "sites" else METHODS
        scored = {s.name: s.scores for s in known}
        parts += [f"## {AIMS[goal].capitalize()}", f"{MEANING[goal]}.", _scores(scored, columns, goal)]
    parts += ["## Settings left out", _left_out()]
    others = sorted({m for s in known for m in s.scores} - {*METHODS, LOCAL})
    if others:
        varied = [s for s in known if any(m in s.scores for m in others)]
        parts += [f"## Beside `{DEFAULT}`", COMPARISON_NOTE]
        parts += [f"{AIMS[goal].capitalize()}:\n\n{_comparison(varied, others, goal)}" for goal in AIMS]
    return "\n\n".join([*parts, *_confirmation()]) + "\n"


MEANING: dict[Goal, str] = {
    "sites": "What each site uses, scored on its own test samples, mean over sites",
    "one": "One model for everybody, scored on all test samples",
}
COMPARISON_NOTE = f"""Points by which other forms of `{DEFAULT}`, and methods that share activations, are ahead of it (+) or behind it (-) in the same
setting and seeds. `prior=1000000` is without the own prior, `eps=1` without the balanced softmax, `statistics=False` without
FedRDN, and `alpha=0.0001` has FedDyn's weakest regulariser."""


def _comparison(known: Sequence[Setting], methods: Sequence[str], goal: Goal) -> str:
    rows = []
    for s in known:
        gains = [s.gains(m, DEFAULT, goal) for m in methods]
        texts = (f"{100 * g.mean():+.1f}" if len(g) else "–" for g in gains)
        rows.append([s.name, seeds_of([len(g) for g in gains if len(g)]), *texts])
    return table(["setting", "seeds", *(f"`{m}`" for m in methods)], rows)


def seeds_of(counts: Sequence[int]) -> str:
    """The number of seeds in a row: `2`, or `1 to 2` if methods differ; a dash without any."""
    if not counts:
        return "–"
    return f"{min(counts)} to {max(counts)}" if min(counts) < max(counts) else str(counts[0])


def _confirmation() -> list[str]:
    """The section on the held-out data sets, if they have runs."""
    scored = scores_in("confirmed.csv")
    if not scored:
        return []
    settings = plans("confirmation.yaml")
    abouts = "; ".join(f"{name}: {settings[name]['about']}" for name in scored)
    seeds = max(len(scores.sites) for by in scored.values() for scores in by.values())
    text = (
        "CIFAR-10 and Office-Caltech-10 were run once, with `python tools/evidence.py --confirm`, after the"
        f" default was fixed; no choice and no advice rests on them. {abouts}. Seeds: {seeds}."
    )
    tables = [
        f"{AIMS[goal].capitalize()}:\n\n{_scores(scored, (*METHODS, LOCAL) if goal == 'sites' else METHODS, goal)}"
        for goal in AIMS
    ]
    return ["## Held out", text, *tables]


def _measures(known: Sequence[Setting]) -> str:
    head = [
        "setting",
        "what it is",
        "sites",
        "samples a site and class",
        "label skew",
        "missing",
        "feature skew",
        "absent",
        "seeds",
    ]
    rows = []
    for s in known:
        k = s.skews
        feature = "–" if k.feature_skew is None else f"{k.feature_skew:.2f}"
        rows.append(
            [
                s.name,
                s.about,
                f"{k.sites:.0f}",
                f"{k.of_class:.1f}",
                f"{k.label_skew:.2f}",
                f"{k.missing:.0%}",
                feature,
                f"{k.absent:.0%}",
                str(len(s.scores[FEDAVG].sites)),
            ]
        )
    return table(head, rows)


def _scores(scored: Mapping[str, Mapping[str, Scores]], columns: Sequence[str], goal: Goal) -> str:
    """A table with a row for each setting. scored: by setting and method."""
    methods = [m for m in columns if any(m in scores and scores[m].of(goal) for scores in scored.values())]
    rows = []
    for name, scores in scored.items():
        values = {m: list(scores[m].of(goal).values()) for m in methods if m in scores}
        texts = {m: f"{100 * np.mean(v):.1f}" for m, v in values.items() if v}
        best = max(map(float, texts.values()))
        cells = [
            f"**{t}**" if t != "–" and float(t) == best else t for t in (texts.get(m, "–") for m in methods)
        ]
        rows.append([name, seeds_of([len(v) for v in values.values() if v]), *cells])
    return table(["setting", "seeds", *(f"`{m}`" for m in methods)], rows)


def _left_out() -> str:
    parts = [
        "Every setting is left out in turn, and the others advise for it, among the methods that ran there."
    ]
    for goal, aim in AIMS.items():
        every = trials(goal, candidates(goal))
        head = [
            "setting",
            "advised",
            "rank",
            "best",
            "points behind it",
            "gain over fedavg expected",
            "measured",
        ]
        parts += [f"**{aim.capitalize()}**: {_counted(every)}.", table(head, [_trial(t) for t in every])]
    always = {aim: trials(goal, candidates(goal), always=DEFAULT) for goal, aim in AIMS.items()}
    without = {aim: trials(goal, [m for m in candidates(goal) if m != DEFAULT]) for goal, aim in AIMS.items()}
    parts.append(
        "Two comparisons show what this is worth. "
        + " ".join(f"To advise `{DEFAULT}` everywhere, {aim}: {_counted(t)}." for aim, t in always.items())
        + " "
        + " ".join(
            f"Without `{DEFAULT}` among the methods, {aim}: {_counted(t)}." for aim, t in without.items()
        )
    )
    return "\n\n".join(parts)


def _counted(every: Sequence[Trial]) -> str:
    right, best = sum(t.rank <= 2 for t in every), sum(t.rank == 1 for t in every)
    return f"the best or second-best method in {right} of {len(every)} settings, the best in {best}"


def _trial(t: Trial) -> list[str]:
    return [
        t.setting,
        f"`{t.named}`",
        f"{t.rank} of {t.of}",
        f"`{t.best}`",
        f"{100 * t.lost:.1f}",
        "–" if math.isnan(t.expected) else f"{100 * t.expected:+.1f}",
        f"{100 * t.gained:+.1f}",
    ]
