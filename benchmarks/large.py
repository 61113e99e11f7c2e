"""A large model between three sites on loopback: seconds a round, and the peak memory of every machine's
processes.

Called by `network.py --model-bytes 1e9`. The model is a perceptron of square layers, the data a few random
samples, so that nearly all time and memory belong to the exchange. Memory is the sum of the resident pages
(RSS) of all processes that belong to one machine, looked at ten times a second; pages that processes share
count in each of them.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import threading
from pathlib import Path

import numpy as np
from network import Loopback, below

from unskew.data.clients.federation import Federation
from unskew.data.clients.partition import Index

WIDTH = 2048
"""Of a layer: 16.8 MB of weights."""
SITES, SAMPLES = 3, 8
MODEL = """from torch import nn


def build(shape, classes):
    layers = [nn.Flatten(), nn.Linear(shape[0], {width}), nn.ReLU()]
    for _ in range({layers}):
        layers += [nn.Linear({width}, {width}), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear({width}, classes))
"""


def federation() -> Federation:
    """Three sites with a few samples of 16 random numbers."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(SITES * SAMPLES, 16)).astype(np.float32), np.arange(SITES * SAMPLES) % 2
    rows = [np.arange(k * SAMPLES, (k + 1) * SAMPLES) for k in range(SITES)]
    none = Index.empty(SITES)
    return Federation("random", x, y, x[:0], y[:0], ("a", "b"), Index.of(rows), none, "sites")


def write_model(folder: Path, size: float) -> int:
    """A model file of about so many bytes of weights. Returns how many they are."""
    layers = max(1, round(size / (4 * WIDTH * (WIDTH + 1))))
    (folder / "large.py").write_text(MODEL.format(width=WIDTH, layers=layers))
    return 4 * (17 * WIDTH + layers * WIDTH * (WIDTH + 1) + 2 * (WIDTH + 1))


class Memory(threading.Thread):
    """Looks at the memory of groups of processes. peak: by group, the most bytes of all its processes at one
    moment.

    each: by group, the most bytes of each of its programs.
    """

    def __init__(self, groups: dict[str, list[int]]):
        """groups: the processes whose descendants belong to a group, too; more may be added."""
        super().__init__(daemon=True)
        self.groups, self.over = groups, threading.Event()
        self.peak: dict[str, int] = dict.fromkeys(groups, 0)
        self.each: dict[str, dict[str, int]] = {name: {} for name in groups}

    def run(self) -> None:
        while not self.over.wait(0.1):
            for name, pids in list(self.groups.items()):
                sizes = {p: resident(p) for pid in pids for p in below(pid)}
                self.peak[name] = max(self.peak[name], sum(sizes.values()))
                for pid, size in sizes.items():
                    program = program_of(pid)
                    self.each[name][program] = max(self.each[name].get(program, 0), size)


def resident(pid: int) -> int:
    """Bytes of a process's resident pages; 0 once it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def program_of(pid: int) -> str:
    """What a process runs, in a word or two."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except OSError:
        return "?"
    known = re.search(r"unskew\.deploy\.\w+|flower-\w+|unskew (serve|run|site)", " ".join(words))
    return known[0] if known else Path(words[0]).name


def measured(root: Path, size: float, rounds: int, programs: list) -> dict[str, object]:
    """A run of FedAvg with a model of about `size` bytes: figures in seconds, and in multiples of the model.

    programs: to which the processes that are started are added, so that the caller can stop them.
    """
    holds = write_model(root, size)
    loopback = Loopback(root, federation(), programs, "--model", "large.py:build")
    server, *sites = programs
    groups = {"coordinator": [server.pid, os.getpid()], **{f"site {k}": [p.pid] for k, p in enumerate(sites)}}
    study = {"method": "fedavg", "model": "large.py:build", "rounds": rounds, "epochs": 1, "batch": SAMPLES}
    (root / "study.yaml").write_text(json.dumps({**study, "lr": 0.01, "seed": 0, "eval_every": rounds}))
    memory = Memory({name: [pid for pid in pids if pid != os.getpid()] for name, pids in groups.items()})
    loopback.wait(lambda: (root / "site.log").read_text().count("connected to the server") == SITES)
    base = {
        name: sum(resident(p) for pid in pids for p in below(pid)) for name, pids in memory.groups.items()
    }
    memory.start()
    terms = ["--on", "lung", "--min-sites", str(SITES), "--wait", "300s", "--deadline", "1500s", "--json"]
    run = loopback.begin("run", "study.yaml", *terms, "--name", "large")
    memory.groups["coordinator"].append(run.pid)
    out, problem = run.communicate()
    memory.over.set()
    memory.join()
    if run.returncode:
        raise SystemExit(f"the run ended with code {run.returncode}: {out}{problem}")
    rows = [json.loads(line) for line in (root / "runs/large/metrics.jsonl").read_text().splitlines()]
    took = [row["value"] for row in rows if row["metric"] == "seconds"]
    per = {name: round(peak / holds, 2) for name, peak in memory.peak.items()}
    return {
        "model MB": round(holds / 1e6, 1),
        "rounds": rounds,
        "seconds a round": round(statistics.median(took), 1),
        "idle MB": {name: round(value / 1e6) for name, value in base.items()},
        "peak MB": {name: round(value / 1e6) for name, value in memory.peak.items()},
        "peak in models": per,
        "programs MB": {n: {p: round(v / 1e6) for p, v in each.items()} for n, each in memory.each.items()},
        "sha256": json.loads(out.splitlines()[-1])["sha256"],
    }
