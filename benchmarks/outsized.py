"""Training on a set that is read from its file row by row, beside the same set in memory: samples a second
and memory.

Writes a file of images (float32, 3 x 32 x 32: 10,000 random ones again and again, each with a number of its
own), trains rounds of ten clients on it in processes of their own, and prints for each: seconds until the
first round (reading and checking every row, dealing out), samples trained a second, and a second of the
processor's time (which other programs on the core do not change), in a round (median), and the most memory
that the process held; `--json` keeps them. `--limit` bounds the memory that a process may ask for
(RLIMIT_DATA). "cold" drops the file from the system's cache before every round. "parquet" reads the same
samples as lists of float32 in row groups of 1,000 (it needs pyarrow), on a machine that has, so far as unskew
knows, twice as much memory as the set takes. `--disk`
measures instead what the disk allows: rows of the file a second, read without unskew, in the order of the
file and at random, one at a time and 256 asked for together.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

SHAPE, CLIENTS, AT_WORK = (3, 32, 32), 100, 10
KINDS = ("memory", "rows", "cold")
MORE = (*KINDS, "parquet")
GROUP = 1_000


@dataclass(frozen=True)
class Line:
    """ready: seconds until the first round. rate, core_rate: samples a second, and a second of the
    processor's time. peak,
    first: MiB that the process held at most, and before any data. load: of the machine, the mean of the last
    minute."""

    kind: str
    ready: float
    rate: float
    core_rate: float
    peak: float
    first: float
    load: float


def write(folder: Path, size: float) -> None:
    """x.npy of so many GB, in blocks, and y.npy."""
    rng, rows = np.random.default_rng(0), int(size * 1e9 / (4 * np.prod(SHAPE)))
    block = rng.random((10_000, *SHAPE), dtype=np.float32)
    with open(folder / "x.npy", "wb") as file:
        form = {"descr": "<f4", "fortran_order": False, "shape": (rows, *SHAPE)}
        np.lib.format.write_array_header_1_0(file, form)
        for begin in range(0, rows, len(block)):
            block[:, 0, 0, 0] = np.arange(begin, begin + len(block)) / rows
            file.write(block[: rows - begin].data)
    np.save(folder / "y.npy", rng.integers(0, 10, rows))


def disk(folder: Path, of: int = 10_000) -> None:
    """Rows a second that the disk gives, the file dropped from the system's cache before each way of
    reading."""
    row, together = 4 * int(np.prod(SHAPE)), 256
    with open(folder / "x.npy", "rb", buffering=0) as file:
        number, rows = file.fileno(), os.fstat(file.fileno()).st_size // row
        drawn = np.random.default_rng(0).permutation(rows)[:of]
        groups = [np.sort(drawn[i : i + together]).tolist() for i in range(0, len(drawn), together)]

        def timed(read) -> str:
            os.fsync(number)
            os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
            began = time.perf_counter()
            return f"{read() / (time.perf_counter() - began):>10,.0f}"

        def in_order() -> int:
            return sum(len(os.pread(number, 1 << 22, at)) for at in range(0, rows * row, 1 << 22)) // row

        def at_random(ahead: int | None) -> int:
            for i, group in enumerate(groups):
                asked = (
                    []
                    if ahead is None
                    else groups[: ahead + 1]
                    if not i
                    else groups[i + ahead : i + ahead + 1]
                )
                for other in (r for one in asked for r in one):
                    os.posix_fadvise(number, other * row, row, os.POSIX_FADV_WILLNEED)
                for other in group:
                    os.pread(number, row, other * row)
            return len(drawn)

        print("rows/s   in order  at random   together  and the next", flush=True)
        ways = (in_order, *(lambda ahead=ahead: at_random(ahead) for ahead in (None, 0, 1)))
        print("       ", *(timed(way) for way in ways), f"  load {os.getloadavg()[0]:.1f}", flush=True)


def write_parquet(folder: Path) -> None:
    """x.parquet with the samples and labels of the other files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    x, y = np.load(folder / "x.npy", mmap_mode="r"), np.load(folder / "y.npy")
    form = pa.list_(pa.list_(pa.list_(pa.float32(), SHAPE[2]), SHAPE[1]), SHAPE[0])
    with pq.ParquetWriter(
        folder / "x.parquet", pa.schema({"x": form, "y": pa.int64()}), compression="none"
    ) as file:
        for begin in range(0, len(x), GROUP):
            lists = pa.array(x[begin : begin + GROUP].reshape(-1))
            for size in reversed(SHAPE):
                lists = pa.FixedSizeListArray.from_arrays(lists, size)
            file.write_table(pa.table({"x": lists, "y": y[begin : begin + GROUP]}, schema=file.schema), GROUP)


