"""Federated averaging written as plainly as possible: one client after another, nn.Module, autograd,
torch.optim.

An oracle is a subclass of `FedAvg` that spells out one method's equations, in float64. It is compared with
the engine by `agreement.agree`, which also runs the engine. How to write one, in the file of its family:

1.  The docstring repeats the paper's equations; the code follows them in the same order. Do not import the
    method's own functions from unskew: an oracle that shares code with the engine proves nothing.
2.  Set `part`, the method's name. Settings are class attributes (`mu = 0.001`), with the same names and defaults
    as the engine's. `@checked(*CASES, mu=0.5)` above the class says in which cases it is compared, and sets
    settings on both sides.
3.  Override hooks of `FedAvg`, in the order in which a round calls them: `begin` (the server's slice before
    round 1); `arrive` (a client before its first step); `batch` (change inputs and targets); `forward` (change
    the pass itself); `loss` (of one step); `gradient` (change `p.grad` before the optimiser's step); `leave`
    (after the last step: what the client shares); `merge` (the next weights); `server` (the next slice);
    `exchange` (further traffic after a round, and once before round 1 with t = 0); `answers` (logits at test
    time). `keeps` and `freezes` name weights.
4.  Keep the server's state in `self.slice` and a client's in `self.private[k]`, under the engine's names of
    leaves: they are compared leaf by leaf. Weights that the method trains beside the model are in `c.extra`.
5.  Random numbers are inputs: `self.noise(c, ...)`, `self.given.sample(...)` and `self.given.generator(...)`
    return what the engine draws.
6.  Break one line of the engine's method and see the test fail. Examples: `Scaffold` (state on both sides),
    `MOON` (a loss, another model), `NaiveMix` (an exchange, noise), `FedBABU` (test time).

Letters: N samples, K clients, B batch, C classes, D features, E epochs.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

SIZES = (1, 13, 22, 8, 16)
"""Training samples of each client: one has a single sample."""
CLASSES = 4
TESTS = 6
"""Test samples of each client."""
ATTENDANCE = ((0, 1, 3, 4), (1, 2, 3), (0, 1, 2, 4))
"""Who answers in rounds 1, 2 and 3: everybody misses a round but client 1; client 2 comes late, 0 and 4 come
back."""

Tree = dict[str, Any]
Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Case:
    """How the tiny federation trains; engine and oracle are given the same.

    sites: clients are the owners in `Samples`; else samples are dealt to them at random, and no test sample
    belongs to
    anybody. overflowing: clients with pixels so large that float32 cannot hold their sum.
    """

    model: str = "mlp"
    momentum: float = 0.0
    attendance: tuple[tuple[int, ...], ...] = ATTENDANCE
    batch: int = 5
    epochs: int = 2
    lr: float = 0.1
    lr_decay: float = 0.9
    weight_decay: float = 0.01
    optimiser: str = "sgd"
    seed: int = 3
    shape: tuple[int, int, int] = (1, 6, 6)
    sites: bool = True
    overflowing: tuple[int, ...] = ()

    @property
    def rounds(self) -> int:
        return len(self.attendance)

    def rate(self, t: int) -> float:
        """The learning rate of round t."""
        return self.lr * self.lr_decay ** (t - 1)


@dataclass(frozen=True)
class Samples:
    """x_N..., y_N and the client of every sample, for training and for tests."""

    x: Tensor
    y: Tensor
    owner: Tensor
    x_test: Tensor
    y_test: Tensor
    owner_test: Tensor


def samples(case: Case) -> Samples:
    """60 images and 30 to test on; client 2 lacks the last class, client 4 the first two."""
    draw = torch.Generator().manual_seed(11)
    patterns = torch.randn(CLASSES, *case.shape, generator=draw)

    def images(y: Tensor) -> Tensor:
        return patterns[y] + torch.randn(len(y), *case.shape, generator=draw)

    owner = torch.repeat_interleave(torch.arange(len(SIZES)), torch.tensor(SIZES))
    y = torch.randint(CLASSES, owner.shape, generator=draw)
    y[owner == 2] %= CLASSES - 1
    y[owner == 4] = 2 + y[owner == 4] % 2
    mixed = torch.randperm(len(y), generator=draw)
    owner_test = torch.arange(len(SIZES)).repeat_interleave(TESTS)
    y_test = torch.randint(CLASSES, owner_test.shape, generator=draw)
    x = images(y)
    for k in case.overflowing:
        x[owner == k] = 3e38
    return Samples(x[mixed], y[mixed], owner[mixed], images(y_test), y_test, owner_test)


def model_named(name: str, shape: tuple[int, int, int] = Case.shape) -> nn.Sequential:
    """A tiny MLP, or a tiny CNN with batch normalisation, for images of this shape.

    Smooth activations and mean pooling: near a kink float32 and float64 could take different sides.
    """
    channels, height, width = shape
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        blocks = nn.Sequential()
        if name == "mlp":
            blocks.add_module(
                "fc", nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, 7), nn.Tanh())
            )
        else:
            conv = nn.Sequential(
                nn.Conv2d(channels, 3, 3, padding=1), nn.BatchNorm2d(3), nn.Tanh(), nn.AvgPool2d(2)
            )
            blocks.add_module("conv", conv)
            blocks.add_module(
                "fc", nn.Sequential(nn.Flatten(), nn.Linear(3 * (height // 2) * (width // 2), 7), nn.Tanh())
            )
        blocks.add_module("head", nn.Linear(7, CLASSES))
        return blocks


NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


def named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and running statistics; the counter of batches, which nobody reads, is left out."""
    yield from model.named_parameters()
    yield from ((n, b) for n, b in model.named_buffers() if b.is_floating_point())


