"""A single run whose clients train on a cluster, with a Ray that is none: the bits of one machine, losses,
refusals."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

import unskew
from tests.cli.calling import call
from tests.comparison.fakes import Ray
from unskew.comparison import ray_clients
from unskew.comparison.cluster import Cluster
from unskew.config import build
from unskew.core.trees import leaves
from unskew.errors import Paused, StateError, UsageError
from unskew.round.loop import remaining_rounds
from unskew.runs.assemble import loop_of
from unskew.runs.resolve import resolve

TINY = {
    "rounds": 2,
    "clients": 5,
    "samples": 16,
    "epochs": 1,
    "model": "mlp(hidden=[8])",
    "lanes": "2",
    "workers": 1,
}


def trained(run):
    loop = loop_of(run)
    try:
        state = loop.begin()
        for after in remaining_rounds(loop, state, lambda *_: None):
            state = after
    finally:
        loop.trainer.close()
    return dict(leaves({"w": state.weights, "slices": state.slices})), loop.record


@pytest.fixture
def cluster(monkeypatch):
    ray = Ray(nodes=({"CPU": 2.0},))
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # which a node's process sets
    return ray


@pytest.mark.parametrize("method", ["scaffold", "fedamp"])
def test_clients_train_elsewhere_to_the_bits_of_one_machine(cluster, method):
    """Private state goes there and back, and so does what each client is sent; two lost chunks change
    nothing."""
    cluster.losses = 2
    run = resolve(build({**TINY, "method": method, "metrics": "auroc"}))
    here, record = trained(run)
    spread_run = ray_clients.train_clients_on(run, Cluster())
    assert isinstance(spread_run.remote, ray_clients.RayClients)
    assert (
        "auroc" not in spread_run.remote.settings
    )  # only the driver scores, and has a user's file of metrics
    there, other = trained(spread_run)
    assert here.keys() == there.keys()
    assert all(torch.equal(here[n], there[n]) for n in here)
    assert record.latest("train", "loss") == other.latest("train", "loss")
    assert cluster.begun > 2 + 2
    assert cluster.shut


def test_a_chunk_that_is_lost_again_and_again_ends_the_run(cluster):
    cluster.losses = 99
    with pytest.raises(
        StateError, match=r"E120 round 1: the process that trains \d of its clients died 3 times"
    ):
        trained(ray_clients.train_clients_on(resolve(build({**TINY, "workers": 1})), Cluster()))
    assert cluster.shut


def test_a_node_that_cannot_build_the_run_is_named(cluster, monkeypatch):
    run = ray_clients.train_clients_on(resolve(build(TINY)), Cluster())
    monkeypatch.setattr(run.remote, "data", "0" * 64)
    with pytest.raises(
        UsageError, match=r"E172 round 1: node .* cannot build the run: .*data 'digits' are not those"
    ):
        trained(run)


def test_what_leaves_a_node_is_no_view_of_something_larger():
    whole = torch.zeros(1000, 3)
    reply = ray_clients.Reply(
        0, 1.0, {"w": whole[0]}, {"p": {"s": whole[1]}}, {"p": {"m": whole[2]}}, whole[3, 0]
    )
    sent = ray_clients.copy_reply(reply)
    tensors = [sent.weights["w"], sent.shares["p"]["s"], sent.private["p"]["m"], sent.loss]
    assert all(t.untyped_storage().nbytes() <= 12 for t in tensors)


def test_a_run_on_a_gpu_stays_in_one_place():
    with pytest.raises(UsageError, match=r"E109 --on spreads .* over CPUs, and this run computes on cuda"):
        ray_clients.train_clients_on(replace(resolve(build(TINY)), device="cuda"), Cluster())


def test_the_command_knows_clusters_from_federations(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    tiny = ["--rounds", "1", "--clients", "2", "--samples", "16", "--model", "mlp"]
    absent = call("run", "fedavg", *tiny, "--on", "ray", cwd=tmp_path)
    assert (absent.code, absent.err[:4]) == (2, "E133")
    assert call("run", "fedavg", *tiny, "--on", "ray:x", cwd=tmp_path).err[:4] == "E172"
    (tmp_path / "federations/ray").mkdir(parents=True)
    assert call("run", "fedavg", *tiny, "--on", "ray", cwd=tmp_path).err[:4] not in ("E172", "E133")


def test_python_runs_and_resumes_on_a_cluster(cluster, tmp_path):
    """To the bits of this process; what only this program has cannot be built on a node."""
    here = unskew.run("scaffold", **TINY)
    assert unskew.run("scaffold", on="ray", **TINY).digest == here.digest
    chunks = cluster.begun
    assert chunks > 2
    kept = {"name": "c", "folder": tmp_path, "metrics": "auroc"}
    with pytest.raises(KeyboardInterrupt):
        unskew.run("scaffold", shown=interrupting, **kept, **TINY)
    assert unskew.resume(tmp_path / "c", on="ray").digest == here.digest
    assert cluster.begun > chunks
    with pytest.raises(UsageError, match="E172"):
        unskew.run("fedavg", on="slurm", **TINY)
    x = np.zeros((40, 3), np.float32)
    with pytest.raises(
        UsageError,
        match="E109 nodes build a run from its settings, and data was given in Python as an object",
    ):
        unskew.run("fedavg", (x, np.arange(40) % 2), on="ray", **{**TINY, "samples": None, "clients": 2})


def interrupting(*_):
    raise KeyboardInterrupt


def test_a_lost_connection_pauses_the_run_and_nothing_more_is_asked(cluster, monkeypatch):
    def gone(*words, **more):
        cluster.joined = False
        raise ConnectionError("Client is shutting down.")

    monkeypatch.setattr(cluster, "wait", gone)
    with pytest.raises(Paused, match="E172 the connection to the Ray cluster was lost"):
        trained(ray_clients.train_clients_on(resolve(build(TINY)), Cluster()))
    assert cluster.killed == 0
