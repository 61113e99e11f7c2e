"""Federated averaging written as plainly as possible: one client after another, nn.Module, autograd,
torch.optim.

An oracle is a subclass of `FedAvg` that spells out one method's equations, in float64. It is compared with
the engine by `agreement.agree`, which also runs the engine. How to write one, in a file `test_<method>.py`:

1.  The docstring repeats the paper's equations; the code follows them in the same order. Do not import the
method's
    own functions from unskew: an oracle that shares code with the engine proves nothing.
2.  Set `part`, the method's name. Settings are class attributes (`mu = 0.001`), with the same names and
defaults as the
    engine's; `agree(case, Oracle, mu=0.5)` sets them on both sides.
3.  Override hooks of `FedAvg`, in the order in which a round calls them: `begin` (the server's slice before
round 1);
    `arrive` (a client before its first step); `batch` (change inputs and targets); `forward` (change the pass
    itself); `loss` (of one step); `gradient` (change `p.grad` before the optimiser's step); `leave` (after
    the last step: what the client shares); `merge` (the next weights); `server` (the next slice); `exchange`
    (further traffic after a round, and once before round 1 with t = 0); `answers` (logits at test time).
    `keeps` and `freezes` name weights.
4.  Keep the server's state in `self.slice` and a client's in `self.private[k]`, under the engine's names of
leaves:
    they are compared leaf by leaf. Weights that the method trains beside the model are in `c.extra`.
5.  Random numbers are inputs: `self.noise(c, ...)`, `self.given.sample(...)` and `self.given.generator(...)`
return what
    the engine draws.
6.  Break one line of the engine's method and see the test fail. Examples: `test_scaffold.py` (state on both
sides),
    `test_moon.py` (a loss, another model), `test_naivemix.py` (an exchange, noise), `test_fedbabu.py` (test
    time).

Letters: N samples, K clients, B batch, C classes, D features, E epochs.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tests.oracles.tiny import (
    CLASSES,
    NORMS,
    SIZES,
    Given,
    Law,
    Tree,
    Weights,
    model_named,
    named_tensors,
    samples,
    weights_of,
)
from tests.oracles.values import Client, Pass, Reply, Snapshot


class FedAvg:
    """McMahan et al., AISTATS 2017: w_{t+1} = sum_k n_k / n w_k, after E epochs of SGD at every client of the
    cohort.

    A batch of one sample cannot be normalised: an epoch's last batch is dropped if it has only one, and a
    client that has only one sample in all trains with the running statistics.
    """

    part = ""
    weighting = "size"
    beside = ""
    """Another Part that goes with it, as users write it: "+norm"."""

    def __init__(self, given: Given, **settings: Any):
        for name, value in settings.items():
            assert hasattr(type(self), name), f"{type(self).__name__} has no setting '{name}'"
            setattr(self, name, value)
        self.given, self.case, self.clients = given, given.case, len(SIZES)
        self.module = self.model().double()
        data = samples(self.case)
        self.x, self.y = data.x.double(), nn.functional.one_hot(data.y, CLASSES).double()
        self.x_test, self.owner_test = data.x_test.double(), data.owner_test
        self.w: Weights = {n: t.double() for n, t in given.weights.items()}
        self.slice: Tree = {}
        self.private: dict[int, Tree] = {}
        self.kept: dict[int, Weights] = {}
        self.t = 0

    def run(self) -> list[Snapshot]:
        """The state after every round."""
        self.begin()
        self.exchange(list(range(self.clients)))
        return [self.round(t, list(cohort)) for t, cohort in enumerate(self.case.attendance, 1)]

    def round(self, t: int, cohort: list[int]) -> Snapshot:
        self.t = t
        if replies := [self.train(k) for k in cohort]:
            old = self.w
            self.w = self.merge(replies)
            self.server(replies, old)
            self.exchange(cohort)
        return Snapshot(
            dict(self.w),
            copy.deepcopy(self.slices()),
            {k: copy.deepcopy(self.held(k)) for k in range(self.clients)},
            self.answers(),
            sum(r.loss for r in replies) / len(replies) if replies else math.nan,
        )

    def train(self, k: int) -> Reply:
        """The local update of client k."""
        c = self.client(k)
        self.arrive(c)
        learns = [p for n, p in c.parameters.items() if not self.freezes(n)]
        optimiser = self.optimiser(learns, c.lr)
        losses: list[float] = []
        for c.step, c.rows in enumerate(self.batches(k)):
            optimiser.zero_grad()
            x, y = self.batch(c, self.x[c.rows], self.y[c.rows])
            z, h = self.forward(c, x)
            loss = self.loss(c, Pass(x, y, z, h))
            loss.backward()
            losses += [float(loss.detach())] * len(x)
            with torch.no_grad():
                self.gradient(c)
            optimiser.step()
        shared = self.leave(c)
        w = c.weights
        if kept := {n: t for n, t in w.items() if self.keeps(n)}:
            self.kept[k] = kept
        sent = {n: t for n, t in w.items() if not self.keeps(n) and not self.freezes(n)}
        return Reply(k, c.n, c.steps, sum(losses) / len(losses), sent, shared)

    def optimiser(self, learns: list[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        """Made afresh in every round, so that no momentum crosses rounds."""
        adam = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}.get(self.case.optimiser)
        if adam:
            return adam(learns, lr, weight_decay=self.case.weight_decay)
        return torch.optim.SGD(learns, lr, momentum=self.case.momentum, weight_decay=self.case.weight_decay)

    def client(self, k: int) -> Client:
        """Client k as it begins: the server's weights, over which it puts those it keeps."""
        start = self.w | self.kept.get(k, {})
        model = self.model_with(start)
        model.train()
        rows = self.given.rows(k)
        if len(rows) == 1:
            for layer in model.modules():
                if isinstance(layer, NORMS):
                    layer.eval()
        named = weights_of(model)
        extra = {n: nn.Parameter(t.clone()) for n, t in start.items() if n not in named}
        return Client(
            k,
            len(rows),
            self.y[rows].sum(0),
            len(list(self.batches(k))),
            self.case.rate(self.t),
            model,
            extra,
            start,
        )

    def batches(self, k: int) -> Iterator[Tensor]:
        """The rows of every step of client k's round."""
        normalised = any(isinstance(layer, NORMS) for layer in self.module.modules())
        for order in self.given.orders(self.t, k):
            for first in range(0, len(order), self.case.batch):
                rows = order[first : first + self.case.batch]
                if normalised and first and len(rows) == 1:
                    continue
                yield rows

    def model_with(self, w: Weights) -> nn.Sequential:
        """An ordinary module with these weights, in float64."""
        return loaded(copy.deepcopy(self.module), w)

    def evaluated(self, w: Weights, x: Tensor) -> tuple[Tensor, Tensor]:
        """(logits, features) of these weights in evaluation mode, constants."""
        model = loaded(self.module, w).eval()  # without a copy: nobody else reads this module's weights
        with torch.no_grad():
            return split_forward(model, x)

    def slices(self) -> Tree:
        """The server's state by Part."""
        return {self.part: self.slice}

    def held(self, k: int) -> Tree:
        """Everything that stays on client k."""
        return {self.part: self.private.get(k, {}), "kept": self.kept.get(k, {})}

    def shares_of_weight(self, replies: list[Reply]) -> list[float]:
        """p_k: n_k / n, or 1 / |cohort| where the method weighs clients equally."""
        if self.weighting == "equal":
            return [1 / len(replies)] * len(replies)
        return [r.n / sum(q.n for q in replies) for r in replies]

    def weighted_mean(self, replies: list[Reply]) -> Weights:
        """sum_k p_k w_k, of what was sent; all else stays as it was."""
        p = self.shares_of_weight(replies)
        return self.w | {n: sum(p_k * r.w[n] for p_k, r in zip(p, replies)) for n in replies[0].w}  # type: ignore[misc]

    @property
    def learned(self) -> list[str]:
        """The names of parameters (not statistics) that clients train and send."""
        names = dict(self.module.named_buffers())
        return [n for n in self.w if n not in names and not self.keeps(n) and not self.freezes(n)]

    def noise(self, c: Client, name: str, law: Law) -> Tensor:
        """Random numbers for all of this round's steps of a client: [steps, B, *shape], or [steps,
        *shape]."""
        return self.given.noise(self.t, c.k, c.steps, (self.part, name), law)

    # What a method overrides, in the order of a round.

    def model(self) -> nn.Sequential:
        """The structure of the model that the method trains; its weights are given by name."""
        return model_named(self.case.model, self.case.shape)

    def begin(self) -> None:
        """Set `self.slice`, the server's state before round 1."""

    def keeps(self, name: str) -> bool:
        """Whether this weight stays on the client."""
        return False

    def freezes(self, name: str) -> bool:
        """Whether this weight is never trained."""
        return False

    def arrive(self, c: Client) -> None:
        """Before a client's first step: make its private state if it has none, look at its data."""

    def batch(self, c: Client, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """What this step trains on."""
        return x, y

    def forward(self, c: Client, x: Tensor) -> tuple[Tensor, Tensor]:
        """(logits, features) in training mode. Every call updates the running statistics once."""
        return split_forward(c.model, x)

    def loss(self, c: Client, seen: Pass) -> Tensor:
        """The loss of one step; cross-entropy, the mean over the batch."""
        return cross_entropy(seen.z, seen.y)

    def gradient(self, c: Client) -> None:
        """Change `p.grad` of `c.parameters`."""

    def leave(self, c: Client) -> Tree:
        """After a client's last step: update `self.private[c.k]`, return what it shares."""
        return {}

    def merge(self, replies: list[Reply]) -> Weights:
        """The next global weights."""
        return self.weighted_mean(replies)

    def server(self, replies: list[Reply], old: Weights) -> None:
        """Update `self.slice`, and `self.w` where the server works on it; old: the weights before the
        merge."""

    def exchange(self, cohort: list[int]) -> None:
        """Further traffic after round `self.t`; t = 0 is before round 1, with all clients."""

    def answers(self) -> dict[int, Tensor]:
        """Logits at test time by client, each on its own test rows; -1: the global model, on all test
        rows."""
        return {-1: self.evaluated(self.w, self.x_test)[0]}

    def tests_of(self, k: int) -> Tensor:
        """Client k's test inputs."""
        return self.x_test[self.owner_test == k]


def loaded(model: nn.Sequential, w: Weights) -> nn.Sequential:
    """The model itself, after these weights were copied into it."""
    with torch.no_grad():
        for name, t in named_tensors(model):
            t.copy_(w[name])
    return model


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Within it the model is in evaluation mode: running statistics are used and do not change."""
    modes = {layer: layer.training for layer in model.modules()}
    model.eval()
    yield
    for layer, mode in modes.items():
        layer.training = mode


def split_forward(model: nn.Sequential, x: Tensor) -> tuple[Tensor, Tensor]:
    """(logits, features): the last block of a Sequential is its head."""
    *body, head = model
    for block in body:
        x = block(x)
    return head(x), x


def cross_entropy(z: Tensor, y: Tensor) -> Tensor:
    """-(1/B) sum_i sum_c y_ic log softmax(z_i)_c."""
    return -(y * z.log_softmax(1)).sum(1).mean()
