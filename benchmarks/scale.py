"""What a round costs as a federation grows: 100 to 1,000,000 clients, always as many at work.

Each client holds 20 samples of 16 numbers. Prints seconds a round (median) and the process's memory; the cost
should stay flat and memory grow with the samples only. With --method scaffold, or another one whose clients
keep state, the run is in a folder, every client has taken part before the first round that counts, and a
round's seconds include its checkpoint.
"""

from __future__ import annotations

import argparse
import gc
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from unskew.config import Settings
from unskew.data.clients.federation import Federation
from unskew.data.clients.partition import Index
from unskew.records.checkpoints import LATEST, State
from unskew.round.loop import Loop
from unskew.round.run import Run
from unskew.runs.assemble import loop_of
from unskew.runs.resolve import method_of, resolve
from unskew.runs.run_folder import RunFolder


@dataclass
class Growing:
    """One federation while it is timed. saving_s: of each round's seconds, those of its checkpoint."""

    run: Run
    loop: Loop
    state: State
    save: Callable[[Loop, State], None]
    file: Path | None = None
    memory: float = 0.0
    rounds_s: list[float] = field(default_factory=list)
    saving_s: list[float] = field(default_factory=list)

    def round(self) -> None:
        began = time.perf_counter()
        self.state, _ = self.loop.round(self.state, self.state.t + 1)
        trained = time.perf_counter()
        self.save(self.loop, self.state)
        ended = time.perf_counter()
        self.rounds_s.append(ended - began)
        self.saving_s.append(ended - trained)


def federation(clients: int, samples: int) -> Federation:
    rng = np.random.default_rng(0)
    n = clients * samples
    x = rng.standard_normal((n, 16), dtype=np.float32)
    y = rng.integers(0, 10, n)
    train = Index(np.arange(n), np.arange(0, n + 1, samples))
    test = Index(np.zeros(0, np.int64), np.zeros(clients + 1, np.int64))
    names = tuple(str(c) for c in range(10))
    return Federation("scale", x, y, x[:1000], y[:1000], names, train, test, "iid")


def run_of(clients: int, options: argparse.Namespace) -> Run:
    settings = Settings(
        method=options.method, clients=clients, rounds=1_000_000, availability=f"sample:{options.cohort}",
        model=options.model, batch=8, epochs=5,
    )  # fmt: skip
    return resolve(settings, federation(clients, options.samples), method_of(settings))


def in_memory(clients: int, options: argparse.Namespace) -> Growing:
    run = run_of(clients, options)
    loop = loop_of(run)
    return Growing(run, loop, loop.begin(), lambda loop, state: None)


def on_disk(clients: int, options: argparse.Namespace, path: Path) -> Growing:
    """A run in which every client has state already, as many in a round's file as are at work in a round."""
    run = run_of(clients, options)
    path.mkdir()
    RunFolder.saved_every_s = 0.0  # a checkpoint in every round, as where rounds take longer
    folder = RunFolder(path, run)
    loop = folder.opened(None)
    state, _ = loop.round(loop.begin(), 1)
    trees = loop.store.fetch(range(clients))
    if not trees:
        raise SystemExit(
            f"clients of {options.method} keep no state, so that nothing of theirs is on the disk."
        )
    like, t = next(iter(trees.values())), 1
    for start in range(0, clients, options.cohort):
        t += 1
        loop.store.put(t, dict.fromkeys(range(start, min(clients, start + options.cohort)), like))
    state = State(t, state.weights, state.slices)
    folder.save(loop, state)
    return Growing(run, loop, state, folder.save, path / LATEST)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="*", default=[100, 10_000, 1_000_000])
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--method", default="fedavg")
    parser.add_argument("--cohort", type=int, default=50, help="clients at work in a round (default: 50)")
    parser.add_argument("--model", default="mlp(hidden=(256,256))")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        timed: dict[int, Growing] = {}
        for k in options.clients:
            before = peak()
            stateless = options.method == "fedavg"
            timed[k] = in_memory(k, options) if stateless else on_disk(k, options, Path(scratch) / str(k))
            timed[k].round()
            timed[k].rounds_s.clear(), timed[k].saving_s.clear()
            timed[k].memory = peak() - before
        gc.collect()
        os.sync()  # what the preparation wrote must not be written out during the rounds that count
        before = peak()
        for _ in range(options.rounds):  # interleaved, so that a noisy machine is noisy for all
            for growing in timed.values():
                growing.round()
        show(timed)
        print(
            f"the {options.rounds} rounds of each added {peak() - before:.0f} MiB to the process's highest"
            " memory"
        )


def peak() -> float:
    """The process's highest memory so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def show(timed: dict[int, Growing]) -> None:
    base = statistics.median(next(iter(timed.values())).rounds_s)
    print(
        f"{'clients':>10} {'s/round':>9} {'ratio':>6} {'least':>9} {'of it saving':>13}"
        f" {'checkpoint, KiB':>16}",
        end=" ",
    )
    print(f"{'memory, MiB':>12} {'samples, MiB':>13}")
    for k, growing in timed.items():
        median, data = statistics.median(growing.rounds_s), growing.run.federation.x.nbytes / 2**20
        size = growing.file.stat().st_size / 1024 if growing.file else 0
        print(f"{k:>10,} {median:>9.4f} {median / base:>6.2f} {min(growing.rounds_s):>9.4f}", end=" ")
        print(
            f"{statistics.median(growing.saving_s):>13.4f} {size:>16.1f} {growing.memory:>12.0f}"
            f" {data:>13.0f}"
        )
        growing.loop.trainer.close()
        with suppress(AttributeError):  # a store in memory has nothing to close
            growing.loop.store.close()  # pyright: ignore[reportAttributeAccessIssue]


if __name__ == "__main__":
    main()
