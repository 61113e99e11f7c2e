"""The papers' models by name, and a user's own."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from unskew import calls
from unskew.errors import UsageError, suggestion

if TYPE_CHECKING:
    import torch
    from torch import nn

_WHERE = {
    "mlp": ("small", "a dense network for samples of any shape; hidden=(128,)"),
    "cnn_small": ("small", "two convolutions, for the 8x8 digits"),
    "rebafl_fmnist": ("rebafl", "ReBaFL's LeNet-size CNN for 28x28 images"),
    "lenet": ("rebafl", "another name of rebafl_fmnist"),
    "rebafl_cifar": ("rebafl", "ReBaFL's CNN for 32x32 images; head_bias=True"),
    "harnet": ("harnet", "FLea's network for movement windows of 1x128x3"),
    "audionet": ("audionet", "FLea's network for log-mel spectrograms"),
    "mobilenet_v2": ("mobilenet", "MobileNetV2 in its CIFAR form"),
    "alexnet_bn": ("alexnet", "AlexNet with batch normalisation; width=4096 or 1024, a smaller stem below 160 px"),
    "vae_fmnist": ("vae", "FedDPMS's encoder for 28x28 images; width=32"),
    "vae_cifar": ("vae", "FedDPMS's encoder for 32x32 images; width=128"),
    "resnet18": ("resnet", "ResNet-18, CIFAR form below 64 px"),
    "unet": ("unet", "U-Net for masks; base=32, levels=5"),
}


def describe() -> dict[str, str]:
    """Every name and what it is for, without loading torch."""
    return {name: text for name, (_, text) in _WHERE.items()}


def names() -> list[str]:
    """Every name `build` knows."""
    return list(_WHERE)


def default_for(shape: tuple[int, ...], pixels: tuple[int, ...] = ()) -> str:
    """The model `auto` stands for, by the shape of a sample, and of its mask if it has one."""
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


def build(text: str, shape: tuple[int, ...], classes: int, pixels: tuple[int, ...] = (), **options: Any) -> Any:
    """A model by name, not yet initialised (see `initialise`): named blocks, or a U-Net where samples have masks.

    pixels: the shape of a sample's mask, () where a sample has one label. Options stand in the text, like
    `alexnet_bn(width=1024)`, or beside it; beside it they win.
    """
    shape = tuple(shape)
    if text.strip() == "auto":
        text = default_for(shape, pixels)
    call = calls.parse(text, "model", "E104")
    name = known(text)
    make: Callable[..., Any] = getattr(importlib.import_module(f"unskew.models.{_WHERE[name][0]}"), name)
    try:
        made = make(shape, classes, **{**call.arguments, **options})
    except (ValueError, TypeError) as error:
        raise UsageError("E104", f"cannot build model '{text}': {error}.") from error
    if getattr(made, "dense", False) != bool(pixels):
        answer, wanted = ("a sample", "mask") if pixels else ("a pixel", "label")
        raise UsageError("E122", f"model '{name}' gives one answer {answer}, and these samples have a {wanted} each.")
    return made


def known(text: str) -> str:
    """The name of the model that a text names. Raises UsageError (E104) if there is none."""
    name = calls.parse(text, "model", "E104").name
    if name not in _WHERE:
        raise UsageError("E104", f"unknown model '{name}'.{suggestion(name, _WHERE)} `unskew list models` shows all.")
    return name


def initialise(module: nn.Module, generator: torch.Generator) -> list[str]:
    from unskew.models import initial

    return initial.initialise(module, generator)


def load(text: str, shape: tuple[int, ...], classes: int, pixels: tuple[int, ...] = ()) -> nn.Module:
    """A user's model from `path/to/file.py:function`, which is called with the sample's shape and the classes."""
    from unskew.models import own

    return own.load(text, shape, classes, pixels)


def check(module: object, shape: tuple[int, ...], classes: int, pixels: tuple[int, ...] = ()) -> nn.Module:
    """Raises UsageError (E123) unless the module turns two samples into two rows of logits, or maps of them."""
    from unskew.models import own

    return own.check(module, shape, classes, pixels)


def table() -> str:
    """Every model's size, cut and source, as Markdown."""
    from unskew.models import catalogue

    return catalogue.table()
