"""Models by name: the files of `networks/`, written `alexnet_bn(width=1024)`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torch import nn

from unskew.errors import UsageError, suggestion
from unskew.formats import arguments, calls
from unskew.formats.input_layout import Layout
from unskew.models.catalogue import aliases, default_for, names


def module_of(name: str) -> ModuleType:
    """The module that defines a model. Raises UsageError (E104) for an unknown name."""
    if name not in names():
        raise UsageError(
            "E104", f"unknown model '{name}'.{suggestion(name, names())} `unskew list models` shows all."
        )
    return importlib.import_module(f"unskew.models.networks.{aliases().get(name, name)}")


def maker_of(name: str) -> Callable[..., nn.Module]:
    """The function `(shape, classes, **arguments)` of a model. Raises UsageError (E104) for an unknown
    name."""
    return getattr(module_of(name), aliases().get(name, name))


def check_text(text: str) -> None:
    """Raises UsageError (E104) for an unknown model or argument in a text."""
    call = calls.parse(text, "model", "E104")
    arguments.check(maker_of(call.name), call.arguments, f"model '{call.name}'", "E104")


def build(
    text: str,
    shape: tuple[int, ...],
    classes: int,
    pixels: tuple[int, ...] = (),
    layout: Layout | None = None,
    **options: Any,
) -> nn.Module:
    """The model that a text names, for samples of this shape; its weights are not initialised yet.

    pixels: the shape of a sample's mask, () where a sample has one label. options: further arguments of the
    model, which take precedence over those in the text. layout: of samples with several inputs, which no
    model with a name takes.
    Raises UsageError: E104 for a name or argument that does not exist or does not fit, E123 for samples that
    do not fit.
    """
    if layout:
        mismatch = f"samples have several inputs ({layout}), and the model '{text}' takes one"
        raise UsageError("E123", f"{mismatch}; give a module of your own whose forward takes each.")
    shape = tuple(shape)
    call = calls.parse(default_for(shape, pixels) if text.strip() == "auto" else text, "model", "E104")
    make = maker_of(call.name)
    values = arguments.check(make, call.arguments | options, f"model '{call.name}'", "E104")
    try:
        module = make(shape, classes, **values)
    except (ValueError, RuntimeError) as error:  # RuntimeError: more memory than there is
        raise UsageError("E104", f"cannot build model '{text}': {error}.") from error
    if pixels and len(shape) == 1 and hasattr(module, "at_every_token"):
        return module.at_every_token()  # type: ignore[operator]
    if getattr(module, "dense", False) != bool(pixels):
        answer, label = (
            ("sample", "mask" if len(shape) > 1 else "label for each token")
            if pixels
            else ("pixel", "single label")
        )
        raise UsageError(
            "E123", f"model '{call.name}' gives one answer per {answer}, but each sample has a {label}."
        )
    return module
