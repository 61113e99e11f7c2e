"""What all tests share."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

# Before torch is loaded: a fork taken while a thread of training is inside MKL's own memory manager waits for
# its lock for ever.
os.environ.setdefault("MKL_DISABLE_FAST_MM", "1")

from tests import forked
from unskew.comparison import workers
from unskew.methods import feddpms, registry
from unskew.round.trainer import Trainer


@pytest.fixture(autouse=True)
def forked_workers(request, monkeypatch):
    """Comparisons fork their workers, but for tests marked `own_process`.

    Only with OMP_NUM_THREADS=1, as `make test` sets it: a fork of a process whose OpenMP has threads waits
    for them for ever.
    """
    if request.node.get_closest_marker("own_process") is None and os.environ.get("OMP_NUM_THREADS") == "1":
        monkeypatch.setattr(workers, "WorkerProcess", forked.Worker)


@pytest.fixture(autouse=True)
def unsynced(monkeypatch):
    """Files are not forced to the disk, which only a power cut would show; a networked run of three rounds
    does so 240 times.

    Tests of what happens when syncing fails, and of the order of steps, put their own function in this one's
    place.
    """
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture(autouse=True)
def closed_trainers(monkeypatch):
    """Trainers that a test makes are closed after it."""
    made, real = list[Trainer](), Trainer.__init__
    monkeypatch.setattr(Trainer, "__init__", lambda self, *a, **k: made.append(self) or real(self, *a, **k))
    yield
    for trainer in made:
        if hasattr(trainer, "_pool"):
            trainer.close()


@pytest.fixture
def few_attempts(monkeypatch):
    """FedDPMS gives up soon on a mean that its barely trained decoder and model take for another class."""
    monkeypatch.setattr(feddpms, "ATTEMPTS", 5)


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """What pip leaves behind of a package that brings a method, `myproto`: the module and its metadata."""
    shutil.copy(Path(__file__).parents[1] / "examples" / "my_method.py", tmp_path / "their_package.py")
    info = tmp_path / "their_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[unskew.methods]\nmyproto = their_package:MyProto\n")
    monkeypatch.syspath_prepend(tmp_path)
    registry.installed.cache_clear()
    yield
    sys.modules.pop("their_package", None)
    registry.installed.cache_clear()
