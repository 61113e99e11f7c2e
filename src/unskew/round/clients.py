"""The clients of a run as local training sees them: what a round sends them, how they train, and the method's
hooks.

Letters: C classes, E epochs, K clients.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unskew.core.client import Batch, Client, Fed, replace_fields
from unskew.core.keys import key
from unskew.core.method import Method
from unskew.core.network import Network
from unskew.core.part import HOOKS, overrides
from unskew.core.trees import Tree, Weights, align_tree, sorted_tree, tree_map
from unskew.round.layers import Kernels, mask_shapes, use_kernels
from unskew.round.optimise import RateSchedule
from unskew.round.precision import FLOAT32
from unskew.round.randomness import RandomSource, SeededSource, no_global_random
from unskew.round.samples import Samples, on_device
from unskew.round.schedule import Recipe, Work, poisson_rows


@dataclass(frozen=True)
class LocalTraining:
    """How every client trains: how its epochs are cut into steps, and its optimiser without the learning
    rate.

    optimiser: "sgd", "adam", "adamw" or "sign". momentum: of SGD, in [0, 1). weight_decay: the L2
    coefficient. precision: "float32", "tf32" or "bf16", see `precision.py`. first_epochs: the epochs of round
    1, 0 where they are as many as in the others.
    course: of the learning rate over a client's steps of a round.
    """

    recipe: Recipe
    optimiser: str = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    precision: str = FLOAT32
    first_epochs: int = 0
    course: RateSchedule = RateSchedule()

    def recipe_in(self, t: int) -> Recipe:
        """How the epochs of round t are cut into steps."""
        return replace(self.recipe, epochs=self.first_epochs) if t == 1 and self.first_epochs else self.recipe


@dataclass(frozen=True)
class Broadcast:
    """What a round sends to its clients.

    t: the round, from 1 (0 before the first). lr: its learning rate. weights: the global weights.
    down: the slice that each Part broadcasts, by the Part's name.
    own: where a Part dispatches, the weights and slices that a client is sent in place of these, by its
    number.
    """

    t: int
    lr: float
    weights: Weights
    down: dict[str, Tree]
    own: Callable[[int], tuple[Weights, dict[str, Tree]]] | None = None

    def to(self, k: int) -> Broadcast:
        """What client k is sent, at addresses where a message would bring it; k = -1 stands for nobody, who
        sees what all have in common."""
        if self.own is None or k < 0:
            return self
        weights, down = self.own(k)
        weights = (
            align_tree(weights) if isinstance(weights, dict) else weights
        )  # else on a disk, read when needed
        return Broadcast(self.t, self.lr, weights, {part: align_tree(tree) for part, tree in down.items()})

    def reading(self, part: str, leaves: Collection[str] | None) -> Broadcast:
        """The same with these leaves of the Part's slice alone; None: all of them."""
        if leaves is None:
            return self

        def only(down: dict[str, Tree]) -> dict[str, Tree]:
            return {**down, part: {leaf: v for leaf, v in down.get(part, {}).items() if leaf in leaves}}

        def own(k: int) -> tuple[Weights, dict[str, Tree]]:
            weights, down = self.own(k) if self.own else (self.weights, self.down)
            return weights, only(down)

        return replace(self, down=only(self.down), own=own if self.own else None)

    def received(self, k: int) -> Weights:
        """The weights that client k is sent."""
        return self.to(k).weights


VISIT_ROWS = 256
"""How many rows a client outside lanes sees at once in a pass over its data."""


