"""DP-FedAvg of pfl-research beside `dp` at equal epsilon, on pfl's own CIFAR-10 setting: accuracy, noise, the
processor's seconds a round.

    python benchmarks/dp_beside_pfl.py --python-pfl pfl-venv/bin/python --rounds 60 --cohort 20 --seeds 2
    --out dp-pfl.json

Needs cifar10.npz in UNSKEW_DATA, the extra [dp], and pfl 0.6 in a virtual environment of its own
(benchmarks/README.md). Both get the same users, the same initial weights (to the bit), network, rates and
clip, and solve for their own noise with their own accountant at the same epsilon, delta, rounds and
probability of being asked. What differs: pfl asks as many users in every round, drawn with replacement, and
accounts as if each was drawn by itself; `dp` asks each with that probability. pfl does not shuffle a user's
samples. The setting's epsilon is that of noise for 1,000 of 1,000,000 users a round: the users that are there
stand for them, and have no such guarantee themselves. `dp` never makes that claim; a Part here does so for
it.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge
from dp_work import Arrays, Work, initial, write

import unskew
from unskew.core import Fed
from unskew.core.method import Method
from unskew.data import registry as sets
from unskew.data.clients.federation import Federation
from unskew.data.clients.partition import Index
from unskew.methods import registry
from unskew.privacy.accounting import epsilon_after, noise_for, round_up
from unskew.privacy.dp import DP, expected_clients


@dataclass(frozen=True)
class Standing(DP):
    """`dp` with a cohort that stands for a larger one of a larger population, as pfl's `noise_cohort_size`
    has it."""

    cohort: Annotated[int, Ge(1), "clients of a round for which noise is added"] = 1000
    population: Annotated[int, Ge(1), "clients of which they are drawn"] = 1_000_000

    def solved(self, fed: Fed) -> float:
        """z of the large cohort."""
        return noise_for(self.epsilon, fed.rounds, self.cohort / self.population, self.delta)

    def multiplier(self, fed: Fed) -> float:
        return self.solved(fed) * expected_clients(fed) / self.cohort

    def spent(self, fed: Fed, t: int) -> float:
        return round_up(epsilon_after(t, self.cohort / self.population, self.solved(fed), self.delta))


def arrays(work: Work) -> Arrays:
    """CIFAR-10, scaled to mean 0 and deviation 1 by channel, and dealt out at random."""
    data = sets.read("cifar10").with_constants().standardised()
    rows = np.random.default_rng(work.seed).permutation(len(data.y))[: work.users * work.samples]
    x, y = (
        data.x[rows].reshape(work.users, work.samples, 3, 32, 32),
        data.y[rows].reshape(work.users, work.samples),
    )
    return Arrays(x, y, data.x_test, data.y_test)


def federation(work: Work, given: Arrays) -> Federation:
    rows = np.arange(work.users * work.samples).reshape(work.users, work.samples)
    return Federation(
        name="cifar10",
        x=given.x.reshape(-1, 3, 32, 32),
        y=given.y.reshape(-1),
        x_test=given.x_test,
        y_test=given.y_test,
        classes=tuple(map(str, range(10))),
        train=Index.of(list(rows)),
        test=Index.of([*[np.zeros(0, np.int64)] * (work.users - 1), np.arange(len(given.y_test))]),
        skew="iid",
    )


def ours(work: Work, given: Arrays, beside: str, adaptive: bool, threads: int) -> dict[str, Any]:
    """`dp` and the Parts beside it."""
    dp = Standing(
        epsilon=work.epsilon, delta=work.delta, clip=work.clip, adaptive=adaptive, cohort=work.noise_cohort,
        population=work.population,
    )  # fmt: skip
    method = Method(*(registry.parse(beside).parts if beside else ()), dp)
    ends: list[float] = []
    result = unskew.run(
        method,
        federation(work, given),
        model=initial(work.seed),
        rounds=work.rounds,
        availability=f"poisson:{work.cohort / work.users:g}",
        epochs=1,
        batch=work.batch,
        lr=work.learning_rate,
        normalise="none",
        eval_every=work.every,
        seed=work.seed,
        workers=threads,
        progress=False,
        shown=lambda state, told: ends.append(time.process_time()),
    )
    rounds, accuracy = result.record.series("global", "accuracy")
    spent = result.record.series("privacy", "epsilon")[1][-1]
    seconds = statistics.median(b - a for t, (a, b) in enumerate(pairwise(ends), 2) if t not in rounds)
    noise = dp.solved(result.run.fed)
    return {"noise": noise, "epsilon": spent, "accuracy": list(zip(rounds, accuracy)), "seconds": seconds}


def theirs(work: Work, given: Arrays, python: str, threads: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        write(work, given, Path(folder))
        program = Path(__file__).with_name("dp_pfl.py")
        told = subprocess.run(
            [python, program, folder, str(threads)], check=True, stdout=subprocess.PIPE, text=True
        )
    result = json.loads(told.stdout.strip().splitlines()[-1])
    q = work.noise_cohort / work.population
    return {**result, "epsilon": round_up(epsilon_after(work.rounds, q, result["noise"], work.delta))}


PROGRAMS: dict[str, Callable[..., dict[str, Any]]] = {
    "pfl": theirs,
    "dp": lambda work, given, _, threads: ours(work, given, "", False, threads),
    "dp, adaptive clip": lambda work, given, _, threads: ours(work, given, "", True, threads),
    "fedavgm+dp": lambda work, given, _, threads: ours(work, given, "fedavgm(beta=0.9)", False, threads),
}


def table(results: dict[str, list[dict[str, Any]]]) -> str:
    """Markdown: a line for each program; accuracy of the last round, mean and half the distance of the
    outermost seeds."""
    lines = [
        "| program | noise, times the clip | epsilon | accuracy, % | processor's seconds a round |",
        "|---|---|---|---|---|",
    ]
    for program, seeds in results.items():
        scores = [100 * told["accuracy"][-1][1] for told in seeds]
        spread = f" ± {(max(scores) - min(scores)) / 2:.1f}" if len(scores) > 1 else ""
        seconds = statistics.median(told["seconds"] for told in seeds)
        noise, epsilon = seeds[0]["noise"], seeds[0]["epsilon"]
        lines.append(
            f"| {program} | {noise:.4f} | {epsilon:.3f} | {statistics.mean(scores):.1f}{spread} |"
            f" {seconds:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python-pfl", default=sys.executable, help="python of an environment with pfl")
    parser.add_argument("--rounds", type=int, default=1500)
    parser.add_argument("--cohort", type=int, default=50)
    parser.add_argument("--every", type=int, default=10, help="rounds from one evaluation to the next")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="of each program")
    parser.add_argument("--programs", nargs="+", default=list(PROGRAMS), choices=list(PROGRAMS))
    parser.add_argument("--out", type=Path, help="a JSON file")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    results: dict[str, list[dict[str, Any]]] = {program: [] for program in options.programs}
    for seed in range(options.seeds):
        work = Work(rounds=options.rounds, cohort=options.cohort, every=options.every, seed=seed)
        given = arrays(work)
        for program, told in results.items():
            told.append(PROGRAMS[program](work, given, options.python_pfl, options.threads))
            print(f"seed {seed} {program}: {told[-1]}", flush=True)
            if options.out:
                machine = {
                    "python": platform.python_version(),
                    "torch": torch.__version__,
                    "threads": options.threads,
                }
                facts = {"work": asdict(work), "machine": machine, "results": results}
                options.out.write_text(json.dumps(facts, indent=1) + "\n")
    print("\n" + table(results))


if __name__ == "__main__":
    main()
