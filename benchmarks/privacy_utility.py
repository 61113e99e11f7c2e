"""Accuracy against epsilon: differential privacy of clients (`dp`) or of samples (`dpsgd`) beside none, by
data and method.

python benchmarks/privacy_utility.py                                   every row, two seeds
python benchmarks/privacy_utility.py --data uci_har --epsilon 8 --seeds 1
python benchmarks/privacy_utility.py --data fashion_mnist --methods rebafl --epsilon 2 --scale 0.001 0.01 0.1
--seeds 1 python benchmarks/privacy_utility.py --unit sample                     the same of samples, with
  clients of 3,000 each

Prints a line for every run and then a table for docs/privacy.md: accuracy in per cent after the last round,
mean over seeds and half their distance where there are two. UNSKEW_DATA must hold the data sets.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time

import unskew
from unskew.core.method import sums_released
from unskew.errors import UsageError
from unskew.methods import registry
from unskew.privacy.accounting import sampled_epsilon

COMMON = {
    "skew": "dirichlet:1.0",
    "model": "mlp(hidden=[32])",
    "weighting": "equal",
    "batch": 10,
    "lr": 0.1,
    "eval_every": 10,
}
STUDIES = {
    "fashion_mnist": {"clients": 1000, "availability": "poisson:0.1", "rounds": 30, "epochs": 1},
    "uci_har": {"clients": 700, "availability": "poisson:0.15", "rounds": 30, "epochs": 5},
}
"""Settings of all runs on a data set: about 100 clients a round, of 60 samples on Fashion-MNIST and 10 on
UCI-HAR."""
METHODS = ("fedavg", "rebafl", "fedrdn", "fedlc+fedprox", "rebafl+fedavgm")
APART = {
    "model": "mlp(hidden=[32])",
    "clients": 4,
    "samples": 3000,
    "rounds": 10,
    "epochs": 1,
    "batch": 100,
    "eval_every": 10,
}
LR, LR_PLAIN = 0.5, 0.1
"""Learning rates of steps with a clip, and of those without, which a rate of 0.5 harms."""
SKEWED = {"fashion_mnist": "iid", "fashion_mnist, gamma": "iid+gamma:2"}
"""Where samples are protected: four clients alike, and four whose cameras differ."""
METHODS_APART = ("fedavg", "fedrdn", "fedrdn+fedprox")
DELTA, CLIP, SUMS_NOISE = 1e-5, 1.0, 10.0
PROTECTION = "dp(epsilon={:g}, adaptive=True, clip=0.5, scale={:g})"


def method(base: str, budget: tuple[float, float], apart: bool) -> str:
    """The method with this budget (epsilon, what a unit of a Share counts); as it is where epsilon is
    infinite."""
    epsilon, scale = budget
    if math.isinf(epsilon):
        return base
    protection = _of_samples(base, epsilon) if apart else PROTECTION.format(epsilon, scale)
    return protection if base == "fedavg" else f"{base}+{protection}"


def _of_samples(base: str, epsilon: float) -> str:
    """`dpsgd` with the least noise, but for a thousandth, with which steps and statistics together cost this
    epsilon."""
    n, batch, rounds = APART["samples"], APART["batch"], APART["rounds"]
    sums = sums_released(registry.parse(base).parts, rounds)
    low, high = 0.1, 100.0
    while high > 1.001 * low:
        z = math.sqrt(low * high)
        steps = (rounds * APART["epochs"] * -(-n // batch), batch / n, z)
        low, high = (
            (low, z) if sampled_epsilon((steps, (sums, 1.0, SUMS_NOISE)), DELTA) <= epsilon else (z, high)
        )
    return f"dpsgd(clip={CLIP}, noise_multiplier={high:.5f}, sums_noise={SUMS_NOISE}, delta={DELTA})"


def accuracy(data: str, base: str, budget: tuple[float, float], seed: int, apart: bool) -> float | None:
    """In per cent; None where the method's releases cannot be protected. budget: epsilon, and what a unit of
    a Share counts.
    apart: one sample more or less is protected, not one client."""
    epsilon, scale = budget
    began = time.perf_counter()
    rate = LR_PLAIN if math.isinf(epsilon) else LR
    common = APART | {"skew": SKEWED[data], "lr": rate} if apart else COMMON | STUDIES[data]
    try:
        text = method(base, budget, apart)
        result = unskew.run(text, seed=seed, progress=False, workers=1, data=data.partition(",")[0], **common)
    except UsageError as refusal:
        print(f"{data} {base} epsilon {epsilon:g}: {refusal}", flush=True)
        return None
    score = 100 * result.record.series("global", "accuracy")[1][-1]
    took = f"{time.perf_counter() - began:.0f} s"
    print(f"{data} {text} epsilon {epsilon:g} scale {scale:g} seed {seed}: {score:.1f}, {took}", flush=True)
    return score


def cell(scores: list[float | None]) -> str:
    """Mean and half the distance of the outermost seeds, or that the method is refused."""
    known = [score for score in scores if score is not None]
    if not known:
        return "refused"
    spread = f" ± {(max(known) - min(known)) / 2:.1f}" if len(known) > 1 else ""
    return f"{statistics.mean(known):.1f}{spread}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--unit", default="client", choices=("client", "sample"), help="what is protected")
    parser.add_argument("--data", nargs="+", choices=[*STUDIES, *SKEWED])
    parser.add_argument("--epsilon", type=float, nargs="+", default=[2, 4, 8, math.inf])
    parser.add_argument("--methods", nargs="+")
    parser.add_argument(
        "--scale", type=float, nargs="+", default=[0.01], help="of what is shared beside weights"
    )
    parser.add_argument("--seeds", type=int, default=2)
    arguments = parser.parse_args()
    columns = [f"epsilon {e:g}" if math.isfinite(e) else "no noise, no clip" for e in arguments.epsilon]
    table = [f"| data | method | {' | '.join(columns)} |", "|" + "---|" * (2 + len(columns))]
    apart = arguments.unit == "sample"
    for data in arguments.data or list(SKEWED if apart else STUDIES):
        for base in arguments.methods or (METHODS_APART if apart else METHODS):
            for scale in arguments.scale:
                seeds = range(arguments.seeds)
                cells = [
                    cell([accuracy(data, base, (e, scale), s, apart) for s in seeds])
                    for e in arguments.epsilon
                ]
                name = f"{base}, scale {scale:g}" if len(arguments.scale) > 1 else base
                table.append(f"| {data} | {name} | {' | '.join(cells)} |")
    print("\n" + "\n".join(table))


if __name__ == "__main__":
    main()
