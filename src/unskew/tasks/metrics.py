"""Additional scores, selected by the setting `metrics`, in every scope.

Each score is computed from all rows of a scope at once because, for example, the mean of clients' AUROCs is
not an AUROC. An undefined score, for example with a single class, has no value instead of a misleading 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from unskew.errors import UsageError, excerpt, suggestion
from unskew.scores import OWN, OWN_LOWER, requested_scores
from unskew.system import python_files
from unskew.system.python_files import GIVEN_OBJECT
from unskew.tasks import metric_functions as functions

Compute = Callable[[np.ndarray, np.ndarray], float | None]
Function = Callable[..., Any]
"""A user's own score: a function of true labels and answers that returns a number, or None if undefined."""
Functions = Mapping[str, Function]
"""Maps names to a program's own metric functions."""
MetricsSetting: TypeAlias = str | Function | Sequence[str | Function]
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


def as_text(metrics: MetricsSetting) -> tuple[str, dict[str, Function]]:
    """The text of the setting `metrics` for an argument of `run`, and the functions in it by name.

    Raises UsageError (E126) for a function without a name, such as a lambda.
    """
    each = [metrics] if isinstance(metrics, str) or callable(metrics) else list(metrics)
    functions = {name_of(one): one for one in each if not isinstance(one, str)}
    return ",".join(
        one if isinstance(one, str) else f"{GIVEN_OBJECT}:{name_of(one)}" for one in each
    ), functions


def metrics_of(
    text: str, task: str, functions: Functions | None = None, targets: Sequence[str] = ()
) -> tuple[Metric, ...]:
    """The additional scores of a task, including those of the setting `metrics`. task: the name of the task.
    functions: a program's own functions, by name. targets: the names of several targets.

    Raises UsageError: E126 for a score that does not fit the task, E111 for a file that cannot be read.
    """
    requested = (_metric(name, task, functions or {}) for name in requested_scores(text, task))
    metrics = tuple(one for metric in requested for one in _of_targets(metric, targets))
    names = [metric.key.rpartition(":")[2] for metric in metrics]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise UsageError("E126", f"two of the metrics are called '{twice}'; rename your function.")
    return metrics


def _metric(name: str, task: str, functions: Functions) -> Metric:
    of_probabilities, of_guesses = METRICS_OF_TASK[task]
    file, _, called = name.rpartition(":")
    if file:
        function = own_function(name, functions)
        prefix = OWN_LOWER if getattr(function, "lower_is_better", False) else OWN
        return Metric(f"{prefix}:{called}", checked_function(called, function), task == "classification")
    if compute := of_probabilities.get(name) or of_guesses.get(name):
        return Metric(name, compute, name in of_probabilities)
    fit = ", ".join((*of_probabilities, *of_guesses)) or "only functions of your own do"
    raise UsageError("E126", f"the metric '{name}' does not fit {task}; of the metrics there are, {fit}.")


def _of_targets(metric: Metric, targets: Sequence[str]) -> list[Metric]:
    """The metric; of the median error, which several targets have no common unit for, that of each."""
    if metric.compute is not functions.median_error or not targets:
        return [metric]

    def of_target(k: int) -> Compute:
        return lambda y_NK, guess_NK: functions.median_error(y_NK[:, k], guess_NK[:, k])

    return [replace(metric, key=f"{metric.key}:{n}", compute=of_target(k)) for k, n in enumerate(targets)]


def own_function(text: str, functions: Functions) -> Function:
    """The user's function that a setting names: `file.py:function`, or one of a program's own by its name.

    functions: the program's own. Raises UsageError: E111 for the file, E126 for the function.
    """
    file, _, name = text.rpartition(":")
    if file == GIVEN_OBJECT:
        if name not in functions:
            raise UsageError("E126", f"'{name}' was a function given in Python; give it again.")
        return functions[name]
    module = python_files.import_file(file)
    function = getattr(module, name, None)
    if not callable(function):
        known = [n for n, value in vars(module).items() if callable(value)]
        raise UsageError("E126", f"{file} has no function '{name}'.{suggestion(name, known)}")
    return function


def name_of(function: object) -> str:
    """The name of a function. Raises UsageError (E126) for an object that cannot be called or has no name,
    such as a lambda."""
    name = getattr(function, "__name__", "")
    if not callable(function) or not name.isidentifier():
        what = "is no function" if not callable(function) else "has no name"
        raise UsageError(
            "E126", f"metrics are names and functions written with def; {excerpt(function)} {what}."
        )
    return name


def checked_function(name: str, function: Function) -> Callable[[np.ndarray, np.ndarray], float | None]:
    """The function with a check of its result: a finite number, or None if it returns None, NaN or infinity.

    Raises UsageError (E126) if the function fails or returns anything but one number.
    """

    def value(y: np.ndarray, answers: np.ndarray) -> float | None:
        try:
            result = function(y.copy(), answers.copy())
        except Exception as error:
            text = f"the metric '{name}' failed with {python_files.one_line(error)}"
            remedy = (
                "return None where it is undefined, such as where a client's test samples have one class only"
            )
            raise UsageError(
                "E126", f"{text}; it is given y {list(y.shape)} and answers {list(answers.shape)}: {remedy}."
            ) from error
        return None if result is None else _number(name, result)

    return value


def _number(name: str, result: Any) -> float | None:
    """The result as a number; None if it is not finite."""
    size, expected = (
        math.prod(getattr(result, "shape", ())),
        "it must return one number, or None where it is undefined",
    )
    if size != 1:
        raise UsageError("E126", f"the metric '{name}' returned {size} numbers; {expected}.")
    number = result.item() if hasattr(result, "item") else result
    if not isinstance(number, int | float):
        raise UsageError("E126", f"the metric '{name}' returned {excerpt(result)}; {expected}.")
    try:
        return float(number) if math.isfinite(number) else None
    except OverflowError:  # a whole number beyond the range of a float
        return None
