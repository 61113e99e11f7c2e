"""Local training of a cohort: one client's work, run for many clients side by side.

`Trainer.train` is the whole of it: chunks of clients go to worker threads; in a chunk every step is one call of the
client's loss under `torch.func.vmap` (or plainly, with one lane), one backward pass, one optimiser step.

Letters: B batch, C classes, G lanes, S steps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unskew.core.client import Client, Fed
from unskew.core.keys import key
from unskew.core.method import Method
from unskew.core.network import Network
from unskew.core.part import Part, Trip, overrides
from unskew.core.replies import Reply
from unskew.core.trees import Tree, Weights
from unskew.core.values import Batch
from unskew.engine import memory
from unskew.engine.client.kernels import Kernels, around
from unskew.engine.client.schedule import Recipe, chunks
from unskew.engine.client.update import VISIT_ROWS, Update


@dataclass(frozen=True)
class Local:
    """How clients train: the recipe and the optimiser's settings (lr is per round)."""

    recipe: Recipe
    optimiser: str = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0


@dataclass(frozen=True)
class Start:
    """What a round's clients are sent: global weights and each Part's broadcast slice."""

    t: int
    lr: float
    weights: Weights
    down: dict[str, Tree]


class Trainer:
    """Trains cohorts of one run. `lanes`: 1, or the most clients side by side. `workers`: threads, one core each.

    y_NC: the task's targets; where samples have masks, [N, C, H, W].
    """

    def __init__(
        self,
        method: Method,
        fed: Fed,
        x: Tensor,
        y_NC: Tensor,
        rows: Sequence[np.ndarray],
        counts_KC: np.ndarray,
        local: Local,
        lanes: int,
        workers: int = 1,
        device: str = "cpu",
    ):
        self.method, self.fed, self.local, self.device = method, fed, local, torch.device(device)
        self.x, self.y_NC, self.rows, self.counts_KC = x, y_NC, rows, counts_KC
        self.lanes = lanes
        self.workers = workers if self.device.type == "cpu" else 1
        self.cuts = tuple(dict.fromkeys(cut for p in method.parts for c in p.taps for cut in fed.net.cuts(c)))
        self.kept = frozenset(n for n in (*fed.net.trainable, *fed.net.buffers) if method.keeps(n, fed))
        self.frozen = frozenset(n for n in fed.net.trainable if method.freezes(n, fed))
        self.sent = tuple(n for n in fed.net.weights() if n not in self.kept and n not in self.frozen)
        self.learns = tuple(n for n in fed.net.trainable if n not in self.frozen)
        self.dropouts = _dropout_shapes(fed.net)
        self.hooks = {hook: [p for p in method.parts if overrides(p, hook)] for hook in _HOOKS}
        self._here = threading.local()
        self._pool = ThreadPoolExecutor(self.workers, initializer=self._settle)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _settle(self) -> None:
        """A thread of its own: one core, its own copy of the model's structure."""
        torch.set_num_threads(1)
        memory.keep_freed()
        self._here.net = self.fed.net.copy()

    @property
    def net(self) -> Network:
        return self._here.net

    def each(self, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """Apply to every item on the worker threads; results in the order of items."""
        return list(self._pool.map(function, items))

    def train(self, start: Start, cohort: Sequence[int], private: Mapping[int, Tree]) -> list[Reply]:
        """One local update of every client in the cohort that has samples, in the order of ids."""
        plan = chunks(cohort, self.fed.sizes, self.local.recipe, self.lanes)
        done = self.each(lambda chunk: Update(self, chunk, start, private).run(), plan)
        return sorted((reply for replies in done for reply in replies), key=lambda r: r.client)

    def visit(
        self, trip: Trip, part: Part, start: Start, ids: Sequence[int], private: Mapping[int, Tree]
    ) -> list[Reply]:
        """The client side of a trip, one client at a time on each thread."""

        def one(k: int) -> Reply:
            with torch.no_grad(), around(self.net, Kernels(lanes=False)):
                w = self.received(start, private.get(k, {}))
                c = self.alone(k, start, part.name, w, private.get(k, {}))
                return Reply(k, float(self.fed.sizes[k]), {}, {part.name: trip.client(w, c)})

        return self.each(one, [k for k in ids if self.fed.sizes[k]])

    def received(self, start: Start, private: Mapping[str, Any]) -> Weights:
        """What a client holds after a broadcast: the global weights under those it keeps."""
        return {**start.weights, **private.get("kept", {})}

    def alone(self, k: int, start: Start, part: str, w: Weights, private: Mapping[str, Any]) -> Client:
        """A client outside lanes, with its data; k = -1 is nobody, for samples that belong to no client."""
        counts = self.counts_KC[k] if k >= 0 else np.zeros(self.fed.classes)
        c = Client(
            id=k,
            n=torch.tensor(float(self.fed.sizes[k]) if k >= 0 else 0.0),
            counts=torch.as_tensor(counts, dtype=torch.float32, device=self.device),
            steps=torch.tensor(0.0),
            lr=start.lr,
            t=start.t,
            start=w,
            fed=self.fed,
            net=self.net,
            down=start.down.get(part, {}),
            mine=private.get(part, {}),
        )
        return replace(
            c, data=lambda raw: self._visits(k, start, w, raw), chosen=lambda *a: self._chosen(k, start, w, *a)
        )

    def orders(self, k: int, t: int) -> np.ndarray:
        """[E, n] rows of a client, shuffled anew for every epoch."""
        rows, generator = self.rows[k], key(self.fed.seed, t, k, "batch")
        return np.stack(
            [rows[torch.randperm(len(rows), generator=generator).numpy()] for _ in range(self.local.recipe.epochs)]
        )

    def as_at_test(self, x: Tensor, c: Client, start: Start) -> Tensor:
        """Inputs outside training steps, as every Part wants them."""
        for p in self.hooks["evaluate_with"]:
            x = p.evaluate_with(x, replace(c, down=start.down.get(p.name, {})))
        return x

    def _batch(self, k: int, rows: np.ndarray, start: Start, w: Weights, raw: bool = False) -> Batch:
        index = torch.as_tensor(rows, device=self.device)
        x = self.x[index]
        if not raw and self.hooks["evaluate_with"]:
            x = self.as_at_test(x, self.alone(k, start, "", w, {}), start)
        return Batch(x, self.y_NC[index], torch.ones(len(index), device=self.device))

    def _visits(self, k: int, start: Start, w: Weights, raw: bool) -> Iterator[Batch]:
        for first in range(0, len(self.rows[k]), VISIT_ROWS):
            yield self._batch(k, self.rows[k][first : first + VISIT_ROWS], start, w, raw)

    def _chosen(self, k: int, start: Start, w: Weights, count: int, purpose: str, replace_: bool, raw: bool) -> Batch:
        generator, n = key(self.fed.seed, "sample", purpose, k), len(self.rows[k])
        order = (
            torch.randint(n, (count,), generator=generator)
            if replace_
            else torch.randperm(n, generator=generator)[:count]
        )
        return self._batch(k, self.rows[k][order.numpy()], start, w, raw)


_HOOKS = (
    "begin", "noise", "batch", "tap", "logits", "loss", "grad", "finish", "evaluate_with", "scores", "client_init", "refine",
)  # fmt: skip


def _dropout_shapes(net: Network) -> tuple[tuple[int, ...], ...]:
    """The shapes of one sample's dropout masks, in the order the model uses them."""
    kernels = Kernels(lanes=False)
    kernels.seen = []
    net = net.copy()
    with torch.no_grad(), around(net, kernels):
        net.run(net.weights(), torch.zeros((2, *net.shape)), train=True)
    return tuple(kernels.seen)
