"""What unskew does on a GPU, in one file of JSON: whether whole runs are right there, and how fast a round
is.

python benchmarks/gpu.py --out gpu.json                    as far as ten minutes go; the same again goes on
python benchmarks/gpu.py --out gpu.json --budget 3000      all of it at once
python benchmarks/gpu.py --out rehearsal.json --rehearse   every path with tiny sizes on a CPU, in two minutes

It needs a checkout and torch with CUDA, no network and nothing installed beside unskew's requirements. The
file is written after every row, the most informative first, so a time limit loses one row at most. A row that
fails holds its error.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gpu_round
import gpu_runs
import torch

from unskew.methods import registry

FIRST = ("fedavg", "scaffold", "fedbn", "flea", "apple", "fedmix", "moon", "dpsgd")
"""Methods between them with private state on a disk, buffers of changing size, tensors of a dispatch, and
second derivatives."""
REHEARSED = {"methods": ("fedavg", "scaffold"), "models": ("rebafl_fmnist", "transformer")}
KINDS = ("run", "peak", "round")
"""The first words of the rows' names."""
Row = dict[str, Any]
Job = tuple[str, Callable[[], Row]]


def jobs(options: argparse.Namespace) -> Iterator[Job]:
    """(a row's name, what makes it), the most informative first."""
    rehearse, device = options.rehearse, "cpu" if options.rehearse else "cuda:0"
    methods = options.methods or (REHEARSED["methods"] if rehearse else sorted(registry.names()))
    models = options.models or (REHEARSED["models"] if rehearse else list(gpu_round.WORKS))

    def checks(names: list[str]) -> Iterator[Job]:
        yield from ((f"run {m}", lambda m=m: gpu_runs.checked(m, device, rehearse)) for m in names)

    def rounds(clients: int, full: bool) -> Iterator[Job]:
        for m in models:
            work = replace(gpu_round.WORKS[m], clients=clients)
            work = replace(work, samples=8, batch=4) if rehearse else work
            yield f"round {m} {clients}", lambda work=work: gpu_round.one(work, with_processes=full)

    yield from checks([m for m in methods if m in FIRST])
    yield "peak", lambda: {name: gpu_round.peak(name) for name in ("float32", "tf32")}
    clients = options.clients or ([2, 3] if rehearse else [50, 10, 200])
    yield from rounds(clients[0], True)
    yield from checks([m for m in methods if m not in FIRST])
    for fewer_or_more in clients[1:]:
        yield from rounds(fewer_or_more, False)


def made(job: Callable[[], Row]) -> Row:
    """The row, or why there is none, with the seconds that it took."""
    began = time.perf_counter()
    try:
        row = job()
    except Exception as error:  # whatever it is, the other rows are still wanted
        row = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
    return {**row, "took": round(time.perf_counter() - began, 1)}


def begun(out: Path, facts: Row) -> Row:
    """The report so far. A file of another GPU or torch is not gone on with."""
    if not out.exists():
        return {**facts, "rows": {}}
    report = json.loads(out.read_text())
    if other := [n for n, v in facts.items() if report.get(n) != v]:
        raise SystemExit(f"{out} was begun with another {' and '.join(other)}; choose another --out.")
    return report


def written(out: Path, report: Row) -> None:
    partial = out.with_suffix(".partial")
    partial.write_text(json.dumps(report, indent=1))
    os.replace(partial, out)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--budget", type=float, default=540, help="begin no further row after so many seconds"
    )
    parser.add_argument(
        "--rehearse", action="store_true", help="tiny sizes on the CPU; what comes out says nothing of a GPU"
    )
    parser.add_argument("--models", nargs="+", choices=list(gpu_round.WORKS))
    parser.add_argument("--methods", nargs="+")
    parser.add_argument(
        "--clients", nargs="+", type=int, help="clients of a round; only the first has every variant"
    )
    parser.add_argument(
        "--only", nargs="+", choices=KINDS, default=KINDS, help="only rows that begin with these words"
    )
    parser.add_argument("--retry", action="store_true", help="make the rows again that failed")
    options = parser.parse_args()
    if not options.rehearse and not torch.cuda.is_available():
        raise SystemExit("torch finds no GPU; --rehearse runs through everything on a CPU.")
    if options.rehearse:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # of the processes that are started, too
        gpu_round.DEVICE, gpu_round.PROCESSES = torch.device("cpu"), 2
    began = time.perf_counter()
    name = "none, a rehearsal" if options.rehearse else torch.cuda.get_device_name()
    report = begun(options.out, {"gpu": name, "torch": torch.__version__})
    for row, job in jobs(options):
        held = report["rows"].get(row)
        if row.split()[0] not in options.only:
            continue
        if held is not None and not (options.retry and "error" in held):
            continue
        if time.perf_counter() - began > options.budget:
            print("out of time before", row, "- the same command goes on from here", flush=True)
            return
        report["rows"][row] = made(job)
        print(row, json.dumps(report["rows"][row]), flush=True)
        written(options.out, report)
    print("all rows are there", flush=True)


if __name__ == "__main__":
    main()
