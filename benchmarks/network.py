"""Real processes on loopback: whether each method ends with the simulator's weights, and what an exchange
costs.

    python network.py --data uci_har --methods fedavg scaffold flea
    python network.py --exchange --rounds 8
    python network.py --model-bytes 1e9 --rounds 2

Our own commands start a coordinator, Flower's SuperLink and one site for each part of a real data set, with
TLS and authentication enabled. Every method runs over them and in one process; at the end every program is
stopped. Prints both SHA-256 of the weights, the seconds of the whole command for each exchange, the median
seconds of a round after the first (with `--samples 8` nearly all of it is the exchange), the bytes of a round
beside its payload, and every connection that left loopback. Needs the extra [flower] and the data set in
UNSKEW_DATA.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np

import unskew
from unskew.config import Settings
from unskew.data.clients.federation import Federation
from unskew.data.clients.partition import Index
from unskew.federation.protocol.study_rules import CLIP
from unskew.runs.resolve import dataset_of

STUDIES = {
    "uci_har": ("uci_har", "subject", 3, {"model": "harnet", "batch": 32, "lr": 0.01}),
    "office_caltech10": (
        "office_caltech10(size=64)",
        "domain",
        4,
        {"model": "cnn_small", "batch": 32, "lr": 0.01},
    ),
}
METHODS = {
    "uci_har": [
        "fedavg",
        "scaffold",
        "flea",
        "rebafl",
        "fedrdn",
    ],  # ccvr: 8,448 features, 1.7 GB of covariances a site
    "office_caltech10": ["fedavg", "scaffold", "flea", "rebafl", "fedrdn", "ccvr", "feddpms(alpha=20)"],
}


def dealt(data: str, column: str, sites: int, samples: int) -> Federation:
    """Sites by a column of the data, whose values they take in turn; each gets at most `samples` training
    samples."""
    dataset = dataset_of(Settings(data=data))
    groups = np.unique(dataset.columns[column], return_inverse=True)[1] % sites
    rows = [
        np.flatnonzero(groups == k)[:: max(1, int((groups == k).sum()) // samples)][:samples]
        for k in range(sites)
    ]
    tests = [np.arange(k, len(dataset.y_test), sites)[:200] for k in range(sites)]
    inputs = (dataset.x, dataset.y, dataset.x_test, dataset.y_test)
    return Federation(data, *inputs, dataset.classes, Index.of(rows), Index.of(tests), f"column:{column}")


def below(pid: int) -> list[int]:
    """The ids of a process and of all it has started."""
    children = defaultdict(list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            children[int(stat.read_text().rpartition(")")[2].split()[1])].append(int(stat.parent.name))
        except OSError:
            continue
    pids = [pid]
    for one in pids:
        pids += children[one]
    return pids


class Lookout(threading.Thread):
    """Looks at the TCP connections of this process and all it has started, twice a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.looks, self.inside, self.outside, self.over = 0, 0, set(), threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.5):
            own = self._sockets()
            self.looks += 1
            for kind in ("tcp", "tcp6"):
                for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]:
                    words = line.split()
                    if words[9] in own and words[3] != "0A":  # 0A: only listens
                        where = _address(words[2].split(":")[0])
                        if where.startswith(("127.", "::1", "::ffff:127.")):
                            self.inside += 1
                        else:
                            self.outside.add(where)

    @staticmethod
    def _sockets() -> set[str]:
        sockets = set()
        for pid in below(os.getpid()):
            for fd in Path(f"/proc/{pid}/fd").glob("*"):
                try:
                    name = os.readlink(fd)
                except OSError:
                    continue
                if name.startswith("socket:["):
                    sockets.add(name[8:-1])
        return sockets


def _address(text: str) -> str:
    raw = b"".join(bytes.fromhex(text[i : i + 8])[::-1] for i in range(0, len(text), 8))
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)


