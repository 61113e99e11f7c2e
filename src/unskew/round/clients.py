"""The clients of a run: the broadcast that a round sends them, how they train, their data and the hooks.

Letters: C classes, E epochs, K clients.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unskew.core.client import Batch, Client, Fed, replace_fields
from unskew.core.method import Method
from unskew.core.network import Network
from unskew.core.part import HOOKS, overrides
from unskew.core.random_keys import key
from unskew.core.trees import Tree, Weights, align_tree, sorted_tree, tree_map
from unskew.core.trip import Trip
from unskew.round.chunks import Recipe
from unskew.round.layer_kernels import Kernels, mask_shapes, use_kernels
from unskew.round.precision import FLOAT32
from unskew.round.randomness import RandomSource, SeededSource
from unskew.round.samples import Samples, on_device


@dataclass(frozen=True)
class LocalTraining:
    """How every client trains: the division of its epochs into steps, and its optimiser.

    recipe: epochs and batches. optimiser: "sgd", "adam", "adamw" or "sign". momentum: of SGD, in [0, 1).
    weight_decay: the L2 coefficient. precision: "float32" or "tf32", see `precision.py`.
    first_epochs: the epochs of round 1, 0 if they do not differ.
    """

    recipe: Recipe
    optimiser: str = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    precision: str = FLOAT32
    first_epochs: int = 0

    def recipe_in(self, t: int) -> Recipe:
        """The recipe of round t."""
        return replace(self.recipe, epochs=self.first_epochs) if t == 1 and self.first_epochs else self.recipe


@dataclass(frozen=True)
class Broadcast:
    """The message of a round to its clients.

    t: the round, from 1 (0 before the first). lr: its learning rate. weights: the global weights.
    down: the slice that each Part broadcasts, by the Part's name. own: if a Part dispatches, from a client's
    number to the weights and slices that replace these.
    """

    t: int
    lr: float
    weights: Weights
    down: dict[str, Tree]
    own: Callable[[int], tuple[Weights, dict[str, Tree]]] | None = None

    def to(self, k: int) -> Broadcast:
        """The message to client k, with tensors aligned as after a network. k = -1: the common message."""
        if self.own is None or k < 0:
            return self
        weights, down = self.own(k)
        if isinstance(weights, dict):  # else they are on a disk and read when needed
            weights = align_tree(weights)
        return Broadcast(self.t, self.lr, weights, {part: align_tree(tree) for part, tree in down.items()})

    def reading(self, part: str, trip: Trip) -> Broadcast:
        """The message for a trip of this Part: what the trip reads of the weights and the Part's slice."""
        if trip.weights and trip.reads is None:
            return self

        def only(weights: Weights, down: dict[str, Tree]) -> tuple[Weights, dict[str, Tree]]:
            slice_, reads = down.get(part, {}), trip.reads
            if reads is not None:
                down = {**down, part: {leaf: v for leaf, v in slice_.items() if leaf in reads}}
            return (weights if trip.weights else {}), down

        (weights, down), sent = only(self.weights, self.down), self.own
        own = None if sent is None else lambda k: only(*sent(k))
        return replace(self, weights=weights, down=down, own=own)

    def received(self, k: int) -> Weights:
        """The weights in the message to client k."""
        return self.to(k).weights


VISIT_ROWS = 256
"""The rows per batch of a pass over a client's data outside lanes."""


