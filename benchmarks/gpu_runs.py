"""Whole runs on a GPU, for `gpu.py`: whether each method's has a CPU's weights, the same bits again and after
a resume, and whether its steps are recorded."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from unskew import config
from unskew.records import checkpoints
from unskew.round import run
from unskew.round.loop import Loop, RoundSummary
from unskew.runs import resolve
from unskew.runs.run_folder import RunFolder

SHAPE, CLASSES = (3, 8, 8), 5
FULL: dict[str, Any] = {"rounds": 4, "epochs": 2, "batch": 16, "clients": 6, "samples": 60, "lanes": "4"}
TINY: dict[str, Any] = {"rounds": 2, "epochs": 1, "batch": 8, "clients": 3, "samples": 12, "lanes": "2"}


class Killed(Exception):
    """A run that ends after its first round, to be resumed."""


def run_of(method: str, device: str, sizes: dict[str, Any]) -> run.Run:
    """A run on random samples."""
    rng = np.random.default_rng(3)
    many = 2 * sizes["clients"] * sizes["samples"]
    y, y_test = rng.integers(0, CLASSES, max(many, 400)), rng.integers(0, CLASSES, 40)
    arrays = rng.random((len(y), *SHAPE), np.float32), y, rng.random((40, *SHAPE), np.float32), y_test
    model = "cnn_small(batch_norm=True)" if method == "fedbn" else "cnn_small"
    settings = {**sizes, "method": method, "model": model, "device": device, "workers": 1}
    return resolve.resolve(config.build(settings), arrays)


def gone(run: run.Run, path: Path, killed: bool = False) -> tuple[Loop, list[float]]:
    """(the loop of a run that is begun or resumed in a folder, the seconds of its rounds)."""
    taken: list[float] = []

    def shown(now: checkpoints.State, summary: RoundSummary) -> None:
        taken.append(round(summary.seconds, 4))
        if killed:
            raise Killed

    return RunFolder(path, run).go(lambda _: None, shown)[0], taken


def weights(path: Path) -> dict[str, Tensor]:
    return checkpoints.read(path / checkpoints.LATEST)[0]["w"]


def apart(one: Path, other: Path) -> float:
    """The largest difference of two runs' weights."""
    a, b = weights(one), weights(other)
    return max(float((t - b[n]).abs().max()) for n, t in a.items())


def checked(method: str, device: str, rehearse: bool) -> dict[str, object]:
    """One method's run on this device: what it takes, and how far it is from a CPU's, from itself and after a
    resume."""
    sizes = TINY if rehearse else FULL
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder)
        gone(run_of(method, "cpu", sizes), there / "cpu")
        loop, taken = gone(run_of(method, device, sizes), there / "gpu")
        gone(run_of(method, device, sizes), there / "again")
        try:
            gone(run_of(method, device, sizes), there / "resumed", killed=True)
        except Killed:
            gone(run_of(method, device, sizes), there / "resumed")
        return {
            "seconds_a_round": taken,
            "apart_from_cpu": apart(there / "cpu", there / "gpu"),
            "apart_again": apart(there / "gpu", there / "again"),
            "apart_resumed": apart(there / "gpu", there / "resumed"),
            "remarks": [text for _, text in loop.trainer.remarks()],
        }
