"""Local training speed of unskew against the usual loop, pfl-research, Flower's simulation and centralised
training.

    python compare.py --python-pfl PFL_VENV/bin/python --python-flwr FLWR_VENV/bin/python --out speed.json

All variants of a model are started and warmed up; then they take turns, one round each, `--repeats` times.
Each is a process that is paused while another computes. See README.md.
"""

import argparse
import json
import os
import platform
import signal
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median

import torch
from child import Child, ChildFailed
from table import agreement, print_model, ratios
from work import WORKS, Work

HERE = Path(__file__).parent


def commands(options: argparse.Namespace) -> dict[str, list[str] | str]:
    """For every variant its command, or the reason why it cannot run."""
    n, here = options.cores, sys.executable
    no_pfl, no_flwr = "no --python-pfl given", "no --python-flwr given"
    ours = (
        [options.python_ours, "ours.py"] if (HERE / "ours.py").exists() else "there is no benchmarks/ours.py"
    )
    pfl = [options.python_pfl, "pfl_round.py"] if options.python_pfl else no_pfl
    flwr = [options.python_flwr, "flwr_round.py"] if options.python_flwr else no_flwr
    rows: list[tuple[str, list[str] | str, str]] = [
        ("usual-1", [here, "usual.py"], "--threads 1"),
        (f"usual-{n}", [here, "usual.py"], f"--threads {n}"),
        (f"pfl-1x{n}", pfl, f"--processes 1 --threads {n}"),
        (f"pfl-{n}x1", pfl, f"--processes {n} --threads 1"),
        (f"flwr-{n}", flwr, f"--workers {n}"),
        ("central-1", [here, "central.py"], "--threads 1"),
        (f"central-{n}", [here, "central.py"], f"--threads {n}"),
        ("ours-1", ours, "--cores 1"),
        (f"ours-{n}", ours, f"--cores {n}"),
    ]
    return {name: start if isinstance(start, str) else [*start, *more.split()] for name, start, more in rows}


def start_all(
    work: Work, options: argparse.Namespace, scratch: Path, children: dict[str, Child]
) -> dict[str, dict]:
    """Start and warm up one after another into `children`.

    A variant that cannot run is left out; the reason is kept in the results, which are returned.
    """
    results: dict[str, dict] = {}
    sizes = [f"--{name}={getattr(work, name)}" for name in ("clients", "samples", "epochs")]
    sizes += ["--pool-first"] if work.pool_first else []
    for name, command in commands(options).items():
        if options.variants and name.split("-")[0] not in options.variants:
            continue
        if isinstance(command, str):
            results[name] = {"skipped": command}
            continue
        weights = ["--weights", str(scratch / f"{name}.npy")]
        command = [*command, "--model", work.model, "--variant", name, *sizes, *weights]
        try:
            children[name] = Child(name, command, scratch / f"{name}.log", options.timeout_s)
            results[name] = {"versions": children[name].answer()["versions"], "rounds": []}
            children[name].signal(signal.SIGSTOP)
        except (ChildFailed, OSError) as failure:
            results[name] = {"skipped": str(failure)}
            if child := children.pop(name, None):
                child.stop()
    return results


def measure(work: Work, options: argparse.Namespace, scratch: Path) -> dict[str, dict]:
    children: dict[str, Child] = {}
    try:
        results = start_all(work, options, scratch, children)
        for _ in range(options.repeats):
            for name, child in list(children.items()):
                try:
                    results[name]["rounds"].append(child.one_round())
                except ChildFailed as failure:
                    children.pop(name).stop()
                    results[name] = {"skipped": str(failure)}
    finally:
        for child in children.values():
            child.stop()
    for result in results.values():
        if seconds := [answer["seconds"] for answer in result.get("rounds", [])]:
            result |= {"seconds": seconds, "clients_per_s": work.clients / median(seconds)}
    return results


def machine(cores: int) -> dict[str, object]:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(": ")[1] for line in lines if line.startswith("model name")]
    cpu = names[0] if names else platform.processor()
    return {"cpu": cpu, "cores": os.cpu_count(), "cores_used": cores, "system": platform.platform()}


def use_cores(cores: int) -> None:
    """Pin this process, and with it every variant, to the first `cores` cores it may use."""
    if hasattr(os, "sched_setaffinity"):
        allowed = sorted(os.sched_getaffinity(0))
        if len(allowed) < cores:
            sys.exit(f"--cores {cores}: only {len(allowed)} cores may be used here.")
        os.sched_setaffinity(0, allowed[:cores])


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=list(WORKS), default=list(WORKS))
    parser.add_argument(
        "--variants", nargs="+", choices=["usual", "pfl", "flwr", "central", "ours"], default=[]
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2, help="at least 2")
    parser.add_argument("--clients", type=int, help="instead of each model's own number; likewise:")
    parser.add_argument("--samples", type=int)
    parser.add_argument("--epochs", type=int)
    parser.add_argument(
        "--pool-first", action="store_true", help="LeNet of the references as unskew writes it"
    )
    parser.add_argument("--python-ours", default=sys.executable)
    parser.add_argument("--python-pfl", help="python of a virtual environment with pfl")
    parser.add_argument("--python-flwr", help="python of a virtual environment with flwr[simulation]")
    parser.add_argument("--timeout-s", type=float, default=600, help="for one answer of one variant")
    parser.add_argument("--out", type=Path, default=Path("speed.json"))
    options = parser.parse_args()
    for name in ("python_ours", "python_pfl", "python_flwr"):
        if path := getattr(options, name):
            setattr(options, name, os.path.abspath(path))  # not resolved: a venv's python is a link
    return options


def main() -> None:
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("Stopped."))  # so that no paused variant is left behind
    use_cores(options.cores)
    report: dict = {"machine": machine(options.cores), "repeats": options.repeats, "models": {}}
    given = {k: v for k in ("clients", "samples", "epochs") if (v := getattr(options, k)) is not None}
    for model in options.models:
        work = replace(WORKS[model], pool_first=options.pool_first and model == "rebafl_fmnist", **given)
        scratch = Path(tempfile.mkdtemp(prefix=f"speed-{model}-"))
        results = measure(work, options, scratch)
        for name, difference in agreement(scratch, results).items():
            results[name]["difference"] = difference
        entry = {"work": asdict(work), "variants": results, "ratios": ratios(model, options.cores, results)}
        report["models"][model] = entry
        print_model(entry, options.repeats, options.cores)
        options.out.write_text(json.dumps(report, indent=1) + "\n")
    print(f"\nWritten to {options.out} (torch {torch.__version__})")


if __name__ == "__main__":
    main()