class Clients:
    """The facts and functions that local training needs of the clients.

    kept, frozen, sent, learnt: names of the weights that stay on a client, that are never trained, that leave
    a client after training, and that are trained. keeps_model: whether clients keep weights of the model
    itself or are sent weights of their own, so that none predicts with the server's. cuts: the blocks of the
    model that some Part taps. masks_before: by cut, the number of dropout layers before it, which a pass from
    the cut leaves out. hooks: by hook, the Parts that define it, in the method's order. own_extra: by Part,
    the extra weights that it keeps at the client; hidden: by Part, those that other Parts keep. apart: the
    Part that protects single samples. chance: the source of the random numbers on which a guarantee relies.
    """

    def __init__(self, method: Method, fed: Fed, samples: Samples, training: LocalTraining):
        self.method, self.fed, self.samples, self.training = method, fed, samples, training
        self.device = samples.x.device
        net = fed.net
        self.cuts = tuple(dict.fromkeys(cut for p in method.parts for tap in p.taps for cut in net.cuts(tap)))
        self.kept = frozenset(n for n in (*net.learnable, *net.statistics) if method.keeps(n, fed))
        self.keeps_model = not self.kept <= net.extra.keys() or method.dispatcher is not None
        self.frozen = net.constants | {n for n in net.learnable if method.freezes(n, fed)}
        extra = [n for n in net.extra if n in self.kept]
        self.own_extra = {
            p.name: frozenset(n for n in extra if n.startswith(f"{p.name}.")) for p in method.parts
        }
        self.hidden = {p.name: frozenset(extra) - self.own_extra[p.name] for p in method.parts}
        self.sent = tuple(n for n in net.weights() if n not in self.kept and n not in self.frozen)
        self.learnt = tuple(n for n in net.learnable if n not in self.frozen)
        self.mask_shapes = mask_shapes(net)
        self.masks_before = {cut: len(mask_shapes(net, cut)) if net.skips_to_cuts else 0 for cut in self.cuts}
        self.hooks = {hook: [p for p in method.parts if overrides(p, hook)] for hook in HOOKS}
        self.apart = method.samples_apart
        self.chance: RandomSource = SeededSource(fed.seed)
        self._thread = threading.local()

    @property
    def facts(self) -> Fed:
        """The facts of the run for hooks on this thread, with the thread's own copy of the Network."""
        if not hasattr(self._thread, "facts"):
            self._thread.facts = replace(self.fed, net=self.fed.net.copy())
        return self._thread.facts

    @property
    def net(self) -> Network:
        """This thread's copy of the model's structure; a Network serves one thread."""
        return self.facts.net

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """A context in which this thread's model runs for one client, without gradients."""
        with torch.no_grad(), use_kernels(self.net, Kernels(folded=False)):
            yield

    def held_weights(self, start: Broadcast, private: Mapping[str, Any]) -> Weights:
        """The weights of a client after a broadcast: the received ones, and its own where it keeps them."""
        kept = private.get("kept", {})
        if isinstance(start.weights, dict) or kept:
            return {**start.weights, **kept}
        return start.weights  # on a disk; each is read when needed

    def lane_weights(self, start: Broadcast, private: Mapping[str, Any]) -> Weights:
        """The held weights without those that are frozen in the model, of which lanes have no copies."""
        w, constants = self.held_weights(start, private), self.fed.net.constants
        return {n: w[n] for n in w if n not in constants} if constants else w

    def private_state(self, known: Tree | None, start: Broadcast) -> Tree:
        """A client's private state: `known`, or a new one if the client takes part for the first time."""
        if known:
            return known
        w = start.weights
        state: Tree = {
            p.name: sorted_tree(self.placed(p.client_init(w, self.facts))) for p in self.hooks["client_init"]
        }
        return state | ({"kept": {n: w[n] for n in self.kept}} if self.kept else {})

    def orders(self, k: int, t: int) -> np.ndarray:
        """The rows of client k in the order of training in round t, shuffled for each epoch, [E, n]."""
        rows, generator = self.samples.rows[k], key(self.fed.seed, t, k, "batch")
        epochs = range(self.training.recipe_in(t).epochs)
        return np.stack([rows[torch.randperm(len(rows), generator=generator).numpy()] for _ in epochs])

    def client(self, k: int, start: Broadcast, part: str, w: Weights, private: Mapping[str, Any]) -> Client:
        """Client k as the hooks of this Part see it outside lanes, with access to its data.

        k = -1: samples that belong to no client. w: the weights with which it starts.
        """
        counts_C = self.samples.counts_KC[k] if k >= 0 else np.zeros(self.fed.classes)
        return Client(
            id=k,
            n=on_device(torch.tensor(float(self.fed.sizes[k]) if k >= 0 else 0.0), self.device),
            counts=on_device(torch.as_tensor(counts_C, dtype=torch.float32), self.device),
            steps=torch.zeros((), device=self.device),
            lr=start.lr,
            t=start.t,
            start=w,
            fed=self.facts,
            net=self.net,
            down=start.down.get(part, {}),
            mine=private.get(part, {}),
            data=lambda raw: self._visits(k, start, w, raw),
            chosen=lambda count, purpose, replacement, raw: self._batch(
                k, self._chosen(k, count, purpose, replacement), start, w, raw
            ),
        )

    def placed(self, tree: Tree) -> Tree:
        """A hook's tree on the device that trains."""
        return tree_map(lambda t: t.to(self.device), tree)

    def prepared(self, x: Tensor, c: Client, start: Broadcast) -> Tensor:
        """Inputs for the model outside training steps, after every Part's `evaluate_with`."""
        for p in self.hooks["evaluate_with"]:
            x = p.evaluate_with(x, replace_fields(c, down=start.down.get(p.name, {})))
        return x

    def _visits(self, k: int, start: Broadcast, w: Weights, raw: bool) -> Iterator[Batch]:
        rows = self.samples.rows[k]
        for first in range(0, len(rows), VISIT_ROWS):
            yield self._batch(k, rows[first : first + VISIT_ROWS], start, w, raw)

    def _chosen(self, k: int, count: int, purpose: str, replacement: bool) -> np.ndarray:
        """A random draw of client k's rows, equal for one purpose in all rounds."""
        rows, generator = self.samples.rows[k], key(self.fed.seed, "sample", purpose, k)
        if replacement:
            return rows[torch.randint(len(rows), (count,), generator=generator).numpy()]
        return rows[torch.randperm(len(rows), generator=generator)[:count].numpy()]

    def _batch(self, k: int, rows: np.ndarray, start: Broadcast, w: Weights, raw: bool) -> Batch:
        index = on_device(rows, self.device)
        x = self.samples.x[index]
        if not raw and self.hooks["evaluate_with"]:
            x = self.prepared(x, self.client(k, start, "", w, {}), start)
        return Batch(x, self.samples.y[index], torch.ones(len(index), device=self.device))
