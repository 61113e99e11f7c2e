"""Conventional normalisation, the baseline "norm" of FedRDN's paper.

Client and test:  x <- (x - mean) / std for every channel, with one fixed pair for all clients
If a sample has several inputs, every image among them is normalised, and the other inputs do not change.
Differs from the paper: nothing; it names no constants, its code uses ImageNet's.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le, MinLen

from unskew.core import Batch, Client, Fed, Part, Tensor
from unskew.errors import UsageError
from unskew.methods.shared import sample_images


@dataclass(frozen=True)
class Norm(Part):
    """Normalises every input channel by one pair of constants."""

    mean: Annotated[
        tuple[Annotated[float, Ge(-1_000_000), Le(1_000_000)], ...],
        MinLen(1),
        "each channel's mean, in the data's unit",
    ] = (0.485, 0.456, 0.406)
    std: Annotated[
        tuple[Annotated[float, Ge(1e-6), Le(1_000_000)], ...], MinLen(1), "each channel's standard deviation"
    ] = (
        0.229,
        0.224,
        0.225,
    )
    name = "norm"
    family = "data"
    against = ("features",)
    use_when = "As the plain alternative to FedRDN: one pair of constants for all clients."
    normalises = True
    by_input = "images"
    alone = True
    clashes = {"fedrdn": "both normalise the input"}

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.mean) != len(self.std):
            raise UsageError(
                "E102",
                f"Norm: mean has {len(self.mean)} numbers and std {len(self.std)}; give one a channel.",
            )

    def refuse(self, fed: Fed) -> str | None:
        of_images = [shape[0] for shape in sample_images.image_shapes(fed)]
        if fed.net.layout and not of_images:
            return sample_images.image_refusal(fed)
        for channels in of_images if fed.net.layout else fed.shape[:1]:
            if channels != len(self.mean):
                return (
                    f"it has {len(self.mean)} channel constants and the data have {channels}; set norm.mean"
                    " and norm.std"
                )
        return None

    def batch(self, b: Batch, c: Client) -> Batch:
        return b.scaled(*self._constants(b.x, c))

    def evaluate_with(self, x: Tensor, c: Client) -> Tensor:
        mean, std = self._constants(x, c)
        return (x - mean) / std

    def _constants(self, x: Tensor, c: Client) -> tuple[Tensor, Tensor]:
        # fill on the device: a copy would make the host wait for the GPU
        mean_C, std_C = (torch.stack([x.new_full((), v) for v in values]) for values in (self.mean, self.std))
        each = len(c.fed.net.layout.images) if c.fed.net.layout else 1
        mean_1C, std_1C = mean_C.repeat(each)[None], std_C.repeat(each)[None]
        return sample_images.per_channel(mean_1C, c.fed, 0.0), sample_images.per_channel(std_1C, c.fed, 1.0)
