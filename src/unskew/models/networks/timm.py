"""An image model of the installed timm, by its name there, with random weights."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from torch import nn

from unskew.errors import MissingPackage, UsageError, suggestion
from unskew.models.blocks import is_image, require


def timm(
    shape: tuple[int, ...],
    classes: int,
    *,
    name: Annotated[str, "a model of timm.list_models(), such as convnext_atto"] = "",
) -> nn.Module:
    """The model for the data's channels and size, with an answer for each class."""
    require("timm", shape, is_image(shape, 1), "[channels, height, width]")
    try:
        import timm as library  # pyright: ignore[reportMissingImports]
    except (ImportError, RuntimeError) as error:  # RuntimeError: its torchvision was built for another torch
        raise MissingPackage(f"timm ({error})", "timm") from error
    # Only names of this list: create_model would also fetch a model from a hub, 'hf-hub:...'.
    known: list[str] = library.list_models()
    if name not in known:
        missing = f"timm has no model '{name}'; write one as timm(name=convnext_atto)"
        raise UsageError("E104", f"{missing}.{suggestion(name, known)}")
    make = partial(library.create_model, name, pretrained=False, num_classes=classes, in_chans=shape[0])
    try:
        return make(img_size=shape[1:])
    except TypeError:  # the model takes images of any size
        return make()
