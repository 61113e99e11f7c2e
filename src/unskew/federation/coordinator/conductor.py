"""The process that conducts one run: python -m unskew.federation.coordinator.conductor FEDERATION ORDER

`unskew serve` starts it. It runs the installed server's code and the order on this machine's disk. The
environment contains the numbers of the run and of its task at the SuperLink, and the token with which this
process acts for them.
"""

# pyright: reportMissingImports=false
# Flower lives in an environment of its own, and types are checked in the one without it.

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

from unskew.errors import MissingPackage
from unskew.federation.coordinator import orders, superlink
from unskew.federation.coordinator.mailbox import Mailbox
from unskew.federation.coordinator.network_run import conduct_order
from unskew.federation.coordinator.server import TASK
from unskew.federation.programs import configure_malloc
from unskew.federation.tickets import Coordinator

try:
    from flwr.common.constant import SUPERLINK_NODE_ID
    from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
    from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor
    from flwr.supercore.retry import make_simple_http_retry_invoker
    from flwr.supercore.task_identity import TaskIdentity
except ImportError as error:  # the extra is not installed, or in a version that has other names
    raise MissingPackage(f"a federation ({error})", "Flower 1.41", "flower") from error


def main() -> None:
    """Conduct the run to its end. It leaves an `ending.json`, unless this process is killed."""
    configure_malloc()
    home, order = Coordinator.open(Path(sys.argv[1])), sys.argv[2]
    run, task, token = os.environ.pop(TASK).split()
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _interrupt)
    proof, retry = RuntimeTokenHttpInterceptor(token=token), make_simple_http_retry_invoker()
    HeartbeatSender(make_task_heartbeat_fn_http(superlink.runtime_client(home, proof))).start()
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = int(run), SUPERLINK_NODE_ID, int(task)
    mailbox = Mailbox(superlink.runtime_client(home, proof, retry=retry), int(run), home.folder / "flower")
    try:
        conduct_order(mailbox, orders.read_order(home.folder, order))
    except KeyboardInterrupt:  # no process with this token can go on, so none is to be started again
        raise SystemExit(1) from None


def _interrupt(*_: Any) -> NoReturn:
    """End on the first interrupt; Flower's client sends one to itself whenever the run's token is refused."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def _stop(*_: Any) -> NoReturn:
    raise SystemExit(0)


if __name__ == "__main__":
    main()
