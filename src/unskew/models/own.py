"""A user's own model: from a file, and whether it does what a model must."""

from __future__ import annotations

import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import torch
from torch import nn

from unskew.errors import UnskewError, UsageError, suggestion
from unskew.models.count import evaluating


def load(text: str, shape: tuple[int, ...], classes: int, pixels: tuple[int, ...] = ()) -> nn.Module:
    """The model `path/to/file.py:function` makes when called with the sample's shape and the number of classes."""
    file, _, function = text.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise UsageError("E111", f"there is no file {file}; a model is a name or file.py:function.")
    loaded = _run(path)
    make = getattr(loaded, function, None)
    if not callable(make):
        raise UsageError("E104", f"{file} has no function '{function}'.{suggestion(function, vars(loaded))}")
    try:
        made = make(tuple(shape), classes)
    except UnskewError:
        raise
    except Exception as error:
        raise UsageError("E123", f"{text} fails when called with {tuple(shape)}, {classes}: {_told(error)}.") from error
    return check(made, shape, classes, pixels)


def _run(path: Path) -> ModuleType:
    """The file as a module of a name nothing else has: a user's `random.py` must not replace Python's."""
    name = f"unskew_own_{path.stem}"
    spec = spec_from_loader(name, SourceFileLoader(name, str(path)))
    assert spec is not None
    assert spec.loader is not None
    loaded = module_from_spec(spec)
    sys.modules[name] = loaded  # dataclasses look their module up while the file runs
    try:
        spec.loader.exec_module(loaded)
    except Exception as error:
        del sys.modules[name]
        raise UsageError("E111", f"{path} cannot be read as Python: {_told(error)}.") from error
    return loaded


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
        raise UsageError("E123", f"the model fails on two samples of {list(shape)}: {_told(error)}.") from error
    if not isinstance(found, torch.Tensor) or tuple(found.shape) != (2, classes, *pixels):
        given = list(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        each = "a map of logits" if pixels else "a row of logits"
        raise UsageError(
            "E123", f"the model gives {given} for two samples; expected {[2, classes, *pixels]}, {each} each."
        )
    return module


def _told(error: Exception) -> str:
    """An exception in one line; some say nothing but their name."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__
