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
import ssl
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unskew.errors import MissingPackage, UsageError
from unskew.federation.addresses import LOOPBACK, check_free, free_port
from unskew.federation.protocol.identity import PublicKey
from unskew.federation.tickets import Coordinator
from unskew.system import disk

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
    """The command that starts the federation's SuperLink on loopback; it starts no programs itself.

    secret: the file with the secret that permits taking the tasks of runs.
    """
    command = [sys.executable, "-P", "-m", "unskew.federation.flower_patches", "flower-superlink"]
    command += ["--host", LOOPBACK, "--port", str(inner_port(home))]
    command += ["--isolation", "process", "--superexec-auth-secret-file", str(secret)]
    command += ["--database", str(home.folder / "flower" / "superlink.db")]
    if not home.tls:
        return [*command, "--insecure"]
    command += [f"--ssl-ca-certfile={home.folder / 'ca.crt'}", f"--ssl-certfile={home.folder / 'server.crt'}"]
    return [*command, f"--ssl-keyfile={home.folder / 'server.key'}", "--enable-supernode-auth"]


def front_command(home: Coordinator, bind: str) -> list[str]:
    """The command that starts the front. bind: the address that sites reach."""
    return [
        sys.executable,
        "-P",
        "-m",
        "unskew.federation.front",
        str(home.folder),
        bind,
        str(inner_port(home)),
    ]


def inner_port(home: Coordinator) -> int:
    """The SuperLink's port on loopback. Raises UsageError (E507) before the first `unskew serve`."""
    path = _port_file(home)
    if not path.exists():
        raise UsageError(
            "E507", f"the server of {home.name} has never run; start it with: unskew serve {home.name}"
        )
    return int(path.read_text())


def choose_inner_port(home: Coordinator, again: bool = False) -> None:
    """Choose the SuperLink's port on loopback if there is none yet, or, with `again`, if it is in use.

    A free port is kept, because a run's process that outlives the SuperLink reconnects to it.
    """
    path = _port_file(home)
    if path.exists() and not (again and _is_taken(inner_port(home))):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    port = next(port for port in iter(free_port, None) if port != home.port)  # where the front will listen
    disk.replace(path, str(port))


def _port_file(home: Coordinator) -> Path:
    return home.folder / "flower" / "port"


def _is_taken(port: int) -> bool:
    try:
        check_free(LOOPBACK, port)
    except UsageError:
        return True
    return False


try:
    import httpx
    from flwr.common.serde import user_config_from_proto, user_config_to_proto
    from flwr.proto import control_pb2 as control
    from flwr.proto import runtime_pb2 as runtime
    from flwr.proto.fab_pb2 import Fab
    from flwr.supercore.constant import TaskType
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

TIMEOUT_S = 20.0
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


def address(home: Coordinator) -> str:
    """HOST:PORT of the SuperLink, which only programs of this machine can reach."""
    return f"{LOOPBACK}:{inner_port(home)}"


def runtime_client(home: Coordinator, *interceptors: Any, retry: Any = None) -> RuntimeHttpClient:
    """A client for the calls of a run's task. retry: Flower's, which waits for an absent SuperLink."""
    version = RuntimeVersionHttpInterceptor(component_name="unskew")
    url, verify = _endpoint(home)
    calls = [version, *interceptors]
    return RuntimeHttpClient(url, interceptors=calls, verify=verify, timeout=TIMEOUT_S, retry_invoker=retry)


def _endpoint(home: Coordinator) -> tuple[str, ssl.SSLContext | bool]:
    if not home.tls:
        return f"http://{address(home)}", False
    return f"https://{address(home)}", ssl.create_default_context(cafile=str(home.folder / "ca.crt"))


class SuperLink:
    """A coordinator's calls to its SuperLink. Each raises Unavailable or Refused."""

    def __init__(self, home: Coordinator):
        url, verify = _endpoint(home)
        self._home, self._control = home, ControlHttpClient(url, verify=verify, timeout=TIMEOUT_S)
        self._task_client: RuntimeHttpClient | None = None

    def close(self) -> None:
        """Close connections; otherwise the SuperLink waits for them when it is stopped."""
        self._control.close()
        if self._task_client is not None:
            self._task_client.close()

    def register(self, site: str, key: PublicKey) -> None:
        """Let a site with this key connect."""
        request = control.RegisterNodeRequest(public_key=public_key_to_bytes(key.key), name=site)
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
            return (
                self._control.ListRuns(control.ListRunsRequest(run_id=number)).run_dict[number].status.status
            )

    def stop(self, number: int) -> None:
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
        """End a task and its run."""
        outcome = "failed" if problem else "completed"
        with (
            _map_errors(ApiErrorCode.RUNTIME_AUTHENTICATION_FAILED),
            self._client_of(task) as client,
        ):  # else it has ended already
            client.PushTaskOutput(runtime.PushTaskOutputRequest(sub_status=outcome, details=problem))

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
