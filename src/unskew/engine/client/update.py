"""The local update of the clients of one chunk, side by side: from what they were sent to their replies.

Every step is one call of the client's loss under `torch.func.vmap` (or plainly, with one lane), one backward pass and
one optimiser step. Letters: B batch, C classes, G lanes, S steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from unskew.core.client import Client
from unskew.core.keys import key
from unskew.core.part import Part
from unskew.core.replies import Reply
from unskew.core.trees import Tree, Weights, tree_map
from unskew.core.values import Batch, Noise, Out
from unskew.engine.client import optimise
from unskew.engine.client.kernels import Kernels, around
from unskew.engine.client.noise import draw
from unskew.engine.client.rules import rules_of_hooks
from unskew.engine.client.schedule import Chunk, Step, steps

if TYPE_CHECKING:
    from unskew.engine.client.trainer import Start, Trainer

VISIT_ROWS = 256
"""Rows a trip, an evaluation or a single lane's pass over its data sees at once."""


_LARGE = 1 << 14


class Update:
    """The local update of the clients of one chunk, from broadcast to replies."""

    def __init__(self, trainer: Trainer, chunk: Chunk, start: Start, private: Mapping[int, Tree]):
        self.of, self.chunk, self.start = trainer, chunk, start
        self.many = trainer.lanes > 1
        work = chunk.work if len(chunk.work) > 1 or not self.many else chunk.work * 2
        self.ids = [w.client for w in work]
        self.recipe = trainer.local.recipe
        self.kernels = Kernels(self.many)
        self.kernels.frozen = chunk.frozen
        self.down = start.down
        self.private = [self._private(k, private.get(k)) for k in self.ids]
        self.orders = {k: trainer.orders(k, start.t) for k in self.ids}
        self.plan = steps(chunk, self.orders, self.recipe)
        self.w = self._stack([trainer.received(start, p) for p in self.private])
        if self.many:
            self.w = {n: _as_gradients(t) for n, t in self.w.items()}
        self.lane = self._lane(work)
        self.noise = {p.name: self._noise(p, work) for p in trainer.hooks["noise"]}
        self.droppers = [key(trainer.fed.seed, start.t, k, "dropout") for k in self.ids] if trainer.dropouts else []
        self.loss_sum = torch.zeros(len(self.ids), device=trainer.device)

    def run(self) -> list[Reply]:
        with rules_of_hooks(), around(self.of.net, self.kernels):
            if begins := self.of.hooks["begin"]:
                with torch.no_grad():
                    self.lane["round"] = {p.name: self._map(self._hook(p, "begin"), self.w, self.lane) for p in begins}
            self._train()
            with torch.no_grad():
                ends = {p.name: self._map(self._hook(p, "finish"), self.w, self.lane) for p in self.of.hooks["finish"]}
        return [self._reply(g, ends) for g in range(len(self.chunk.work))]

    def _train(self) -> None:
        opt = optimise.make(self.of.local.optimiser, self.start.lr, self.of.local.momentum, self.of.local.weight_decay)
        opt.start([self.w[n] for n in self.of.learns])
        flat = np.concatenate([s.rows_GB.T.ravel() if self.many else s.rows_GB.ravel() for s in self._widened()])
        rows, first = torch.as_tensor(flat, device=self.of.device), 0
        call = torch.func.vmap(self._loss, in_dims=(0, 1, 0, 0, 0, 0, 0)) if self.many else self._loss
        for step in self._widened():
            width = len(step.rows_GB)
            index = rows[first : first + step.rows_GB.size]
            first += step.rows_GB.size
            self._step(call, opt, step, width, index)

    def _widened(self) -> Iterator[Step]:
        """At least two lanes at every step: one alone would take another convolution kernel and other bits."""
        for s in self.plan:
            if self.many and len(s.rows_GB) == 1:
                weight = None if s.weight_GB is None else np.repeat(s.weight_GB, 2, 0)
                s = replace(s, rows_GB=np.repeat(s.rows_GB, 2, 0), weight_GB=weight, local_G=np.repeat(s.local_G, 2))
            yield s

    def _step(self, call: Callable, opt: Any, step: Step, width: int, index: Tensor) -> None:
        of, device, active = self.of, self.of.device, step.active
        leaf = {n: self._first(self.w[n], width) for n in self.w}
        if width > active:
            leaf |= {n: leaf[n].clone() for n in of.fed.net.buffers}
        for n in of.learns:
            leaf[n] = leaf[n].detach().requires_grad_()
        x, y = of.x.index_select(0, index), of.y_NC.index_select(0, index)
        if self.many:
            x, y = x.unflatten(0, (step.size, width)), y.unflatten(0, (step.size, width)).transpose(0, 1)
        if step.weight_GB is None:
            weight = torch.ones((width, step.size) if self.many else (step.size,), device=device)
        else:
            weight = torch.as_tensor(step.weight_GB if self.many else step.weight_GB[0], device=device)
        self.masked = step.short and self.many
        lane = tree_map(lambda v: self._first(v, width), self.lane)
        loss = call(leaf, x, y, weight, self._noise_at(step, width), self._dropout_at(step, width), lane)
        grads = torch.autograd.grad(loss.sum(), [leaf[n] for n in of.learns], allow_unused=True)
        with torch.no_grad():
            g = {n: torch.zeros_like(leaf[n]) if v is None else v for n, v in zip(of.learns, grads)}
            for p in of.hooks["grad"]:
                g = self._map(self._grad(p), g, leaf, lane)
            w = [self._first(self.w[n], active) for n in of.learns]
            state = [[self._first(t, active) for t in group] for group in opt.state]
            opt.step(w, [self._first(g[n], active) for n in of.learns], state, step.local_G[:active])
            if width > active:
                for n in of.fed.net.buffers:
                    self.w[n][:active] = leaf[n][:active]
            count = weight.sum(-1) if self.many else weight.sum().reshape(1)
            self.loss_sum[:active] += (loss.detach().reshape(-1) * count)[:active]

    def _loss(
        self, w: Weights, x: Tensor, y: Tensor, weight: Tensor, noise: dict, dropout: tuple, lane: Tree
    ) -> Tensor:
        """One client's loss at one step: the task's, and what every Part adds."""
        of, at = self.of, self.of.hooks
        c = {p.name: self._client(p, lane, noise.get(p.name, {})) for p in of.method.parts}
        b = Batch(x, y, weight)

        def run(w: Weights, x: Tensor, taps: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
            """(logits, logits before the Parts, features), as the model trains."""
            self.kernels.weight, self.kernels.dropout = (weight if self.masked else None), iter(dropout)
            raw, features = of.net.run(w, x, train=True, taps=taps)
            self.kernels.weight, z = None, raw
            for p in at["logits"]:
                z = p.logits(z, b, c[p.name])
            return z, raw, features

        def slope(w: Weights, of_b: Batch) -> Tensor:
            def loss_at(x: Tensor) -> Tensor:
                return of_b.mean(of.fed.task.loss(run(w, x, {})[0], of_b.y))

            self.kernels.looking = True
            try:
                return (torch.func.grad(loss_at)(of_b.x) * of_b.along).sum()
            finally:
                self.kernels.looking = False

        for p in at["batch"]:
            b = p.batch(b, c[p.name])
        own, before, after = b, {}, {}

        def tap(cut: str, h: Tensor) -> Tensor:
            nonlocal b
            before[cut] = h
            for p in at["tap"]:
                h, b = p.tap(cut, h, b, c[p.name])
            after[cut] = h
            return h

        z, raw, features = run(w, b.x, dict.fromkeys(of.cuts, tap))
        loss = b.mean(of.fed.task.loss(z, b.y))
        out = Out(z, raw, features, own, before, after)
        for p in at["loss"]:
            loss = loss + p.loss(w, out, b, replace(c[p.name], slopes=slope))
        return loss

    def _client(self, p: Part, lane: Tree, noise: dict[str, Tensor], with_data: bool = False) -> Client:
        c = Client(
            id=lane["id"],
            n=lane["n"],
            counts=lane["counts"],
            steps=lane["steps"],
            lr=self.start.lr,
            t=self.start.t,
            start={**self.start.weights, **lane["kept"]},
            fed=self.of.fed,
            net=self.of.net,
            down=self.down.get(p.name, {}),
            mine=lane["mine"].get(p.name, {}),
            round=lane["round"].get(p.name, {}),
            noise=noise,
            data=(lambda raw: self._data(lane, raw)) if with_data else None,
        )
        if self.of.hooks["evaluate_with"]:
            c = replace(c, prepare=lambda x: self.of.as_at_test(x, c, self.start))
        return c

    def _hook(self, p: Part, hook: str) -> Callable:
        return lambda w, lane: getattr(p, hook)(w, self._client(p, lane, {}, with_data=True))

    def _grad(self, p: Part) -> Callable:
        return lambda g, w, lane: p.grad(g, w, self._client(p, lane, {}))

    def _data(self, lane: Tree, raw: bool) -> Iterator[Batch]:
        """The client's rows in turn; every lane is padded to the longest, with weight 0."""
        for rows, weight in zip(lane["rows"].unbind(0), lane["rows_weight"].unbind(0)):
            x = self.of.x[rows]
            if not raw:
                for p in self.of.hooks["evaluate_with"]:
                    x = p.evaluate_with(x, self._client(p, lane, {}))
            yield Batch(x, self.of.y_NC[rows], weight)

    def _private(self, k: int, found: Tree | None) -> Tree:
        """A client's private state, made when it first takes part."""
        if found:
            return found
        of, w = self.of, self.start.weights
        made: Tree = {p.name: p.client_init(w, of.fed) for p in of.hooks["client_init"]}
        return made | ({"kept": {n: w[n] for n in of.kept}} if of.kept else {})

    def _lane(self, work: Sequence[Any]) -> Tree:
        """What differs between the clients of a chunk, stacked."""
        of, device = self.of, self.of.device
        size = self.recipe.batch if self.many else VISIT_ROWS
        visits = -(-max(w.n for w in work) // size)
        rows = np.zeros((len(work), visits * size if self.many else work[0].n), dtype=np.int64)
        weight = np.zeros(rows.shape, dtype=np.float32)
        for g, w in enumerate(work):
            rows[g, : w.n] = of.rows[w.client]
            weight[g, : w.n] = 1
        if self.many:
            rows, weight = rows.reshape(len(work), visits, size), weight.reshape(len(work), visits, size)
        else:
            rows, weight = rows[:, None], weight[:, None]
        lane = {
            "id": np.array(self.ids),
            "n": np.array([w.n for w in work], dtype=np.float32),
            "counts": of.counts_KC[self.ids].astype(np.float32),
            "steps": np.array([w.steps(self.recipe.epochs) for w in work], dtype=np.float32),
            "rows": rows,
            "rows_weight": weight,
        }
        tensors = {n: self._lanes_of(torch.as_tensor(v, device=device)) for n, v in lane.items()}
        mine = {p.name: self._stack([q[p.name] for q in self.private]) for p in of.hooks["client_init"]}
        kept = self._stack([{n: q["kept"][n] for n in of.kept} for q in self.private])
        return {**tensors, "mine": mine, "kept": kept, "round": {}}

    def _noise(self, p: Part, work: Sequence[Any]) -> dict[str, tuple[Noise, Tensor]]:
        """[G, S, ...] for every law a Part asked for; lanes with fewer steps are padded."""
        most = max(w.steps(self.recipe.epochs) for w in work)
        found = {}
        for name, noise in p.noise(self.of.fed, self.down.get(p.name, {})).items():
            lanes = []
            for w in work:
                own = w.steps(self.recipe.epochs)
                drawn = draw(noise, own, self.recipe.batch, self.of.fed.seed, self.start.t, w.client, p.name, name)
                lanes.append(
                    torch.cat([drawn, drawn[:1].expand(most - own, *drawn.shape[1:])]) if own < most else drawn
                )
            found[name] = (noise, torch.stack(lanes).to(self.of.device))
        return found

    def _noise_at(self, step: Step, width: int) -> dict[str, dict[str, Tensor]]:
        local = torch.as_tensor(step.local_G[:width], device=self.of.device)
        lane = torch.arange(width, device=self.of.device)

        def now(noise: Noise, table: Tensor) -> Tensor:
            values = table[lane, local]
            values = values[:, : step.size] if noise.per_sample else values
            return self._lanes_of(values)

        return {part: {n: now(*entry) for n, entry in entries.items()} for part, entries in self.noise.items()}

    def _dropout_at(self, step: Step, width: int) -> tuple[Tensor, ...]:
        drawn = []
        for shape in self.of.dropouts:
            masks = torch.zeros((width, step.size, *shape))
            for g, work in enumerate(self.chunk.work[: step.active]):
                own = work.short if step.short else step.size  # the same draws whatever a short batch is padded to
                masks[g, :own] = torch.rand((own, *shape), generator=self.droppers[g])
            drawn.append(self._lanes_of(masks.to(self.of.device)))
        return tuple(drawn)

    def _reply(self, g: int, ends: dict[str, tuple[Tree, Tree]]) -> Reply:
        of, work = self.of, self.chunk.work[g]
        w = {n: self._at_lane(t, g).contiguous() for n, t in self.w.items()}
        shares = {name: tree_map(lambda t: self._at_lane(t, g), up) for name, (up, _) in ends.items()}
        private: Tree = {n: t for n, t in self.private[g].items() if n != "kept"}
        private |= {name: tree_map(lambda t: self._at_lane(t, g), mine) for name, (_, mine) in ends.items()}
        if of.kept:
            private["kept"] = {n: w[n] for n in of.kept}
        loss = self.loss_sum[g] / (work.n * self.recipe.epochs)
        return Reply(
            work.client,
            float(work.n),
            {n: w[n] for n in of.sent},
            shares,
            {k: v for k, v in private.items() if v},
            loss,
        )

    # With one lane there is no lane axis at all: the client's function runs as it is written.

    def _stack(self, trees: Sequence[Mapping]) -> Tree:
        first = trees[0]
        if not self.many:
            return tree_map(_own_copy, first)
        return {
            n: self._stack([t[n] for t in trees]) if isinstance(v, Mapping) else torch.stack([t[n] for t in trees])
            for n, v in first.items()
        }

    def _first(self, t: Tensor, lanes: int) -> Tensor:
        return t[:lanes] if self.many else t

    def _lanes_of(self, t: Tensor) -> Tensor:
        return t if self.many else t[0]

    def _at_lane(self, t: Tensor, g: int) -> Tensor:
        return t[g] if self.many else t

    def _map(self, function: Callable, *trees: Any) -> Any:
        return torch.func.vmap(function)(*trees) if self.many else function(*trees)


def _as_gradients(t: Tensor) -> Tensor:
    """Large dense layers' weights [G, out, in] in memory as [G, in, out], as the gradients of lanes come.

    A sum of two tensors that lie differently takes four times as long; for small ones it does not matter.
    """
    return t.mT.contiguous().mT if t.dim() == 3 and t[0].numel() >= _LARGE else t


def _own_copy(t: Tensor) -> Tensor:
    """Convolution weights in the layout the kernels want."""
    return t.detach().clone(memory_format=torch.channels_last if t.dim() == 4 else torch.preserve_format)
