"""The coordinator's calls to its SuperLink: where they go, and what becomes of a refusal."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'unskew[flower]'")

import httpx
from flwr.common.serde import user_config_from_proto, user_config_to_proto
from flwr.proto.run_pb2 import Run
from flwr.supercore.error import ApiErrorCode
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from tests.federation.loopback import SLOW_MACHINE
from unskew.federation import addresses as socket_names
from unskew.federation import programs
from unskew.federation.coordinator import superlink
from unskew.federation.coordinator.superlink import (
    APP,
    APP_HASH,
    ORDER,
    Refused,
    SuperLink,
    Task,
    Unavailable,
)
from unskew.federation.protocol.identity import PrivateKey, persistent_secret
from unskew.federation.tickets import Coordinator

pytestmark = pytest.mark.flower


def refusal(code: int, text: str = "no") -> httpx.HTTPStatusError:
    """What Flower's clients raise."""
    request = httpx.Request("POST", "http://behind")
    response = httpx.Response(400, json={"code": int(code), "detail": text}, request=request)
    return httpx.HTTPStatusError("400", request=request, response=response)


class Client:
    """Stands for Flower's clients. answers: by name of a call, what it returns or raises."""

    def __init__(self, url: str, **options):
        self.url, self.options, self.asked, self.closed = url, options, [], 0
        self.answers: dict[str, object] = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.closed += 1

    def __getattr__(self, name: str):
        def call(request):
            self.asked.append((name, request))
            answer = self.answers.get(name)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


@pytest.fixture
def home(tmp_path):
    home = Coordinator.make(tmp_path / "fed", "lung", "127.0.0.1:1", ["a"])
    return home


@pytest.fixture
def made(monkeypatch):
    """The clients that were made, in their order; those that are still to come take their answers from
    `later`."""
    clients = SimpleNamespace(all=[], later={})

    def client(url, **options):
        clients.all.append(Client(url, **options))
        clients.all[-1].answers = clients.later
        return clients.all[-1]

    monkeypatch.setattr(superlink, "_connected", lambda home, client: client)
    monkeypatch.setattr(superlink, "ControlHttpClient", client)
    monkeypatch.setattr(superlink, "RuntimeHttpClient", client)
    return clients


def test_only_the_coordinators_user_reaches_it_and_a_removed_site_is_registered_again(tmp_path):
    folder = tmp_path / ("f" * socket_names.MOST_SOCKET_PATH)  # longer than a socket's address may be
    home, key = Coordinator.make(folder, "lung", "127.0.0.1:1", ["a"]), PrivateKey.make().public
    persistent_secret(secret := home.folder / "flower/tasks.key")
    env = programs.environment(home.folder / "flower")
    process = subprocess.Popen(superlink.superlink_command(home, secret), env=env)
    link, until = SuperLink(home), time.monotonic() + SLOW_MACHINE * 60
    try:
        while not home.superlink.exists():
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.1)
        assert home.superlink.parent.stat().st_mode & 0o777 == 0o700
        tables = [Path(f"/proc/{process.pid}/net/{name}").read_text() for name in ("tcp", "tcp6")]
        listening = {line.split()[9] for table in tables for line in table.splitlines() if " 0A " in line}
        held = {os.readlink(fd) for fd in Path(f"/proc/{process.pid}/fd").iterdir()}
        assert not held & {f"socket:[{inode}]" for inode in listening}
        assert link.nodes() == {}
        link.register("a", key)
        ((text, node),) = link.nodes().items()
        assert text == superlink.flower_key(key)
        link.unregister(node)
        assert link.nodes() == {}
        link.register("a", key)
        assert link.nodes().keys() == {text}
    finally:
        link.close()
        process.terminate()
        process.wait()


def test_a_key_is_registered_once_and_a_second_time_is_no_failure(home, made):
    link, key = SuperLink(home), PrivateKey.make().public
    link.register("a", key)
    ((call, request),) = made.all[0].asked
    assert (call, request.name, request.public_key) == ("RegisterNode", "a", public_key_to_bytes(key.key))
    made.later["RegisterNode"] = refusal(ApiErrorCode.PUBLIC_KEY_ALREADY_IN_USE)
    link.register("a", key)
    made.later["RegisterNode"] = refusal(ApiErrorCode.PUBLIC_KEY_NOT_VALID, "this key is none")
    with pytest.raises(Refused, match="this key is none"):
        link.register("a", key)


