"""Accuracy against epsilon: client-level differential privacy (`dp`) on Fashion-MNIST among 2,000 clients.

python benchmarks/privacy_utility.py                      every row
python benchmarks/privacy_utility.py --epsilon 8 --seeds 1

Each row is trained once a seed and printed as a line of docs/privacy.md's table. UNSKEW_DATA must hold Fashion-MNIST.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time

import unskew

STUDY = {
    "data": "fashion_mnist",
    "skew": "dirichlet:1.0",
    "clients": 2000,
    "availability": "poisson:0.1",
    "rounds": 50,
    "epochs": 1,
    "batch": 10,
    "lr": 0.1,
    "model": "mlp",
    "eval_every": 5,
    "weighting": "equal",
}
"""Settings of every row; about 200 clients of 30 samples a round."""


def method(base: str, epsilon: float) -> str:
    """The method with this budget; as it is where that is infinite."""
    protection = f"dp(epsilon={epsilon:g}, adaptive=True, clip=0.5, scale=0.01)"
    parts = [part for part in (base, protection if math.isfinite(epsilon) else "") if part]
    return "+".join(part for part in parts if part != "fedavg" or len(parts) == 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[2, 4, 8, math.inf])
    parser.add_argument("--methods", nargs="+", default=["fedavg", "rebafl"])
    parser.add_argument("--seeds", type=int, default=1)
    arguments = parser.parse_args()
    for base in arguments.methods:
        for epsilon in arguments.epsilon:
            began, scores = time.perf_counter(), []
            for seed in range(arguments.seeds):
                result = unskew.run(method(base, epsilon), seed=seed, progress=False, **STUDY)
                scores.append(100 * result.record.series("global", "accuracy")[1][-1])
            told = "infinite" if math.isinf(epsilon) else f"{epsilon:g}"
            spread = f" +- {statistics.stdev(scores):.1f}" if len(scores) > 1 else ""
            took = f"{time.perf_counter() - began:.0f} s"
            print(f"| {base} | {told} | {statistics.mean(scores):.1f}{spread} | {len(scores)} | {took} |", flush=True)


if __name__ == "__main__":
    main()
