"""The coordinator's own calls to its SuperLink: admit sites; start, look at and stop runs; take the tasks of runs."""

# pyright: reportMissingImports=false
# Flower lives in an environment of its own, and types are checked in the one without it.

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from unskew.deploy.addresses import LOOPBACK
from unskew.deploy.bundle import APP, APP_HASH, ORDER
from unskew.deploy.commands import inner_port
from unskew.deploy.identity import Public
from unskew.deploy.tickets import Coordinator
from unskew.errors import UsageError

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
    raise UsageError("E501", f"a deployment needs Flower 1.41: pip install 'unskew[flower]' ({error}).") from error

TIMEOUT_S = 20.0
ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
"""The call that proves with the secret who may take tasks."""


class Refused(Exception):
    """The SuperLink's answer is a refusal. Its text is the SuperLink's."""


class Unavailable(Exception):
    """Nothing answers where the SuperLink should be."""


@dataclass(frozen=True)
class Task:
    """A run's task that this coordinator has taken. token: lets its holder speak for the run."""

    run: int
    number: int
    token: str
    app_hash: str


def address(home: Coordinator) -> str:
    """HOST:PORT of the SuperLink, which only programs of this machine reach."""
    return f"{LOOPBACK}:{inner_port(home)}"


def runtime_client(home: Coordinator, *interceptors: Any, retry: Any = None) -> RuntimeHttpClient:
    """A client for the calls of a run's task. retry: Flower's, which waits for a SuperLink that is away."""
    version = RuntimeVersionHttpInterceptor(component_name="unskew")
    url, verify = _where(home)
    calls = [version, *interceptors]
    return RuntimeHttpClient(url, interceptors=calls, verify=verify, timeout=TIMEOUT_S, retry_invoker=retry)


def _where(home: Coordinator) -> tuple[str, ssl.SSLContext | bool]:
    if not home.tls:
        return f"http://{address(home)}", False
    return f"https://{address(home)}", ssl.create_default_context(cafile=str(home.folder / "ca.crt"))


class SuperLink:
    """Calls with which a coordinator rules its SuperLink. Each raises Unavailable or Refused."""

    def __init__(self, home: Coordinator):
        url, verify = _where(home)
        self._home, self._control = home, ControlHttpClient(url, verify=verify, timeout=TIMEOUT_S)
        self._taking: RuntimeHttpClient | None = None

    def close(self) -> None:
        """Close connections: a SuperLink that is stopped waits for them."""
        self._control.close()
        if self._taking is not None:
            self._taking.close()

    def register(self, site: str, key: Public) -> None:
        """Let a site with this key connect."""
        request = control.RegisterNodeRequest(public_key=public_key_to_bytes(key.key), name=site)
        with _sorted(ApiErrorCode.PUBLIC_KEY_ALREADY_IN_USE):
            self._control.RegisterNode(request)

    def start(self, order: str) -> int:
        """Start the run of an order. Returns its number."""
        config = user_config_to_proto({ORDER: order})
        with _sorted():
            fab = Fab(hash_str=APP_HASH, content=APP)
            return self._control.StartRun(control.StartRunRequest(fab=fab, override_config=config)).run_id

    def status(self, number: int) -> str:
        """ "pending", "starting", "running" or "finished"."""
        with _sorted():
            return self._control.ListRuns(control.ListRunsRequest(run_id=number)).run_dict[number].status.status

    def stop(self, number: int) -> None:
        with _sorted(ApiErrorCode.RUN_ALREADY_FINISHED):
            self._control.StopRun(control.StopRunRequest(run_id=number))

    def take(self, secret: bytes) -> Task | None:
        """The next task that waits for somebody to do it, whatever its kind, if there is one."""
        proof = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods={ACQUIRE})
        client = self._taking = self._taking or runtime_client(self._home, proof)
        with _sorted():
            answer = client.AcquireTask(runtime.AcquireTaskRequest(supported_task_types=list(TaskType)))
        if not (answer.HasField("task") and answer.token):
            return None
        return Task(answer.task.run_id, answer.task.task_id, answer.token, answer.task.fab_hash)

    def order_of(self, task: Task) -> str:
        """Begin a task. Returns the name of its order."""
        with _sorted(), self._as(task) as client:
            run = client.PullTaskInput(runtime.PullTaskInputRequest()).run
        return str(user_config_from_proto(run.override_config).get(ORDER, ""))

    def finish(self, task: Task, problem: str = "") -> None:
        """End a task and its run."""
        outcome = "failed" if problem else "completed"
        with _sorted(ApiErrorCode.RUNTIME_AUTHENTICATION_FAILED), self._as(task) as client:  # else it has ended already
            client.PushTaskOutput(runtime.PushTaskOutputRequest(sub_status=outcome, details=problem))

    def _as(self, task: Task) -> RuntimeHttpClient:
        return runtime_client(self._home, RuntimeTokenHttpInterceptor(token=task.token))


@contextlib.contextmanager
def _sorted(*harmless: int) -> Iterator[None]:
    """Turn what a call raises into one of our two errors. harmless: codes of Flower's that are no failure."""
    try:
        yield
    except httpx.HTTPStatusError as error:
        refusal = FlowerError.from_json(error.response.text)
        if refusal is None or refusal.code not in harmless:
            raise Refused(refusal.message if refusal else str(error)) from error
    except httpx.TransportError as error:
        raise Unavailable(str(error)) from error
