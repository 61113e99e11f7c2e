"""The scores by name: whether higher or lower is better, and how a value is written.

    shares     accuracy, dice and every score without an entry here: in [0, 1], shown in percent, higher is
               better
    numbers    rmse, mae (in the target's unit) and loss: lower is better; r2, at most 1: higher is better
    targets    rmse:NAME and median_error:NAME, of one of several targets, in its own unit
    own        own:NAME and own-lower:NAME, a user's function: a number; higher or lower is better

The rows `mean`, `worst` and `std` over clients are in the unit of the task's main score. For `std` lower is
always better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from unskew.errors import UsageError, excerpt, suggestion
from unskew.system.python_files import names_function

WRITTEN_OUT = 1e9
"""Numbers of this size or more are written with an exponent."""


def significant(value: float, digits: int, signed: bool = False) -> str:
    """A number with `digits` significant digits, such as `0.0123` or `57.3`.

    Digits before the point are never rounded away: `57,331`, not `5.73e+04`.

    signed: write a + before numbers that are not negative, and no minus before one that rounds to 0.
    """
    sign = "+z" if signed else ""
    if 10**digits - 0.5 <= abs(value) < WRITTEN_OUT:
        return f"{value:{sign},.0f}"
    return f"{value:{sign}.{digits}g}"


@dataclass(frozen=True)
class Kind:
    """The kind of a score. title: its name inside a sentence. lower: whether lower is better. share: whether
    it is in [0, 1] and written in percent."""

    title: str
    lower: bool = False
    share: bool = True

    def better(self, value: float, than: float) -> bool:
        """Whether one value is strictly better than another; False if either is NaN."""
        return value < than if self.lower else value > than

    def ahead(self, value: float, of: float) -> float:
        """The difference by which a value is better than another; negative if it is worse."""
        return of - value if self.lower else value - of

    def best(self, values: Iterable[float]) -> float:
        """The best of one or more values. NaN is ignored unless all values are NaN."""
        known = _known(values)
        return min(known) if self.lower else max(known)

    def worst(self, values: Iterable[float]) -> float:
        """The worst of one or more values. NaN is ignored unless all values are NaN."""
        known = _known(values)
        return max(known) if self.lower else min(known)

    @property
    def nothing(self) -> float:
        """An infinite value that is worse than every finite one."""
        return float("inf") if self.lower else float("-inf")

    @property
    def unit(self) -> str:
        """The unit of a value that `digits` has written: " %" for shares, "" for numbers."""
        return " %" if self.share else ""

    def digits(self, value: float) -> str:
        """A value without its unit: `61.4` for a share, `57.3` for a number."""
        return f"{100 * value:.1f}" if self.share else significant(value, 4)

    def written(self, value: float) -> str:
        """A value with its unit: `61.4%`, `57.3`."""
        return f"{value:.1%}" if self.share else significant(value, 4)

    def of(self, word: str) -> str:
        """The heading of an axis or column, such as `accuracy, %` or `RMSE`. word: the score's title."""
        return f"{word}, %" if self.share else word


def _known(values: Iterable[float]) -> list[float]:
    """The values that are not NaN; all values if each is NaN."""
    listed = list(values)
    return [v for v in listed if v == v] or listed


