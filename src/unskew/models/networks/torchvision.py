"""A classifier of the installed torchvision, by its name there, with random weights."""

from __future__ import annotations

from typing import Annotated, Any

from torch import nn

from unskew.errors import MissingPackage, UsageError, suggestion
from unskew.models.blocks import is_image, require


def torchvision(
    shape: tuple[int, ...],
    classes: int,
    *,
    name: Annotated[str, "a classifier of torchvision.models, such as resnet18"] = "",
) -> nn.Module:
    """The classifier with an answer for each class; its first convolution takes the data's channels."""
    require("torchvision", shape, is_image(shape, 1), "[channels, height, width]")
    try:
        from torchvision import models  # pyright: ignore[reportMissingImports]
    except (ImportError, RuntimeError) as error:  # RuntimeError: it was built for another torch
        raise MissingPackage(f"torchvision ({error})", "torchvision") from error
    # Only names of this list: get_model would also build detectors, and no weights are ever downloaded.
    known: list[str] = models.list_models(module=models)
    if name not in known:
        missing = f"torchvision has no classifier '{name}'; write one as torchvision(name=resnet18)"
        raise UsageError("E104", f"{missing}.{suggestion(name, known)}")
    module = models.get_model(name, weights=None, num_classes=classes, **_arguments(name, shape))
    if shape[0] != 3:
        first = next(layer for layer in module.modules() if isinstance(layer, nn.Conv2d))
        first.in_channels = shape[0]
        first.weight = nn.Parameter(first.weight.new_empty(len(first.weight), shape[0], *first.kernel_size))
        first.reset_parameters()
    return module


def _arguments(name: str, shape: tuple[int, ...]) -> dict[str, Any]:
    """The arguments that single families need: the size of images, and no answers of inner layers."""
    if name.startswith("vit_"):
        return {"image_size": shape[1]}
    if name.startswith("maxvit"):
        return {"input_size": shape[1:]}
    return {"aux_logits": False, "init_weights": True} if name in ("googlenet", "inception_v3") else {}
