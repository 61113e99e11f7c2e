"""What our models are: named blocks in sequence, the last of them the head."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from unskew.errors import UsageError


class Blocks(nn.Sequential):
    """Named blocks; the block before `head` gives the feature vector the head receives.

    cut: the block whose output methods share by default. folds: whether training several clients side by side in
    channels pays on a CPU (small convolutions and dense layers), or one after another is as fast.
    initialise: a model's own rule for initial weights, applied after PyTorch's; most have none.

    In the blocks pooling stands before a ReLU or LeakyReLU: both are monotone, so values and gradients are the same,
    and the activation works on a quarter of the numbers. Nothing is computed in place, so that vmap can run it all.
    """

    def __init__(self, cut: str, folds: bool, **blocks: nn.Module):
        super().__init__(OrderedDict(blocks))
        self.cut, self.folds = cut, folds


def need(model: str, shape: tuple[int, ...], ok: bool, wanted: str) -> None:
    """Raises UsageError (E122) unless the input fits the model."""
    if not ok:
        raise UsageError(
            "E122",
            f"model '{model}' needs samples of {wanted}, got {list(shape)}. `unskew list models` shows what fits.",
        )


def seq(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(*layers)
