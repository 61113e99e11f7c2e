"""Additional scores, selected by the setting `metrics`, in every scope.

Each score is computed from all rows of a scope at once because, for example, the mean of clients' AUROCs is
not an AUROC. An undefined score, for example with a single class, has no value instead of a misleading 0.
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
"""Maps names to a program's own metric functions."""
MetricsSetting: TypeAlias = str | user_metric.Function | Sequence[str | user_metric.Function]
"""The argument `metrics` of `run`: names joined by commas, a function, or a list of names and functions."""
METRICS_OF_TASK: dict[str, tuple[Mapping[str, Compute], Mapping[str, Compute]]] = {
    "classification": (functions.CLASS_PROBABILITY_METRICS, functions.CLASS_METRICS),
    "segmentation": ({}, {}),
    "regression": ({}, functions.NUMBER_METRICS),
    "multilabel": ({}, functions.LABEL_METRICS),
    "tokens": (functions.TOKEN_METRICS, {}),
}
"""Maps each task to (scores of probabilities, scores of predictions)."""


@dataclass(frozen=True)
class Metric:
    """An additional score. key: its name in metrics.jsonl. compute: a function of true labels and answers.

    reads_probabilities: whether the answers are probabilities, float32 [N, C] (for tokens those of the
    labels, [N, T]), instead of predictions.
    """

    key: str
    compute: Compute
    reads_probabilities: bool

    def value(self, y: np.ndarray, guess: np.ndarray, p: np.ndarray | None) -> float | None:
        """The score of one or more samples; None if it is undefined or an answer is not finite.

        p: probabilities; None if no metric uses them.
        """
        answers = p if self.reads_probabilities else guess
        assert answers is not None
        return self.compute(y, answers) if np.isfinite(answers).all() else None


def as_text(metrics: MetricsSetting) -> tuple[str, dict[str, user_metric.Function]]:
    """The text of the setting `metrics` for an argument of `run`, and the functions in it by name.

    Raises UsageError (E126) for a function without a name, such as a lambda.
    """
    each = [metrics] if isinstance(metrics, str) or callable(metrics) else list(metrics)
    functions = {user_metric.name_of(one): one for one in each if not isinstance(one, str)}
    return ",".join(
        one if isinstance(one, str) else f"{GIVEN_OBJECT}:{user_metric.name_of(one)}" for one in each
    ), functions


def metrics_of(text: str, task: str, functions: Functions | None = None) -> tuple[Metric, ...]:
    """The additional scores of a task, including those of the setting `metrics`. task: the name of the task.
    functions: a program's own functions, by name.

    Raises UsageError: E126 for a score that does not fit the task, E111 for a file that cannot be read.
    """
    metrics = tuple(_metric(name, task, functions or {}) for name in requested_scores(text, task))
    names = [metric.key.rpartition(":")[2] for metric in metrics]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise UsageError("E126", f"two of the metrics are called '{twice}'; rename your function.")
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
    raise UsageError("E126", f"the metric '{name}' does not fit {task}; of the metrics there are, {fit}.")
