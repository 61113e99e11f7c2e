"""Inputs that clients receive from others: similarity to their class, and distance to real samples.

likeness = share of received inputs with a nearest test row of their class
nearness = median_i min_n |r_i - x_n| / median_j min_n |t_j - x_n|
r: received inputs, x: training rows of all clients, t: test rows.
A nearness of 0 means copies of training samples; 1 means inputs as far from them as unseen real samples are.
Letters: C channels, D values of an input, H, W, N and M rows or images.
"""

from __future__ import annotations

import base64
import io
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unskew.core.part import overrides
from unskew.round.probes import Measurement, Probe, RoundEnd, RunInspector


def row(x_NCHW: Tensor, columns: int) -> np.ndarray:
    """A row of images [H, columns * W, C + 1] in 0..255, transparent if there are fewer images than
    columns."""
    levels = (255 * x_NCHW.clamp(0, 1)).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    opaque = np.concatenate([levels, np.full_like(levels[..., :1], 255)], axis=-1)
    missing = np.zeros((columns - len(opaque), *opaque.shape[1:]), dtype=np.uint8)
    return np.concatenate([*opaque, *missing], axis=1)


def png(sheet_HWC: np.ndarray) -> str:
    """The picture as base64."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(sheet_HWC).save(buffer, "png", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()


def nearest(a_ND: Tensor, b_MD: Tensor, others: bool = False) -> tuple[Tensor, Tensor]:
    """(distances [N], row numbers in b [N]): for every row of a the nearest row of b, by Euclidean distance.

    others: a is b, and a row is not its own neighbour.
    """
    from sklearn.neighbors import NearestNeighbors

    index = NearestNeighbors(n_neighbors=1, algorithm="brute").fit(b_MD.cpu().numpy())
    neighbours = index.kneighbors(None if others else a_ND.cpu().numpy(), return_distance=False)[:, 0]
    rows_N = torch.as_tensor(neighbours, device=a_ND.device)
    return (a_ND - b_MD[rows_N]).pow(2).sum(
        1
    ).sqrt(), rows_N  # from the rows themselves: a copy is at exactly 0


def likeness(a_ND: Tensor, y_N: Tensor, test_MD: Tensor, test_y_M: Tensor) -> float:
    """The share of inputs a_ND with a nearest test row of equal label, in [0, 1]; NaN without rows."""
    if not len(a_ND) or not len(test_MD):
        return math.nan
    return float((test_y_M[nearest(a_ND, test_MD)[1]] == y_N).float().mean())


def likeness_of_real(test_MD: Tensor, test_y_M: Tensor) -> float:
    """The likeness of the test rows among themselves: an upper reference for received inputs.

    NaN with fewer than two rows.
    """
    if len(test_MD) < 2:
        return math.nan
    return float((test_y_M[nearest(test_MD, test_MD, others=True)[1]] == test_y_M).float().mean())


def nearness(a_ND: Tensor, train_ND: Tensor, test_MD: Tensor) -> float:
    """The median distance of inputs a_ND to the nearest training row, relative to that of test rows; 0 means
    copies.

    NaN without rows, and if test rows are copies of training rows.
    """
    if not (len(a_ND) and len(train_ND) and len(test_MD)):
        return math.nan
    unseen = float(nearest(test_MD, train_ND)[0].median())
    return float(nearest(a_ND, train_ND)[0].median()) / unseen if unseen > 0 else math.nan


MOST = 1000
"""Maximum number of received inputs and of test rows; larger sets are sampled with a fixed seed."""
SHOWN, SIDE = 10, 128
"""Number of pictures per class, and the maximum side of a picture in pixels."""


class Received(Probe):
    """After the last round: likeness and nearness of the received inputs, and a picture of some of them."""

    def __init__(self, lens: RunInspector):
        super().__init__(lens)
        self.parts = [p for p in self.trainer.method.parts if overrides(p, "received")]

    def refuse(self) -> str | None:
        if not self.parts:
            return (
                "its clients receive nothing that looks like an input; FedDPMS, FedMix and FedData send such"
            )
        return None if self.fed.task.name == "classification" else "it needs one label of each input"

    def measure(self, end: RoundEnd) -> Measurement:
        if not end.last:
            return Measurement()
        lens, (x, y) = self.lens, self._inputs(end)
        chosen = torch.as_tensor(lens.choice(np.arange(len(x)), MOST, "received"), device=x.device)
        test_rows = lens.choice(np.arange(len(lens.scoring.y)), MOST, "received", "test")
        test = lens.scoring.x[torch.as_tensor(test_rows, device=x.device)].flatten(1)
        test_y = lens.test_labels(test_rows)
        train_rows = torch.as_tensor(np.concatenate(self.trainer.samples.rows), device=x.device)
        sample = x[chosen].flatten(1)
        values = {
            "received_likeness": likeness(sample, y[chosen], test, test_y),
            "received_likeness_of_real": likeness_of_real(test, test_y),
            "received_nearness": nearness(sample, self.trainer.samples.x[train_rows].flatten(1), test),
        }
        return Measurement(values, self._picture(x.cpu(), y.cpu()))

    def _inputs(self, end: RoundEnd) -> tuple[Tensor, Tensor]:
        """(inputs, labels) that all Parts would send to the next round's clients."""

        def decoded(_: None) -> list[tuple[Tensor, Tensor] | None]:
            return [p.received(end.after.down[p.name], self.fed) for p in self.parts]

        pairs = [pair for pair in self.lens.each(decoded, [None])[0] if pair is not None]
        return torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])

    def _picture(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        """A sheet with one row per class; {} if inputs are no images."""
        if len(self.fed.shape) != 3 or self.fed.shape[0] not in (1, 3) or max(self.fed.shape[1:]) > SIDE:
            return {}
        classes = sorted(set(y.tolist()))
        if not classes:
            return {}
        shown = [self._of_class(x, y, label) for label in classes]
        low, high = min(float(s.min()) for s in shown), max(float(s.max()) for s in shown)
        rows = [row((s - low) / ((high - low) or 1), SHOWN) for s in shown]
        return {"classes": classes, "columns": SHOWN, "png": png(np.concatenate(rows))}

    def _of_class(self, x: Tensor, y: Tensor, label: int) -> Tensor:
        rows = torch.nonzero(y == label).flatten().numpy()
        return x[torch.as_tensor(self.lens.choice(rows, SHOWN, "received", "shown", label))]