def dataset_of(folder: Path, kind: str):
    """The set, and a thousand of its samples to test on."""
    from unskew.data import arrays

    x, y = np.load(folder / "x.npy", mmap_mode=None if kind == "memory" else "r"), np.load(folder / "y.npy")
    if kind != "parquet":
        return arrays(x, y, x[:1000].copy(), y[:1000])
    os.environ["UNSKEW_SCRATCH"] = str(folder)
    from unskew.data import read
    from unskew.data.files import parquet
    from unskew.data.storage import rows_on_disk
    from unskew.system import machine

    for module in (machine, rows_on_disk, parquet):
        module.usable_memory = lambda: 2 * x.nbytes
    whole = read(f"{folder}/x.parquet(x=x,label=y)")
    return arrays(whole.x, whole.y, x[:1000].copy(), y[:1000])


def measure(folder: Path, kind: str, rounds: int, model: str) -> None:
    """One line of the table, printed as JSON."""
    from unskew.config import Settings
    from unskew.core.method import Method
    from unskew.runs.assemble import loop_of
    from unskew.runs.resolve import resolve

    began = time.perf_counter()
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    dataset = dataset_of(folder, kind)
    settings = Settings(
        clients=CLIENTS,
        rounds=1000,
        availability=f"sample:{AT_WORK}",
        model=model,
        batch=32,
        epochs=1,
        skew="iid",
        normalise="none",
        eval_every=1000,
        workers=1,
    )
    loop = loop_of(resolve(settings, dataset, Method()))
    state, ready, seconds, of_core = loop.begin(), time.perf_counter() - began, [], []
    for t in range(1, rounds + 2):
        if kind == "cold":
            with open(folder / "x.npy", "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        began, core = time.perf_counter(), time.process_time()
        state, _ = loop.round(state, t)
        seconds.append(time.perf_counter() - began)
        of_core.append(time.process_time() - core)
    loop.trainer.close()
    rate, core_rate = (
        AT_WORK * len(dataset.x) / CLIENTS / statistics.median(s[1:]) for s in (seconds, of_core)
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    line = Line(kind, ready, rate, core_rate, peak / 1024, base / 1024, os.getloadavg()[0])
    print(json.dumps(asdict(line)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gb", type=float, default=4.0, help="size of the set in memory")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", default="cnn_small")
    parser.add_argument(
        "--limit", type=float, default=0, help="GB that each process may ask for; 0: no limit"
    )
    parser.add_argument("--kinds", nargs="*", default=[*KINDS], choices=MORE)
    parser.add_argument("--times", type=int, default=1, help="how often each kind is measured, in turn")
    parser.add_argument(
        "--at", help="the folder in which the file is written (default: the system's for temporary files)"
    )
    parser.add_argument("--disk", action="store_true", help="measure the disk alone")
    parser.add_argument("--json", type=Path, help="write the table there")
    parser.add_argument("--child", nargs=2, metavar=("FOLDER", "KIND"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        if options.limit:
            resource.setrlimit(resource.RLIMIT_DATA, (int(options.limit * 1e9),) * 2)
        folder, kind = options.child
        (
            write_parquet(Path(folder))
            if kind == "write"
            else measure(Path(folder), kind, options.rounds, options.model)
        )
        return
    lines: list[Line] = []
    with tempfile.TemporaryDirectory(dir=options.at) as folder:
        write(Path(folder), options.gb)
        if options.disk:
            for _ in range(options.times):
                disk(Path(folder))
            return
        if "parquet" in options.kinds:
            subprocess.run([sys.executable, __file__, "--child", folder, "write"], check=True)
        print("samples    ready, s  samples/s  a core-second  peak, MiB   at first   load", flush=True)
        for kind in options.kinds * options.times:
            asked = ["--rounds", str(options.rounds), "--model", options.model, "--limit", str(options.limit)]
            child = [sys.executable, __file__, *asked, "--child", folder, kind]
            done = subprocess.run(child, capture_output=True, text=True)
            if done.returncode:
                print(f"{kind:<8} {done.stderr.strip().splitlines()[-1]}", flush=True)
                continue
            one = Line(**json.loads(done.stdout.splitlines()[-1]))
            lines.append(one)
            rates = f"{one.rate:>10,.0f} {one.core_rate:>14,.0f} {one.peak:>10,.0f} {one.first:>10,.0f}"
            print(f"{kind:<8} {one.ready:>10.1f} {rates} {one.load:>6.1f}", flush=True)
    if options.json:
        asked = {n: v for n, v in vars(options).items() if n in ("gb", "rounds", "model", "limit")}
        options.json.write_text(
            json.dumps({**asked, "lines": [asdict(one) for one in lines]}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
