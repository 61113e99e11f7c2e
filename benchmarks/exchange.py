"""What an exchange of a small model costs beside training, over unskew and over plain Flower, one after the
other.

Called by `network.py --exchange`. Both have three sites on loopback with the same data, model and local
training: a dense network of 407 KB, one epoch of 64 random samples. unskew runs as always: TLS, the front,
signatures, journals, clipping. Flower's SuperLink, three SuperNodes and an app with its `FedAvg` run without
TLS and without checks of keys, which is its fastest form, and with its own settings of how often it asks.

Seconds of a round are those from the end of one round to the end of the next, merge and checkpoint included;
the median counts. Training is the slowest site's in Flower's app; for unskew it is a third of a round of the
same clients in one process, which trains them one after the other. The exchange is what is left. Flower
starts a process for every message, whose first step of training imports more of torch; that is training here,
as the app measures it.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
from large import program_of
from network import Loopback, below, stop

import unskew
from unskew.data.clients.federation import Federation
from unskew.data.clients.partition import Index
from unskew.federation.programs import BIN, environment
from unskew.federation.protocol.study_rules import CLIP

SITES, SAMPLES = 3, 64
STUDY = {"model": "mlp", "batch": 32, "lr": 0.01, "epochs": 1, "seed": 0}
PLAIN = Path(__file__).parent / "plain_flower"
IDLE_S = 20.0
"""How long waiting programs are watched."""
Figures = dict[str, float]


def free_port() -> int:
    """A port on loopback that nothing uses now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def federation() -> Federation:
    """Three sites with random images of 28 x 28."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(SITES * SAMPLES, 1, 28, 28)).astype(np.float32)
    y, none = np.arange(SITES * SAMPLES) % 10, Index.empty(SITES)
    rows = [np.arange(k * SAMPLES, (k + 1) * SAMPLES) for k in range(SITES)]
    return Federation("random", x, y, x[:0], y[:0], tuple("abcdefghij"), Index.of(rows), none, "sites")


def measured(root: Path, rounds: int, programs: list[subprocess.Popen]) -> dict[str, object]:
    """Figures of both, and how many times as long plain Flower's exchange takes.

    programs: to which those that are started are added, so that the caller can stop them.
    """
    ours = _of_unskew(root, rounds, programs)
    print(json.dumps(ours), flush=True)
    stop(programs)
    programs.clear()
    theirs = _of_flower(root, rounds, programs)
    ratio = round(theirs["seconds of exchange"] / ours["seconds of exchange"], 1)
    return {"rounds": rounds, "unskew": ours, "flower": theirs, "ratio": ratio}


def _of_unskew(root: Path, rounds: int, programs: list[subprocess.Popen]) -> Figures:
    loopback = Loopback(root, federation(), programs)
    study = {**STUDY, "method": "fedavg", "rounds": rounds, "eval_every": rounds}
    (root / "study.yaml").write_text(json.dumps(study))
    loopback.wait(lambda: (root / "site.log").read_text().count("connected to the server") == SITES)
    idle = _cores_used(programs)
    load, began = os.getloadavg()[0], time.monotonic()
    terms = ["--on", "lung", "--min-sites", str(SITES), "--wait", "300s", "--deadline", "120s"]
    run = loopback.begin("run", "study.yaml", *terms, "--name", "small")
    ends = _ends_of_rounds(root / "runs/small/server.log", run)
    out, problem = run.communicate()
    whole = time.monotonic() - began
    if run.returncode:
        raise SystemExit(f"the run ended with code {run.returncode}: {out}{problem}")
    alone: list[float] = []
    options = {**STUDY, "rounds": rounds, "eval_every": rounds, "lanes": "1", "workers": 1}
    unskew.run(
        f"fedavg+{CLIP}", federation(), clients=SITES, **options, shown=lambda _, r: alone.append(r.seconds)
    )
    return _figures(ends, [seconds / SITES for seconds in alone], whole, idle) | {
        "load before": round(load, 1)
    }


def _ends_of_rounds(log: Path, run: subprocess.Popen[str]) -> list[float]:
    """When each round's line came into a run's log, until the run has ended."""
    ends: list[float] = []
    while run.poll() is None:
        lines = log.read_text().count(f"/{SITES} sites, ") if log.exists() else 0
        ends += [time.monotonic()] * (lines - len(ends))
        time.sleep(0.02)
    return ends


def _of_flower(root: Path, rounds: int, programs: list[subprocess.Popen]) -> Figures:
    env, place, results = environment(root / "flwr"), f"127.0.0.1:{free_port()}", root / "flower.json"
    (root / "flwr/config.toml").write_text(f'[superlink.plain]\naddress = "{place}"\ninsecure = true\n')
    port = place.rpartition(":")[2]
    with open(root / "flower.log", "ab") as log:

        def start(*command: str) -> None:
            programs.append(subprocess.Popen(command, cwd=root, env=env, stdout=log, stderr=log))

        start(
            str(BIN / "flower-superlink"), "--insecure", "--port", port, "--database", str(root / "plain.db")
        )
        for k in range(SITES):
            node = [
                "--superlink",
                place,
                "--port",
                str(free_port()),
                "--node-config",
                f'data="{root}/s{k}.npz"',
            ]
            start(str(BIN / "flower-supernode"), "--insecure", *node)
    time.sleep(IDLE_S)  # until all are there
    idle = _cores_used(programs)
    settings = f'rounds={rounds} results="{results}" batch={STUDY["batch"]} lr={STUDY["lr"]}'
    load, began = os.getloadavg()[0], time.monotonic()
    command = [BIN / "flwr", "run", PLAIN, "plain", "--run-config", settings, "--stream"]
    done = subprocess.run(
        command, cwd=root, env=env, capture_output=True, text=True, timeout=60 + 60 * rounds
    )
    whole = time.monotonic() - began
    if not results.exists():
        raise SystemExit(f"plain Flower's run failed: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    told = json.loads(results.read_text())
    if any(one["sites"] != SITES for one in told):
        raise SystemExit(f"plain Flower lost a site: {told}")
    figures = _figures([one["end"] for one in told], [one["training"] for one in told], whole, idle)
    return figures | {"load before": round(load, 1)}


def _figures(ends: list[float], training: list[float], whole: float, idle: Figures) -> Figures:
    """ends: of each round; training: in each round; whole: seconds of the command. All but `idle` in
    seconds."""
    a_round = statistics.median(after - before for before, after in pairwise(ends))
    trained = statistics.median(training[1:])
    return {
        "seconds of a round": round(a_round, 3),
        "seconds of training": round(trained, 3),
        "seconds of exchange": round(a_round - trained, 3),
        "slowest round": round(max(after - before for before, after in pairwise(ends)), 3),
        "seconds of the command": round(whole, 1),
        **{f"% of a core while idle: {program}": round(100 * share, 1) for program, share in idle.items()},
    }


def _cores_used(programs: list[subprocess.Popen]) -> Figures:
    """How much of a core the processes of these programs use now, by what they run."""
    pids = {pid for program in programs for pid in below(program.pid)}
    before = {pid: _cpu_s(pid) for pid in pids}
    time.sleep(IDLE_S)
    used: Figures = {}
    for pid in pids:
        name = program_of(pid)
        used[name] = used.get(name, 0.0) + (_cpu_s(pid) - before[pid]) / IDLE_S
    return used


def _cpu_s(pid: int) -> float:
    """CPU seconds of a process so far; 0 once it has ended."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
