"""A worker process of this machine that is killed: its run goes on in another one."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from unskew.comparison import plan, training, workers
from unskew.errors import StateError

pytestmark = pytest.mark.own_process
TINY = {"rounds": 1, "clients": 2, "samples": 20, "epochs": 1, "model": "mlp", "skew": "iid"}

CODE = """
import os, pathlib, sys
for line in sys.stdin:
    path = pathlib.Path(line.strip())
    tried = path / "tried"
    tried.write_text(tried.read_text() + "x" if tried.exists() else "x")
    if len(tried.read_text()) <= {losses}:
        os.kill(os.getpid(), {signal})
    (path / "model.safetensors").write_bytes(b"")
    print(0, flush=True)
"""


def cells(folder, seeds=1):
    folder.mkdir(exist_ok=True)
    return plan.plan_cells(folder, plan.Plan(("fedavg",), tuple(range(seeds)), TINY))


@pytest.fixture
def dying(monkeypatch):
    """Makes workers die of a signal so many times before they finish a run without training it."""
    real = subprocess.Popen

    def made(losses: int, number: signal.Signals):
        code = CODE.format(losses=losses, signal=int(number))
        monkeypatch.setattr(
            workers.subprocess,
            "Popen",
            lambda words, **more: real([sys.executable, "-S", "-c", code], **more),
        )

    return made


def test_a_run_whose_process_is_killed_goes_on_in_another(tmp_path, dying):
    dying(2, signal.SIGKILL)
    run = cells(tmp_path, 2)
    training.train_all(run, 2, lambda cells: None)
    assert [(cell.code, cell.losses) for cell in run] == [(0, 2), (0, 2)]


def test_a_run_that_kills_its_process_again_and_again_is_given_up(tmp_path, dying):
    dying(9, signal.SIGSEGV)
    with pytest.raises(StateError, match="E120 fedavg, seed 0: its process died 3 times"):
        training.train_all(cells(tmp_path), 1, lambda cells: None)


def test_a_process_that_somebody_ends_is_not_begun_again(tmp_path, dying):
    dying(9, signal.SIGTERM)
    with pytest.raises(StateError, match="E120 fedavg, seed 0 failed"):
        training.train_all(cells(tmp_path), 1, lambda cells: None)


def test_a_worker_that_dies_between_two_runs_loses_the_next_one(tmp_path, dying):
    dying(0, signal.SIGKILL)
    worker, (cell,) = workers.WorkerProcess(tmp_path / "log.txt"), cells(tmp_path)
    worker.process.kill()
    worker.process.wait()
    worker.begin(cell)
    assert worker.ended() == -signal.SIGKILL
    worker.stop()


PRINTS = """
import os
from torch import nn

def net(shape, classes):
    print(3, flush=True)
    os.system("echo hello")
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
"""


def test_what_a_users_own_model_prints_is_not_the_code_of_a_run(tmp_path):
    """A number was taken for one, of this run or the next; a text ended the comparison (E143)."""
    (tmp_path / "mine.py").write_text(PRINTS)
    (cell,) = cells(tmp_path / "runs")
    cell.settings = cell.settings.replace(data="digits", model=f"{tmp_path / 'mine.py'}:net")
    worker = workers.WorkerProcess(tmp_path / "log.txt")
    worker.begin(cell)
    until = time.monotonic() + 120
    while (code := worker.ended()) is None and time.monotonic() < until:
        time.sleep(0.05)
    worker.stop()
    assert code == 0
    assert cell.ended
    assert {"3", "hello"} <= set((tmp_path / "log.txt").read_text().split())
