"""A user's own model: made by a function in a file, and checked for what every model must do."""

from __future__ import annotations

import torch
from torch import nn

from unskew import arguments, calls, own
from unskew.errors import UnskewError, UsageError, suggestion
from unskew.models.modes import evaluating


def from_file(text: str, shape: tuple[int, ...], classes: int, pixels: tuple[int, ...] = ()) -> nn.Module:
    """The model that `path/to/file.py:function` makes when it is called with a sample's shape and the number of classes.

    The text may hold further arguments of the function: `file.py:function(width=64)`.
    Raises UsageError: E104 for a function or argument that does not exist, E111 for the file, E123 if the function or
    its model fails.
    """
    call = calls.parse(text, "model", "E104")
    if not call.file:
        raise UsageError("E111", f"there is no file for the model '{text}'; a model is a name or file.py:function.")
    if not call.member:
        raise UsageError("E104", f"the model '{text}' names no function; write {call.file}:function.")
    defined = own.module(call.file)
    make = getattr(defined, call.member, None)
    if not callable(make):
        near = suggestion(call.member, vars(defined))
        raise UsageError("E104", f"{call.file} has no function '{call.member}'.{near}")
    values = arguments.check(make, call.arguments, f"model '{call.name}'", "E104") if call.arguments else {}
    try:
        module = make(tuple(shape), classes, **values)
    except UnskewError:
        raise
    except Exception as error:
        raise UsageError(
            "E123", f"{text} fails when called with {tuple(shape)}, {classes}: {own.in_one_line(error)}."
        ) from error
    return check_module(module, shape, classes, pixels)


def check_module(module: object, shape: tuple[int, ...], classes: int, pixels: tuple[int, ...] = ()) -> nn.Module:
    """The module itself, if it turns two samples of this shape into logits [2, classes, *pixels].

    pixels: the shape of a sample's mask, () where a sample has one label. Weights, statistics and modes stay as they are.
    Raises UsageError (E123) otherwise.
    """
    if not isinstance(module, nn.Module):
        raise UsageError("E123", f"a model must be a torch.nn.Module, got {type(module).__name__}.")
    try:
        with torch.no_grad(), evaluating(module):
            logits = module(torch.zeros(2, *shape))
    except Exception as error:
        raise UsageError(
            "E123", f"the model fails on two samples of {list(shape)}: {own.in_one_line(error)}."
        ) from error
    if not isinstance(logits, torch.Tensor) or tuple(logits.shape) != (2, classes, *pixels):
        returned = list(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        each = "a map of logits" if pixels else "a row of logits"
        raise UsageError(
            "E123", f"the model gives {returned} for two samples; expected {[2, classes, *pixels]}, {each} for each."
        )
    return module
