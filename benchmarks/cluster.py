"""What Ray costs beside the work: a round of one run and a run of a comparison, here and on a cluster of this
machine.

python benchmarks/cluster.py [TURNS]    prints one line of JSON for each measurement; needs `pip install
'unskew[ray]'`

A head is started with eight cores, however many there are, so that eight workers share the real ones; it
listens on loopback alone. It is asked as by one of its nodes (ray:HOST:PORT) and as by a machine outside
(ray://HOST:PORT). Every measurement is a process of its own; ways take turns. Work is next to nothing, so
that what is left is what Ray costs.

A round: the median of a run's column `seconds`, without the first round, in which processes start. A run: the
seconds of a comparison of MORE runs less those of one of FEW, by the number of runs between them; what starts
once is in both. Of all turns the fastest counts, because other work on the machine only ever adds.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CORES, ROUNDS, FEW, MORE = 8, 40, 4, 20
TINY: dict[str, Any] = {
    "skew": "iid",
    "clients": 8,
    "samples": 16,
    "model": "mlp(hidden=[8])",
    "epochs": 1,
    "eval_every": 1000,
}
WORK: dict[str, dict[str, Any]] = {
    "3 KB of weights": {**TINY, "lanes": "2"},
    "4.5 MB of weights": {**TINY, "lanes": "2", "model": "mlp(hidden=[1024,1024])"},
}
"""Settings of what is trained; with lanes=2, the smallest groups in which clients train side by side."""


def rounds(on: str, work: str, count: int) -> float:
    """Seconds of a round, the median of all but the first of `count`."""
    from unskew.comparison.cluster import parse
    from unskew.comparison.ray_clients import train_clients_on
    from unskew.config import build
    from unskew.round.loop import remaining_rounds
    from unskew.runs.assemble import loop_of
    from unskew.runs.resolve import resolve

    run = resolve(build({"rounds": count, **WORK[work]}))
    cluster = parse(on)
    loop, taken = loop_of(train_clients_on(run, cluster) if cluster else run), []
    try:
        for _ in remaining_rounds(loop, loop.begin(), lambda _, summary: taken.append(summary.seconds)):
            pass
    finally:
        loop.trainer.close()
    return statistics.median(taken[1:])


def runs(on: str, processes: int, count: int) -> float:
    """Seconds of a comparison of so many runs of two rounds, with what starts."""
    import unskew

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        began = time.perf_counter()
        options: dict[str, Any] = {**TINY, "rounds": 2, "progress": False}
        unskew.compare(["fedavg"], seeds=count, references=False, on=on, processes=processes, **options)
        return time.perf_counter() - began


def alone(*words: Any) -> float:
    """What this file prints in a process of its own that is told these words."""
    command = [sys.executable, __file__, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{words}: {done.stderr}")
    return float(done.stdout.splitlines()[-1])


@contextlib.contextmanager
def head() -> Iterator[tuple[str, str]]:
    """`--on` for a node of a cluster that is started here, and for a machine outside of it."""
    from unskew.federation.addresses import free_port

    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # as on a Mac, where Ray listens on loopback alone
    port, client_port = free_port(), free_port()
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        process = subprocess.Popen(
            [
                str(Path(sys.executable).with_name("ray")),
                "start",
                "--head",
                "--block",
                "--port",
                str(port),
                "--ray-client-server-port",
                str(client_port),
                "--num-cpus",
                str(CORES),
                "--temp-dir",
                folder,
                "--object-store-memory",
                str(256 << 20),
                "--include-dashboard",
                "false",
                "--disable-usage-stats",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            assert process.stdout
            assert any("Ray runtime started" in line for line in process.stdout)
            yield f"ray:127.0.0.1:{port}", f"ray://127.0.0.1:{client_port}"
        finally:
            process.terminate()
            process.wait()


def of_rounds(work: str, turns: int, on: tuple[str, str]) -> dict[str, Any]:
    """Seconds of a round on this machine's threads, and how much longer it takes on actors."""
    node, outside = on
    ways = {
        "threads here": "here",
        f"{CORES} actors of one core": node,
        "one actor of all cores": f"{node},cpus={CORES}",
        f"{CORES} actors, ray://": outside,
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(turns):
        for name, where in ways.items():
            taken[name].append(alone("rounds", where, work, ROUNDS))
    fastest = {name: min(t) for name, t in taken.items()}
    here, *others = fastest
    more = {f"more, {name}": round(fastest[name] - fastest[here], 4) for name in others}
    return {"round of": work, f"seconds, {here}": round(fastest[here], 4), **more}


def of_runs(turns: int, on: tuple[str, str]) -> dict[str, Any]:
    """Seconds that one more run of a comparison takes, and those before the first, by who trains them."""
    from unskew.runs.hardware import core_count

    node, outside = on
    ways = {
        "one process here": ("here", 1),
        f"{core_count()} processes here": ("here", core_count()),
        "one worker of two cores": (f"{node},cpus=2", 1),
        "one worker of two cores, ray://": (f"{outside},cpus=2", 1),
        f"{CORES} workers of one core": (node, CORES),
    }
    line: dict[str, Any] = {"runs": [FEW, MORE]}
    taken: dict[str, list[list[float]]] = {name: [] for name in ways}
    for _ in range(turns):
        for name, way in ways.items():
            taken[name].append([alone("runs", *way, count) for count in (FEW, MORE)])
    for name, pairs in taken.items():
        few, more = (min(pair[k] for pair in pairs) for k in (0, 1))
        one = (more - few) / (MORE - FEW)
        line[name] = {"seconds a run": round(one, 3), "before the first": round(few - FEW * one, 1)}
    return line


def main() -> None:
    import ray

    from unskew.runs.hardware import core_count

    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    facts = {"cores": core_count(), "load": os.getloadavg()[0], "turns": turns, "ray": ray.__version__}
    print(json.dumps(facts), flush=True)
    with head() as on:
        for work in WORK:
            print(json.dumps(of_rounds(work, turns, on)), flush=True)
        print(json.dumps(of_runs(turns, on)), flush=True)
    print(json.dumps({"load": os.getloadavg()[0]}), flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["rounds", on, work, count]:
            print(rounds(on, work, int(count)))
        case ["runs", on, processes, count]:
            print(runs(on, int(processes), int(count)))
        case _:
            main()
