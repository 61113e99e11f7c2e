"""A round on a CPU with models as users write them: the usual loop beside unskew with one lane, with 16, and
as `auto` chooses.

python benchmarks/own_models.py --out own.json        all of them, in about ten minutes on one core
python benchmarks/own_models.py --models lenet residual --repeats 5
python benchmarks/own_models.py --models digits mlp table lenet --repeats 30    small models
python benchmarks/own_models.py --compiled           and the usual loop through torch.compile, which needs a
C++ compiler

Every variant has the same seeded data, initial weights and row order and one thread. They take turns, one
round each, so that what else the machine does falls on all of them. A figure is the least of the rounds'
seconds of the processor; "all" is the ratio of the seconds of all rounds, which include recordings of steps.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
import usual
import work
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from unskew.config import Settings
from unskew.core.client import Fed
from unskew.core.method import Method
from unskew.core.network import Network
from unskew.core.replies import Ups
from unskew.merge.mean import weighted_mean
from unskew.round.chunks import Recipe
from unskew.round.clients import Broadcast, LocalTraining
from unskew.round.samples import Samples
from unskew.round.trainer import Trainer
from unskew.runs.hardware import lanes_of
from unskew.tasks.task import Classification

CLIENTS, SAMPLES, BATCH = 16, 96, 32
SIZES = {"digits": (6, 40, 16, 3), "mlp": (10, 100, 32, 2), "table": (10, 100, 32, 2)}
"""Clients, samples, batch and epochs of the small models; `digits` is the demo's."""


class InOrder(Trainer):
    """Rows in the order they come: the usual loop does not shuffle, and the results are compared."""

    def orders(self, k: int, t: int) -> np.ndarray:
        return np.tile(self.samples.rows[k], (self.training.recipe.epochs, 1))


def lenet() -> nn.Module:
    """LeNet-5 with rectifiers, as tutorials have it: 6 and 16 channels, pooling after the rectifier."""
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


class Tutorial(nn.Module):
    """Two convolutions called through torch.nn.functional, with dropout left out: PyTorch's example of
    MNIST."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
        self.fc1, self.fc2 = nn.Linear(9216, 128), nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        return self.fc2(F.relu(self.fc1(torch.flatten(x, 1))))


class McMahan(nn.Module):
    """The CIFAR-10 network of many papers on federated learning: 5x5 convolutions of 32 and 64 channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 32, 5), nn.Conv2d(32, 64, 5)
        self.pool, self.relu = nn.MaxPool2d(2), nn.ReLU()
        self.fc1, self.fc2 = nn.Linear(1600, 512), nn.Linear(512, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.relu(self.conv1(x)))
        x = self.pool(self.relu(self.conv2(x))).flatten(1)
        return self.fc2(self.relu(self.fc1(x)))


def dense(*sizes: int) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        layers = [layer for i, o in pairwise(sizes) for layer in (nn.Linear(i, o), nn.ReLU())]
        return nn.Sequential(nn.Flatten(), *layers[:-1])

    return build


def perceptron() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10)
    )


def groupnorm() -> nn.Module:
    """Convolutions with group normalisation, which many prefer to batch normalisation under skew."""
    blocks: list[nn.Module] = []
    for i, o in ((3, 32), (32, 64), (64, 64)):
        blocks += [nn.Conv2d(i, o, 3, padding=1, bias=False), nn.GroupNorm(8, o), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(1024, 10))


class Separable(nn.Module):
    """Depthwise convolutions followed by 1x1 ones, with batch normalisation."""

    def __init__(self) -> None:
        super().__init__()
        blocks: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU6()]
        for i, o, stride in ((16, 32, 2), (32, 64, 2), (64, 64, 1)):
            blocks += [nn.Conv2d(i, i, 3, stride, 1, groups=i, bias=False), nn.BatchNorm2d(i), nn.ReLU6()]
            blocks += [nn.Conv2d(i, o, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU6()]
        self.body, self.head = nn.Sequential(*blocks), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).mean((2, 3)))


