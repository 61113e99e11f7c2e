"""The coordinator's SuperLink: the commands that start it and the front, and calls to it.

The calls admit sites, start runs, and take their tasks. Flower knows runs of apps only, so a run has an
archive that names the installed code and contains none. The SuperLink starts no app: the command that has
started a run takes its task and conducts it.
"""

# pyright: reportMissingImports=false
# Flower lives in an environment of its own, and types are checked in the one without it.

from __future__ import annotations

import contextlib
import hashlib
import io
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unskew.errors import MissingPackage
from unskew.federation.addresses import socket_address
from unskew.federation.protocol.signed_messages import PublicKey, persistent_secret
from unskew.federation.tickets import Coordinator

_PROJECT = """[project]
name = "unskew-run"
version = "0.1.0"
description = "A study of unskew"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "unskew"

[tool.flwr.app.components]
serverapp = "unskew.federation.coordinator.network_run:conduct_order"
clientapp = "unskew.federation.site.worker:main"
"""


def _archive() -> bytes:
    """The bytes of the app's archive, always equal: without times, and not compressed."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo("pyproject.toml"), _PROJECT)
    return buffer.getvalue()


APP = _archive()


def _secret_file(home: Coordinator) -> Path:
    """The file with the secret that permits taking the tasks of runs."""
    return home.folder / "flower" / "tasks.key"


def superlink_command(home: Coordinator) -> list[str]:
    """The command that starts the federation's SuperLink at its socket; it starts no programs itself.

    Flower checks the keys of nodes only if it is given a certificate, which it does not use at a socket.
    """
    persistent_secret(secret := _secret_file(home))
    command = [sys.executable, "-P", "-m", "unskew.federation.flower_patches", str(home.superlink)]
    command += ["flower-superlink"]
    command += ["--isolation", "process", "--superexec-auth-secret-file", str(secret)]
    command += ["--database", str(home.folder / "flower" / "superlink.db")]
    command += [f"--ssl-ca-certfile={home.folder / 'ca.crt'}", f"--ssl-certfile={home.folder / 'server.crt'}"]
    return [*command, f"--ssl-keyfile={home.folder / 'server.key'}", "--enable-supernode-auth"]


def front_command(home: Coordinator, bind: str) -> list[str]:
    """The command that starts the front. bind: the address that sites reach."""
    return [sys.executable, "-P", "-m", "unskew.federation.front.proxy", str(home.folder), bind]


try:
    import httpx
    from flwr.proto import control_pb2 as control
    from flwr.proto import runtime_pb2 as runtime
    from flwr.proto.fab_pb2 import Fab
    from flwr.supercore.constant import NodeStatus, TaskType
    from flwr.supercore.control.control_http_client import ControlHttpClient
    from flwr.supercore.error import ApiErrorCode, FlowerError
    from flwr.supercore.interceptors import (
        RuntimeTokenHttpInterceptor,
        RuntimeVersionHttpInterceptor,
        SuperExecAuthHttpInterceptor,
    )
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes
    from flwr.supercore.runtime import RuntimeHttpClient
except ImportError as error:  # the extra is not installed, or in a version that has other names
    raise MissingPackage(f"a federation ({error})", "Flower 1.41", "flower") from error

URL = "http://superlink"
"""The SuperLink, of which the socket is the address."""
TIMEOUT_S = 20.0
ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
"""The call that is authenticated with the secret."""


class Refused(Exception):
    """The SuperLink refused a call. The text is the SuperLink's."""


class Unavailable(Exception):
    """The SuperLink does not answer."""


@dataclass(frozen=True)
class Task:
    """A run's task that this process has taken. token: permits calls for the run."""

    run: int
    number: int
    token: str


def flower_key(key: PublicKey) -> bytes:
    """A key in Flower's form."""
    return public_key_to_bytes(key.key)


