"""A user's own loss: a function of the outputs and targets of a batch that returns the loss of each sample.

The shapes of outputs z and targets y are those of the task (`Task.loss`): logits and class distributions
[B, C], masks [B, C, height, width], logits and truth values [B, L], or standardised numbers [B, 1]. Letters:
B batch, C classes, L labels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from torch import Tensor

from unskew.errors import UsageError, excerpt
from unskew.system import python_files
from unskew.system.python_files import GIVEN_OBJECT
from unskew.tasks.metrics import name_of, own_function

LossFunction: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Gives the loss of each sample, [B], from outputs and targets."""


def as_text(loss: Any) -> tuple[str, dict[str, Callable[..., Any]]]:
    """The text of the setting `loss` for an argument of `run`, and the function in it by name. Raises
    UsageError (E126) for a function without a name, such as a lambda."""
    if isinstance(loss, str):
        return loss, {}
    name = name_of(loss)
    return f"{GIVEN_OBJECT}:{name}", {name: loss}


def own_loss(text: str, functions: Mapping[str, Callable[..., Any]]) -> LossFunction | None:
    """The function that the setting `loss` names; None for a task's own loss.

    functions: a program's own functions, by name. Raises UsageError: E111 for a file that cannot be read,
    E126 for a function that does not exist.
    """
    if not python_files.names_function(text):
        return None
    return checked_loss(text.rpartition(":")[2], own_function(text, functions))


def checked_loss(name: str, function: Callable[..., Any]) -> LossFunction:
    """The function with a check of its result. Raises UsageError (E127) if it fails or returns anything but
    one number for each sample."""

    def loss(z: Tensor, y: Tensor) -> Tensor:
        shapes = f"it is given outputs {list(z.shape)} and targets {list(y.shape)}"
        try:
            values = function(z, y)
        except Exception as error:
            text = f"the loss '{name}' failed with {python_files.one_line(error)}"
            raise UsageError("E127", f"{text}; {shapes}.") from error
        if not isinstance(values, Tensor) or values.shape != z.shape[:1]:
            what = list(values.shape) if isinstance(values, Tensor) else excerpt(values)
            text = f"the loss '{name}' returned {what}; {shapes}, and returns one number a sample"
            raise UsageError("E127", f"{text}, {list(z.shape[:1])}.")
        return values

    return loss
