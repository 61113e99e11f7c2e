"""A user's own score: a function of true labels and answers that returns one number, or None if it is
undefined."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from unskew.errors import UsageError, excerpt, suggestion
from unskew.scores import OWN, OWN_LOWER
from unskew.system import python_files

Function = Callable[..., Any]


def from_file(text: str) -> Function:
    """The function that `path/to/file.py:function` names. Raises UsageError: E111 for the file, E126 for the
    function."""
    file, _, name = text.rpartition(":")
    module = python_files.import_file(file)
    function = getattr(module, name, None)
    if not callable(function):
        known = [n for n, value in vars(module).items() if callable(value)]
        raise UsageError("E126", f"{file} has no function '{name}'.{suggestion(name, known)}")
    return function


def given_function(name: str, functions: Mapping[str, Function]) -> Function:
    """The program's function with this name. Raises UsageError (E126) if there is none."""
    if name not in functions:
        raise UsageError(
            "E126", f"the metric '{name}' was a function given in Python; give it again: metrics=[{name}]."
        )
    return functions[name]


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


def record_key(name: str, function: Function) -> str:
    """The score's name in metrics.jsonl. It marks a function with `lower_is_better = True`."""
    return f"{OWN_LOWER if getattr(function, 'lower_is_better', False) else OWN}:{name}"


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
