"""Whole runs as users start them, in unskew and in other frameworks: time, memory and accuracy.

    python benchmarks/whole.py --pfllib DIR --fl-bench DIR --python-checkouts BIN --python-pfl BIN \\
        --python-flower BIN --out benchmarks/results/whole.json

Every framework gets the same partition of Fashion-MNIST (UNSKEW_DATA), initial weights, network, epochs,
batch size, learning rate and evaluation: the test set's 10,000 images after the last round (most frameworks
also score the untrained model; Ditto's personal models, each client's own test images). A run is a whole
command in a process of its own, from the start of Python to its end; frameworks take turns, repeatedly, each
time with another seed. Printed are medians of the seconds, of the processor's seconds and of the highest
memory (both of all processes that the command started) and the mean accuracy, as a Markdown table. Where
accuracies differ by more than noise, frameworks computed different things, and the table says so. Last comes
where unskew's time went, from one more run of each kind whose functions are timed. See README.md.
"""

from __future__ import annotations

import argparse
import ctypes
import gzip
import json
import os
import pickle
import platform
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

HERE = Path(__file__).parent
NOISY = 0.15  # cores
LEAST_NOISE = 0.02
"""Accuracies that differ by less agree."""
SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER: processes whose parent has ended become this process's children."""
OUTSIDE = ("pfllib", "fl_bench", "pfl", "flower")


@dataclass(frozen=True)
class Task:
    """A row of the table. samples: of a client, a multiple of `batch`, because PFLlib drops short batches."""

    name: str
    method: str = "fedavg"
    clients: int = 20
    samples: int = 320
    rounds: int = 4
    batch: int = 32
    model: str = "rebafl_fmnist"
    frameworks: tuple[str, ...] = OUTSIDE
    epochs: int = 1
    lr: float = 0.05
    mu: float = 0.01
    lam: float = 1.0

    @property
    def text(self) -> str:
        """The method as unskew writes it."""
        return {"fedprox": f"fedprox(mu={self.mu})", "ditto": f"ditto(lam={self.lam})"}.get(
            self.method, self.method
        )

    def settings(self, seed: int) -> dict[str, Any]:
        """Every client holds five classes, equally many samples of each."""
        return {
            "data": "fashion_mnist", "skew": f"pathological:5x{self.samples // 5}", "clients": self.clients,
            "rounds": self.rounds, "epochs": self.epochs, "batch": self.batch, "lr": self.lr,
            "model": self.model, "eval_every": self.rounds, "seed": seed, "partition_seed": 0,
        }  # fmt: skip


TASKS = [
    Task("FedAvg"),
    Task("FedProx", "fedprox"),
    Task("SCAFFOLD", "scaffold", frameworks=("pfllib", "fl_bench", "pfl")),
    Task("Ditto", "ditto", frameworks=("pfllib", "fl_bench")),
    Task("200 clients, perceptron", clients=200, samples=50, batch=10, model="mlp"),
    Task("One round", rounds=1),
]


def prepare(task: Task, folder: Path, seeds: int) -> np.ndarray:
    """Write what the other frameworks read. Returns the number of test samples of each client."""
    from unskew import data
    from unskew.config import Settings
    from unskew.runs.resolve import resolve

    run = resolve(Settings(method=task.text, **task.settings(0)))
    federation = run.federation
    rows = [np.random.default_rng(k).permutation(rows) for k, rows in enumerate(federation.train)]
    tests = list(federation.test)
    if task.method != "ditto":  # the global model is scored: together the clients hold the test set
        tests = np.array_split(np.arange(len(federation.y_test)), task.clients)
    np.save(folder / "rows.npy", np.stack(rows))
    for seed in range(seeds):
        net = resolve(Settings(method=task.text, **task.settings(seed)), federation).fed.net
        np.savez(folder / f"initial-{seed}.npz", *(net.initial[n].numpy() for n in net.trainable))
    if "pfllib" in task.frameworks:
        for part, held in (("train", rows), ("test", tests)):
            place = folder / "dataset" / "whole" / part
            place.mkdir(parents=True)
            samples = (
                (federation.x, federation.y) if part == "train" else (federation.x_test, federation.y_test)
            )
            for k, mine in enumerate(held):
                np.savez_compressed(place / f"{k}.npz", data={"x": samples[0][mine], "y": samples[1][mine]})
    if "fl_bench" in task.frameworks:
        place = folder / "fl-bench" / "data" / "fmnist"
        (place / "FashionMNIST" / "raw").mkdir(parents=True)
        (place / "args.json").write_text(json.dumps({"split": "sample"}))
        everyone = list(range(task.clients))
        indices = [
            {"train": a.tolist(), "val": [], "test": (b + len(federation.y)).tolist()}
            for a, b in zip(rows, tests, strict=True)
        ]
        split = {"train": everyone, "val": [], "test": everyone, "total": task.clients}
        (place / "partition.pkl").write_bytes(pickle.dumps({"separation": split, "data_indices": indices}))
        dataset = data.read("fashion_mnist")
        for part, images, labels in (
            ("train", dataset.x, dataset.y),
            ("t10k", dataset.x_test, dataset.y_test),
        ):
            for kind, values in (("images-idx3", np.rint(images[:, 0] * 255)), ("labels-idx1", labels)):
                head = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">i4").tobytes()
                file = place / "FashionMNIST" / "raw" / f"{part}-{kind}-ubyte"
                file.write_bytes(head + values.astype(np.uint8).tobytes())
                Path(f"{file}.gz").write_bytes(gzip.compress(b""))  # torchvision looks whether it is there
    return np.array(list(map(len, tests)))


