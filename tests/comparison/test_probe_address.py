"""Who listens at an address, with servers that are none of Ray's: `test_client.py` asks those."""

from __future__ import annotations

import socket
import sys
from types import SimpleNamespace

import pytest

from unskew.comparison import ray_cluster
from unskew.comparison.cluster import parse
from unskew.errors import UsageError


class Answer(Exception):
    """Stands for grpc.RpcError."""

    def __init__(self, code):
        self.code = lambda: code


class Grpc:
    """What is used of the package. ready: whether what listens speaks gRPC. answers: by service, the code it
    answers with, or None where it serves that."""

    RpcError = Answer
    StatusCode = SimpleNamespace(UNAUTHENTICATED="no token", UNIMPLEMENTED="no such service")

    class FutureTimeoutError(Exception):
        pass

    def __init__(self, ready=True, **answers):
        self.ready, self.answers, self.closed = ready, answers, 0

    def insecure_channel(self, where):
        return self

    def channel_ready_future(self, channel):
        return self

    def result(self, timeout):
        if not self.ready:
            raise self.FutureTimeoutError

    def ask(self, service):
        if code := self.answers[service]:
            raise Answer(code)

    def close(self):
        self.closed += 1


@pytest.fixture
def listening(monkeypatch):
    """Makes a server out of what it answers: `listening(on, **answers)` knocks at it."""

    def knock(on, **answers):
        grpc = Grpc(**answers)
        monkeypatch.setitem(sys.modules, "grpc", grpc)
        monkeypatch.setitem(sys.modules, "ray._private.grpc_utils", None)
        for service in ("_head", "_client_server"):
            monkeypatch.setattr(
                ray_cluster, service, lambda channel, service=service: channel.ask(service[1:])
            )
        with socket.create_server(("127.0.0.1", 0)) as server:
            try:
                ray_cluster.probe_address(parse(f"{on}127.0.0.1:{server.getsockname()[1]}"))
            finally:
                assert grpc.closed == ("RAY_USE_TLS" not in ray_cluster.os.environ)

    return knock


def test_an_address_at_which_nobody_listens_is_told_at_once():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(UsageError, match=rf"E172 nobody answers at ray://127.0.0.1:{port}"):
        ray_cluster.probe_address(parse(f"ray://127.0.0.1:{port}"))


def test_what_listens_and_does_not_speak_grpc_is_told(listening):
    """Ray itself would wait for minutes."""
    with pytest.raises(
        UsageError, match=r"E172 what listens at 127.0.0.1:.* is not Ray: .* `ray start` was told others"
    ):
        listening("ray:", ready=False)


ABSENT = Grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("on", ["ray:", "ray://"])
def test_what_speaks_grpc_and_is_not_ray_is_told(listening, on):
    with pytest.raises(UsageError, match=r"E172 what listens at (ray://)?127.0.0.1:.* is not Ray"):
        listening(on, head=ABSENT, client_server=ABSENT)


def test_the_other_port_of_a_head_is_told(listening):
    with pytest.raises(
        UsageError, match=r"E172 127.0.0.1:(\d+) is the client server .*: write ray://127.0.0.1:\1"
    ):
        listening("ray:", head=ABSENT, client_server=None)
    with pytest.raises(
        UsageError, match=r"E172 ray://127.0.0.1:(\d+) is the port .* own nodes: write ray:127.0.0.1:\1 on"
    ):
        listening("ray://", head=None, client_server=ABSENT)


@pytest.mark.parametrize("answer", [None, "too late"])
def test_what_serves_what_is_asked_or_says_neither_is_left_to_ray(listening, answer):
    listening("ray:", head=answer, client_server=ABSENT)
    listening("ray://", client_server=answer, head=ABSENT)


def test_a_ray_that_has_other_names_for_it_is_left_to_ray(listening, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray.core.generated.ray_client_pb2", None)
    real = ray_cluster._client_server
    assert ray_cluster._answers(Grpc(), real, None, parse("ray://h:1")) is None


def test_a_cluster_that_asks_for_a_token_is_told(listening):
    with pytest.raises(
        UsageError,
        match=r"E172 the Ray cluster at ray://127.0.0.1:\d+ asks for a token .*RAY_AUTH_MODE=token",
    ):
        listening("ray://", client_server=Grpc.StatusCode.UNAUTHENTICATED)


def test_behind_tls_nothing_is_asked(listening, monkeypatch):
    """Which would need the certificates that Ray is told of."""
    monkeypatch.setenv("RAY_USE_TLS", "1")
    listening("ray:", ready=False)
