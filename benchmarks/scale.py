"""What a round costs as a federation grows: 100 to 1,000,000 clients, always 50 at work.

Each client holds one sample of 16 numbers beside the cohort's fixed work: the 50 that train hold 20 each. Prints
seconds a round (median) and the process's memory; the cost should stay flat and memory grow with the samples only.
"""

from __future__ import annotations

import argparse
import gc
import resource
import statistics
import time

import numpy as np

from unskew.config import Settings
from unskew.core.method import Method
from unskew.data.federation import Federation
from unskew.data.index import Index
from unskew.engine.assemble import loop_of
from unskew.engine.resolve import resolve


def federation(clients: int, samples: int) -> Federation:
    rng = np.random.default_rng(0)
    n = clients * samples
    x = rng.standard_normal((n, 16), dtype=np.float32)
    y = rng.integers(0, 10, n)
    train = Index(np.arange(n), np.arange(0, n + 1, samples))
    test = Index(np.zeros(0, np.int64), np.zeros(clients + 1, np.int64))
    names = tuple(str(c) for c in range(10))
    return Federation("scale", x, y, x[:1000], y[:1000], names, train, test, "iid")


def loop(clients: int, samples: int):
    made = federation(clients, samples)
    settings = Settings(
        clients=clients, rounds=10_000, availability="sample:50", model="mlp(hidden=(256,256))", batch=8, epochs=5
    )
    return loop_of(resolve(settings, made, Method()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="*", default=[100, 10_000, 1_000_000])
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    loops = {}
    for k in options.clients:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        made = loop(k, options.samples)
        state = made.begin()
        state, _ = made.round(state, 1)
        loops[k] = (made, state, [], (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
    gc.collect()
    for t in range(2, options.rounds + 2):  # interleaved, so that a noisy machine is noisy for all
        for k, (made, state, seconds, memory) in loops.items():
            began = time.perf_counter()
            state, _ = made.round(state, t)
            seconds.append(time.perf_counter() - began)
            loops[k] = (made, state, seconds, memory)
    base = statistics.median(loops[options.clients[0]][2])
    print(f"{'clients':>10} {'s/round':>9} {'ratio':>6} {'least':>9} {'memory, MiB':>12} {'samples, MiB':>13}")
    for k, (made, _, seconds, memory) in loops.items():
        median, data = statistics.median(seconds), made.run.federation.x.nbytes / 2**20
        print(f"{k:>10,} {median:>9.4f} {median / base:>6.2f} {min(seconds):>9.4f} {memory:>12.0f} {data:>13.0f}")
        made.trainer.close()


if __name__ == "__main__":
    main()
