"""The page docs/evidence.md: settings, their measures, every method's scores, and how good advice is where a setting is left out."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from unskew.diagnosis.diagnose import METHODS, WITH_FEATURES
from unskew.diagnosis.diagnosis import AIMS
from unskew.diagnosis.evidence import LOCAL, Goal, Setting, settings
from unskew.diagnosis.left_out import Trial, candidates, trials
from unskew.markdown import table

DEFAULT = "unskew"
INTRODUCTION = """# The evidence behind `unskew diagnose`

`python tools/evidence.py` runs every method in every setting of `src/unskew/diagnosis/settings.yaml` and writes
`runs.csv` and `skews.csv` beside it; this page is made from them by `python tools/docs.py`. The runs are short (24 rounds of two
local epochs, batches of 16, learning rate 0.05, at most 600 test samples, inputs made smaller), so that a core carries a seed in a
quarter of an hour: they rank methods and do not reproduce any paper. Scores are means of the evaluated rounds among the last
ten, in percent, and means over seeds; the best in a row is bold. A dash: the method cannot run there, or gives no such model."""


def page() -> str:
    """The page as Markdown."""
    known = settings()
    seeds = sorted({len(scores.sites) for s in known for scores in s.scores.values() if scores.sites})
    parts = [
        INTRODUCTION,
        f"Seeds a method and setting: {' to '.join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))}.",
    ]
    parts += ["## Settings", _measures(known)]
    for goal in AIMS:
        meaning = "what each site uses, scored on its own test samples, mean over sites"
        if goal == "one":
            meaning = "one model for everybody, scored on all test samples"
        columns = (*METHODS, *WITH_FEATURES, *((LOCAL,) if goal == "sites" else ()))
        parts += [f"## {AIMS[goal].capitalize()}", f"{meaning.capitalize()}.", _scores(known, columns, goal)]
    parts += ["## Settings left out", _left_out()]
    variants = sorted({m for s in known for m in s.scores} - {*METHODS, *WITH_FEATURES, LOCAL})
    if variants:
        varied = [s for s in known if any(m in s.scores for m in variants)]
        parts += ["## Variants of `unskew`", VARIANTS]
        parts += [f"{AIMS[goal].capitalize()}:\n\n{_scores(varied, (DEFAULT, *variants), goal)}" for goal in AIMS]
    return "\n\n".join(parts) + "\n"


VARIANTS = "What its pieces are worth, in the seeds that the variants were run with, which may be fewer."


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
            ]
        )
    return table(head, rows)


def _scores(known: Sequence[Setting], methods: Sequence[str], goal: Goal) -> str:
    methods = [m for m in methods if any(s.scores[m].of(goal) for s in known if m in s.scores)]
    rows = []
    for s in known:
        means = {
            m: np.mean(list(s.scores[m].of(goal).values())) for m in methods if m in s.scores and s.scores[m].of(goal)
        }
        texts = {m: f"{100 * mean:.1f}" for m, mean in means.items()}
        best = max(map(float, texts.values()))
        cells = [f"**{t}**" if t != "–" and float(t) == best else t for t in (texts.get(m, "–") for m in methods)]
        rows.append([s.name, *cells])
    return table(["setting", *(f"`{m}`" for m in methods)], rows)


def _left_out() -> str:
    parts = ["Every setting is left out in turn, and the others advise for it, among the methods that ran there."]
    for goal, aim in AIMS.items():
        every = trials(goal, candidates(goal))
        head = ["setting", "advised", "rank", "best", "points behind it", "gain over fedavg expected", "measured"]
        parts += [f"**{aim.capitalize()}**: {_counted(every)}.", table(head, [_trial(t) for t in every])]
    always = {goal: trials(goal, candidates(goal), always=DEFAULT) for goal in AIMS}
    without = {goal: trials(goal, [m for m in candidates(goal) if m != DEFAULT]) for goal in AIMS}
    parts.append(
        "Two comparisons show what this is worth. "
        + " ".join(f"To advise `{DEFAULT}` everywhere, {AIMS[goal]}: {_counted(t)}." for goal, t in always.items())
        + " "
        + " ".join(
            f"Without `{DEFAULT}` among the methods, {AIMS[goal]}: {_counted(t)}." for goal, t in without.items()
        )
    )
    return "\n\n".join(parts)


def _counted(every: Sequence[Trial]) -> str:
    right, best = sum(t.rank <= 2 for t in every), sum(t.rank == 1 for t in every)
    return f"the best or second-best method in {right} of {len(every)} settings, the best in {best}"


def _trial(t: Trial) -> list[str]:
    return [
        t.setting, f"`{t.named}`", f"{t.rank} of {t.of}", f"`{t.best}`",
        f"{100 * t.lost:.1f}", "–" if math.isnan(t.expected) else f"{100 * t.expected:+.1f}", f"{100 * t.gained:+.1f}",
    ]  # fmt: skip
