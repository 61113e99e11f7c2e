"""One round of FedAvg on a GPU, for `gpu.py`: unskew beside the usual loop on the same GPU, that loop in four
processes, and centralised training.

Every variant has the same seeded data, initial weights and row order (`work.py`). A number is the median of
three after a warm-up; where there are more than ten clients the usual loop trains ten of them, and its
clients a second are of those. Peak: a product of large float32 matrices on the same GPU, in the same run.
"""

from __future__ import annotations

import copy
import multiprocessing
import queue
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import lru_cache

import nets
import numpy as np
import torch
import torch.nn.functional as F
import usual
import work
from torch import nn
from torch.utils.data import TensorDataset

from unskew.core.client import Fed
from unskew.core.method import Method
from unskew.core.network import Network
from unskew.core.replies import Ups
from unskew.merge.mean import weighted_mean
from unskew.round.chunks import Recipe
from unskew.round.clients import Broadcast, LocalTraining
from unskew.round.precision import device_mode
from unskew.round.samples import Samples
from unskew.round.trainer import Trainer
from unskew.runs import hardware
from unskew.runs.hardware import MOST_LANES_ON_GPU
from unskew.tasks.task import Classification

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
"""The CPU in a rehearsal, which takes every path of this file but says nothing of a GPU."""
USUAL_CLIENTS, PROCESSES, TIMES = 10, 4, 3
REHEARSED = 4 << 30
"""The bytes of memory of a GPU that is not there."""


class InOrder(Trainer):
    """Rows in the order they come: the references do not shuffle, and the results are compared."""

    def orders(self, k: int, t: int) -> np.ndarray:
        return np.tile(self.samples.rows[k], (self.training.recipe.epochs, 1))


def resnet18() -> nn.Module:
    """ResNet-18 for CIFAR with GroupNorm."""

    def norm(o: int) -> nn.Module:
        return nn.GroupNorm(32, o)

    class Basic(nn.Module):
        def __init__(self, i: int, o: int, stride: int):
            super().__init__()
            self.body = nn.Sequential(
                *(nn.Conv2d(i, o, 3, stride, 1, bias=False), norm(o), nn.ReLU()),
                *(nn.Conv2d(o, o, 3, 1, 1, bias=False), norm(o)),
            )
            same = stride == 1 and i == o
            self.shortcut = (
                nn.Identity() if same else nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), norm(o))
            )
            self.last = nn.ReLU()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.body(x) + self.shortcut(x))

    stages = [Basic(i, o, s) for i, o, s in ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2))]
    seconds = [Basic(o, o, 1) for o in (64, 128, 256, 512)]
    blocks = [nn.Sequential(a, b) for a, b in zip(stages, seconds)]
    stem = nn.Sequential(nn.Conv2d(3, 64, 3, 1, 1, bias=False), norm(64), nn.ReLU())
    return nn.Sequential(
        stem, *blocks, nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()), nn.Linear(512, 10)
    )


class Transformer(nn.Module):
    """Two encoder layers over 80 characters: the next one is to be told."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(65, 128)
        layer = nn.TransformerEncoderLayer(128, 4, 256, 0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(128, 65)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.embed(x.long())).mean(1))


nets.NETS |= {"resnet18_gn": resnet18, "transformer": Transformer}
WORKS = {
    **{n: replace(w, epochs=1, samples=128) for n, w in work.WORKS.items()},
    "resnet18_gn": work.Work("resnet18_gn", (3, 32, 32), 10, 50, 64, 32, 1, 0.01),
    "transformer": work.Work("transformer", (80,), 65, 50, 128, 32, 1, 0.05),
}
WORKS |= {n: replace(WORKS[n], samples=64) for n in ("mobilenet_v2", "audionet")}


@lru_cache(1)
def data(chosen: work.Work) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = work.data(chosen)
    return (x.abs().mul(20).floor().clamp(max=64) if chosen.model == "transformer" else x), y


def initial(chosen: work.Work) -> nn.Module:
    torch.manual_seed(2)  # embeddings and attention have weights that `work` leaves as torch draws them
    return work.initial_model(chosen)


def wait() -> None:
    """For what the GPU has been asked to compute."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize(DEVICE)