class Loopback:
    """A coordinator and its sites, each in a folder under `root`."""

    def __init__(self, root: Path, federation: Federation, programs: list[subprocess.Popen], *options: str):
        """options: further ones of every `unskew site run`."""
        self.root, self.sites, self.programs = root, [f"s{k}" for k in range(federation.clients)], programs
        with socket.socket() as door:
            door.bind(("127.0.0.1", 0))
            port = door.getsockname()[1]
        self.do("federation", "init", "lung", "--host", f"127.0.0.1:{port}", "--sites", ",".join(self.sites))
        for k, site in enumerate(self.sites):
            train, test = federation.train[k], federation.test[k]
            arrays = {"x_train": federation.x[train], "y_train": federation.y[train]}
            arrays |= {"x_test": federation.x_test[test], "y_test": federation.y_test[test]}
            np.savez(root / f"{site}.npz", **arrays, classes=np.array(federation.classes))
            self.do("join", f"federations/lung/tickets/{site}.ticket", "--folder", f"site-{site}")
            self.do("federation", "admit", "lung", "--compared", f"site-{site}/{site}.pub")
        self.start("serve", "lung")
        self.wait(lambda: (root / "serve.log").read_text().count("is admitted") == len(self.sites))
        for site in self.sites:
            self.start(
                "site",
                "run",
                "--data",
                f"{site}.npz",
                "--folder",
                f"site-{site}",
                "--approve",
                "all",
                *options,
            )

    def do(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "unskew", *arguments], cwd=self.root, capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(f"unskew {' '.join(arguments)}: {done.stdout}{done.stderr}")
        return done.stdout

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        """A command whose output the caller reads."""
        command = [sys.executable, "-m", "unskew", *arguments]
        return subprocess.Popen(
            command, cwd=self.root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def start(self, *arguments: str) -> None:
        with open(self.root / f"{arguments[0]}.log", "ab") as log:
            command = [sys.executable, "-m", "unskew", *arguments]
            self.programs.append(subprocess.Popen(command, cwd=self.root, stdout=log, stderr=log))

    def wait(self, there) -> None:
        end = time.monotonic() + 120
        while not there():
            if time.monotonic() > end:
                raise SystemExit(f"the server did not come up; see {self.root}/serve.log")
            time.sleep(0.3)


def stop(programs: list[subprocess.Popen]) -> None:
    pids = [pid for program in programs for pid in below(program.pid)]
    for program in programs:
        program.send_signal(signal.SIGTERM)
    for program in programs:
        try:
            program.wait(25)
        except subprocess.TimeoutExpired:
            program.kill()
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def cost(run: Path, seconds: float) -> dict[str, float]:
    """What a finished run has cost, from its journal and ledger."""
    notes = [json.loads(line) for line in (run / "audit.jsonl").read_text().splitlines()]
    sent = [e for e in notes if e["what"] in ("asked", "answered")]
    exchanges = {(e["kind"], e["t"]) for e in sent}
    ledger = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
    rounds = next(e["rounds"] for e in reversed(notes) if e["what"] == "done")
    payload = sum(
        sum(r["bytes"]) if isinstance(r["bytes"], list) else r["bytes"] * len(r["clients"]) for r in ledger
    )
    trains = sorted(e["t"] for e in notes if e["what"] == "asked" and e["kind"] == "train")
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    took = [row["value"] for row in metrics if row["metric"] == "seconds" and row["t"] > 1]
    return {
        "seconds": round(seconds, 1),
        "exchanges": len(exchanges),
        "seconds an exchange": round(seconds / len(exchanges), 2),
        "rounds": len(set(trains)),
        "seconds a round": round(float(np.median(took)), 2),
        "KB a round": round(sum(e["bytes"] for e in sent) / rounds / 1000, 1),
        "payload KB a round": round(payload / rounds / 1000, 1),
    }


def told(measured: Callable[[Path, list[subprocess.Popen]], dict[str, object]], out: Path | None) -> None:
    """Print the figures that this measures in a folder, and write them to `out`. What it has started is
    stopped."""
    programs: list[subprocess.Popen] = []
    root = Path(tempfile.mkdtemp(prefix="unskew-network-"))
    try:
        figures = measured(root, programs)
    finally:
        stop(programs)
    print(json.dumps(figures, indent=1))
    if out:
        out.write_text(json.dumps(figures, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", choices=list(STUDIES), default="uci_har")
    parser.add_argument("--methods", nargs="+", default=[])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=100, help="of each site, at most")
    parser.add_argument(
        "--model-bytes", type=float, help="instead: seconds and memory with a model of so many bytes"
    )
    parser.add_argument(
        "--exchange", action="store_true", help="instead: an exchange's cost, beside plain Flower's"
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.model_bytes:
        import large

        size = options.model_bytes
        return told(lambda root, programs: large.measured(root, size, options.rounds, programs), options.out)
    if options.exchange:
        import exchange

        return told(lambda root, programs: exchange.measured(root, options.rounds, programs), options.out)
    data, column, sites, settings = STUDIES[options.data]
    federation = dealt(data, column, sites, options.samples)
    study = {**settings, "rounds": options.rounds, "epochs": 1, "seed": 0, "eval_every": options.rounds}
    programs: list[subprocess.Popen] = []
    lookout, results, failed = Lookout(), [], False
    lookout.start()
    root = Path(tempfile.mkdtemp(prefix="unskew-network-"))
    try:
        loopback = Loopback(root, federation, programs)
        for number, method in enumerate(options.methods or METHODS[options.data]):
            (root / "study.yaml").write_text(json.dumps({**study, "method": method}))
            began = time.monotonic()
            terms = [
                "--on",
                "lung",
                "--min-sites",
                str(sites),
                "--wait",
                "120s",
                "--deadline",
                "120s",
                "--json",
            ]
            result = json.loads(
                loopback.do("run", "study.yaml", *terms, "--name", f"r{number}").splitlines()[-1]
            )
            spent = cost(root / f"runs/r{number}", time.monotonic() - began)
            alone = unskew.run(f"{method}+{CLIP}", federation, **study, clients=sites, lanes="1", workers=1)
            same = result["sha256"] == alone.digest
            failed |= not same
            results.append(
                {
                    "method": f"{method}+{CLIP}",
                    "network": result["sha256"],
                    "simulator": alone.digest,
                    **spent,
                }
            )
            print(
                f"{'same bits ' if same else 'OTHER BITS'}  {method}+{CLIP}\n  {result['sha256']}\n "
                f" {alone.digest}"
            )
            print("  " + ", ".join(f"{k} {v}" for k, v in spent.items()), flush=True)
    finally:
        stop(programs)
        lookout.over.set()
        lookout.join()
    print(
        f"{lookout.looks} looks at connections: {lookout.inside} on loopback, elsewhere:"
        f" {lookout.outside or 'none'}"
    )
    if options.out:
        seen = {"looks": lookout.looks, "loopback": lookout.inside, "elsewhere": sorted(lookout.outside)}
        options.out.write_text(
            json.dumps({"data": options.data, "runs": results, "connections": seen}, indent=1) + "\n"
        )
    sys.exit(1 if failed or lookout.outside else 0)


if __name__ == "__main__":
    main()
