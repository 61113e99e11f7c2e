"""Whether hooks of users' own Parts make the same of equal steps, and of steps with another sample in the padding; tried once.

Where clients train side by side a short batch ends in rows of another client's sample, at weight 0. A hook that takes a plain mean
over the batch, mixes its rows or sorts them counts these too: nobody would see it, for the numbers are about right.
Letters: B batch, G lanes, V visits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unskew.core.guarded import GUIDE, is_own
from unskew.core.part import Part
from unskew.core.trees import Tree, leaves
from unskew.engine.client.clients import Clients
from unskew.engine.client.schedule import Step
from unskew.engine.client.step import Feed, LaneStep
from unskew.engine.client.transfer import on_device
from unskew.engine.inputs import Streamed
from unskew.errors import UsageError

DROPPED = 0.75
"""The uniform number that stands for dropout's draws here, which must not be used up."""


class Padding:
    """What is tried of a chunk's padding; each thing once a run, at the first chunk that has any.

    A GPU, where last bits may vary, samples that are read while a run trains, and single samples, of which none is padding,
    are left alone.
    """

    def __init__(self, clients: Clients):
        self.clients, x = clients, clients.samples.x
        self.own = [p for p in clients.method.parts if is_own(p)]
        self.names = "' or '".join(p.name for p in self.own)
        noisy = clients.apart is not None or clients.method.protector is not None
        self.tries = bool(self.own) and not noisy and x.device.type == "cpu" and not isinstance(x, Streamed)

    def check_step(self, lane_step: LaneStep, plan: Sequence[Step], shapes: Any) -> None:
        """Raises UsageError (E127) if equal steps differ, or if another sample in a step's padding changes its gradients."""
        if plan and self._due("equal") and not self._agree(lane_step, plan[0], (0, 0), shapes):
            text = f"two equal passes of a step have other gradients: a hook of '{self.names}' draws from a generator"
            remedy = "take random numbers from c.noise, and keep state in slices"
            raise UsageError("E127", f"{text} of its own, reads a clock, or remembers something; {remedy}. {GUIDE}")
        step = next((s for s in plan if s.weight_GB is not None and not s.weight_GB.all()), None)
        if step and self._due("padding") and not self._agree(lane_step, step, (0, self._stranger()), shapes):
            self._refuse("the gradients of a step")

    def _agree(self, lane_step: LaneStep, step: Step, rows: tuple[int, int], shapes: Any) -> bool:
        """Whether a step's gradients are the same with each of these samples in place of padding."""
        grads = []
        for row in rows:
            # only a model that draws by itself, which trains with no other thread beside it: all have one generator in common
            with torch.random.fork_rng(devices=[], enabled=self.clients.fed.net.draws):
                grads.append(lane_step.gradients(step, self._feed(step, row, shapes)))
        return all(_same(a, b) for a, b in zip(*grads))

    def check_pass(self, p: Part, hook: str, table: Tree, before: Any, again: Callable[[Tree], Any]) -> None:
        """Raises UsageError (E127) if another sample in the padding of a pass over the data changes what a hook made.

        again: the hook with another lane table.
        """
        padding_GVB = table["rows_weight"] == 0
        if not is_own(p) or not padding_GVB.any() or not self._due(f"{hook} of {p.name}"):
            return
        other = {**table, "rows": torch.where(padding_GVB, self._stranger(), table["rows"])}
        if not all(_same(a, b) for a, b in zip(_tensors(before), _tensors(again(other)))):
            self._refuse(f"the values that `{hook}` of '{p.name}' makes of c.batches()")

    def _due(self, what: str) -> bool:
        """Whether this is to be tried now; once."""
        if not self.tries or what in self.clients.tried:
            return False
        self.clients.tried.add(what)
        return True

    def _stranger(self) -> int:
        """The number of a sample whose label, or at least place, is another than that of sample 0, which pads batches."""
        y = self.clients.samples.y
        others = (y != y[:1]).flatten(1).any(1).nonzero()
        return int(others[0]) if len(others) else len(y) - 1

    def _feed(self, step: Step, row: int, shapes: Any) -> Feed:
        """The step's feed with this sample in place of padding."""
        weight, device = step.weight_GB, self.clients.device
        rows = step.rows_GB if weight is None else np.where(weight == 0, row, step.rows_GB)
        sizes = [(step.width, 0) if shape is None else (step.width, step.size, *shape) for shape in shapes]
        return Feed(
            on_device(rows.T.ravel(), device),
            on_device(step.local_G, device),
            None if weight is None else on_device(weight, device),
            tuple(torch.full(size, DROPPED) for size in sizes),
        )

    def _refuse(self, what: str) -> None:
        text = f"{what} depend on the padding of a short batch, so '{self.names}' counts rows that are other clients' samples"
        raise UsageError("E127", f"{text}; average by b.mean, weight sums by b.weight, mix no rows. {GUIDE}")


def _tensors(result: Any) -> list[Tensor]:
    trees = result if isinstance(result, tuple) else (result,)
    return [t for tree in trees if isinstance(tree, Mapping) for _, t in leaves(tree)]


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    return (a is None) == (b is None) and (a is None or b is None or torch.equal(a.nan_to_num(), b.nan_to_num()))
