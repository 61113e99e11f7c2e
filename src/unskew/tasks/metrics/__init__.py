"""Scores that the setting `metrics` asks for beside the main one, in every scope.

Each is computed from all rows of a scope at once, never from other scores: the mean of clients' AUROCs is no
AUROC. Where it is undefined (one class only, say) there is no value, in place of a 0 that would pass for a
bad score.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from unskew.errors import UsageError
from unskew.scores import requested_scores
from unskew.system.python_files import GIVEN_OBJECT
from unskew.tasks.metrics import functions, user_metric

Compute = Callable[[np.ndarray, np.ndarray], float | None]
Functions = Mapping[str, user_metric.Function]
"""By name, functions that a program gave as objects."""
MetricsSetting: TypeAlias = str | user_metric.Function | Sequence[str | user_metric.Function]
"""Scores as a program asks for them: names joined by commas, a function, or a list of names and functions."""
METRICS_OF_TASK: dict[str, tuple[Mapping[str, Compute], Mapping[str, Compute]]] = {
    "classification": (functions.CLASS_PROBABILITY_METRICS, functions.CLASS_METRICS),
    "segmentation": ({}, {}),
    "regression": ({}, functions.NUMBER_METRICS),
    "multilabel": ({}, functions.LABEL_METRICS),
    "tokens": (functions.TOKEN_METRICS, {}),
}
"""By task, the scores that read probabilities and those that read predictions."""


@dataclass(frozen=True)
class Metric:
    """A score beside the main one. key: its name in metrics.jsonl. compute: from true labels and what it
    reads.

    reads_probabilities: whether that is probabilities, float32 [N, C] (of tokens: each label's own, [N, T]),
    and not predictions.
    """

    key: str
    compute: Compute
    reads_probabilities: bool

    def value(self, y: np.ndarray, guess: np.ndarray, p: np.ndarray | None) -> float | None:
        """The score of at least one sample; None where it is undefined, or an answer is not finite.

        p: probabilities; None where no metric reads them.
        """
        answers = p if self.reads_probabilities else guess
        assert answers is not None
        return self.compute(y, answers) if np.isfinite(answers).all() else None


def as_text(asked: MetricsSetting) -> tuple[str, dict[str, user_metric.Function]]:
    """The setting `metrics` for what a program asks for, and the functions among that by name.

    Raises UsageError (E135) for a function without a name, such as a lambda.
    """
    each = [asked] if isinstance(asked, str) or callable(asked) else list(asked)
    functions = {user_metric.name_of(one): one for one in each if not isinstance(one, str)}
    return ",".join(
        one if isinstance(one, str) else f"{GIVEN_OBJECT}:{user_metric.name_of(one)}" for one in each
    ), functions


def metrics_of(text: str, task: str, functions: Functions | None = None) -> tuple[Metric, ...]:
    """The scores beside the task's own, those that the setting `metrics` names among them, every one of which
    exists. task: its name. functions: given in Python.

    Raises UsageError (E135) for a score that does not fit the task, E111 for a file.
    """
    metrics = tuple(_metric(name, task, functions or {}) for name in requested_scores(text, task))
    names = [metric.key.rpartition(":")[2] for metric in metrics]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise UsageError("E135", f"two of the metrics are called '{twice}'; rename your function.")
    return metrics


def _metric(name: str, task: str, functions: Functions) -> Metric:
    of_probabilities, of_guesses = METRICS_OF_TASK[task]
    file, _, called = name.rpartition(":")
    if file:
        function = (
            user_metric.given_function(called, functions)
            if file == GIVEN_OBJECT
            else user_metric.from_file(name)
        )
        return Metric(
            user_metric.record_key(called, function),
            user_metric.checked_function(called, function),
            task == "classification",
        )
    if name in of_probabilities:
        return Metric(name, of_probabilities[name], True)
    if name in of_guesses:
        return Metric(name, of_guesses[name], False)
    fit = ", ".join((*of_probabilities, *of_guesses)) or "only functions of your own do"
    raise UsageError("E135", f"the metric '{name}' does not fit {task}; of the metrics there are, {fit}.")