@pytest.mark.parametrize("call", ["start", "status", "stop", "register"])
def test_a_superlink_that_is_away_is_told_from_one_that_refuses(home, made, call):
    link = SuperLink(home)
    names = {"start": "StartRun", "status": "ListRuns", "stop": "StopRun", "register": "RegisterNode"}
    words = {"start": ["order"], "status": [7], "stop": [7], "register": ["a", PrivateKey.make().public]}[
        call
    ]
    made.later[names[call]] = httpx.ConnectError("nobody is there")
    with pytest.raises(Unavailable, match="nobody is there"):
        getattr(link, call)(*words)
    made.later[names[call]] = refusal(ApiErrorCode.RUN_ID_NOT_FOUND, "no such run")
    with pytest.raises(Refused, match="no such run"):
        getattr(link, call)(*words)
    request = httpx.Request("POST", "http://behind")
    page = httpx.Response(500, text="<html>", request=request)
    made.later[names[call]] = httpx.HTTPStatusError("Server error '500'", request=request, response=page)
    with pytest.raises(Refused, match="Server error '500'"):
        getattr(link, call)(*words)


def test_a_run_begins_with_the_name_of_its_order_and_code_that_does_nothing(home, made):
    made.later["StartRun"] = SimpleNamespace(run_id=41)
    assert SuperLink(home).start("0123") == 41
    ((_, request),) = made.all[0].asked
    assert user_config_from_proto(request.override_config) == {ORDER: "0123"}
    assert (request.fab.hash_str, request.fab.content) == (APP_HASH, APP)


def test_the_state_of_a_run_is_that_of_its_number(home, made):
    runs = {
        n: SimpleNamespace(status=SimpleNamespace(status=word))
        for n, word in ((7, "running"), (8, "finished"))
    }
    made.later["ListRuns"] = SimpleNamespace(run_dict=runs)
    link = SuperLink(home)
    assert [link.status(7), link.status(8)] == ["running", "finished"]
    assert [request.run_id for _, request in made.all[0].asked] == [7, 8]


def test_a_run_that_has_ended_meanwhile_may_be_stopped(home, made):
    link = SuperLink(home)
    made.later["StopRun"] = refusal(ApiErrorCode.RUN_ALREADY_FINISHED)
    link.stop(7)
    assert made.all[0].asked[0][1].run_id == 7


def test_a_task_is_taken_with_the_secret_by_one_client_for_good(home, made):
    link, waiting = SuperLink(home), SimpleNamespace(HasField=lambda name: False, token="")
    made.later["AcquireTask"] = waiting
    assert link.take(b"secret") is None
    waiting.HasField, waiting.task = (
        (lambda name: name == "task"),
        SimpleNamespace(run_id=7, task_id=3, fab_hash="h"),
    )
    assert link.take(b"secret") is None, "a task without a token lets nobody speak for the run"
    waiting.token = "t"
    assert link.take(b"secret") == Task(7, 3, "t", "h")
    assert len(made.all) == 2
    (proof,) = made.all[1].options["interceptors"][1:]
    assert isinstance(proof, superlink.SuperExecAuthHttpInterceptor)
    kinds = {kind for _, request in made.all[1].asked for kind in request.supported_task_types}
    assert kinds == set(superlink.TaskType)
    link.close()
    assert [client.closed for client in made.all] == [1, 1]


@pytest.mark.parametrize(("config", "order"), [({ORDER: "0123", "else": 1}, "0123"), ({}, "")])
def test_the_order_of_a_task_is_read_with_its_token(home, made, config, order):
    made.later["PullTaskInput"] = SimpleNamespace(run=Run(override_config=user_config_to_proto(config)))
    assert SuperLink(home).order_of(Task(7, 3, "t", "h")) == order
    assert made.all[1].closed == 1
    assert isinstance(made.all[1].options["interceptors"][1], superlink.RuntimeTokenHttpInterceptor)


@pytest.mark.parametrize(("problem", "outcome"), [("", "completed"), ("no such order", "failed")])
def test_a_task_ends_with_what_came_of_it_also_where_it_has_ended_already(home, made, problem, outcome):
    link = SuperLink(home)
    link.finish(Task(7, 3, "t", "h"), problem)
    ((_, request),) = made.all[1].asked
    assert (request.sub_status, request.details) == (outcome, problem)
    made.later["PushTaskOutput"] = refusal(ApiErrorCode.RUNTIME_AUTHENTICATION_FAILED)
    link.finish(Task(7, 3, "t", "h"))
    made.later["PushTaskOutput"] = refusal(ApiErrorCode.RUN_ID_NOT_FOUND, json.dumps("gone"))
    with pytest.raises(Refused, match="gone"):
        link.finish(Task(7, 3, "t", "h"))
