"""Whole runs on a GPU, for `gpu.py`: whether each method's has a CPU's weights, the same bits again and after
a resume, and whether its steps are recorded."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unskew import config
from unskew.records import checkpoints
from unskew.round import run
from unskew.round.loop import Loop, RoundSummary
from unskew.runs import hardware, resolve
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


def spread(rehearse: bool) -> dict[str, object]:
    """A round of many clients on all GPUs beside the same on the first: seconds, and how far apart they
    end."""
    sizes = TINY if rehearse else {**FULL, "clients": 64, "samples": 128, "lanes": "8"}
    first, all_of_them = ("cpu", "cpu") if rehearse else ("cuda:0", "cuda")
    with tempfile.TemporaryDirectory() as folder:
        one, many = Path(folder) / "one", Path(folder) / "many"
        _, alone = gone(run_of("scaffold", first, sizes), one)
        _, together = gone(run_of("scaffold", all_of_them, sizes), many)
        return {"gpus": torch.cuda.device_count(), "one": alone, "all": together, "apart": apart(one, many)}


def too_many_lanes(device: str, rehearse: bool) -> dict[str, object]:
    """What `lanes: auto` does where memory is smaller than predicted: a GPU of which this process may use
    less than half of what its clients side by side are predicted to take."""
    sizes = {**(TINY if rehearse else {**FULL, "clients": 64, "samples": 128}), "lanes": "auto"}
    run = run_of("fedavg", device, sizes)
    with tempfile.TemporaryDirectory() as folder, less_memory(run):
        loop, taken = gone(run, Path(folder) / "run")
        events = (Path(folder) / "run" / "events.jsonl").read_text()
    return {
        "predicted": run.lanes,
        "used": loop.lane_retry.lanes,
        "gave_way": events.count("E128"),
        "seconds_a_round": taken,
    }


@contextmanager
def less_memory(run: run.Run) -> Iterator[None]:
    """Within it this process may use so little of the GPU; on a CPU there is no such limit."""
    if run.device == "cpu":
        yield
        return
    needed = hardware.lane_bytes(run.fed.net, run.settings.batch) * run.federation.clients
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(run.device).total_memory
    torch.cuda.set_per_process_memory_fraction(
        (torch.cuda.memory_reserved(run.device) + 0.4 * needed) / total, run.device
    )
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, run.device)
