"""Digests of what unskew computes and of what users can call: the proof that a change of structure changes
nothing.

python tools/bits.py record FILE    before the change
python tools/bits.py check FILE     after it, on the same machine with the same torch; exit code 1 and a list
if any differs

A digest covers a short run's final weights, and its scores, ledger and events. There is one for every method
with one lane and with sixteen, and for resumed runs, models of users, tables, exports and predictions. The
public names with their signatures, the options of every command and the files of a run are recorded, too.
Runs over a network are compared with the simulator by `make test-deploy`. Bits depend on the processor and on
torch's kernels, so FILE is not part of the project.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import typer
from torch import nn

import unskew
from unskew import cli
from unskew.methods import registry

COMPOSED = (
    "fedprox(mu=0.1)",
    "fedbabu(finetune_epochs=1)",
    "naivemix(per_batch=True)",
    "flea(variant=official)",
    "flea+scaffold",
    "fedrdn+rebafl+fedbn",
    "fedmix+fedprox",
    "rebafl+feddyn",
    "fedrep+fedrdn+fedadam",
    "scaffold+topk(share=0.1)",
    "fedavgm+qsgd",
    "ditto+fedadam",
    "dp(epsilon=8)+fedavgm",
    "fedprox+median",
)
SETTINGS = {"rounds": 3, "epochs": 2, "batch": 16, "clients": 6, "samples": 40, "workers": 1, "eval_every": 3}


class Small(nn.Sequential):
    """Convolution, batch normalisation, dropout, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.add_module("first", nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()))
        self.add_module("second", nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU()))
        self.add_module("flat", nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(256, 32), nn.ReLU()))
        self.add_module("head", nn.Linear(32, 5))


def data() -> tuple[np.ndarray, ...]:
    """Colour images of 8x8 in five classes, one more bright than the next."""
    rng = np.random.default_rng(3)
    y, y_test = rng.integers(0, 5, 400), rng.integers(0, 5, 100)
    x, x_test = (
        (rng.random((len(v), 3, 8, 8)) * 0.6 + 0.08 * v[:, None, None, None]).astype(np.float32)
        for v in (y, y_test)
    )
    return x, y, x_test, y_test


def table() -> tuple[np.ndarray, ...]:
    """Rows of six numbers with three classes."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(400, 6)).astype(np.float32)
    y = np.digitize(x[:, 0] + x[:, 1], (-0.5, 0.5))
    return x[:300], y[:300], x[300:], y[300:]


def sha(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


def run(method: str, samples: object = None, **options: object) -> str:
    model = "cnn_small(batch_norm=True)" if "fedbn" in method else "cnn_small"
    given = {**SETTINGS, "model": model, **options}
    return digest(unskew.run(method, data() if samples is None else samples, **given))


def digest(result: unskew.Result) -> str:
    """The weights' digest, and one of every row that the run wrote, without its seconds."""
    rows = {
        kind: [r for r in kept if r.get("metric") != "seconds"] for kind, kept in result.record.rows.items()
    }
    return f"{result.digest[:16]} {sha(rows)}"


def resumed(method: str) -> str:
    """A run that stopped after two of its three rounds and continued."""

    def stop(state: object, summary: object) -> None:
        if getattr(summary, "t", 0) == 2:
            raise KeyboardInterrupt

    with tempfile.TemporaryDirectory() as folder:
        given = {
            **SETTINGS,
            "model": "cnn_small",
            "folder": folder,
            "name": "r",
            "availability": "bernoulli:0.6",
        }
        with contextlib.suppress(KeyboardInterrupt):
            unskew.run(method, data(), shown=stop, **given)
        return digest(unskew.run(method, data(), **given))


def own_model(method: str, lanes: str) -> str:
    torch.manual_seed(5)
    return run(method, model=Small(), lanes=lanes)


def command(*words: object) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "unskew", *map(str, words)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{words}: {done.stderr[-500:]}")
    return done.stdout