class Residual(nn.Module):
    """A ResNet-8 for small images: 16, 32 and 64 channels."""

    class Basic(nn.Module):
        def __init__(self, i: int, o: int, stride: int) -> None:
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o)
            self.conv2, self.bn2 = nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o)
            self.shortcut = nn.Sequential()
            if stride != 1 or i != o:
                self.shortcut = nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o))

        def forward(self, x: Tensor) -> Tensor:
            out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
            return F.relu(out + self.shortcut(x))

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        self.layer1, self.layer2, self.layer3 = (
            self.Basic(16, 16, 1),
            self.Basic(16, 32, 2),
            self.Basic(32, 64, 2),
        )
        self.fc = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(F.relu(self.bn1(self.conv1(x))))))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Sensors(nn.Module):
    """Convolutions along time over nine sensors."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv1d(9, 32, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2)),
            *(nn.Conv1d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2)),
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(2048, 100), nn.ReLU(), nn.Linear(100, 6))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "lenet": (lenet, (1, 28, 28), 10),
    "tutorial": (Tutorial, (1, 28, 28), 10),
    "mcmahan": (McMahan, (3, 32, 32), 10),
    "perceptron": (perceptron, (1, 28, 28), 10),
    "groupnorm": (groupnorm, (3, 32, 32), 10),
    "separable": (Separable, (3, 32, 32), 10),
    "residual": (Residual, (3, 32, 32), 10),
    "sensors": (Sensors, (9, 128), 6),
    "digits": (dense(64, 128, 10), (1, 8, 8), 10),
    "mlp": (dense(784, 128, 10), (1, 28, 28), 10),
    "table": (dense(30, 64, 32, 2), (30,), 2),
}


def chosen(name: str, clients: int) -> work.Work:
    _, shape, classes = MODELS[name]
    return work.Work(name, shape, classes, *SIZES.get(name, (clients, SAMPLES, BATCH, 1)), 0.01)


def initial(name: str) -> nn.Module:
    torch.manual_seed(2)
    return MODELS[name][0]().train()


def ours(
    todo: work.Work, lanes: str, module: nn.Module | None = None
) -> tuple[Callable[[], dict[str, Tensor]], int]:
    """(one round that returns the merged weights, the lanes it has). module: instead of the model of that
    name."""
    x, y = work.data(todo)
    net = Network(module or initial(todo.model), todo.shape)
    rows = [np.arange(k * todo.samples, (k + 1) * todo.samples) for k in range(todo.clients)]
    counts = np.stack([np.bincount(y[k].numpy(), minlength=todo.classes) for k in range(todo.clients)])
    sizes = np.full(todo.clients, todo.samples)
    facts = (todo.clients, todo.classes, todo.shape, 1, todo.epochs, todo.batch, todo.learning_rate)
    fed = Fed(*facts, net=net, sizes=sizes, task=Classification())
    samples = Samples(x.flatten(0, 1), F.one_hot(y.flatten(), todo.classes).float(), rows, counts)
    many = lanes_of(Settings(lanes=lanes, batch=todo.batch), net, "cpu")
    training = LocalTraining(Recipe(todo.batch, todo.epochs, bool(net.norms)))
    trainer, w = InOrder(Method(), fed, samples, training, many, 1), net.weights()

    def one_round() -> dict[str, Tensor]:
        replies = trainer.train(Broadcast(1, todo.learning_rate, w, {}), range(todo.clients), {})
        return weighted_mean(w, Ups.of(replies))

    return one_round, many


def usual_round(
    todo: work.Work, module: nn.Module | None = None, compiled: bool = False
) -> Callable[[], dict[str, Tensor]]:
    x, y = work.data(todo)
    model = module or initial(todo.model)
    held = [TensorDataset(x[k], y[k]) for k in range(todo.clients)]
    if compiled:
        return compiled_round(todo, model, held)

    def one_round() -> dict[str, Tensor]:
        states = [usual.train(copy.deepcopy(model), rows, todo).state_dict() for rows in held]
        return usual.weighted_mean(states, [todo.samples] * todo.clients)

    return one_round


class Compiled(nn.Module):
    """A model whose forward pass, and with it the backward one, is torch.compile's."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.one = torch.compile(lambda x: model(x), fullgraph=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.one(x)


def compiled_round(
    todo: work.Work, model: nn.Module, held: list[TensorDataset]
) -> Callable[[], dict[str, Tensor]]:
    """The usual loop in one model that takes each client's weights in turn, so that it is compiled once."""
    begun = copy.deepcopy(model.state_dict())
    torch.compiler.reset()
    whole = Compiled(model)

    def one_round() -> dict[str, Tensor]:
        states = []
        for rows in held:
            model.load_state_dict(begun)
            usual.train(whole, rows, todo)
            states.append(copy.deepcopy(model.state_dict()))
        return usual.weighted_mean(states, [todo.samples] * todo.clients)

    return one_round


def measured(
    name: str, clients: int, repeats: int, lanes: list[str], compiled: bool = False
) -> dict[str, object]:
    """A row: thousands of samples a second of each variant, and the largest difference of any merged weight
    to the usual loop's."""
    todo = chosen(name, clients)
    rounds: dict[str, Callable[[], dict[str, Tensor]]] = {"usual": usual_round(todo)}
    row: dict[str, object] = {"model": name}
    if compiled:
        rounds["compiled"] = usual_round(todo, compiled=True)
    for setting in lanes:
        rounds[setting], many = ours(todo, setting)
        if setting == "auto":
            row["chosen"] = many
    for variant in rounds.keys() & {"usual", "compiled"}:  # what they import and compile is not counted
        rounds[variant]()
    taken: dict[str, list[float]] = {variant: [] for variant in rounds}
    weights = dict[str, dict[str, Tensor]]()
    for _ in range(repeats):
        for variant, one in rounds.items():
            began = time.process_time()
            weights[variant] = one()
            taken[variant].append(time.process_time() - began)
    work_done = todo.clients * todo.samples * todo.epochs / 1000
    row |= {variant: round(work_done / min(seconds), 2) for variant, seconds in taken.items()}
    row["all"] = {v: round(sum(taken["usual"]) / sum(seconds), 2) for v, seconds in taken.items()}
    learnt = [n for n, _ in initial(name).named_parameters()]
    row["difference"] = max(
        float((weights[v][n] - weights["usual"][n]).abs().max())
        for v in rounds
        if v != "usual"
        for n in learnt
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--lanes", nargs="+", default=["1", "16", "auto"])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--compiled", action="store_true", help="the usual loop through torch.compile, too")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in options.models:
        rows.append(measured(name, options.clients, options.repeats, options.lanes, options.compiled))
        print(json.dumps(rows[-1]), flush=True)
        if options.out:
            options.out.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
