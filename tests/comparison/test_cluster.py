"""`--on`, taken apart; what Ray says when it joins no cluster; and a Python without Ray."""

from __future__ import annotations

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


def test_versions_that_differ_are_named(monkeypatch):
    def init(url, **options):
        there, here = "    Ray: 2.60.0\n    Python: 3.11.7\n", "    Ray: 2.41.0\n    Python: 3.12.1\n"
        raise RuntimeError(
            f"Version mismatch: The cluster was started with:\n{there}This process on h was started"
            f" with:\n{here}"
        )

    ray = Ray()
    ray.init = init
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(ray_cluster, "probe_address", lambda cluster: None)
    words = (
        r"E172 the cluster at ray://h:1 runs Ray 2.60.0 on Python 3.11.7, and this machine has Ray 2.41.0 on"
        r" Python 3.12.1"
    )
    with pytest.raises(UsageError, match=words):
        ray_cluster.connection(parse("ray://h:1"), 1).__enter__()


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


def test_of_a_traceback_of_the_head_the_last_line_is_told(monkeypatch):
    def init(url, **options):
        raise ConnectionAbortedError(
            "Initialization failure from server:\nTraceback (most recent call last):\n  x\nRuntimeError: it"
            " failed\n"
        )

    ray = Ray()
    ray.init = init
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(ray_cluster, "probe_address", lambda cluster: None)
    with pytest.raises(
        UsageError,
        match=r"E172 ray://h:1 is no Ray cluster that this Ray can join: 'RuntimeError: it failed'",
    ):
        ray_cluster.connection(parse("ray://h:1"), 1).__enter__()


@pytest.mark.parametrize("error", [RuntimeError, RayError])
def test_a_cluster_of_another_version_or_with_another_token_is_told(monkeypatch, error):
    def init(url, **options):
        raise error("Version mismatch: The cluster was started with:\n    Ray: 1.0")

    ray = Ray()
    ray.init = init
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(ray_cluster, "probe_address", lambda cluster: None)
    with pytest.raises(UsageError, match=r"E172 head:6379 is no Ray cluster .*Version mismatch"):
        ray_cluster.connection(parse("ray:head:6379"), 1).__enter__()


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


def test_a_federation_is_told_from_a_mistyped_cluster(tmp_path, monkeypatch):
    """`unskew compare --on lung` was answered with Ray's addresses, though `unskew run --on lung` trains
    there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "federations" / "lung").mkdir(parents=True)
    each = "unskew run METHOD --config study.yaml --on lung --name NAME, then unskew report runs/A runs/B."
    with pytest.raises(UsageError) as refused:
        parse("lung")
    assert refused.value.text.endswith(
        f"'lung' is a federation, whose sites train one method at a time: {each}"
    )
    for other in ("lungs", "../federations/lung", "."):
        with pytest.raises(UsageError) as refused:
            parse(other)
        assert "federation," not in refused.value.text
