"""`--on`, taken apart; what Ray says when it joins no cluster; and a Python without Ray."""

from __future__ import annotations

import socket
import sys

import pytest

from tests.comparison.fakes import Ray, RayError
from unskew.comparison import ray_cluster
from unskew.comparison.cluster import Cluster, parse
from unskew.errors import UsageError


@pytest.mark.parametrize(
    ("text", "url", "cpus", "gpus"),
    [
        ("ray", "", 1, None),
        ("ray,cpus=4", "", 4, None),
        ("ray:10.0.0.5:6379", "10.0.0.5:6379", 1, None),
        ("ray://head.example:10001,gpus=0.25", "ray://head.example:10001", 1, 0.25),
        ("ray:[::1]:6379,cpus=2,gpus=2", "[::1]:6379", 2, 2),
    ],
)
def test_what_is_written_is_understood(text, url, cpus, gpus):
    cluster = parse(text)
    assert (cluster.url, cluster.cpus, cluster.gpus) == (url, cpus, gpus)


def test_this_machine_is_no_cluster():
    assert parse("here") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rya", r"--on takes here, ray, .*got 'rya'"),
        ("ray:head", "has no host and port"),
        ("ray:head:99999", "has no host and port"),
        ("ray://head:6379/../x", "has no host and port"),
        ("ray,gpus=1.5", "a part of one GPU or a whole number"),
        ("ray,cpus=0", "E172"),
        ("ray,cpu=2", "cpus"),
        ("http://head:10001", "--on takes here"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_else(text, said):
    with pytest.raises(UsageError, match=said) as refused:
        parse(text)
    assert refused.value.code == "E172"


def test_a_gpu_is_taken_where_runs_use_one():
    assert Cluster().share_of_gpus("cuda", 0) == 1
    assert Cluster().share_of_gpus("auto", 4) == 1
    assert Cluster().share_of_gpus("auto", 0) == Cluster().share_of_gpus("cpu", 4) == 0
    assert Cluster(gpus=0.25).share_of_gpus("cpu", 4) == 0.25


def test_without_ray_it_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"E133 .*pip install 'unskew\[ray\]'"):
        ray_cluster.ray_package()


def test_the_address_of_the_environment_is_used_and_checked(monkeypatch):
    asked: list[str] = []
    ray = Ray()
    ray.init = lambda url, **options: asked.append(url)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(ray_cluster, "probe_address", lambda cluster: None)
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    with ray_cluster.connection(Cluster(), 1):
        assert asked == ["ray://head:10001"]
    assert ray.shut
    monkeypatch.setenv("RAY_ADDRESS", "nonsense")
    with pytest.raises(UsageError, match="E172"), ray_cluster.connection(Cluster(), 1):
        pass


@pytest.mark.parametrize("deaths", [1, 2])
def test_a_client_server_that_dies_at_birth_is_asked_once_more(monkeypatch, deaths):
    tried = []

    def init(url, **options):
        tried.append(url)
        if len(tried) <= deaths:
            raise ConnectionAbortedError(
                "RuntimeError: Starting Ray client server failed. See x.err for detailed logs."
            )

    ray = Ray()
    ray.init = init
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(ray_cluster, "probe_address", lambda cluster: None)
    if deaths == 1:
        with ray_cluster.connection(parse("ray://h:1"), 1) as used:
            assert used is ray
    else:
        with pytest.raises(UsageError, match=r"E172 .*Starting Ray client server failed"):
            ray_cluster.connection(parse("ray://h:1"), 1).__enter__()
    assert tried == ["ray://h:1"] * 2


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 1.0"), "Version mismatch"),
        (RayError("Version mismatch"), "Version mismatch"),
        (
            ConnectionAbortedError("Traceback (most recent call last):\n  x\nRuntimeError: it\n"),
            "'RuntimeError: it'",
        ),
    ],
)
def test_what_ray_says_of_a_cluster_that_it_cannot_join_is_one_sentence(monkeypatch, error, says):
    def init(url, **options):
        raise error

    ray = Ray()
    ray.init = init
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(ray_cluster, "probe_address", lambda cluster: None)
    with pytest.raises(UsageError, match=rf"E172 head:6379 is no Ray cluster .*{says}.*; ports are 6379"):
        ray_cluster.connection(parse("ray:head:6379"), 1).__enter__()


def test_an_address_at_which_nobody_listens_is_told_at_once():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(UsageError, match=rf"E172 nobody answers at ray://127.0.0.1:{port}"):
        ray_cluster.probe_address(parse(f"ray://127.0.0.1:{port}"))


def test_a_connection_of_the_program_itself_is_used_and_kept(monkeypatch):
    ray = Ray()
    ray.is_initialized = lambda: True
    monkeypatch.setitem(sys.modules, "ray", ray)
    with ray_cluster.connection(Cluster(), 1) as used:
        assert used is ray
    assert not ray.shut
    with (
        pytest.raises(UsageError, match="E172 this program is connected"),
        ray_cluster.connection(parse("ray:h:1"), 1),
    ):
        pass