def below(pid: int) -> list[int]:
    """The ids of all processes that a process has started, and these."""
    children = defaultdict(list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            children[int(stat.read_text().rpartition(")")[2].split()[1])].append(int(stat.parent.name))
    pids = [pid]
    for one in pids:
        pids += children[one]
    return pids[1:]


def memory_mb() -> float:
    """The memory of all processes below this one; what several share counts once."""
    total = 0
    for pid in below(os.getpid()):
        with suppress(OSError, IndexError):  # it has ended
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
            total += int(text.partition("Pss:")[2].split()[0])
    return total / 1024


def busy_s() -> float:
    """The seconds that all cores were busy, or taken away, since the machine started."""
    fields = [int(f) for f in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def own_s(who: int) -> float:
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def measured(command: Sequence[str | Path], cwd: Path, timeout_s: float) -> dict[str, Any]:
    """Seconds, processor seconds and highest memory of a command and of all that it starts, how many cores
    other programs kept busy meanwhile, and its last line. Raises RuntimeError if it fails."""
    own = {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "PYTHONDONTWRITEBYTECODE"}
    environment = {name: value for name, value in os.environ.items() if name not in own}
    highest, over = [0.0], threading.Event()

    def look() -> None:
        while not over.wait(0.2):
            highest[0] = max(highest[0], memory_mb())

    looks = threading.Thread(target=look)
    with tempfile.TemporaryFile("w+") as lines, tempfile.TemporaryFile("w+") as errors:
        busy, before, mine = busy_s(), own_s(resource.RUSAGE_CHILDREN), own_s(resource.RUSAGE_SELF)
        began = time.perf_counter()
        process = subprocess.Popen(
            [*map(str, command)],
            cwd=cwd,
            env=environment,
            stdout=lines,
            stderr=errors,
            stdin=subprocess.DEVNULL,
        )
        looks.start()
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = f"no end within {timeout_s:.0f} s"
        finally:
            wall = time.perf_counter() - began
            over.set(), looks.join()
            for left in reversed(below(os.getpid())):
                with suppress(ProcessLookupError):
                    os.kill(left, signal.SIGKILL)
            with suppress(ChildProcessError):
                while True:
                    os.waitpid(-1, 0)
        cpu = own_s(resource.RUSAGE_CHILDREN) - before
        others = busy_s() - busy - cpu - (own_s(resource.RUSAGE_SELF) - mine)
        if code:
            errors.seek(0)
            raise RuntimeError(f"{code}: {errors.read()[-2000:]}")
        lines.seek(0)
        last = lines.read().strip().rpartition("\n")[2]
    load = max(0.0, others / wall)
    return {"wall_s": wall, "cpu_s": cpu, "mb": highest[0], "other_load": round(load, 2), "last": last}


def our_arguments(task: Task, seed: int, folder: Path) -> list[str]:
    settings = task.settings(seed)
    further = [f"--set={n}={settings.pop(n)}" for n in ("eval_every", "partition_seed")]
    options = [f"--{name}={value}" for name, value in settings.items()]
    return ["run", task.text, *options, *further, f"--folder={folder}", f"--name=seed-{seed}"]


def our_accuracy(task: Task, run: Path, tests_K: np.ndarray) -> float:
    """The global model's, or of Ditto the mean of the personal models' over all clients' test samples."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    last = [row for row in rows if row["t"] == task.rounds and row["metric"] == "accuracy"]
    if task.method != "ditto":
        return next(row["value"] for row in last if row["scope"] == "global" and row["client"] is None)
    own = {
        r["client"]: r["value"] for r in last if r["scope"].startswith("personal") and r["client"] is not None
    }
    return float(np.average([own[k] for k in range(task.clients)], weights=tests_K))


def timed_run(arguments: list[str]) -> None:
    """Run a command line of unskew in this process, and print the seconds of its parts as JSON. The parts are
    functions of the main thread; what one spends in another counts for the other alone."""
    began = time.perf_counter()
    spent, inner, marks = Counter[str](), [], dict[str, float]()

    def time_of(owner: Any, name: str, part: str) -> None:
        plain: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any, **more: Any) -> Any:
            if threading.current_thread() is not threading.main_thread():
                return plain(*args, **more)
            start = time.perf_counter()
            marks.setdefault(part, start)
            inner.append(0.0)
            try:
                return plain(*args, **more)
            finally:
                seconds = time.perf_counter() - start
                spent[part] += seconds - inner.pop()
                if inner:
                    inner[-1] += seconds

        setattr(owner, name, timed)

    from unskew.cli import main
    from unskew.records.record import Record
    from unskew.results import Result
    from unskew.round.evaluation import Evaluation
    from unskew.round.trainer import Trainer
    from unskew.runs import resolve, run_folder

    time_of(resolve, "federation_of", "data")
    time_of(run_folder, "fingerprint", "data")
    time_of(Trainer, "train", "training")
    time_of(Evaluation, "rows", "evaluation")
    time_of(Record, "add", "records")
    for name in ("save", "_finish", "_describe", "_describe_data", "_account"):
        time_of(run_folder.RunFolder, name, "records")
    time_of(Result, "report", "report")
    sys.argv = ["unskew", *arguments]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
    total = time.perf_counter() - began
    parts = {"start": marks["data"] - began, **spent}
    print(json.dumps({**parts, "other": total - sum(parts.values())}))


def commands(options: argparse.Namespace) -> dict[str, list[str]]:
    """By framework, how it is started; those whose options are missing are left out."""
    both, script = options.python_checkouts, str(HERE / "rivals.py")
    starts = {
        "pfllib": [both, script, "pfllib"] if options.pfllib else None,
        "fl_bench": [both, script, "fl_bench"] if options.fl_bench else None,
        "pfl": [options.python_pfl, script, "pfl"] if options.python_pfl else None,
        "flower": [options.python_flower, script, "flower"] if options.python_flower else None,
    }
    return {name: start for name, start in starts.items() if start}


def measure(task: Task, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All runs of a row, in turn."""
    folder.mkdir()
    tests_K = prepare(task, folder, options.repeats)
    checkouts = {"pfllib": options.pfllib, "fl_bench": options.fl_bench}
    runs: dict[str, list[dict[str, Any]]] = defaultdict(list)
    failures: dict[str, str] = {}
    for seed in range(options.repeats):
        facts = {**asdict(task), "seed": seed}
        (folder / "task.json").write_text(json.dumps({n: v for n, v in facts.items() if n != "frameworks"}))
        for name in ("unskew", *(n for n in commands(options) if n in task.frameworks)):
            if name == "unskew":
                command = [sys.executable, "-m", "unskew", *our_arguments(task, seed, folder / "runs")]
            else:
                command = [*commands(options)[name], str(folder), *filter(None, [checkouts.get(name)])]
            try:
                result = measured(command, folder, options.timeout_s)
            except RuntimeError as failure:
                failures[name] = str(failure)
                print(f"{task.name}, {name}: {failure}", file=sys.stderr)
                continue
            last = result.pop("last")
            our_run = folder / "runs" / f"seed-{seed}"
            score = our_accuracy(task, our_run, tests_K) if name == "unskew" else json.loads(last)["accuracy"]
            runs[name].append(result | {"seed": seed, "accuracy": score})
            print(f"{task.name}, {name}: {runs[name][-1]}", file=sys.stderr, flush=True)
    inside = our_arguments(task, options.repeats, folder / "runs")
    parts = json.loads(
        measured([sys.executable, __file__, "--inside", *inside], folder, options.timeout_s)["last"]
    )
    return {"task": asdict(task), "runs": runs, "failures": failures, "parts_s": parts}


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, float]:
    middle = {name: statistics.median(run[name] for run in runs) for name in ("wall_s", "cpu_s", "mb")}
    mean, error = mean_and_error([run["accuracy"] for run in runs])
    return middle | {"accuracy": mean, "error": error}


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and its standard error."""
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return statistics.mean(values), spread / len(values) ** 0.5


def differs(theirs: Sequence[dict[str, Any]], ours: Sequence[dict[str, Any]]) -> bool:
    """Whether accuracies differ by more than noise: seed by seed, beyond the 95 % interval of the mean."""
    of_seed = {run["seed"]: run["accuracy"] for run in ours}
    apart = [run["accuracy"] - of_seed[run["seed"]] for run in theirs if run["seed"] in of_seed]
    if len(apart) < 2:
        return False
    mean, error = mean_and_error(apart)
    return abs(mean) > max(LEAST_NOISE, float(student.ppf(0.975, len(apart) - 1)) * error)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The Markdown tables."""
    lines = [
        "| run | framework | s | times unskew | processor s | MB | accuracy, % |",
        "|---|---|---|---|---|---|---|",
    ]
    notes: list[str] = []
    for row in rows:
        task, found = row["task"], {name: summary(runs) for name, runs in row["runs"].items()}
        ours = found.get("unskew")
        for name in ("unskew", *OUTSIDE):
            title = task["name"] if name == "unskew" else ""
            one = found.get(name)
            if one is None:
                lines.append(f"| {title} | {name} | {'failed' if name in row['failures'] else '-'} | | | | |")
                continue
            mark = ""
            if ours and differs(row["runs"][name], row["runs"]["unskew"]):
                mark = " ≠"
                notes.append(
                    f"{task['name']}: the accuracy of {name} differs from unskew's by more than noise, so"
                    " that they did not compute the same, and their times are no comparison."
                )
            ratio = f"{one['wall_s'] / ours['wall_s']:.2f}" if ours else ""
            lines.append(
                f"| {title} | {name} | {one['wall_s']:.1f} | {ratio} | {one['cpu_s']:.1f} | {one['mb']:.0f} |"
                f" {100 * one['accuracy']:.1f} ± {100 * one['error']:.1f}{mark} |"
            )
            load = max(run["other_load"] for run in row["runs"][name])
            if load > NOISY:
                notes.append(
                    f"{task['name']}, {name}: something else kept {load:.2f} cores busy; measure again."
                )
    names = ("start", "data", "training", "evaluation", "records", "report", "other")
    lines += ["", f"| unskew's own time | s | {' | '.join(f'{name}, %' for name in names)} |"]
    lines.append("|" + "---|" * (len(names) + 2))
    for row in rows:
        parts = row["parts_s"]
        total = sum(parts.values())
        shares = " | ".join(f"{100 * parts.get(name, 0.0) / total:.0f}" for name in names)
        lines.append(f"| {row['task']['name']} | {total:.1f} | {shares} |")
    return "\n".join([*lines, "", *(f"- {note}" for note in notes)])


def main() -> None:
    if sys.argv[1:2] == ["--inside"]:
        timed_run(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pfllib", type=os.path.abspath, help="a checkout of PFLlib")
    parser.add_argument("--fl-bench", type=os.path.abspath, help="a checkout of FL-bench")
    path = {"type": os.path.abspath}  # not resolved: the python of an environment is a link
    parser.add_argument("--python-checkouts", default=sys.executable, help="python for these two", **path)
    parser.add_argument("--python-pfl", help="python of an environment with pfl", **path)
    parser.add_argument("--python-flower", help="python of an environment with flwr[simulation]", **path)
    parser.add_argument("--tasks", nargs="+", choices=[task.name for task in TASKS], help="rows of the table")
    parser.add_argument("--rounds", type=int, help="of all rows but 'One round'")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--timeout-s", type=float, default=300, help="for one run")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "whole.json")
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("Stopped."))
    cpu = [
        s.split(": ")[1] for s in Path("/proc/cpuinfo").read_text().split("\n") if s.startswith("model name")
    ]
    report: dict[str, Any] = {
        "machine": {"cpu": cpu[:1], "cores": options.cores, "system": platform.platform()},
        "repeats": options.repeats, "rows": [],
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        for number, task in enumerate(TASKS):
            if options.tasks and task.name not in options.tasks:
                continue
            if options.rounds and task.rounds > 1:
                task = replace(task, rounds=options.rounds)
            report["rows"].append(measure(task, options, Path(scratch) / str(number)))
            options.out.parent.mkdir(exist_ok=True)
            options.out.write_text(json.dumps(report, indent=1) + "\n")
    print(table(report["rows"]))


if __name__ == "__main__":
    main()