def weights_of(model: nn.Module) -> Weights:
    """Copies of all weights and running statistics."""
    return {n: t.detach().clone() for n, t in named_tensors(model)}


@dataclass(frozen=True)
class Law:
    """How a random number is distributed, and how many a step needs.

    name: "uniform" on [0, 1), "normal", "beta" (args a, b), "integers" below args[0], or "cycle": the numbers
    below args[0] in shuffled order, again and again.
    """

    name: str
    args: tuple[float, ...] = ()
    shape: tuple[int, ...] = ()
    per_sample: bool = True


class Given(Protocol):
    """What an oracle does not compute itself: the model's first weights, and everything that is random."""

    @property
    def case(self) -> Case: ...

    @property
    def weights(self) -> Weights:
        """All weights before round 1, also those trained beside the model's."""
        ...

    def rows(self, k: int) -> Tensor:
        """The rows of client k's training samples."""
        ...

    def orders(self, t: int, k: int) -> Tensor:
        """The order in which client k visits its rows in round t, [E, n]."""
        ...

    def noise(self, t: int, k: int, steps: int, what: tuple[str, str], law: Law) -> Tensor:
        """Numbers of client k in round t, what: (part, name); [steps, B, *shape] or [steps, *shape]."""
        ...

    def sample(self, k: int, count: int, purpose: str, replace: bool = False) -> Tensor:
        """The rows of `count` of client k's samples, chosen at random for this purpose."""
        ...

    def reserved(self) -> tuple[Tensor, Tensor]:
        """Inputs and labels of the samples that the server holds back from the clients."""
        ...

    def generator(self, *purpose: object) -> torch.Generator:
        """A generator of the random numbers that the server draws for this purpose."""
        ...


@dataclass
class Client:
    """A client at work. model: what it trains; extra: weights trained beside it; start: the weights it began
    with.

    step counts from 0 to `steps` - 1; rows: the samples of this step.
    """

    k: int
    n: int
    counts: Tensor
    steps: int
    lr: float
    model: nn.Sequential
    extra: dict[str, nn.Parameter]
    start: Weights
    step: int = 0
    rows: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """Everything that has a gradient, by name."""
        return dict(self.model.named_parameters()) | self.extra

    @property
    def weights(self) -> Weights:
        """Parameters and running statistics as they are now, constants."""
        return weights_of(self.model) | {n: p.detach().clone() for n, p in self.extra.items()}


@dataclass(frozen=True)
class Pass:
    """One forward pass: inputs, targets [B, C], logits [B, C] and what the head received [B, D]."""

    x: Tensor
    y: Tensor
    z: Tensor
    h: Tensor


@dataclass(frozen=True)
class Reply:
    """What client k with n samples sends: its weights, and what the method shares beside them.

    loss: the mean over every sample it trained on, with all of the method's terms.
    """

    k: int
    n: int
    steps: int
    loss: float
    w: Weights
    shared: Tree


@dataclass(frozen=True)
class Snapshot:
    """What must agree after a round. slices: part -> leaves; private: client -> part -> leaves; answers:
    client -> logits.

    loss: the mean of the clients' training losses, NaN with nobody there.
    """

    weights: Weights
    slices: dict[str, Tree]
    private: dict[int, Tree]
    answers: dict[int, Tensor]
    loss: float


class FedAvg:
    """McMahan et al., AISTATS 2017: w_{t+1} = sum_k n_k / n w_k, after E epochs of SGD at every client of the
    cohort.

    A batch of one sample cannot be normalised: an epoch's last batch is dropped if it has only one, and a
    client that has only one sample in all trains with the running statistics.
    """

    part = ""
    weighting = "size"
    checks: ClassVar[Sequence[tuple[Case, dict[str, Any]]]] = ()
    """Cases with settings in which it is compared with the engine, declared by `agreement.checked`."""
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
        """Random numbers for all steps of a client: [steps, B, *shape], or [steps, *shape]."""
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
        """Update `self.slice`, and `self.w` where it is the server's; old: the weights before the merge."""

    def exchange(self, cohort: list[int]) -> None:
        """Further traffic after round `self.t`; t = 0 is before round 1, with all clients."""

    def answers(self) -> dict[int, Tensor]:
        """Logits at test time by client, on its own test rows; -1: the global model,on all rows."""
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