KINDS = {
    "dice": Kind("Dice"),
    "rmse": Kind("RMSE", lower=True, share=False),
    "mae": Kind("MAE", lower=True, share=False),
    "median_error": Kind("median error", lower=True, share=False),
    "r2": Kind("R²", share=False),
    "loss": Kind("loss", lower=True, share=False),
    "auroc": Kind("AUROC"),
    "map": Kind("mAP"),
    "macro_f1": Kind("macro-F1"),
    "micro_f1": Kind("micro-F1"),
    "sample_f1": Kind("sample F1"),
    "token_accuracy": Kind("token accuracy"),
    "balanced_accuracy": Kind("balanced accuracy"),
    "ece": Kind("ECE", lower=True),
    "brier": Kind("Brier score", lower=True, share=False),
    "perplexity": Kind("perplexity", lower=True, share=False),
    "std": Kind("std", lower=True),
    "bytes": Kind("bytes sent and received so far", lower=True, share=False),
}
METRICS = (
    "auroc",
    "map",
    "macro_f1",
    "micro_f1",
    "balanced_accuracy",
    "ece",
    "brier",
    "perplexity",
    "r2",
    "median_error",
)
"""The scores that the setting `metrics` can name; `tasks/metrics` computes them."""
BY_CLASS = ("auroc", "map", "macro_f1", "balanced_accuracy")
"""The scores that are means over classes or labels."""
ALWAYS = {"multilabel": ("auroc", "map", "micro_f1", "macro_f1"), "tokens": ("perplexity",)}
"""The scores that are always recorded, by task."""
NONE = "none"
OWN, OWN_LOWER = "own", "own-lower"
"""The prefixes of a user's own scores, of which higher or lower is better."""
MAIN = {
    "classification": "accuracy", "segmentation": "dice", "regression": "rmse", "multilabel": "sample_f1",
    "tokens": "token_accuracy",
}  # fmt: skip
"""The score by which methods are ranked, by the name of the task."""


OVER_CLIENTS = {("global@client", "mean"): "clients", ("global@client", "worst"): "worst"}
"""The screen's names of the global model's scores over clients, by scope and metric."""


def latest(of: Callable[[str, str], tuple[int, float] | None], main: str, t: int) -> list[str]:
    """The latest scores, each as a column of a line about round t.

    Scores of an earlier round are preceded by that round's number: sites score a model when they receive it,
    and `eval_every` skips rounds. of: returns (round, value) for a scope and metric, or None. main: the
    task's main score.
    """
    columns, round_ = list[str](), t
    for which, name in {("global", main): "global", **OVER_CLIENTS}.items():
        if last := of(*which):
            when = f"after round {last[0]}: " if last[0] else "before round 1: "
            when = "" if last[0] == round_ else when
            columns.append(f"{when}{name} {kind(main).written(last[1]):>6}")
            round_ = last[0]
    return columns


def kind(metric: str) -> Kind:
    """The kind of a score, by its name in metrics.jsonl."""
    prefix, _, name = metric.partition(":")
    if prefix in (OWN, OWN_LOWER):
        return Kind(name, lower=prefix == OWN_LOWER, share=False)
    if of_one_target(metric):
        return replace(KINDS[prefix], title=f"{KINDS[prefix].title} of {name}")
    return KINDS.get(metric) or Kind(metric)


def of_one_target(metric: str) -> bool:
    """Whether this is the score of one of several targets, such as `rmse:dose`."""
    return metric.startswith(("rmse:", "median_error:"))


def metric_names(text: str, where: str = "") -> tuple[str, ...]:
    """The names in the text of the setting `metrics`, without repetition: `auroc, cost.py:cost` ->
    ("auroc", "cost.py:cost"), `none` -> ().

    where: the place of the setting, for messages. Raises UsageError (E126) for a name that is neither a score
    nor of the form file.py:function.
    """
    names = tuple(name for name in dict.fromkeys(map(str.strip, text.split(","))) if name not in ("", NONE))
    for name in names:
        if name not in METRICS and not names_function(name):
            known = f"Metrics: {', '.join(METRICS)}; your own is written file.py:function."
            raise UsageError(
                "E126", f"unknown metric {excerpt(name)}{where}.{suggestion(name, METRICS)} {known}"
            )
    return names


def requested_scores(text: str, task: str) -> tuple[str, ...]:
    """The additional scores : those that are always recorded, then those of the setting `metrics`."""
    return tuple(dict.fromkeys((*ALWAYS.get(task, ()), *metric_names(text))))


def of_setting(text: str, task: str, recorded: Iterable[str]) -> list[str]:
    """The recorded scores that the setting requests, in its order, after those of each of several targets. A
    user's own scores have the name of their function."""
    targets = list(filter(of_one_target, recorded := list(recorded)))
    known = {metric.rpartition(":")[2]: metric for metric in recorded if metric not in targets}
    names = (name.rpartition(":")[2] for name in requested_scores(text, task))
    return [*targets, *(known[name] for name in names if name in known)]
