"""Inputs that clients receive of others, against real ones."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unskew.core.part import overrides
from unskew.engine.probes.probe import Lens, Probe, Seen
from unskew.measures.received import likeness, likeness_of_real, nearness


class Received(Probe):
    """After the last round: how like their class and how near to training samples they are, and a picture of some."""

    MOST = 1000
    """Of more received inputs, and of more test rows, a fixed random choice of so many is compared."""
    SHOWN, SIDE = 10, 128
    """Pictures a class, and the longest side of one."""

    def __init__(self, lens: Lens):
        super().__init__(lens)
        self.parts = [p for p in self.of.method.parts if overrides(p, "received")]

    def refuse(self) -> str | None:
        if not self.parts:
            return "its clients receive nothing that looks like an input; FedDPMS, FedMix and FedData send such"
        return None if self.fed.task.name == "classification" else "it needs one label of each input"

    def values(self, seen: Seen) -> dict[str, float]:
        if not seen.last:
            return {}
        self.found = x, y = self._all(seen)
        chosen = torch.as_tensor(self.lens.chosen(np.arange(len(x)), self.MOST, "received"), device=x.device)
        test = self.lens.chosen(np.arange(len(self.lens.scoring.y)), self.MOST, "received", "test")
        a, t = x[chosen].flatten(1), self.lens.scoring.x[torch.as_tensor(test, device=x.device)].flatten(1)
        t_y = self.lens.unseen_labels(test)
        train = self.of.samples.x[torch.as_tensor(np.concatenate(self.of.samples.rows), device=x.device)].flatten(1)
        return {
            "received_likeness": likeness(a, y[chosen], t, t_y),
            "received_likeness_of_real": likeness_of_real(t, t_y),
            "received_nearness": nearness(a, train, t),
        }

    def _all(self, seen: Seen) -> tuple[Tensor, Tensor]:
        """What the next round's clients would be sent, of every Part that sends inputs."""

        def of(_: Any) -> list[tuple[Tensor, Tensor] | None]:
            return [p.received(seen.now.down[p.name], self.fed) for p in self.parts]

        pairs = [pair for pair in self.lens.each(of, [None])[0] if pair is not None]
        return torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])

    def picture(self, seen: Seen) -> dict[str, Any]:
        x, y = (t.cpu() for t in self.found)
        if len(self.fed.shape) != 3 or self.fed.shape[0] not in (1, 3) or max(self.fed.shape[1:]) > self.SIDE:
            return {}
        classes = sorted(set(y.tolist()))
        if not classes:
            return {}
        shown = [self._of_class(x, y, c) for c in classes]
        low, high = min(float(s.min()) for s in shown), max(float(s.max()) for s in shown)
        rows = [_row((s - low) / ((high - low) or 1), self.SHOWN) for s in shown]
        return {"classes": classes, "columns": self.SHOWN, "png": _png(np.concatenate(rows))}

    def _of_class(self, x: Tensor, y: Tensor, label: int) -> Tensor:
        rows = torch.nonzero(y == label).flatten().numpy()
        return x[torch.as_tensor(self.lens.chosen(rows, self.SHOWN, "received", "shown", label))]


def _row(x_NCHW: Tensor, columns: int) -> np.ndarray:
    """[H, columns * W, C + 1] in 0..255, transparent where there are fewer."""
    levels = (255 * x_NCHW.clamp(0, 1)).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    seen = np.concatenate([levels, np.full_like(levels[..., :1], 255)], axis=-1)
    return np.concatenate([*seen, *np.zeros((columns - len(seen), *seen.shape[1:]), dtype=np.uint8)], axis=1)


def _png(sheet_HWC: np.ndarray) -> str:
    """The picture as base64."""
    from PIL import Image

    held = io.BytesIO()
    Image.fromarray(sheet_HWC).save(held, "png", optimize=True)
    return base64.b64encode(held.getvalue()).decode()
