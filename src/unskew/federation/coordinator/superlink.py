"""The coordinator's SuperLink: the commands that start it and the front, the app that it may run, and calls
to it.

The calls admit sites, start, look up and stop runs, and take their tasks. Flower starts runs of apps only. An
app's archive can contain any Python code, so no archive is ever unpacked. Our archive names the installed
server's code and contains none: its SHA-256 identifies our runs, and each run's order is on the coordinator's
own disk.
"""

# pyright: reportMissingImports=false
# Flower lives in an environment of its own, and types are checked in the one without it.

from __future__ import annotations

import contextlib
import hashlib
import io
import sys
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unskew.errors import MissingPackage, UsageError
from unskew.federation.addresses import socket_address
from unskew.federation.coordinator import orders
from unskew.federation.coordinator.orders import Order
from unskew.federation.protocol.signed_messages import PublicKey
from unskew.federation.tickets import Coordinator

ORDER = "order"
"""The run's setting with the name of its order."""
_PROJECT = f"""[project]
name = "unskew-run"
version = "0.1.0"
description = "A study of unskew"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "unskew"

[tool.flwr.app.components]
serverapp = "unskew.federation.coordinator.conductor:main"
clientapp = "unskew.federation.site.worker:main"

[tool.flwr.app.config]
{ORDER} = ""
"""


def _archive() -> bytes:
    """The bytes of the app's archive, always equal: without times, and not compressed."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo("pyproject.toml"), _PROJECT)
    return buffer.getvalue()


APP = _archive()
APP_HASH = hashlib.sha256(APP).hexdigest()


def superlink_command(home: Coordinator, secret: Path) -> list[str]:
    """The command that starts the federation's SuperLink at its socket; it starts no programs itself.

    Flower checks the keys of nodes only if it is given a certificate, which it does not use at a socket.

    secret: the file with the secret that permits taking the tasks of runs.
    """
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
    from flwr.common.serde import user_config_from_proto, user_config_to_proto
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
STARTING_S = 20.0
"""Seconds of attempts to submit a run to a SuperLink that may still be starting."""
ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
"""The call that is authenticated with the secret."""


class Refused(Exception):
    """The SuperLink refused a call. The text is the SuperLink's."""


class Unavailable(Exception):
    """The SuperLink does not answer."""


@dataclass(frozen=True)
class Task:
    """A run's task that this coordinator has taken. token: permits calls for the run."""

    run: int
    number: int
    token: str
    app_hash: str


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
        self._task_client: RuntimeHttpClient | None = None

    def close(self) -> None:
        """Close connections; otherwise the SuperLink waits for them when it is stopped."""
        self._control.close()
        if self._task_client is not None:
            self._task_client.close()

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

    def start(self, order: str) -> int:
        """Start the run of an order. Returns its number."""
        config = user_config_to_proto({ORDER: order})
        with _map_errors():
            fab = Fab(hash_str=APP_HASH, content=APP)
            return self._control.StartRun(control.StartRunRequest(fab=fab, override_config=config)).run_id

    def status(self, number: int) -> str:
        """ "pending", "starting", "running" or "finished"."""
        with _map_errors():
            runs = self._control.ListRuns(control.ListRunsRequest(run_id=number)).run_dict
            return runs[number].status.status

    def stop(self, number: int) -> None:
        """Stop the run of this number, unless it has ended."""
        with _map_errors(ApiErrorCode.RUN_ALREADY_FINISHED):
            self._control.StopRun(control.StopRunRequest(run_id=number))

    def take(self, secret: bytes) -> Task | None:
        """The next waiting task of any kind, or None."""
        proof = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods={ACQUIRE})
        client = self._task_client = self._task_client or runtime_client(self._home, proof)
        with _map_errors():
            answer = client.AcquireTask(runtime.AcquireTaskRequest(supported_task_types=list(TaskType)))
        if not (answer.HasField("task") and answer.token):
            return None
        return Task(answer.task.run_id, answer.task.task_id, answer.token, answer.task.fab_hash)

    def order_of(self, task: Task) -> str:
        """Begin a task. Returns the name of its order."""
        with _map_errors(), self._client_of(task) as client:
            run = client.PullTaskInput(runtime.PullTaskInputRequest()).run
        return str(user_config_from_proto(run.override_config).get(ORDER, ""))

    def finish(self, task: Task, problem: str = "") -> None:
        """End a task and its run, unless it has ended already."""
        outcome = "failed" if problem else "completed"
        request = runtime.PushTaskOutputRequest(sub_status=outcome, details=problem)
        with _map_errors(ApiErrorCode.RUNTIME_AUTHENTICATION_FAILED), self._client_of(task) as client:
            client.PushTaskOutput(request)

    def _client_of(self, task: Task) -> RuntimeHttpClient:
        return runtime_client(self._home, RuntimeTokenHttpInterceptor(token=task.token))


def submit(home: Coordinator, order: Order) -> int:
    """Start the run of an order. Returns its number. Raises UsageError (E507) if it is not accepted."""
    link, name, until = SuperLink(home), orders.hand_in(order), time.monotonic() + STARTING_S
    while True:
        try:
            return link.start(name)
        except Refused as error:
            raise UsageError("E507", f"the SuperLink did not accept the run: {error}") from error
        except Unavailable as error:
            if time.monotonic() >= until:
                text = "the SuperLink does not answer; is `unskew serve` running?"
                raise UsageError("E507", text) from error
        time.sleep(0.5)


def status(home: Coordinator, number: int) -> str:
    """Flower's state of a run; "" without an answer."""
    try:
        return SuperLink(home).status(number)
    except (Refused, Unavailable):
        return ""


def stop(home: Coordinator, number: int) -> None:
    """End a run, if the SuperLink answers."""
    with contextlib.suppress(Refused, Unavailable):
        SuperLink(home).stop(number)


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