def runtime_client(home: Coordinator, *interceptors: Any, retry: Any = None) -> RuntimeHttpClient:
    """A client for the calls of a run's task. retry: Flower's, which waits for an absent SuperLink."""
    version = RuntimeVersionHttpInterceptor(component_name="unskew")
    client = RuntimeHttpClient(URL, interceptors=[version, *interceptors], retry_invoker=retry)
    return _connected(home, client)


def _connected(home: Coordinator, client: Any) -> Any:
    """Flower's client, connected to the SuperLink's socket."""
    client.close()
    transport = httpx.HTTPTransport(uds=socket_address(home.superlink))
    client._client = httpx.Client(transport=transport, timeout=TIMEOUT_S)
    return client


class SuperLink:
    """A coordinator's calls to its SuperLink. Each raises Unavailable or Refused."""

    def __init__(self, home: Coordinator):
        self._home, self._control = home, _connected(home, ControlHttpClient(URL))

    def close(self) -> None:
        """Close the connection; otherwise the SuperLink waits for it when it is stopped."""
        self._control.close()

    def nodes(self) -> dict[bytes, int]:
        """The number of each registered node, by its public key in Flower's form."""
        with _map_errors():
            nodes = self._control.ListNodes(control.ListNodesRequest()).nodes_info
        return {node.public_key: node.node_id for node in nodes if node.status != NodeStatus.UNREGISTERED}

    def unregister(self, node: int) -> None:
        """End a node's registration."""
        with _map_errors(ApiErrorCode.NODE_NOT_FOUND):
            self._control.UnregisterNode(control.UnregisterNodeRequest(node_id=node))

    def register(self, site: str, key: PublicKey) -> None:
        """Let a site with this key connect."""
        request = control.RegisterNodeRequest(public_key=flower_key(key), name=site)
        with _map_errors(ApiErrorCode.PUBLIC_KEY_ALREADY_IN_USE):
            self._control.RegisterNode(request)

    def start(self) -> int:
        """Start a run. Returns its number."""
        with _map_errors():
            fab = Fab(hash_str=hashlib.sha256(APP).hexdigest(), content=APP)
            return self._control.StartRun(control.StartRunRequest(fab=fab)).run_id

    def take(self) -> Task | None:
        """The next waiting task of any kind, or None."""
        secret = persistent_secret(_secret_file(self._home))
        proof = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods={ACQUIRE})
        with _map_errors(), runtime_client(self._home, proof) as client:
            answer = client.AcquireTask(runtime.AcquireTaskRequest(supported_task_types=list(TaskType)))
        if not (answer.HasField("task") and answer.token):
            return None
        return Task(answer.task.run_id, answer.task.task_id, answer.token)

    def begin(self, task: Task) -> None:
        """Let a task count as running."""
        with _map_errors(), self._client_of(task) as client:
            client.PullTaskInput(runtime.PullTaskInputRequest())

    def finish(self, task: Task, problem: str = "") -> None:
        """End a task and its run, unless it has ended already."""
        outcome = "failed" if problem else "completed"
        request = runtime.PushTaskOutputRequest(sub_status=outcome, details=problem)
        with _map_errors(ApiErrorCode.RUNTIME_AUTHENTICATION_FAILED), self._client_of(task) as client:
            client.PushTaskOutput(request)

    def _client_of(self, task: Task) -> RuntimeHttpClient:
        return runtime_client(self._home, RuntimeTokenHttpInterceptor(token=task.token))


@contextlib.contextmanager
def _map_errors(*harmless: int) -> Iterator[None]:
    """Turn errors of a call into Refused or Unavailable. harmless: Flower's codes that are not failures."""
    try:
        yield
    except httpx.HTTPStatusError as error:
        refusal = FlowerError.from_json(error.response.text)
        if refusal is None or refusal.code not in harmless:
            raise Refused(refusal.message if refusal else str(error)) from error
    except httpx.TransportError as error:
        raise Unavailable(str(error)) from error
