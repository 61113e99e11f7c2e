"""Small whole runs for tests on pretended GPUs (`pretended`): in a folder, killed and resumed, or in
memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from tests.round.gpu_notes import Notes
from unskew import config, data
from unskew.core.method import Method
from unskew.records import checkpoints
from unskew.round import run
from unskew.round.loop import Loop
from unskew.runs import assemble, resolve
from unskew.runs.run_folder import RunFolder

Pretend = Callable[[int], Notes]
SHAPE = (3, 8, 8)
TINY: dict[str, Any] = {
    **{"rounds": 2, "epochs": 1, "batch": 4, "clients": 3, "samples": 10, "workers": 1, "lanes": "2"},
    **{"model": "cnn_small", "device": "cuda"},
}


class Stopped(Exception):
    """A run that is killed after a round."""


def run_of(method: str | Method, **given: Any) -> run.Run:
    rng = np.random.default_rng(3)
    y, y_test = rng.integers(0, 3, 120), rng.integers(0, 3, 12)
    x, x_test = rng.random((120, *SHAPE), np.float32), rng.random((12, *SHAPE), np.float32)
    model = "cnn_small(batch_norm=True)" if method == "fedbn" else TINY["model"]
    named = {"method": method} if isinstance(method, str) else {}
    settings = config.build({**TINY, "model": model, **named, **given})
    return resolve.resolve(settings, data.arrays(x, y, x_test, y_test), None if named else method)


def gone(run: run.Run, path: Path, until: int = 99) -> Loop:
    """The run in its folder, begun or resumed; killed after round `until`."""

    def shown(now: checkpoints.State, _: object) -> None:
        if now.t == until:
            raise Stopped

    return RunFolder(path, run).go(lambda _: None, shown)[0]


def weights(path: Path) -> dict[str, Tensor]:
    return checkpoints.read(path / "state.safetensors")[0]["w"]


def ups_and_downs(run: run.Run, rounds: int = 2) -> tuple[dict[str, Tensor], Loop]:
    """(weights after some rounds in memory, the loop)."""
    loop = assemble.loop_of(run)
    now = loop.begin()
    for t in range(1, rounds + 1):
        now, _ = loop.round(now, t)
        loop.evaluate(now, None)
    loop.trainer.close()
    return {n: t.cpu() for n, t in now.weights.items()}, loop