class Clients:
    """What the local training of any client needs to know.

    kept, frozen, sent, learnt: names of the weights that stay on a client, are never trained, leave a client
    after its
    training, and are trained. keeps_model: whether weights of the model itself are kept, or each client is
    sent its own, so that none uses the server's alone; a client may also keep what Parts train beside the
    model. cuts: the blocks of the model that some Part taps.
    masks_before: by cut, how many dropout layers a pass that goes on from there leaves out.
    hooks: for each hook, the Parts that define it, in the method's order. beside: by Part, the weights beside
    the model that
    it keeps at the client. hidden: by Part, those that the others keep. apart: the Part that sees samples one
    by one.
    chance: where noise and samples come from that a guarantee rests on.
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
        self.beside = {
            p.name: frozenset(n for n in extra if n.startswith(f"{p.name}.")) for p in method.parts
        }
        self.hidden = {p.name: frozenset(extra) - self.beside[p.name] for p in method.parts}
        self.sent = tuple(n for n in net.weights() if n not in self.kept and n not in self.frozen)
        self.learnt = tuple(n for n in net.learnable if n not in self.frozen)
        self.mask_shapes = mask_shapes(net)
        self.masks_before = {cut: len(mask_shapes(net, cut)) if net.skips_to_cuts else 0 for cut in self.cuts}
        self.hooks = {hook: [p for p in method.parts if overrides(p, hook)] for hook in HOOKS}
        self.apart = method.samples_apart
        self.chance: RandomSource = SeededSource(fed.seed)
        self.tried = set[str]()
        """What of users' own hooks has been tried in this run, see `hook_checks`."""
        self._thread = threading.local()

    @property
    def facts(self) -> Fed:
        """The facts of the run as this thread's hooks see them, with a copy of the model's structure of its
        own."""
        if not hasattr(self._thread, "facts"):
            self._thread.facts = replace(self.fed, net=self.fed.net.copy())
        return self._thread.facts

    @property
    def net(self) -> Network:
        """This thread's own copy of the model's structure; a Network serves one thread."""
        return self.facts.net

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Let this thread's model run for one client, without gradients."""
        with torch.no_grad(), use_kernels(self.net, Kernels(folded=False)), no_global_random(self.method):
            yield

    def held_weights(self, start: Broadcast, private: Mapping[str, Any]) -> Weights:
        """The weights a client holds after a broadcast: the global ones, but its own where it keeps them."""
        kept = private.get("kept", {})
        if isinstance(start.weights, dict) or kept:
            return {**start.weights, **kept}
        return start.weights  # on a disk, from which each is read when it is needed

    def lane_weights(self, start: Broadcast, private: Mapping[str, Any]) -> Weights:
        """Those of the held weights that a lane has a copy of: all but what is frozen in the model."""
        w, constants = self.held_weights(start, private), self.fed.net.constants
        return {n: w[n] for n in w if n not in constants} if constants else w

    def private_state(self, known: Tree | None, start: Broadcast) -> Tree:
        """A client's private state: the known one, or a new one when the client takes part for the first
        time."""
        if known:
            return known
        w = start.weights
        state: Tree = {
            p.name: sorted_tree(self.placed(p.client_init(w, self.facts))) for p in self.hooks["client_init"]
        }
        return state | ({"kept": {n: w[n] for n in self.kept}} if self.kept else {})

    def orders(self, k: int, t: int) -> np.ndarray:
        """[E, n] the rows of client k in the order in which it trains on them in round t, shuffled for each
        epoch."""
        rows, generator = self.samples.rows[k], key(self.fed.seed, t, k, "batch")
        epochs = range(self.training.recipe_in(t).epochs)
        return np.stack([rows[torch.randperm(len(rows), generator=generator).numpy()] for _ in epochs])

    def drawn(self, work: Work, t: int) -> list[np.ndarray]:
        """The rows of each step of a client in round t, where samples are drawn one by one."""
        recipe, generator = self.training.recipe_in(t), self.chance.samples(t, work.client)
        return poisson_rows(
            self.samples.rows[work.client], work.steps(recipe.epochs), recipe.batch, generator
        )

    def stream(self, t: int, client: int) -> object:
        """What the random numbers of a client's steps in round t are keyed by beside their names: the study's
        seed.

        Where samples are protected against whoever knows it, something that nobody can draw again: which
        sample of a step has which number depends on which others were drawn, and who knew the numbers could
        tell.
        """
        if self.apart is None or not self.chance.secret:
            return self.fed.seed
        return self.chance.samples(t, client).bytes(32).hex()

    @property
    def withholds_loss(self) -> bool:
        """Whether a reply says nothing of the training loss, which no noise covers: at a site, where samples
        are protected."""
        return self.apart is not None and self.chance.secret

    def client(self, k: int, start: Broadcast, part: str, w: Weights, private: Mapping[str, Any]) -> Client:
        """Client k as the hooks of this Part see it outside lanes, with access to its data.

        k = -1 stands for nobody: samples that belong to no client. w: the weights it starts from.
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
        """A tree that a hook made, on the device that trains."""
        return tree_map(lambda t: t.to(self.device), tree)

    def prepared(self, x: Tensor, c: Client, start: Broadcast) -> Tensor:
        """Inputs as client c sees them outside training steps: changed by every Part's `evaluate_with`."""
        for p in self.hooks["evaluate_with"]:
            x = p.evaluate_with(x, replace_fields(c, down=start.down.get(p.name, {})))
        return x

    def _visits(self, k: int, start: Broadcast, w: Weights, raw: bool) -> Iterator[Batch]:
        rows = self.samples.rows[k]
        for first in range(0, len(rows), VISIT_ROWS):
            yield self._batch(k, rows[first : first + VISIT_ROWS], start, w, raw)

    def _chosen(self, k: int, count: int, purpose: str, replacement: bool) -> np.ndarray:
        """Rows of client k in random order: the same for the same purpose in every round."""
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
