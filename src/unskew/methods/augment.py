"""Augmentation (Krizhevsky et al., NeurIPS 2012; SpecAugment: Park et al., Interspeech 2019).

Every time a sample x is drawn, it is changed in this order:
    x is mirrored left to right with probability `flip`
    x is shifted by a whole number of pixels, uniform in -`shift` .. `shift`, along each axis;
    zeros fill the gap
    x is set to zero along each axis at a uniform number 0 .. `blank` of neighbouring positions,
    from a uniform start
The axes are the height and width of an image or spectrogram, or the time of a signal. Test samples do not
change. If a sample has several inputs, all its images are changed by the same draws, and its other inputs
stay as they are. SpecAugment is arXiv 1904.08779.
Differs from the paper: crops of padded images are called shifts, zeros stand for the mean of standardised
inputs (black if another Part normalises after this one), and SpecAugment's warping of time is left out.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le

from unskew.core import Batch, Client, Fed, Noise, Part, Tensor, Tree
from unskew.formats.setting_ranges import Fraction
from unskew.methods.shared import sample_images


@dataclass(frozen=True)
class Augment(Part):
    """Mirrors, shifts and blanks training samples at random."""

    flip: Annotated[Fraction, "probability that a sample is mirrored left to right"] = 0.5
    shift: Annotated[
        int, Ge(0), Le(10_000), "how far a sample is shifted at most along each axis, in pixels"
    ] = 4
    blank: Annotated[
        int, Ge(0), Le(10_000), "how many neighbouring positions of each axis are blanked at most"
    ] = 0
    name = "augment"
    family = "data"
    against = ("scarcity",)
    use_when = (
        "Clients hold few images that keep their class when mirrored and shifted; for digits set flip=0."
    )
    neutral = {"flip": 0.0, "shift": 0, "blank": 0}
    tasks = ("classification", "regression", "multilabel")
    needs = "labels of whole samples"

    def refuse(self, fed: Fed) -> str | None:
        if fed.net.layout and not sample_images.image_shapes(fed):
            return f"it moves images along their axes and {sample_images.image_refusal(fed)}"
        if len(fed.shape) < 2 and not fed.net.layout:
            return f"it moves samples along their axes and a sample here is {list(fed.shape)}"
        if self.flip and len(fed.shape) == 2:
            return "it would mirror a signal in time; set augment.flip=0"
        shortest = min(side for shape in sample_images.image_shapes(fed) or [fed.shape] for side in shape[1:])
        if max(self.shift, self.blank) >= shortest:
            return (
                f"it shifts or blanks up to {max(self.shift, self.blank)} positions of an axis that has"
                f" {shortest}"
            )
        return None

    def noise(self, fed: Fed, down: Tree) -> dict[str, Noise]:
        axes = (2 if fed.net.layout else len(fed.shape) - 1,)
        drawn = {"mirror": Noise("uniform")} if self.flip else {}
        if self.shift:
            drawn["shift"] = Noise("integers", (2 * self.shift + 1,), axes)
        if self.blank:
            drawn |= {
                "width": Noise("integers", (self.blank + 1,), axes),
                "start": Noise("uniform", shape=axes),
            }
        return drawn

    def batch(self, b: Batch, c: Client) -> Batch:
        along = None if b.along is None else self._with_changed(b.along.expand_as(b.x), c)
        return b.replace(x=self._with_changed(b.x, c), along=along)

    def _with_changed(self, x: Tensor, c: Client) -> Tensor:
        return sample_images.with_images(
            x, [self._changed(image, c) for image in sample_images.images(x, c.fed)], c.fed
        )

    def _changed(self, x: Tensor, c: Client) -> Tensor:
        """The changed images; linear in x, [B, channels, *axes], so that it also applies to a direction."""
        if self.flip:
            x = torch.where(_for_axis((c.noise["mirror"] < self.flip)[:, None], x, 1), x.flip(-1), x)
        for axis in range(2, x.ndim):
            place = torch.arange(x.shape[axis], device=x.device)
            if self.shift:
                x = _shifted(x, axis, place + (c.noise["shift"][:, axis - 2, None] - self.shift))
            if self.blank:
                width_B1 = c.noise["width"][:, axis - 2, None]
                first_B1 = (c.noise["start"][:, axis - 2, None] * (x.shape[axis] - width_B1 + 1)).floor()
                x = x * _for_axis((place < first_B1) | (place >= first_B1 + width_B1), x, axis)
        return x


def _shifted(x: Tensor, axis: int, from_BL: Tensor) -> Tensor:
    """x with position i of this axis read from from_BL[:, i]; zero if that lies outside."""
    length = x.shape[axis]
    index = _for_axis(from_BL.clamp(0, length - 1), x, axis).expand_as(x)
    return x.gather(axis, index) * _for_axis((from_BL >= 0) & (from_BL < length), x, axis)


def _for_axis(values_BL: Tensor, x: Tensor, axis: int) -> Tensor:
    """Values [B, L] reshaped to [B, 1, ..., L, ..., 1] to broadcast against x."""
    shape = [1] * x.ndim
    shape[0], shape[axis] = values_BL.shape
    return values_BL.reshape(shape)
