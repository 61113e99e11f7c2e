"""Whether a pass can go on from a cut with what lies there alone: found by trying both ways on the same inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from torch import Tensor

from unskew.data.layout import Layout
from unskew.errors import UsageError

Run = Callable[..., tuple[Tensor, Tensor]]
"""`run(w, x, since=, until=)`, in evaluation mode, gives (output, what the head received)."""
NUDGE = 0.03
"""How far weights are moved for the second try: a path that begins at 0, as an adapter's does, is open then."""


class Onward:
    """Where passes of a network and of all its copies can go on from, as far as it has been tried.

    shape: of one input, or of the row of several. layout: how several inputs lie in it.
    logits: by cut, the shape of one sample's logits where a pass from there ends in those of a whole pass; None where not.
    A model that only lays the head's outputs out in another way, by nn.Flatten say, ends in the same numbers.
    meeting: the first cut at which all inputs of a sample meet, once somebody asked.
    """

    def __init__(self, shape: tuple[int, ...], layout: Layout | None):
        self.shape, self.layout = shape, layout
        self.logits: dict[str, tuple[int, ...] | None] = {}
        self.meeting = ""

    def find(self, since: str, run: Run, weights: Mapping[str, Tensor], trainable: Iterable[str]) -> None:
        """Try this cut. weights: those with which the model begins. trainable: the names of those that change."""
        tried = [_ends_alike(run, w, self._samples(run, w), since) for w in _starts(weights, trainable)]
        self.logits[since] = tried[0] if None not in tried else None

    def meet(self, cuts: Iterable[str], goes_on: Callable[[str], bool]) -> str:
        """`meeting`, sought among these cuts in their order. Raises UsageError (E106) where they do not meet."""
        self.meeting = self.meeting or next(filter(goes_on, cuts), "")
        if not self.meeting:
            text = "the inputs of a sample meet at none of the model's direct children"
            raise UsageError("E106", f"{text}; let it have one, before its head, through which all of them go.")
        return self.meeting

    def why(self, since: str, head: str) -> str:
        """Why no pass goes on from this cut, as the end of a sentence."""
        if since == "features":
            return f"what the model does after its head '{head}' would be left out; have the head's answer returned"
        passing = "other inputs of a sample" if self.layout else "other paths of the model"
        return f"{passing} pass it by; cut it where all of them meet"

    def _samples(self, run: Run, w: dict[str, Tensor]) -> Tensor:
        """Two inputs whose numbers differ from each other's and from the zeros on which layers before a cut run."""
        x = torch.arange(2 * math.prod(self.shape)).sin().mul(0.5).add(0.5).reshape(2, *self.shape)
        whole = (
            [(start, end) for each, start, end in self.layout.places if each.kind != "float32"] if self.layout else []
        )
        for start, end in whole:
            x[0, start:end], x[1, start:end] = 1, (torch.arange(end - start) + 1) % 2
        try:
            with torch.no_grad():
                run(w, x)
        except UsageError:  # an embedding with a single row
            for start, end in whole:
                x[:, start:end] = 0
        except RuntimeError:  # said by whoever runs the samples next
            pass
        return x


def _starts(weights: Mapping[str, Tensor], trainable: Iterable[str]) -> Iterator[dict[str, Tensor]]:
    """The weights with which a model begins, and others near them."""
    yield dict(weights)
    moved = {n: torch.arange(weights[n].numel()).add(1.0).sin().reshape(weights[n].shape) for n in trainable}
    yield {n: t + NUDGE * moved[n].to(t) if n in moved else t for n, t in weights.items()}


def _ends_alike(run: Run, w: dict[str, Tensor], x: Tensor, since: str) -> tuple[int, ...] | None:
    """The shape of one sample's logits, if both passes end in the same numbers."""
    try:
        with torch.no_grad():
            z, h = run(w, x)
            h = h if since == "features" else run(w, x, until=since)[0]
            again = run(w, h, since=since)[0]
    except RuntimeError:
        return None
    alike = again.numel() == z.numel() and torch.allclose(z, again.reshape(z.shape), 1e-3, 1e-5, equal_nan=True)
    return tuple(z.shape[1:]) if alike else None
