"""Models by name, such as `alexnet_bn(width=1024)`: a file in `networks/` for each, and the choice for auto.

Descriptions are read from source, so that models can be listed without loading torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from unskew.errors import UsageError, suggestion
from unskew.formats import arguments, calls
from unskew.system import python_files

if TYPE_CHECKING:
    from torch import nn

    from unskew.formats.input_layout import Layout

FOLDER = Path(__file__).parent / "networks"
PACKAGES = ("timm", "torchvision")
"""The models that another package builds."""


@cache
def files() -> dict[str, Path]:
    """The file of every model by name, in alphabetical order."""
    return {path.stem: path for path in python_files.module_files(FOLDER)}


def names() -> tuple[str, ...]:
    """The names of all models, in alphabetical order."""
    return tuple(files())


def describe() -> dict[str, str]:
    """A line with the description and arguments of each model, by name."""
    return {name: python_files.description(path) for name, path in files().items()}


def default_for(shape: tuple[int, ...], pixels: tuple[int, ...] = ()) -> str:
    """The text of a model that fits samples of this shape.

    pixels: the shape of a sample's mask, () where a sample has one label. Raises UsageError (E123) for labels
    of tokens.
    """
    if pixels and len(shape) == 1:
        text = (
            "no model that comes with unskew answers at every token; give a module of your own that returns"
            " logits"
        )
        raise UsageError("E123", f"{text} [samples, tokens, classes], or model='hf(path=FOLDER)'.")
    if pixels:
        return "unet"
    if shape == (1, 128, 3):
        return "harnet"
    if len(shape) == 3 and shape[0] <= 2 and shape[1] == 64 != shape[2] and shape[2] >= 16:
        return "audionet"  # mono or stereo, 64 mel bands over time
    if len(shape) == 3 and shape[1:] == (28, 28):
        return "rebafl_fmnist"
    if len(shape) == 3 and shape[1:] == (32, 32):
        return "rebafl_cifar"
    if len(shape) == 3 and min(shape[1:]) >= 48:
        return "alexnet_bn(width=1024)"
    return "cnn_small" if len(shape) == 3 and min(shape[1:]) >= 4 else "mlp"


def module_of(name: str) -> ModuleType:
    """The module that defines a model. Raises UsageError (E104) for an unknown name."""
    if name not in names():
        raise UsageError(
            "E104", f"unknown model '{name}'.{suggestion(name, names())} `unskew list models` shows all."
        )
    return importlib.import_module(f"unskew.models.networks.{name}")


def maker_of(name: str) -> Callable[..., nn.Module]:
    """The function `(shape, classes, **arguments)` of a model. Raises UsageError (E104) for an unknown
    name."""
    return getattr(module_of(name), name)


def is_of_package(text: str) -> bool:
    """Whether a model's text names a model of PACKAGES, which is checked and tried as a user's own is."""
    return text.partition("(")[0].strip() in PACKAGES


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


def weight_bytes(
    text: str,
    shape: tuple[int, ...],
    classes: int,
    pixels: tuple[int, ...] = (),
    layout: Layout | None = None,
) -> int:
    """The bytes of the weights of the model that `build` would return, without any memory for them."""
    import torch

    with torch.device("meta"):
        module = build(text, shape, classes, pixels, layout)
    return sum(p.nbytes for p in module.parameters())
