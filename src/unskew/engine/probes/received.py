"""Inputs that clients receive from others, compared with real ones.

Letters: C channels, H, W, N inputs.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from unskew.core.part import overrides
from unskew.engine.pictures import png, row
from unskew.engine.probes.lens import Lens
from unskew.engine.probes.probe import Measurement, Probe, RoundEnd
from unskew.measures.received import likeness, likeness_of_real, nearness

MOST = 1000
"""Of more received inputs, and of more test rows, a fixed random choice of so many is compared."""
SHOWN, SIDE = 10, 128
"""How many pictures of a class are shown, and the longest side that a picture may have."""


class Received(Probe):
    """After the last round: how like their class and how near to training samples they are, and a picture of some."""

    name: ClassVar[str] = "received"
    summary: ClassVar[str] = (
        "inputs that clients receive of others: how like their class, how near to a training sample, and a picture"
    )

    def __init__(self, lens: Lens):
        super().__init__(lens)
        self.parts = [p for p in self.trainer.method.parts if overrides(p, "received")]

    def refuse(self) -> str | None:
        if not self.parts:
            return "its clients receive nothing that looks like an input; FedDPMS, FedMix and FedData send such"
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
        """(inputs, their labels) that the next round's clients would be sent, of every Part that sends such."""

        def decoded(_: None) -> list[tuple[Tensor, Tensor] | None]:
            return [p.received(end.after.down[p.name], self.fed) for p in self.parts]

        pairs = [pair for pair in self.lens.each(decoded, [None])[0] if pair is not None]
        return torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])

    def _picture(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        """A sheet with one row a class; nothing where inputs are no images."""
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