def used() -> dict[str, str]:
    """Predictions, an exported model and the names of all files of a run of the command line."""
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder)
        rows = ("run", "rebafl", "--data", "digits", "--clients", 5, "--rounds", 3, "--seed", 1)
        command(*rows, "--folder", there, "--name", "r")
        np.save(there / "new.npy", np.random.default_rng(1).random((40, 1, 8, 8), np.float32))
        command("predict", there / "r", there / "new.npy", "--out", there / "out.csv")
        command("export", there / "r", there / "exported")
        return {
            "files of a run": " ".join(
                sorted(p.relative_to(there / "r").as_posix() for p in (there / "r").rglob("*"))
            ),
            "files of an export": " ".join(sorted(p.name for p in (there / "exported").rglob("*"))),
            "predictions": hashlib.sha256((there / "out.csv").read_bytes()).hexdigest()[:16],
        }


def public() -> dict[str, str]:
    """The signature of every public name, by "unskew.NAME", and of what its modules export."""
    signatures = {}
    for module in (unskew, unskew.data, unskew.models, unskew.methods):
        for name in sorted(n for n in dir(module) if not n.startswith("_")):
            value = getattr(module, name)
            try:
                text = str(inspect.signature(value)) if callable(value) else type(value).__name__
            except (TypeError, ValueError):
                text = type(value).__name__
            signatures[f"{module.__name__}.{name}"] = text
    return signatures


def options() -> dict[str, str]:
    """The help of every command and of its commands."""
    texts: dict[str, str] = {}

    def collect(group: Any, *words: str) -> None:
        texts[" ".join(("help", *words))] = sha(command(*words, "--help"))
        for name, inner in getattr(group, "commands", {}).items():
            collect(inner, *words, name)

    collect(typer.main.get_command(cli.app()))
    return texts


def runs() -> Iterator[tuple[str, Callable[[], str]]]:
    for i, method in enumerate((*sorted(registry.names()), *COMPOSED)):
        settings = {"momentum": (0.0, 0.9)[i // 2 % 2], "availability": ("full", "bernoulli:0.6")[i % 3 > 0]}
        for lanes in ("1", "16"):
            yield f"{method} lanes={lanes}", lambda m=method, s=settings, n=lanes: run(m, lanes=n, **s)
    for method in ("fedavg", "fedbn+flea", "scaffold", "fedntd"):
        for lanes in ("1", "16"):
            yield f"{method} own model, lanes={lanes}", lambda m=method, n=lanes: own_model(m, n)
    for method in ("fedavg", "rebafl", "scaffold", "fedrep"):
        yield f"{method} table", lambda m=method: run(m, table(), model="mlp")
    yield "fedavg adam", lambda: run("fedavg", optimiser="adam")
    yield "fedlc sign", lambda: run("fedlc", optimiser="sign", lanes="8")
    for method in ("scaffold+flea", "ditto", "feddpms", "fedavgm+dp(epsilon=8)"):
        yield f"{method} resumed", lambda m=method: resumed(m)


def everything() -> Iterator[tuple[str, str]]:
    for values in (public, options, used):
        yield from values().items()
    for name, train in runs():
        try:
            yield name, train()
        except unskew.UnskewError as error:
            yield name, f"refused: {error.code}"


def main() -> int:
    what, file = sys.argv[1], Path(sys.argv[2])
    before = json.loads(file.read_text()) if what == "check" else {}
    digests = {}
    for name, value in everything():
        digests[name] = value
        if before.get(name, value) != value:
            print(f"! {name}: {before[name]} is now {value}", flush=True)
    if what == "record":
        file.write_text(json.dumps(digests, indent=1))
    changed = [n for n in before if before[n] != digests.get(n)]
    print(f"{len(digests)} digests" + (f", {len(changed)} changed: {', '.join(changed)}" if changed else ""))
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
