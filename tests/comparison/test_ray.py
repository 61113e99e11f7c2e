"""Runs on a real Ray cluster of three nodes on this machine: `make test-ray`. Elsewhere these tests are
skipped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.experiments.tables import SMALL, written

pytestmark = [pytest.mark.ray, pytest.mark.own_process]
pytest.importorskip("ray")

FEW = ["--data", "digits", "--model", "mlp", "--clients", "4", "--seeds", "2", "--no-references"]
STORE = 80 << 20


@pytest.fixture(scope="module")
def cluster():
    """A head and two nodes with a core each; its address is that of the head."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": STORE})
    for _ in range(2):
        made.add_node(num_cpus=1, object_store_memory=STORE)
    yield made
    made.shutdown()


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The weights of a comparison of 40 rounds that this machine's own processes have trained."""
    folder = tmp_path_factory.mktemp("here")
    assert begun(folder, 40, "here").wait(300) == 0
    return weights(folder)


def begun(folder: Path, rounds: int, on: str, *more: str) -> subprocess.Popen[str]:
    words = ["compare", "fedavg", *FEW, "--rounds", str(rounds), "--name", "c", "--on", on, *more]
    return command(folder, *words)


def command(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "unskew", *words],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def ended(process: subprocess.Popen[str], seconds: float = 200) -> tuple[int, str]:
    try:
        out, _ = process.communicate(timeout=seconds)
    finally:
        process.kill()
    return process.returncode, out


def weights(folder: Path) -> dict[str, bytes]:
    return {f.parent.name: f.read_bytes() for f in sorted(folder.glob("runs/c/*/model.safetensors"))}


def trainers(folder: Path) -> list[int]:
    """The worker processes whose driver is in this folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            ours = b"unskew.comparison.workers" in (process / "cmdline").read_bytes()
            if ours and (process / "cwd").resolve() == folder.resolve():
                found.append(int(process.name))
        except OSError:
            continue
    return found


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def until(true, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def round_of(folder: Path) -> int:
    """The last finished round of the run that has come furthest and has not ended."""
    files = [f for f in folder.glob("runs/c/*/events.jsonl") if not (f.parent / "model.safetensors").exists()]
    return max((f.read_text().count('"code":"round"') for f in files), default=0)


@pytest.mark.parametrize("whom", ["trainer", "actor"])
def test_a_killed_worker_changes_no_bit(cluster, reference, tmp_path, whom):
    driver = begun(tmp_path, 40, f"ray:{cluster.address}")
    until(lambda: round_of(tmp_path) > 3)
    victim = trainers(tmp_path)[0]
    os.kill(victim if whom == "trainer" else parent(victim), signal.SIGKILL)
    code, said = ended(driver)
    assert code == 0, said
    assert weights(tmp_path) == reference
    assert "was lost" in (tmp_path / "runs/c/log.txt").read_text()
    assert not trainers(tmp_path)


def test_a_node_that_goes_changes_no_bit(cluster, reference, tmp_path):
    driver = begun(tmp_path, 40, f"ray:{cluster.address}")
    until(lambda: round_of(tmp_path) > 3)
    gone = sorted(cluster.worker_nodes, key=str)[0]
    cluster.remove_node(gone, allow_graceful=False)
    code, said = ended(driver)
    cluster.add_node(num_cpus=1, object_store_memory=STORE)
    assert code == 0, said
    assert weights(tmp_path) == reference


def test_a_killed_driver_is_resumed_to_the_same_bits(cluster, reference, tmp_path):
    driver = begun(tmp_path, 40, f"ray:{cluster.address}")
    until(lambda: round_of(tmp_path) > 3)
    looked = ended(command(tmp_path, "watch", "runs/c", "--once"))
    assert "fedavg" in looked[1]
    driver.kill()
    driver.wait()
    before = round_of(tmp_path)
    code, said = ended(command(tmp_path, "resume", "runs/c"))
    assert code == 0, said
    assert weights(tmp_path) == reference
    assert before < 40


def test_two_drivers_of_one_comparison_do_not_write_into_the_same_run(cluster, reference, tmp_path):
    first = begun(tmp_path, 40, f"ray:{cluster.address}")
    until(lambda: round_of(tmp_path) > 1)
    second = begun(tmp_path, 40, "here")
    code, said = ended(second)
    assert (code, "E110" in said) in [(2, True), (0, False)], said
    code, said = ended(first)
    assert code == 0, said
    assert weights(tmp_path) == reference


def test_a_node_with_another_version_is_refused(cluster, tmp_path):
    code = (
        "import sys; from unskew.comparison import ray_cluster as nodes; nodes.revision = lambda: '0.0.9';"
        "sys.argv = ['unskew', *sys.argv[1:]]; from unskew.cli import main; main()"
    )
    words = ["compare", "fedavg", *FEW, "--rounds", "2", "--name", "c", "--on", f"ray:{cluster.address}"]
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("E172 fedavg, seed 0: node ")
    assert "and the driver 0.0.9 with torch" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_table_is_run_on_the_nodes(cluster, tmp_path):
    words = ["reproduce", "small.yaml", "--rows", "even", "--seeds", "2", "--json"]
    tables = []
    for on in ("here", f"ray:{cluster.address}"):
        folder = tmp_path / on.partition(":")[0]
        folder.mkdir()
        written(folder, "small", SMALL)
        code, said = ended(command(folder, *words, "--on", on))
        assert code == 0, said
        tables.append(json.loads(said[said.index("{") :]))
    assert tables[0]["entries"] == tables[1]["entries"]


ONE = [
    "fedavg+scaffold",
    "--data",
    "digits",
    "--clients",
    "40",
    "--availability",
    "sample:0.8",
    "--rounds",
    "30",
]


def actors(folder: Path) -> list[int]:
    """The processes on nodes that train the clients of a single run whose driver is in this folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            ours = (process / "cmdline").read_bytes().startswith(b"ray::ClientActor")
            if ours and (process / "cwd").resolve() == folder.resolve():
                found.append(int(process.name))
        except OSError:
            continue
    return found


def test_one_run_on_three_nodes_has_the_bits_of_one_machine_whoever_is_killed(cluster, tmp_path):
    assert ended(command(tmp_path, "run", *ONE, "--name", "here"))[0] == 0
    on = ["--on", f"ray:{cluster.address}"]
    driver = command(tmp_path, "run", *ONE, "--name", "there", *on)
    record = tmp_path / "runs/there/events.jsonl"

    def rounds() -> int:
        return record.read_text().count('"code":"round"') if record.exists() else 0

    until(lambda: rounds() > 2)
    os.kill(actors(tmp_path)[0], signal.SIGKILL)
    before = rounds()
    until(lambda: rounds() > before + 2)
    driver.kill()
    driver.wait()
    assert rounds() < 30
    until(lambda: not actors(tmp_path))
    code, said = ended(command(tmp_path, "resume", "runs/there", *on))
    assert code == 0, said
    weights = [(tmp_path / f"runs/{name}/model.safetensors").read_bytes() for name in ("here", "there")]
    assert weights[0] == weights[1]
