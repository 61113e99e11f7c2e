"""The papers' models by name, and a user's own."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unskew.errors import UsageError, suggestion

if TYPE_CHECKING:
    import torch
    from torch import nn

_WHERE = {
    "mlp": ("small", "a dense network for samples of any shape; hidden=(128,)"),
    "cnn_small": ("small", "two convolutions, for the 8x8 digits"),
    "rebafl_fmnist": ("rebafl", "ReBaFL's LeNet-size CNN for 28x28 images"),
    "rebafl_cifar": ("rebafl", "ReBaFL's CNN for 32x32 images; head_bias=True"),
    "harnet": ("harnet", "FLea's network for movement windows of 1x128x3"),
    "audionet": ("audionet", "FLea's network for log-mel spectrograms"),
    "mobilenet_v2": ("mobilenet", "MobileNetV2 in its CIFAR form"),
    "alexnet_bn": ("alexnet", "AlexNet with batch normalisation; width=4096 or 1024, a smaller stem below 160 px"),
    "resnet18": ("resnet", "ResNet-18, CIFAR form below 64 px"),
}


def describe() -> dict[str, str]:
    """Every name and what it is for, without loading torch."""
    return {name: text for name, (_, text) in _WHERE.items()}


def default_for(shape: tuple[int, ...]) -> str:
    """The model `auto` stands for, by the shape of a sample."""
    if shape == (1, 128, 3):
        return "harnet"
    if len(shape) == 3 and shape[1:] == (28, 28):
        return "rebafl_fmnist"
    if len(shape) == 3 and shape[1:] == (32, 32):
        return "rebafl_cifar"
    if len(shape) == 3 and min(shape[1:]) >= 48:
        return "alexnet_bn(width=1024)"
    return "cnn_small" if len(shape) == 3 and min(shape[1:]) >= 4 else "mlp"


def build(text: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    """A model by name, like `mlp` or `alexnet_bn(width=1024)`, not yet initialised (see `initialise`)."""
    import ast

    if text == "auto":
        text = default_for(shape)
    name, _, arguments = text.partition("(")
    name = name.strip()
    if name not in _WHERE:
        raise UsageError("E104", f"unknown model '{name}'.{suggestion(name, _WHERE)} `unskew list models` shows all.")
    try:
        call = ast.parse(f"f({arguments}" if arguments else "f()", mode="eval").body
        options = {k.arg: ast.literal_eval(k.value) for k in call.keywords}  # type: ignore[attr-defined]
        make: Callable[..., Any] = getattr(importlib.import_module(f"unskew.models.{_WHERE[name][0]}"), name)
        return make(tuple(shape), classes, **options)
    except (SyntaxError, ValueError, TypeError) as error:
        raise UsageError("E104", f"cannot build model '{text}': {error}.") from error


def initialise(module: nn.Module, generator: torch.Generator) -> list[str]:
    from unskew.models import initial

    return initial.initialise(module, generator)


def load(text: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    """A user's model from `path/to/file.py:function`, which is called with the sample's shape and the classes."""
    file, _, function = text.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise UsageError("E111", f"there is no file {file}; a model is a name or file.py:function.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = loaded
    spec.loader.exec_module(loaded)
    make = getattr(loaded, function, None)
    if not callable(make):
        raise UsageError("E104", f"{file} has no function '{function}'.{suggestion(function, vars(loaded))}")
    return check(make(tuple(shape), classes), shape, classes)


def check(module: object, shape: tuple[int, ...], classes: int) -> nn.Module:
    """Raises UsageError (E123) unless the module turns two samples into two rows of logits."""
    import torch
    from torch import nn

    if not isinstance(module, nn.Module):
        raise UsageError("E123", f"a model is a torch.nn.Module, got {type(module).__name__}.")
    was = module.training
    try:
        with torch.no_grad():
            found = module.eval()(torch.zeros(2, *shape))
    except (RuntimeError, ValueError, TypeError) as error:
        raise UsageError(
            "E123", f"the model fails on two samples of {list(shape)}: {str(error).splitlines()[0]}."
        ) from error
    finally:
        module.train(was)
    if not isinstance(found, torch.Tensor) or tuple(found.shape) != (2, classes):
        given = list(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        raise UsageError(
            "E123", f"the model gives {given} for two samples; expected [2, {classes}], a row of logits each."
        )
    return module
