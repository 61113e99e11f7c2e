"""The site's programs: a worker that holds the data, and Flower's SuperNode, which brings it requests."""

from __future__ import annotations

import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from unskew.deploy import commands
from unskew.deploy.doctor import rejection
from unskew.deploy.sealed import SOCKET
from unskew.deploy.supervise import Program, Rarely, Say, stopped_at_the_end
from unskew.deploy.tickets import Joined
from unskew.errors import UnskewError, UsageError

GAVE_UP = (b"SuperNode terminated", b"SSL/TLS handshake error detected")
"""What a SuperNode logs when it stops asking. The second also comes from a network that is cut during a handshake."""
HOPELESS = (2, 3)
"""Exit codes of a worker that a restart cannot help: its arguments or its data are wrong."""


@dataclass
class SiteProcesses:
    """What `unskew site run` runs. port: the SuperNode's local one; 0: any that is free."""

    joined: Joined
    data: str
    classes: str = ""
    model: str | None = None
    device: str = "cpu"
    port: int = 0
    say: Say = print

    def __post_init__(self) -> None:
        self.say = Rarely(self.say)

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Keep both programs running until stopped.

        Raises UsageError (E509) if the server will never accept this site, and the worker's own UnskewError if it
        rejects its arguments or its data: a restart helps with neither.
        """
        ticket = self.joined.ticket
        if reason := rejection(self.joined):
            raise UsageError("E509", f"{ticket.host}:{ticket.port}: {reason}")
        with tempfile.TemporaryDirectory(prefix="unskew-") as private:
            worker, supernode = self._programs(f"{private}/worker")
            with stopped_at_the_end(supernode, worker):
                while not until():
                    code = worker.tend(self.say)
                    if code in HOPELESS:
                        raise _last_error(worker.log, code)
                    if supernode.tend(self.say) is not None:
                        self._explain(supernode.log)
                    time.sleep(0.5)

    def _programs(self, address: str) -> tuple[Program, Program]:
        """The worker and the SuperNode. address: of the socket between them."""
        folder, ticket = self.joined.folder, self.joined.ticket
        env = commands.environment(folder / "flower", **{SOCKET: address})
        options = ["--classes", self.classes] if self.classes else []
        options += ["--model", self.model] if self.model else []
        options += ["--device", self.device]
        work = [sys.executable, "-P", "-m", "unskew.deploy.worker", str(folder), self.data, *options]
        port = str(self.port or free_port())
        node = commands.supernode(f"{ticket.host}:{ticket.port}", port, folder if ticket.authority else None)
        worker = Program("the worker", work, env, folder / "worker.log")
        return worker, Program("the SuperNode", node, env, folder / "supernode.log", GAVE_UP)

    def _explain(self, log: Path) -> None:
        """Say what Flower's code 2004 most likely means; it stands for several things."""
        if "code: 2004" in log.read_text(errors="replace")[-3000:]:
            site = self.joined.ticket.site
            self.say(
                f"the server does not let this site in. Is {site}.pub admitted? After a crash, readmission takes a minute."
            )


def _last_error(log: Path, code: int) -> UnskewError:
    """The last error in the worker's log, with its exit code."""
    lines = log.read_text().splitlines()
    text = next((line for line in reversed(lines) if line[:1] == "E"), "E507 the worker ended.")
    error = UnskewError(text[:4], text[5:])
    error.exit_code = code
    return error


def free_port() -> int:
    """A TCP port of this machine that nobody listens at."""
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return door.getsockname()[1]