def seconds(function: Callable[[], object], times: int = TIMES) -> float:
    """Median; the first call warms up."""
    taken = []
    for _ in range(times + 1):
        wait()
        began = time.perf_counter()
        function()
        wait()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[1:])


def ours(chosen: work.Work, precision: str, records: bool = True) -> dict[str, object]:
    """A round's seconds, from the request to the averaged weights, and those weights."""
    x, y = data(chosen)
    module = initial(chosen)
    net = Network(module, chosen.shape)
    K = chosen.clients
    rows = [np.arange(k * chosen.samples, (k + 1) * chosen.samples) for k in range(K)]
    counts = np.stack([np.bincount(y[k].numpy(), minlength=chosen.classes) for k in range(K)])
    sizes = np.full(K, chosen.samples)
    facts = (K, chosen.classes, chosen.shape, 1, chosen.epochs, chosen.batch, chosen.learning_rate)
    fed = Fed(*facts, net=net, sizes=sizes, task=Classification())
    targets = F.one_hot(y.flatten(), chosen.classes).float()
    samples = Samples(x.flatten(0, 1).to(DEVICE), targets.to(DEVICE), rows, counts)
    training = LocalTraining(Recipe(chosen.batch, chosen.epochs, bool(net.norms)), precision=precision)
    memory = torch.cuda.get_device_properties(DEVICE).total_memory if DEVICE.type == "cuda" else REHEARSED
    lanes = min(K, hardware.lanes_that_fit(memory, net, chosen.batch, MOST_LANES_ON_GPU))
    trainer = InOrder(Method(), fed, samples, training, lanes)
    if not records:
        trainer.replays = None
    w = {n: t.to(DEVICE) for n, t in net.weights().items()}
    merged: dict[str, torch.Tensor] = {}

    def one_round() -> None:
        replies = trainer.train(Broadcast(1, chosen.learning_rate, w, {}), range(K), {})
        merged.update(weighted_mean(w, Ups.of(replies)))

    if DEVICE.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    one_round()
    wait()
    first = time.perf_counter() - began
    once = {n: t.clone() for n, t in merged.items()}
    taken = seconds(one_round)
    trainer.close()
    same = all(torch.equal(once[n], merged[n]) for n in merged)
    refused = trainer.replays.refused if trainer.replays else ""
    peak = round(torch.cuda.max_memory_allocated() / 1e9, 2) if DEVICE.type == "cuda" else None
    facts_ = {
        "seconds": taken,
        "first": first,
        "lanes": lanes,
        "same_bits": same,
        "refused": refused,
        "gigabytes": peak,
    }
    return {
        **facts_,
        "weights": [merged[n].cpu() for n in net.trainable],
        "predicted": hardware.lane_bytes(net, chosen.batch) * lanes / 1e9,
    }


def at_its_best() -> AbstractContextManager[None]:
    """For the references: float32 as for unskew, and whatever kernels torch then takes."""
    return torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=False, allow_tf32=False)


def usual_clients(chosen: work.Work, count: int) -> Callable[[], list[dict[str, torch.Tensor]]]:
    """The usual loop over so many clients."""
    x, y = (t.to(DEVICE) for t in data(chosen))
    model = initial(chosen).to(DEVICE)
    held = [TensorDataset(x[k], y[k]) for k in range(count)]
    return lambda: [usual.train(copy.deepcopy(model), rows, chosen).state_dict() for rows in held]


