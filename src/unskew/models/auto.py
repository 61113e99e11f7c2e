"""Which model the setting `model=auto` stands for."""

from __future__ import annotations


def default_for(shape: tuple[int, ...], pixels: tuple[int, ...] = ()) -> str:
    """The text of a model that fits samples of this shape.

    pixels: the shape of a sample's mask, () where a sample has one label.
    """
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
