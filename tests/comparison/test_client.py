"""Through Ray's client server (`ray://`), from a driver outside the cluster: `make test-ray`. Elsewhere these
are skipped.

The head has two cores and listens on loopback alone.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ray")

from tests.comparison.heads import head
from tests.comparison.test_ray import (
    FEW,
    ONE,
    begun,
    command,
    ended,
    round_of,
    trainers,
    until,
    weights,
)

pytestmark = [pytest.mark.ray, pytest.mark.own_process]

UNSHARE = ["unshare", "--user", "--map-root-user", "--mount"]
"""Another view of the file system, as another machine has one."""


@pytest.fixture(scope="module")
def cluster():
    with head(cpus=2) as running:
        yield running


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> dict[str, bytes]:
    """The weights of a comparison of 30 rounds that this machine's own processes have trained."""
    folder = tmp_path_factory.mktemp("here")
    assert begun(folder, 30, "here").wait(300) == 0
    return weights(folder)


def refused(folder: Path, on: str, *first: str, seconds: float = 60) -> str:
    """What a command says that must end with one sentence and the code of a wrong use. first: the command's
    words."""
    words = first or ("compare", "fedavg", *FEW, "--rounds", "2", "--name", "c")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "unskew", *words, "--on", on],
        cwd=folder, capture_output=True, text=True, timeout=seconds, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    return done.stderr


def test_a_comparison_has_the_bits_of_one_machine_though_a_worker_is_killed(cluster, reference, tmp_path):
    process = begun(tmp_path, 30, cluster.outside)
    until(lambda: round_of(tmp_path) > 3)
    os.kill(trainers(tmp_path)[0], signal.SIGKILL)
    code, said = ended(process)
    assert code == 0, said
    assert weights(tmp_path) == reference
    assert "was lost" in (tmp_path / "runs/c/log.txt").read_text()
    assert not trainers(tmp_path)


@pytest.mark.parametrize("first", [("compare", "fedavg", *FEW), ("run", *ONE)])
def test_nobody_who_listens_is_told_in_one_sentence(tmp_path, first):
    from tests.ports import free_port

    on = f"ray://127.0.0.1:{free_port()}"
    assert refused(tmp_path, on, *first, "--name", "c").startswith(
        f"E172 nobody answers at {on} (Connection refused)."
    )
    assert not (tmp_path / "runs/c/model.safetensors").exists()


def test_the_other_port_of_a_head_and_a_missing_token_are_refused(cluster, tmp_path):
    port, client_port = (on.rpartition(":")[2] for on in (cluster.nodes, cluster.outside))
    for on in (f"ray://127.0.0.1:{port}", f"ray:127.0.0.1:{client_port}"):
        said = refused(tmp_path, on, seconds=300)
        assert said.startswith("E172 ")
        assert "ports are 6379 for ray:HOST" in said
    with head(cpus=1, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="of-the-cluster" * 3) as guarded:
        assert refused(tmp_path, guarded.outside, seconds=300).startswith("E172 ")


@pytest.fixture
def elsewhere(tmp_path):
    """A head that sees an empty folder where this machine has the runs' or the data: `elsewhere(folder)`."""
    if not shutil.which("unshare") or subprocess.run([*UNSHARE, "true"], check=False).returncode:
        pytest.skip("no other view of the file system can be made here")
    empty = tmp_path / "empty"
    empty.mkdir()

    def started(hidden: Path):
        return head(
            1,
            [
                *UNSHARE,
                "sh",
                "-c",
                'mount --bind "$1" "$2" && shift 2 && exec "$@"',
                "-",
                str(empty),
                str(hidden),
            ],
        )

    return started


def test_a_node_that_does_not_see_the_folder_of_runs_is_told(tmp_path, elsewhere):
    mine = tmp_path / "mine"
    mine.mkdir()
    with elsewhere(mine) as far:
        said = refused(mine, far.outside)
    assert said.startswith("E172 fedavg, seed 0: node ")
    assert f"does not see {mine}/runs/c" in said


def test_a_node_that_lacks_the_data_is_told(tmp_path, elsewhere, monkeypatch):
    data, mine = tmp_path / "data", tmp_path / "mine"
    data.mkdir()
    mine.mkdir()
    x = np.random.default_rng(0).normal(size=(80, 5)).astype(np.float32)
    np.savez(data / "ours.npz", x=x, y=np.arange(80) % 2)
    words = ["--data", str(data / "ours.npz"), "--clients", "2", "--rounds", "1", "--name", "c"]
    with elsewhere(data) as far:
        of_comparison = refused(
            mine, far.outside, "compare", "fedavg", "--seeds", "1", "--no-references", *words
        )
        of_run = refused(mine, far.outside, "run", "fedavg", *words)
    assert of_comparison.startswith("E402 fedavg, seed 0: there is no ")
    assert of_run.startswith("E172 round 1: node ")
    assert of_run.endswith(f"cannot build the run: there is no {data / 'ours.npz'}.\n")


def test_a_head_that_dies_pauses_what_it_trained(tmp_path, reference):
    """Which another place finishes to the same bits."""
    with head(cpus=2) as mortal:
        process = begun(tmp_path, 30, mortal.outside)
        until(lambda: round_of(tmp_path) > 3)
        mortal.kill()
        code, said = ended(process)
    assert code == 75, said
    assert "E172 the connection to the Ray cluster was lost" in said.splitlines()[-1]
    code, said = ended(command(tmp_path, "resume", "runs/c", "--on", "here"))
    assert code == 0, said
    assert weights(tmp_path) == reference
