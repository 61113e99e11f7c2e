"""What stands on a node: it says why it cannot train there, and hands back codes and messages."""

from __future__ import annotations

import ast
import inspect
import json
import os
import subprocess
import sys

import pytest

from unskew.comparison import ray_actor
from unskew.comparison.ray_actor import RunActor

OURS = ["0.1.0", "2.13.0"]
POPEN = subprocess.Popen
WORKER = "import sys\nfor line in sys.stdin:\n    {}\n    print({}, flush=True)"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An Arm whose driver is in tmp_path, with a run in r that has been ordered."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ray_actor, "SHARED_FILE_S", 0.0)
    (tmp_path / "r").mkdir()
    (tmp_path / "r/wanted.yaml").write_text("wanted")
    made = RunActor({"folder": str(tmp_path), "env": {}, "versions": OURS})
    made.checked = True
    yield made
    if made.process:
        made.process.kill()
        made.process.wait()


def works(monkeypatch, body, code):
    """The worker process is one that runs this body for each line, and prints the code."""

    def popen(command, **options):
        return POPEN([command[0], "-S", "-c", WORKER.format(body, code)], **options)

    monkeypatch.setattr(ray_actor.subprocess, "Popen", popen)


def test_a_run_is_trained_by_the_same_worker_as_on_one_machine(here, monkeypatch):
    works(monkeypatch, "print(line.strip(), file=sys.stderr, flush=True)", 0)
    first = here.train("r", "wanted", "digest")
    assert (first["code"], first["said"]) == (0, "r\tdigest")
    process = here.process
    assert here.train("r", "wanted", "")["said"] == "r"  # only what this run has said
    assert here.process is process


def test_a_worker_that_is_killed_is_lost_and_the_next_run_gets_another(here, monkeypatch):
    works(monkeypatch, "import os; os.kill(os.getpid(), 9)", 0)
    assert here.train("r", "wanted", "")["code"] is None
    works(monkeypatch, "pass", 2)
    assert here.train("r", "wanted", "")["code"] == 2


def test_a_run_that_somebody_else_trains_is_waited_for(here, monkeypatch):
    """The worker of a driver that was killed holds the run for a while."""
    answers = [(2, "E110 run r is in use by pid 7."), (0, "")]
    monkeypatch.setattr(here, "_train", lambda path, data: answers.pop(0))
    monkeypatch.setattr(ray_actor.time, "sleep", lambda s: None)
    assert here.train("r", "wanted", "")["code"] == 0
    answers = [(2, "E110 run r is in use by pid 7.")] * 2
    monkeypatch.setattr(ray_actor, "IN_USE_S", -1.0)
    assert here.train("r", "wanted", "")["said"].startswith("E110")


def test_a_node_that_does_not_see_the_drivers_folder_says_so(here, tmp_path):
    here.order["folder"] = str(tmp_path / "elsewhere")
    assert here.train("r", "wanted", "")["unfit"].startswith(f"has no folder {tmp_path / 'elsewhere'}")


@pytest.mark.parametrize("path", ["r", "other"])
def test_a_node_that_does_not_see_the_run_as_the_driver_wrote_it_says_so(here, path):
    assert "does not see" in here.train(path, "another", "")["unfit"]


def test_another_version_is_told(here, monkeypatch):
    def run(command, **options):
        return subprocess.CompletedProcess(command, 0, json.dumps(["0.0.9", "2.13.0"]), "")

    here.checked = False
    monkeypatch.setattr(ray_actor.subprocess, "run", run)
    assert here.train("r", "wanted", "")["unfit"] == (
        "has unskew 0.0.9 with torch 2.13.0, and the driver 0.1.0 with torch 2.13.0: install the same"
    )


def test_a_node_without_unskew_says_so(here):
    here.checked = False
    here.env = {name: value for name, value in here.env.items() if name != "PYTHONPATH"} | {
        "PYTHONPATH": os.devnull
    }
    here.order["versions"] = OURS
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray_actor, "VERSIONS", "import unskew_that_is_not_there")
        assert "cannot import unskew in" in here.train("r", "wanted", "")["unfit"]


def test_what_is_sent_to_a_node_needs_nothing_there():
    """It imports more only after it has found the versions to be the same."""
    names = [
        alias.name.split(".")[0] if isinstance(node, ast.Import) else (node.module or "").split(".")[0]
        for node in ast.parse(inspect.getsource(ray_actor)).body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    ]
    assert set(names) <= set(sys.stdlib_module_names)
