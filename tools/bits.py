"""SHA-256 of the final weights, scores, ledger and events of some fifty short runs: the proof that a change of structure
changes no bit.

python tools/bits.py record FILE    before the change
python tools/bits.py check FILE     after it, on the same machine with the same torch; exit code 1 and a list if any differs

Bits depend on the processor and on torch's kernels, so the file is not part of the project.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from torch import nn

import unskew

METHODS = (
    "fedavg", "fedprox(mu=0.1)", "fedavgm", "fednova", "scaffold", "feddyn", "moon", "fedbabu(finetune_epochs=1)", "fedbn", "fedproto",
    "fedfa", "feddecorr", "fedlc", "fedrs", "fedntd", "bsm", "fedavg_ft", "fedbr", "ccvr", "fedgen", "feddata", "fedmix",
    "naivemix(per_batch=True)", "fedgen_images", "norm", "fedrdn", "fedrdn_v", "rebafl", "flea", "flea(variant=official)", "feddpms", "clip_median",
    "median", "trimmed_mean", "multi_krum", "local", "flea+scaffold", "fedrdn+rebafl+fedbn", "fedmix+fedprox",
)  # fmt: skip
SETTINGS = {"rounds": 3, "epochs": 2, "batch": 16, "clients": 6, "samples": 40, "workers": 2, "eval_every": 3}


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
        (rng.random((len(v), 3, 8, 8)) * 0.6 + 0.08 * v[:, None, None, None]).astype(np.float32) for v in (y, y_test)
    )
    return x, y, x_test, y_test


def run(method: str, **options: object) -> str:
    model = "cnn_small(batch_norm=True)" if "fedbn" in method else "cnn_small"
    return told(unskew.run(method, data(), **{**SETTINGS, "model": model, **options}))


def told(result: unskew.Result) -> str:
    """The weights' digest, and one of every row that the run wrote down but for its seconds."""
    rows = {kind: [r for r in kept if r.get("metric") != "seconds"] for kind, kept in result.record.rows.items()}
    return f"{result.digest[:16]} {hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()[:16]}"


def resumed() -> str:
    """A run that stopped after two of its three rounds and went on."""

    def stop(state: object, told: object) -> None:
        if getattr(told, "t", 0) == 2:
            raise KeyboardInterrupt

    with tempfile.TemporaryDirectory() as folder:
        given = {**SETTINGS, "model": "cnn_small", "folder": folder, "name": "r", "availability": "bernoulli:0.6"}
        with contextlib.suppress(KeyboardInterrupt):
            unskew.run("scaffold+flea", data(), shown=stop, **given)
        return told(unskew.run("scaffold+flea", data(), **given))


def runs() -> Iterator[tuple[str, Callable[[], str]]]:
    for i, method in enumerate(METHODS):
        lanes, momentum = ("16", "1")[i % 2], (0.0, 0.9)[i // 2 % 2]
        options = {"lanes": lanes, "momentum": momentum, "availability": ("full", "bernoulli:0.6")[i % 3 > 0]}
        yield f"{method} lanes={lanes} momentum={momentum}", lambda m=method, o=options: run(m, **o)
    for method in ("fedavg", "fedbn+flea", "scaffold", "fedntd"):
        for lanes in ("1", "16"):
            yield f"{method} own model, lanes={lanes}", lambda m=method, n=lanes: _own_model(m, n)
    yield "fedavg adam", lambda: run("fedavg", optimiser="adam")
    yield "fedlc sign", lambda: run("fedlc", optimiser="sign", lanes="8")
    yield "scaffold+flea resumed", resumed


def _own_model(method: str, lanes: str) -> str:
    import torch

    torch.manual_seed(5)
    return run(method, model=Small(), lanes=lanes)


def main() -> int:
    what, file = sys.argv[1], Path(sys.argv[2])
    before = json.loads(file.read_text()) if what == "check" else {}
    digests = {}
    for name, train in runs():
        try:
            digests[name] = train()
        except unskew.UnskewError as error:
            digests[name] = f"refused: {error.code}"
        print(
            ("  " if before.get(name, digests[name]) == digests[name] else "! ") + f"{digests[name]}  {name}",
            flush=True,
        )
    if what == "record":
        file.write_text(json.dumps(digests, indent=1))
    changed = [n for n in before if before[n] != digests.get(n)]
    print(f"{len(digests)} runs" + (f", {len(changed)} changed: {', '.join(changed)}" if changed else ""))
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
