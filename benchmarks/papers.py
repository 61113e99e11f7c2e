"""Whole rows of the papers' tables on a GPU, within a time limit: whatever did not finish goes on in the next
call.

python benchmarks/papers.py --data FOLDER --work /tmp/papers --out kept --budget 400
python benchmarks/papers.py --data FOLDER --work /tmp/papers --out kept --budget 400 --restore kept

The rows run side by side, each as `unskew reproduce` with one, then two, then three seeds and the paper's
number of rounds; pages of finished seeds go to OUT at once. When time is up, the commands are interrupted,
which saves every run, and each row's folder is packed into OUT in archives of at most 15 MB. `--restore`
unpacks such archives first. Finished runs are packed without the states that only a resume needs.
"""

from __future__ import annotations

import argparse
import io
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

ROWS = {
    "har": (
        "flea-table1",
        "uci_har-dir0.1-100",
        ("FedAvg", "FLea", "FedMix", "FLea, no decorrelation", "FedLC"),
    ),
    "clothes": ("rebafl-table1", "fashion_mnist-p0.2", ("FedAvg", "ReBaFL", "FedDyn", "BSM-FedAvg")),
    "halves": ("rebafl-table2", "fashion_mnist-pathological", ("R-BSM", "F-Aug")),
}
"""By the archive's name: a table, its row, and the methods to train."""
SEEDS = 3
PART = 15_000_000
"""Bytes of an archive."""
GRACE_S = 30
"""Seconds that an interrupted command has to save its runs."""


def started(name: str, seeds: int, options: argparse.Namespace) -> subprocess.Popen[bytes]:
    """The command of one row with so many seeds; its output is added to a log."""
    table, row, methods = ROWS[name]
    chosen = [word for method in methods for word in ("--methods", method)]
    folder = options.work / name
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "unskew",
        "reproduce",
        table,
        "--rows",
        row,
        *chosen,
        "--seeds",
        str(seeds),
    ]
    command += ["--page", f"{table}-{name}", "--keep", str(options.work / "pages")]
    command += ["--processes", str(options.processes), "--folder", str(folder)]
    environment = {**os.environ, "UNSKEW_DATA": str(options.data), "OMP_NUM_THREADS": "1"}
    with (options.work / f"{name}.log").open("ab") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)


def pack(work: Path, name: str, out: Path) -> None:
    """A row's runs in archives OUT/NAME.tar.xz.0, .1 and so on, which joined are one."""

    def needed(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        path = work / entry.name
        finished = (path.parent / "model.safetensors").exists()
        unneeded = path.name == "state.previous.safetensors" or (
            finished and path.name in ("state.safetensors", "private")
        )
        return None if unneeded else entry

    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:xz", preset=1) as packed:
        packed.add(work / name, name, filter=needed)
    for part in range(0, len(whole.getvalue()), PART):
        (out / f"{name}.tar.xz.{part // PART}").write_bytes(whole.getvalue()[part : part + PART])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="where the data sets are")
    parser.add_argument("--work", type=Path, required=True, help="where runs are kept while they train")
    parser.add_argument("--out", type=Path, required=True, help="where archives and finished pages go")
    parser.add_argument(
        "--budget", type=float, default=700, help="seconds after which everything is interrupted"
    )
    parser.add_argument("--processes", type=int, default=2, help="runs of a row at a time")
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--restore", type=Path, help="a folder with archives of an earlier call")
    options = parser.parse_args()
    end = time.monotonic() + options.budget
    options.out.mkdir(parents=True, exist_ok=True)
    options.work.mkdir(parents=True, exist_ok=True)
    for name in options.rows if options.restore else ():
        parts = sorted(options.restore.glob(f"{name}.tar.xz.*"))
        with tarfile.open(fileobj=io.BytesIO(b"".join(part.read_bytes() for part in parts))) as packed:
            packed.extractall(options.work, filter="data")
    seeds = dict.fromkeys(options.rows, 1)
    rows = {name: started(name, 1, options) for name in options.rows}
    while time.monotonic() < end and any(row.poll() is None for row in rows.values()):
        time.sleep(1)
        for name, row in rows.items():
            if row.poll() == 0 and seeds[name] < SEEDS:
                seeds[name] += 1
                rows[name] = started(name, seeds[name], options)
    for row in rows.values():
        if row.poll() is None:
            row.send_signal(signal.SIGINT)
    for name, row in rows.items():
        try:
            row.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            os.killpg(row.pid, signal.SIGKILL)
        pack(options.work, name, options.out)
        tail = (options.work / f"{name}.log").read_text(errors="replace")[-1500:]
        print(name, "ended with", row.returncode, "\n", tail, flush=True)
    if (options.work / "pages").exists():
        pack(options.work, "pages", options.out)


if __name__ == "__main__":
    main()
