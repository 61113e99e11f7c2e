"""The clients of a chunk as their hooks see them: a table with one lane a client, and the `Client` made from a lane.

Letters: B rows of a visit, C classes, G lanes, V visits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from unskew.core.client import Client, changed
from unskew.core.part import Part
from unskew.core.trees import Tree, Weights
from unskew.core.values import Batch
from unskew.engine.client.axis import Axis
from unskew.engine.client.clients import Clients
from unskew.engine.client.hidden import Hidden
from unskew.engine.client.schedule import Work
from unskew.engine.client.transfer import on_device
from unskew.engine.client.values import Start


def lane_table(clients: Clients, axis: Axis, work: Sequence[Work], private: Sequence[Tree], t: int) -> Tree:
    """What differs between the clients of a chunk in round t, stacked: `work` and `private` hold one entry a lane.

    id, n, steps: [G]; pulled too, `Client.pull` where the learning rate changes within a round. counts: [G, C]. rows, rows_weight: [G, V, B], each client's rows of the samples in V visits,
    padded with row 0 at weight 0. mine: the Parts' private slices. kept: the weights that stay on the client.
    round: what the hook `begin` returned; empty before it ran.
    """
    rows_GVB, weight_GVB = _visits(clients, axis, work)
    epochs, course = clients.training.recipe_in(t).epochs, clients.training.course
    rho = clients.fed.momentum if clients.fed.optimiser == "sgd" else 0.0
    table = {
        "id": np.array([w.client for w in work]),
        "n": np.array([w.n for w in work], dtype=np.float32),
        "counts": clients.samples.counts_KC[[w.client for w in work]].astype(np.float32),
        "steps": np.array([w.steps(epochs) for w in work], dtype=np.float32),
        "rows": rows_GVB,
        "rows_weight": weight_GVB,
    }
    if not course.is_constant:
        table["pulled"] = np.array([course.pull(w.steps(epochs), rho) for w in work], dtype=np.float32)
    tensors = {n: axis.fit(on_device(v, clients.device)) for n, v in table.items()}
    mine = {p.name: axis.stack([state.get(p.name, {}) for state in private]) for p in clients.hooks["client_init"]}
    kept = axis.stack([{n: state["kept"][n] for n in clients.kept} for state in private])
    return {**tensors, "mine": mine, "kept": kept, "round": {}}


def sent_table(axis: Axis, sent: Sequence[Start]) -> Tree:
    """What the clients of a chunk were sent, each its own, stacked: `weights`, and by Part `down`."""
    return {"weights": axis.stack([to.weights for to in sent]), "down": axis.stack([to.down for to in sent])}


def _visits(clients: Clients, axis: Axis, work: Sequence[Work]) -> tuple[np.ndarray, np.ndarray]:
    """(rows, weights), both [G, V, B]."""
    most = max(w.n for w in work)
    size = axis.rows_a_visit(most, clients.training.recipe.batch)
    visits = -(-most // size)
    rows = np.zeros((len(work), visits * size), dtype=np.int64)
    weight = np.zeros(rows.shape, dtype=np.float32)
    for g, w in enumerate(work):
        rows[g, : w.n] = clients.samples.rows[w.client]
        weight[g, : w.n] = 1
    return rows.reshape(len(work), visits, size), weight.reshape(len(work), visits, size)


CHANGING = ("t", "lr")
"""Fields of a `Client` that are plain numbers and change from round to round."""


@dataclass(frozen=True)
class Noting(Client):
    """A client that notes which of its `CHANGING` fields are read."""

    read: set[str] = field(default_factory=set)

    def __getattribute__(self, name: str) -> Any:
        if name in CHANGING:
            super().__getattribute__("read").add(name)
        return super().__getattribute__(name)


class LaneViews:
    """Makes the `Client` that a Part's hook is handed from one lane of the table.

    read: a set to which the names of those `CHANGING` fields are added that a hook reads; None: nobody asks.
    constants: the model's frozen weights, of which there is one copy for all lanes.
    """

    def __init__(self, clients: Clients, start: Start, read: set[str] | None = None):
        self.clients, self.start, self.read = clients, start, read
        self.constants: Weights = {n: start.weights[n] for n in sorted(clients.fed.net.constants)}

    def whole(self, w: Weights) -> Weights:
        """All weights of a lane, from those that lanes hold."""
        return {**w, **self.constants} if self.constants else w

    def held(self, w: Weights) -> Weights:
        """What lanes hold of weights that a hook returned: without constants, which it cannot change."""
        return {n: t for n, t in w.items() if n not in self.constants} if self.constants else w

    def seen(self, p: Part, tree: Weights) -> Weights:
        """Weights or gradients without those that other Parts keep at the client beside the model."""
        hidden = self.clients.hidden[p.name]
        return {n: t for n, t in tree.items() if n not in hidden} if hidden else tree

    def completed(self, p: Part, tree: Weights, seen: Weights) -> Weights:
        """What a hook returned for what it saw of a tree, with the rest of the tree."""
        hidden = self.clients.hidden[p.name]
        return seen | {n: t for n, t in tree.items() if n in hidden} if hidden else seen

    def client(self, p: Part, lane: Tree, noise: dict[str, Tensor], with_data: bool = False) -> Client:
        clients, start = self.clients, self.start
        kind = Client if self.read is None else partial(Noting, read=self.read)
        c = kind(
            id=lane["id"],
            n=lane["n"],
            counts=Hidden(clients.apart.name) if clients.apart else lane["counts"],  # type: ignore[arg-type]
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
            **{n: lane[n] for n in ("step", "pulled") if n in lane},
            seen={climb: self.seen(p, g) for climb, g in lane.get("seen", {}).items()},
            data=(lambda raw: self._batches(lane, raw)) if with_data else None,
        )
        if clients.hooks["evaluate_with"]:
            return changed(c, prepare=lambda x: clients.prepared(x, c, start))
        return c

    def begin(self, p: Part) -> Callable[[Weights, Tree], Tree]:
        """The Part's hook `begin` as a function of one lane's weights and table."""
        return lambda w, lane: p.begin(self.seen(p, self.whole(w)), self.client(p, lane, {}, with_data=True))

    def starts(self, p: Part) -> Callable[[Weights, Tree], Weights]:
        """The Part's hook `starts`, likewise."""
        return lambda w, lane: self._changed(p, w, p.starts, self.client(p, lane, {}, with_data=True))

    def finish(self, p: Part) -> Callable[[Weights, Tree], tuple[Tree, Tree]]:
        """The Part's hook `finish`, likewise."""
        return lambda w, lane: p.finish(self.seen(p, self.whole(w)), self.client(p, lane, {}, with_data=True))

    def sends(self, p: Part) -> Callable[[Weights, Tree], Weights]:
        """The Part's hook `sends`, likewise."""
        return lambda w, lane: self._changed(p, w, p.sends, self.client(p, lane, {}))

    def grad(self, p: Part) -> Callable[[Weights, Weights, Tree, dict[str, Tensor]], Weights]:
        """The Part's hook `grad` as a function of one lane's gradients, weights, table and noise."""

        def grad(g: Weights, w: Weights, lane: Tree, noise: dict[str, Tensor]) -> Weights:
            c, w = self.client(p, lane, noise), self.seen(p, self.whole(w))
            after = self.completed(p, g, p.grad(self.seen(p, g), w, c))
            for of, names in self.clients.beside.items():
                if p.each_model and of != p.name and (model := {n: t for n, t in g.items() if n in names}):
                    after |= p.grad(model, w, c)
            return after

        return grad

    def perturb(self, p: Part) -> Callable[[Weights, Weights, Tree, dict[str, Tensor]], Weights]:
        """The Part's hook `perturb`, likewise."""

        def perturb(g: Weights, w: Weights, lane: Tree, noise: dict[str, Tensor]) -> Weights:
            return self._changed(p, w, lambda w, c: p.perturb(self.seen(p, g), w, c), self.client(p, lane, noise))

        return perturb

    def carry(self, p: Part) -> Callable[[Weights, Weights, Tree, dict[str, Tensor]], Tree]:
        """The Part's hook `carry`, likewise."""

        def carry(g: Weights, w: Weights, lane: Tree, noise: dict[str, Tensor]) -> Tree:
            return p.carry(self.seen(p, g), self.seen(p, self.whole(w)), self.client(p, lane, noise))

        return carry

    def holds(self, p: Part) -> Callable[[Tree], dict[str, Tensor]]:
        """The Part's hook `holds` as a function of one lane's table."""
        return lambda lane: p.holds(self.client(p, lane, {}))

    def _changed(self, p: Part, w: Weights, hook: Callable[[Weights, Client], Weights], c: Client) -> Weights:
        """What lanes hold of weights after a Part's hook."""
        whole = self.whole(w)
        return self.held(self.completed(p, whole, hook(self.seen(p, whole), c)))

    def _batches(self, lane: Tree, raw: bool) -> Iterator[Batch]:
        """The lane's rows in turn; every lane is padded to the longest, with weight 0."""
        samples = self.clients.samples
        for rows, weight in zip(lane["rows"].unbind(0), lane["rows_weight"].unbind(0)):
            x = samples.x[rows]
            if not raw:
                for p in self.clients.hooks["evaluate_with"]:
                    x = p.evaluate_with(x, self.client(p, lane, {}))
            yield Batch(x, samples.y[rows], weight)
