"""The lanes of a chunk: how the tensors of its clients are stacked, and the `Client` that a hook receives.

`ManyLanes` trains clients side by side: tensors have a first axis of lanes, and functions run under
`torch.func.vmap`. `SingleLane` trains one client at a time: tensors have no such axis, and functions run as
they are written. Letters: B batch or rows of a visit, C classes, G lanes, V visits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from unskew.core.client import Batch, Client, replace_fields
from unskew.core.part import Part
from unskew.core.trees import Tree, Weights, hidden_tensor, tree_map
from unskew.round.chunks import Chunk, Step, Work
from unskew.round.clients import Broadcast, Clients
from unskew.round.samples import on_device

LARGE_WEIGHT = 1 << 14
"""The number of elements from which a weight's layout in memory affects the speed."""


class SingleLane:
    """The operations that differ between training one client at a time, here, and many side by side."""

    folded = False
    """Whether layers process all clients in one tensor."""

    def work(self, chunk: Chunk) -> Sequence[Work]:
        """The work of every lane; at least two lanes if clients train side by side."""
        return chunk.work

    def widened(self, step: Step) -> Step:
        """The step, with at least two lanes if clients train side by side."""
        return step

    def padded(self, step: Step) -> bool:
        """Whether layers must ignore padding in this step's batches."""
        return False

    def rows_a_visit(self, most: int, batch: int) -> int:
        """The number of rows per batch of a pass over a client's data. most: the largest client's number of
        rows."""
        return most

    def stack(self, trees: Sequence[Mapping[str, Any]]) -> Tree:
        """One tree from one tree per lane; a copy, which training may change."""
        return tree_map(_copy_weight, trees[0])

    def stack_weights(self, weights: Sequence[Weights]) -> Weights:
        """As `stack`, for weights, in the memory layout that trains fastest."""
        return self.stack(weights)

    def fit(self, t: Tensor) -> Tensor:
        """From [G, ...] to the argument of a function that is run by `map`."""
        return t[0]

    def inputs(self, x: Tensor, step: Step) -> Tensor:
        """From the step's inputs [B*G, ...], sample by sample, to the argument of `loss`."""
        return x

    def targets(self, y: Tensor, step: Step) -> Tensor:
        """From the step's targets [B*G, ...] to the argument of `loss`."""
        return y

    def first(self, t: Tensor, lanes: int) -> Tensor:
        """The first lanes of a stacked tensor, as a view."""
        return t

    def lane(self, t: Tensor, g: int) -> Tensor:
        """Lane g of a stacked tensor, as a view."""
        return t

    def map(self, function: Callable[..., Any], *trees: Any) -> Any:
        """The results of one client's function for all lanes of stacked trees."""
        return function(*trees)

    def loss(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """One client's loss(weights, x, rest) as a function for all lanes at once."""
        return function


class ManyLanes(SingleLane):
    """Clients side by side, always in at least two lanes: a single lane would use other kernels, with other
    last bits."""

    folded = True

    def work(self, chunk: Chunk) -> Sequence[Work]:
        return chunk.work if len(chunk.work) > 1 else chunk.work * 2

    def widened(self, step: Step) -> Step:
        if step.width > 1:
            return step
        weight = None if step.weight_GB is None else np.repeat(step.weight_GB, 2, 0)
        # drawn_G counts active lanes only, so it stays
        rows, local = np.repeat(step.rows_GB, 2, 0), np.repeat(step.local_G, 2)
        return replace(step, rows_GB=rows, weight_GB=weight, local_G=local)

    def padded(self, step: Step) -> bool:
        return step.short

    def rows_a_visit(self, most: int, batch: int) -> int:
        return batch

    def stack(self, trees: Sequence[Mapping[str, Any]]) -> Tree:
        each = {n: [t[n] for t in trees] for n in trees[0]}
        return {n: (self.stack if isinstance(v[0], Mapping) else torch.stack)(v) for n, v in each.items()}

    def stack_weights(self, weights: Sequence[Weights]) -> Weights:
        return {n: _as_gradients(t) for n, t in self.stack(weights).items()}

    def fit(self, t: Tensor) -> Tensor:
        return t

    def inputs(self, x: Tensor, step: Step) -> Tensor:
        # [B, G, ...], which convolutions fold without a copy
        return x.unflatten(0, (step.size, step.width))

    def targets(self, y: Tensor, step: Step) -> Tensor:
        return y.unflatten(0, (step.size, step.width)).transpose(0, 1)

    def first(self, t: Tensor, lanes: int) -> Tensor:
        return t[:lanes]

    def lane(self, t: Tensor, g: int) -> Tensor:
        return t[g]

    def map(self, function: Callable[..., Any], *trees: Any) -> Any:
        return torch.func.vmap(function)(*trees)

    def loss(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return torch.func.vmap(function, in_dims=(0, 1, 0))


Axis: TypeAlias = SingleLane


def axis_for(lanes: int) -> Axis:
    """The axis for at most this many clients side by side."""
    return ManyLanes() if lanes > 1 else SingleLane()


def _as_gradients(t: Tensor) -> Tensor:
    """The weights of large dense layers [G, out, in] with the memory layout [G, in, out] of their gradients.

    The sum of two tensors of different layouts takes four times as long; for small tensors it does not
    matter.
    """
    return t.mT.contiguous().mT if t.dim() == 3 and t[0].numel() >= LARGE_WEIGHT else t


def _copy_weight(t: Tensor) -> Tensor:
    """A copy; for the weights of a convolution, in the channels-last layout of its kernels."""
    return t.detach().clone(memory_format=torch.channels_last if t.dim() == 4 else torch.preserve_format)


def hidden_counts(by: str) -> Tensor:
    """Class counts that raise UsageError (E108) at any use. by: the Part that protects samples."""
    text = f"a hook reads the client's class counts, which no noise of '{by}' covers; take it out."
    return hidden_tensor(text)


def lane_table(clients: Clients, axis: Axis, work: Sequence[Work], private: Sequence[Tree], t: int) -> Tree:
    """The values that differ between the clients of a chunk in round t, stacked over lanes.

    work, private: one entry per lane. The table has id, n, steps [G]; counts [G, C]; rows, rows_weight [G, V,
    B], each client's samples in V batches, padded with row 0 at weight 0; mine, the Parts' private slices;
    kept, the weights that stay on the client; round, the results of the hook `begin`, empty before it runs.
    """
    rows_GVB, weight_GVB = _visits(clients, axis, work)
    epochs = clients.training.recipe_in(t).epochs
    table = {
        "id": np.array([w.client for w in work]),
        "n": np.array([w.n for w in work], dtype=np.float32),
        "counts": clients.samples.counts_KC[[w.client for w in work]].astype(np.float32),
        "steps": np.array([w.steps(epochs) for w in work], dtype=np.float32),
        "rows": rows_GVB,
        "rows_weight": weight_GVB,
    }
    tensors = {n: axis.fit(on_device(v, clients.device)) for n, v in table.items()}
    mine = {
        p.name: axis.stack([state.get(p.name, {}) for state in private]) for p in clients.hooks["client_init"]
    }
    kept = axis.stack([{n: state["kept"][n] for n in clients.kept} for state in private])
    return {**tensors, "mine": mine, "kept": kept, "round": {}}


def sent_table(axis: Axis, sent: Sequence[Broadcast]) -> Tree:
    """The messages to the clients of a chunk, stacked over lanes: `weights`, and `down` by Part."""
    return {"weights": axis.stack([to.weights for to in sent]), "down": axis.stack([to.down for to in sent])}


def _visits(clients: Clients, axis: Axis, work: Sequence[Work]) -> tuple[np.ndarray, np.ndarray]:
    """(rows, weights) of `lane_table`, both [G, V, B]."""
    most = max(w.n for w in work)
    size = axis.rows_a_visit(most, clients.training.recipe.batch)
    visits = -(-most // size)
    rows = np.zeros((len(work), visits * size), dtype=np.int64)
    weight = np.zeros(rows.shape, dtype=np.float32)
    for g, w in enumerate(work):
        rows[g, : w.n] = clients.samples.rows[w.client]
        weight[g, : w.n] = 1
    return rows.reshape(len(work), visits, size), weight.reshape(len(work), visits, size)


ROUND_FIELDS = ("t", "lr")
"""Fields of a `Client` that are plain numbers and change from round to round."""


@dataclass(frozen=True)
class TrackedClient(Client):
    """A client that records which of its `ROUND_FIELDS` are read."""

    read: set[str] = field(default_factory=set)

    def __getattribute__(self, name: str) -> Any:
        if name in ROUND_FIELDS:
            super().__getattribute__("read").add(name)
        return super().__getattribute__(name)


class LaneViews:
    """Parts' hooks as functions of one lane's tensors; each makes the `Client` that the hook receives.

    read: a set that collects the names of the `ROUND_FIELDS` that hooks read; None: do not record them.
    constants: the model's frozen weights, with one copy for all lanes.
    """

    def __init__(self, clients: Clients, start: Broadcast, read: set[str] | None = None):
        self.clients, self.start, self.read = clients, start, read
        self.constants: Weights = {n: start.weights[n] for n in sorted(clients.fed.net.constants)}

    def whole(self, w: Weights) -> Weights:
        """All weights of the model, from those that a lane holds."""
        return {**w, **self.constants} if self.constants else w

    def held(self, w: Weights) -> Weights:
        """The weights that a lane holds, from all weights: without the constants."""
        return {n: t for n, t in w.items() if n not in self.constants} if self.constants else w

    def seen(self, p: Part, tree: Weights) -> Weights:
        """The weights or gradients that this Part may see: without those that other Parts keep at the client
        in addition to the model."""
        hidden = self.clients.hidden[p.name]
        return {n: t for n, t in tree.items() if n not in hidden} if hidden else tree

    def completed(self, p: Part, tree: Weights, seen: Weights) -> Weights:
        """The result `seen` of a Part's hook, with the entries of `tree` that the Part may not see."""
        hidden = self.clients.hidden[p.name]
        return seen | {n: t for n, t in tree.items() if n in hidden} if hidden else seen

    def client(self, p: Part, lane: Tree, noise: dict[str, Tensor], with_data: bool = False) -> Client:
        """The client in a lane as this Part sees it. with_data: whether `batches` is available."""
        clients, start = self.clients, self.start
        kind = Client if self.read is None else partial(TrackedClient, read=self.read)
        c = kind(
            id=lane["id"],
            n=lane["n"],
            counts=hidden_counts(clients.apart.name) if clients.apart else lane["counts"],
            steps=lane["steps"],
            lr=start.lr,
            t=start.t,
            start=self.seen(p, {**start.weights, **lane["sent"].get("weights", {}), **lane["kept"]}),
            fed=clients.facts,
            net=clients.net,
            down=lane["sent"].get("down", start.down).get(p.name, {}),
            mine=lane["mine"].get(p.name, {}),
            round=lane["round"].get(p.name, {}),
            noise=noise,
            **{n: lane[n] for n in ("step",) if n in lane},
            seen={climb: self.seen(p, g) for climb, g in lane.get("seen", {}).items()},
            data=(lambda raw: self._batches(lane, raw)) if with_data else None,
        )
        if clients.hooks["evaluate_with"]:
            return replace_fields(c, prepare=lambda x: clients.prepared(x, c, start))
        return c

    def reading(self, p: Part, hook: Callable[[Weights, Client], Any]) -> Callable[[Weights, Tree], Any]:
        """The Part's hook `begin` or `finish` as a function of one lane's weights and table."""
        return lambda w, lane: hook(self.seen(p, self.whole(w)), self.client(p, lane, {}, with_data=True))

    def changing(
        self, p: Part, hook: Callable[[Weights, Client], Weights], with_data: bool = False
    ) -> Callable[[Weights, Tree], Weights]:
        """The Part's hook `starts` or `sends` as a function of one lane's weights and table."""
        return lambda w, lane: self._changed(p, w, hook, self.client(p, lane, {}, with_data))

    def grad(self, p: Part) -> Callable[[Weights, Weights, Tree, dict[str, Tensor]], Weights]:
        """The Part's hook `grad` as a function of one lane's gradients, weights, table and noise."""

        def grad(g: Weights, w: Weights, lane: Tree, noise: dict[str, Tensor]) -> Weights:
            c, w = self.client(p, lane, noise), self.seen(p, self.whole(w))
            after = self.completed(p, g, p.grad(self.seen(p, g), w, c))
            for of, names in self.clients.own_extra.items():
                if p.each_model and of != p.name and (model := {n: t for n, t in g.items() if n in names}):
                    after |= p.grad(model, w, c)
            return after

        return grad

    def perturb(self, p: Part) -> Callable[[Weights, Weights, Tree, dict[str, Tensor]], Weights]:
        """The Part's hook `perturb` as a function of one lane's gradients, weights, table and noise."""

        def perturb(g: Weights, w: Weights, lane: Tree, noise: dict[str, Tensor]) -> Weights:
            return self._changed(
                p, w, lambda w, c: p.perturb(self.seen(p, g), w, c), self.client(p, lane, noise)
            )

        return perturb

    def carry(self, p: Part) -> Callable[[Weights, Weights, Tree, dict[str, Tensor]], Tree]:
        """The Part's hook `carry` as a function of one lane's gradients, weights, table and noise."""

        def carry(g: Weights, w: Weights, lane: Tree, noise: dict[str, Tensor]) -> Tree:
            return p.carry(self.seen(p, g), self.seen(p, self.whole(w)), self.client(p, lane, noise))

        return carry

    def holds(self, p: Part) -> Callable[[Tree], dict[str, Tensor]]:
        """The Part's hook `holds` as a function of one lane's table."""
        return lambda lane: p.holds(self.client(p, lane, {}))

    def _changed(self, p: Part, w: Weights, hook: Callable[[Weights, Client], Weights], c: Client) -> Weights:
        """The weights that a lane holds after a Part's hook has changed them."""
        whole = self.whole(w)
        return self.held(self.completed(p, whole, hook(self.seen(p, whole), c)))

    def _batches(self, lane: Tree, raw: bool) -> Iterator[Batch]:
        """The lane's samples in batches; all lanes are padded to the longest, with weight 0."""
        samples = self.clients.samples
        for rows, weight in zip(lane["rows"].unbind(0), lane["rows_weight"].unbind(0)):
            x = samples.x[rows]
            if not raw:
                for p in self.clients.hooks["evaluate_with"]:
                    x = p.evaluate_with(x, self.client(p, lane, {}))
            yield Batch(x, samples.y[rows], weight)
