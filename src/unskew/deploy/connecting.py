"""The site's processes: this one, which holds the connection, and a worker, which holds the data.

The worker may hang, be killed or take minutes to load its data: the connection stays, and so does the site.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from unskew.deploy import commands, logs, telling
from unskew.deploy.freed import return_freed
from unskew.deploy.handshake import rejection
from unskew.deploy.metrics.of_site import OfSite
from unskew.deploy.sealed import SOCKET, Sealed, through_socket
from unskew.deploy.supervise import Program, Rarely, Say, stopped_at_the_end
from unskew.deploy.telling import CONNECTED
from unskew.deploy.tickets import Joined
from unskew.errors import UnskewError, UsageError

HOPELESS = (2, 3)
"""Exit codes of a worker that a restart cannot help: its arguments or its data are wrong."""
LEAVING_S = 5.0
"""How long this site takes at most to say goodbye to the server."""


@dataclass
class SiteProcesses:
    """What `unskew site run` runs."""

    joined: Joined
    data: str
    classes: str = ""
    model: str | None = None
    device: str = "cpu"
    say: Say = print
    approve: str = "ask"
    form: logs.Form = "text"
    figures: OfSite | None = None

    def __post_init__(self) -> None:
        self.say = Rarely(self.say, always=CONNECTED)

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Answer the server's requests until stopped.

        Raises UsageError (E509) if the server will never accept this site, and the worker's own UnskewError if it
        rejects its arguments or its data: a restart helps with neither. Raises UnskewError (E507) if the connection's
        thread has ended, as a site that answers nobody must not look alive.
        """
        return_freed()
        ticket = self.joined.ticket
        if reason := rejection(self.joined):
            raise UsageError("E509", f"{ticket.place}: {reason}")
        with tempfile.TemporaryDirectory(prefix="unskew-") as private:
            path = Path(private) / "worker"
            worker = self._worker(path)
            if self.figures:
                self.figures.worker = worker
            with stopped_at_the_end(worker):
                while not path.exists():  # the server sees this site once it has its data
                    self._tend(worker)
                    if until():
                        return
                self._take_part(path, worker, until)

    def _take_part(self, path: Path, worker: Program, until: Callable[[], bool]) -> None:
        from unskew.deploy.answering import Answering
        from unskew.deploy.fleet import Fleet

        site = self.joined.ticket.site
        answer = partial(self._answer, path)
        counted = self.figures.counted(answer) if self.figures else answer
        answering = Answering(Fleet(self.joined), counted, self.say, site)
        if self.figures:
            self.figures.answering = answering
        thread = threading.Thread(target=answering.run, daemon=True)
        thread.start()
        try:
            while not until():
                if not thread.is_alive():
                    raise UnskewError(
                        "E507", "this site's connection ended unexpectedly; start `unskew site run` again."
                    )
                self._tend(worker)
        finally:
            answering.over.set()
            worker.stop()  # or a request that it works on would keep the connection
            thread.join(LEAVING_S)

    def _answer(self, path: Path, request: Sealed, within_s: float) -> Sealed:
        """The worker's answer, which the operator is told of. Raises OSError if there is none."""
        answer = through_socket(path, self.joined.folder, request, within_s)
        if text := telling.line(self.joined.folder, answer):
            self.say(text)
        return answer

    def _tend(self, worker: Program) -> None:
        """Keep the worker running. Raises its own UnskewError if a restart cannot help."""
        code = worker.tend(self.say)
        if code in HOPELESS:
            raise _last_error(worker.log, code)
        time.sleep(0.2)

    def _worker(self, address: Path) -> Program:
        """address: of the socket between it and this process."""
        folder = self.joined.folder
        env = commands.environment(folder / "flower", **{SOCKET: str(address)})
        options = ["--classes", self.classes] if self.classes else []
        options += ["--model", self.model] if self.model else []
        options += ["--device", self.device, "--approve", self.approve]
        command = [sys.executable, "-P", "-m", "unskew.deploy.worker", str(folder), self.data, *options]
        return Program("the worker", command, env, folder / "worker.log", self.form, hopeless=HOPELESS)


def _last_error(log: Path, code: int) -> UnskewError:
    """The last error in the worker's log, with its exit code."""
    error = UnskewError(*(logs.last_error(log) or ("E507", "the worker ended.")))
    error.exit_code = code
    return error
