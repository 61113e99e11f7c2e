"""What a round costs beside training and scoring: the record, the gate, the merge and the checkpoints.

    python benchmarks/rounds.py --rounds 10000

A run in a folder with one step a client. Clients train and models are scored on a thread of their own, so the
processor time of the main thread is everything else. Printed for each tenth of the run, because a cost that
grows with the rounds before would show there; then the run's files, and the time and size of its report.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import unskew


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--eval-every", type=int, default=100)
    parser.add_argument("--method", default="fedavg")
    asked = parser.parse_args()
    marks: list[tuple[int, float, float]] = []

    def shown(state: unskew.records.checkpoints.State, summary: object) -> None:
        if state.t == 1 or state.t % max(1, asked.rounds // 10) == 0:
            marks.append((state.t, time.thread_time(), time.perf_counter()))

    with tempfile.TemporaryDirectory() as folder:
        unskew.run(
            asked.method, "digits", model="mlp", clients=asked.clients, samples=16, batch=16, epochs=1,
            rounds=asked.rounds, eval_every=asked.eval_every, workers=1, folder=folder, name="r", shown=shown,
        )  # fmt: skip
        for (t0, cpu0, wall0), (t1, cpu1, wall1) in pairwise(marks):
            cpu, wall = (1e3 * (b - a) / (t1 - t0) for a, b in ((cpu0, cpu1), (wall0, wall1)))
            print(f"rounds {t0 + 1} to {t1}: {cpu:.2f} ms of the processor a round, {wall:.2f} ms in all")
        path = Path(folder) / "r"
        sizes = {file.name: file.stat().st_size for file in path.iterdir()}
        print(", ".join(f"{name} {size:,} bytes" for name, size in sorted(sizes.items()) if size > 10_000))
        began = time.process_time()
        size = unskew.load(path).report().stat().st_size
        print(f"report: {time.process_time() - began:.1f} s of the processor, {size:,} bytes")


if __name__ == "__main__":
    main()
