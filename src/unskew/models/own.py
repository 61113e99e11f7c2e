"""A user's own model: from a file, and whether it does what a model must."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from unskew import own
from unskew.errors import UnskewError, UsageError, suggestion
from unskew.models.count import evaluating


def load(text: str, shape: tuple[int, ...], classes: int, pixels: tuple[int, ...] = ()) -> nn.Module:
    """The model `path/to/file.py:function` makes when called with the sample's shape and the number of classes."""
    file, _, function = text.rpartition(":")
    if not Path(file).is_file():
        raise UsageError("E111", f"there is no file {file}; a model is a name or file.py:function.")
    loaded = own.module(file)
    make = getattr(loaded, function, None)
    if not callable(make):
        raise UsageError("E104", f"{file} has no function '{function}'.{suggestion(function, vars(loaded))}")
    try:
        made = make(tuple(shape), classes)
    except UnskewError:
        raise
    except Exception as error:
        raise UsageError(
            "E123", f"{text} fails when called with {tuple(shape)}, {classes}: {own.told(error)}."
        ) from error
    return check(made, shape, classes, pixels)


def check(module: object, shape: tuple[int, ...], classes: int, pixels: tuple[int, ...] = ()) -> nn.Module:
    """Raises UsageError (E123) unless the module turns two samples into logits [2, classes, *pixels].

    pixels: the shape of a sample's mask, () where a sample has one label.
    """
    if not isinstance(module, nn.Module):
        raise UsageError("E123", f"a model is a torch.nn.Module, got {type(module).__name__}.")
    try:
        with torch.no_grad(), evaluating(module):
            found = module(torch.zeros(2, *shape))
    except Exception as error:
        raise UsageError("E123", f"the model fails on two samples of {list(shape)}: {own.told(error)}.") from error
    if not isinstance(found, torch.Tensor) or tuple(found.shape) != (2, classes, *pixels):
        given = list(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        each = "a map of logits" if pixels else "a row of logits"
        raise UsageError(
            "E123", f"the model gives {given} for two samples; expected {[2, classes, *pixels]}, {each} each."
        )
    return module