def each_of(chosen: work.Work) -> int:
    """How many clients each of several processes trains."""
    return min(chosen.clients, USUAL_CLIENTS // 2)


def usual_process(chosen: work.Work, ready: object, answers: object) -> None:
    run = usual_clients(chosen, each_of(chosen))
    with at_its_best():
        run()
        wait()
        ready.wait()  # type: ignore[attr-defined]
        answers.put(seconds(run, 1))  # type: ignore[attr-defined]


def usual_processes(chosen: work.Work) -> float:
    """Clients a second of the usual loop in several processes on the GPU at once. Raises RuntimeError where
    one of them dies, such as for want of memory."""
    context = multiprocessing.get_context("spawn")
    ready, answers = context.Barrier(PROCESSES), context.Queue()
    started = [context.Process(target=usual_process, args=(chosen, ready, answers)) for _ in range(PROCESSES)]
    for process in started:
        process.start()
    taken: list[float] = []
    try:
        for _ in range(120):
            with suppress(queue.Empty):
                taken.append(answers.get(timeout=1))
            if len(taken) == PROCESSES:
                break
            if any(process.exitcode for process in started):
                raise RuntimeError("a process ended with an error")
        else:
            raise RuntimeError(f"of {PROCESSES} processes some did not end within 120 s")
    finally:
        for process in started:
            process.join(10 if len(taken) == PROCESSES else 0)
            process.terminate()
    return PROCESSES * each_of(chosen) / max(taken)


def centralised(chosen: work.Work) -> float:
    """Samples a second of one model at a batch of all clients' batches together."""
    x, y = (t.to(DEVICE).flatten(0, 1) for t in data(chosen))
    model, batch = initial(chosen).to(DEVICE), min(len(x), chosen.batch * chosen.clients)
    optimiser = torch.optim.SGD(model.parameters(), lr=chosen.learning_rate)

    def epoch() -> None:
        for i in range(0, len(x) - batch + 1, batch):
            optimiser.zero_grad()
            F.cross_entropy(model(x[i : i + batch]), y[i : i + batch]).backward()
            optimiser.step()

    return len(x) // batch * batch / seconds(epoch)


def peak(precision: str) -> float:
    """TFLOP/s of a product of matrices of 8192 x 8192; of smaller ones in a rehearsal."""
    size = 8192 if DEVICE.type == "cuda" else 256
    a, b = torch.randn(2, size, size, device=DEVICE)
    with device_mode(DEVICE, precision):
        return round(2 * size**3 / seconds(lambda: a @ b) / 1e12, 1)


def one(chosen: work.Work, with_processes: bool) -> dict[str, object]:
    row: dict[str, object] = {"model": chosen.model, "clients": chosen.clients, "samples": chosen.samples}
    for name, precision, records in (
        ("ours", "float32", True),
        ("not_recorded", "float32", False),
        ("tf32", "tf32", True),
    ):
        if name == "not_recorded" and not with_processes:
            continue
        try:
            row[name] = ours(chosen, precision, records)
            if DEVICE.type == "cuda":
                torch.cuda.empty_cache()
        except RuntimeError as error:
            row[name] = {"error": str(error)[:300]}
    with at_its_best():
        count = min(chosen.clients, USUAL_CLIENTS)
        run = usual_clients(chosen, count)
        states = run()
        row["usual_clients_per_second"] = count / seconds(run, 2)
        row["central_samples_per_second"] = centralised(chosen)
    held = row["ours"]
    if isinstance(held, dict) and "weights" in held and count == chosen.clients:
        names = [n for n, _ in initial(chosen).named_parameters()]
        mean = usual.weighted_mean(states, [chosen.samples] * count)
        gaps = [float((a - mean[n].cpu()).abs().max()) for a, n in zip(held["weights"], names)]
        row["difference"] = max(gaps)
    if with_processes:
        try:
            row["usual_4_clients_per_second"] = usual_processes(chosen)
        except RuntimeError as error:
            row["usual_4_error"] = str(error)
    for variant in row.values():
        if isinstance(variant, dict):
            variant.pop("weights", None)
    return row
