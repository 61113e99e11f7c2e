"""Runs on a cluster, with a Ray that is none: what is lost and done again, what is refused, what is asked of
nodes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.comparison.fakes import Ray, RayError, RayTaskError, trained
from unskew.comparison import plan, ray_cluster, ray_workers, training, workers
from unskew.comparison.cluster import Cluster
from unskew.comparison.workers import MOST_LOSSES
from unskew.errors import Paused, StateError, UsageError

TINY = {"rounds": 1, "clients": 2, "samples": 20, "epochs": 1, "model": "mlp", "skew": "iid"}


@pytest.fixture
def cluster(monkeypatch):
    """Makes a Ray out of answers the one that is imported."""
    monkeypatch.setattr(ray_workers.RayPool, "pause_s", 0.0)
    monkeypatch.setattr(ray_workers, "SHARED_FILES_S", 0.0)

    def made(*answers, **options):
        ray = Ray(*answers, **options)
        monkeypatch.setitem(sys.modules, "ray", ray)
        return ray

    return made


def cells(folder, seeds=1):
    folder.mkdir(exist_ok=True)
    return plan.plan_cells(folder, plan.Plan(("fedavg",), tuple(range(seeds)), TINY))


def lost(*words):
    raise RayError("The node died.\nWorker 12 exited")


def ended(path, *words):
    """A run that is finished without being trained."""
    (Path(path) / "model.safetensors").write_bytes(b"")
    return {"node": "n7", "code": 0, "said": ""}


def died(*words):
    return {"node": "n7", "code": None, "said": "Killed"}


def test_runs_of_a_cluster_have_the_bits_of_this_machine(tmp_path, cluster):
    there, here = cells(tmp_path / "there"), cells(tmp_path / "here")
    cluster()
    training.train_all(there, 0, lambda cells: None, Cluster())
    for cell in here:
        cell.path.mkdir()
        workers.write_order(cell, 1)
        workers.train(cell.path)
    weights = [[(cell.path / "model.safetensors").read_bytes() for cell in side] for side in (there, here)]
    assert weights[0] == weights[1]
    assert all(cell.done and cell.t == 1 for cell in there)


@pytest.mark.parametrize("loss", [lost, died])
def test_a_run_whose_worker_died_is_done_again(tmp_path, cluster, loss):
    ray, run = cluster(loss, loss, trained), cells(tmp_path)
    training.train_all(run, 0, lambda cells: None, Cluster())
    assert run[0].done
    assert ray.begun == 3
    assert ray.killed == 3  # both lost actors are let go, and the last one at the end
    assert "fedavg, seed 0 was lost" in (tmp_path / "log.txt").read_text()


def test_a_run_that_kills_its_workers_is_not_tried_for_ever(tmp_path, cluster):
    ray = cluster(died)
    with pytest.raises(StateError, match=r"E120 fedavg, seed 0: its process died 3 times after round 0"):
        training.train_all(cells(tmp_path), 0, lambda cells: None, Cluster())
    assert ray.begun == MOST_LOSSES
    assert ray.shut


def test_a_node_that_cannot_train_is_named(tmp_path, cluster):
    cluster(lambda *words: {"node": "n7", "unfit": "has unskew 0.0.1 with torch 2, and the driver another"})
    with pytest.raises(UsageError, match=r"E172 fedavg, seed 0: node n7 has unskew 0\.0\.1"):
        training.train_all(cells(tmp_path), 0, lambda cells: None, Cluster())


def test_a_node_that_keeps_its_files_to_itself_is_named(tmp_path, cluster):
    cluster(lambda *words: {"node": "n7", "code": 0, "said": ""})
    with pytest.raises(UsageError, match=r"E172 .*node n7 finished it, and nothing of it is in"):
        training.train_all(cells(tmp_path), 0, lambda cells: None, Cluster())


def test_other_data_on_a_node_are_noticed_before_anything_trains(tmp_path, cluster):
    def others(path, wanted, data):
        assert data == ray_workers.fingerprint(
            ray_workers.federation_of(run[0].settings, ray_workers.method_of(run[0].settings))
        )
        return trained(path, wanted, "0" * 64)

    run = cells(tmp_path)
    cluster(others)
    with pytest.raises(
        UsageError, match=r"fedavg, seed 0: .*the data 'digits' are not those that the driver reads"
    ):
        _with_log(run, tmp_path)
    assert not (run[0].path / "config.yaml").exists()


def _with_log(run, folder):
    """Train, with what a worker prints in the log, as an actor hands it back."""
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "_log", said.append)
        real = Ray.get

        def get(self, words):
            answer = real(self, words)
            return {**answer, "said": said[-1] if said else ""}

        patch.setattr(Ray, "get", get)
        training.train_all(run, 0, lambda cells: None, Cluster())


def test_an_error_of_the_actor_itself_is_one_sentence(tmp_path, cluster):
    def broken(*words):
        raise RayTaskError("Traceback ...")

    cluster(broken)
    with pytest.raises(StateError, match="E120 fedavg, seed 0 failed on the cluster; the details are in"):
        training.train_all(cells(tmp_path), 0, lambda cells: None, Cluster())
    assert "Traceback" in (tmp_path / "log.txt").read_text()


def test_what_no_node_has_is_refused(tmp_path, cluster):
    cluster(nodes=({"CPU": 2.0}, {"CPU": 8.0, "GPU": 1.0}))
    with pytest.raises(UsageError, match=r"E172 a run takes 4 CPU and 2 GPU, .*at most 8 CPU, 1 GPU"):
        training.train_all(cells(tmp_path), 0, lambda cells: None, Cluster(cpus=4, gpus=2))


def test_there_are_as_many_runs_at_a_time_as_the_nodes_have_room_for(tmp_path, cluster):
    assert ray_cluster.actor_places([{"CPU": 5.0}, {"CPU": 4.0, "GPU": 1.0}], {"CPU": 2.0, "GPU": 0.0}) == 4
    assert ray_cluster.actor_places([{"CPU": 5.0}, {"CPU": 8.0, "GPU": 1.0}], {"CPU": 1.0, "GPU": 0.1}) == 8
    ray = cluster(ended, nodes=({"CPU": 2.0}, {"CPU": 1.0}))
    ray.busy = 9
    training.train_all(cells(tmp_path, 4), 0, lambda cells: None, Cluster())
    assert len(ray.orders) == 3
    assert ray.share == {"num_cpus": 1.0, "num_gpus": 0.0}
    assert ray.orders[0]["env"]["CUDA_VISIBLE_DEVICES"] == ""


def test_a_finished_comparison_needs_no_cluster(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    run = cells(tmp_path)
    run[0].path.mkdir()
    (run[0].path / "model.safetensors").write_bytes(b"")
    training.train_all(run, 0, lambda cells: None, Cluster())
    assert run[0].code == 0


@pytest.mark.parametrize("how", ["the question fails", "Ray knows already"])
def test_a_lost_connection_pauses_and_nothing_more_is_asked(tmp_path, cluster, how):
    """Ray would look for another cluster on this machine, or start one, when it is asked anything more."""

    def gone(*words):
        ray.joined = False
        raise ConnectionError("Client is shutting down.")

    ray, run = cluster(gone), cells(tmp_path)
    if how == "Ray knows already":
        ray.wait = lambda *words, **more: setattr(ray, "joined", False) or ([], [])
    with pytest.raises(
        Paused, match=r"E172 the connection to the Ray cluster was lost; .* `unskew resume` goes on"
    ):
        training.train_all(run, 0, lambda cells: None, Cluster())
    assert ray.killed == 0
