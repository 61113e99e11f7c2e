"""The processes of `unskew site run`: this process has the connection, and a worker has the data.

The worker may hang, be killed or take minutes to load its data without a loss of the connection. What it
prints for the site's operator goes to its log and to this process's output.
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

from unskew.errors import UnskewError, UsageError, printable
from unskew.federation import programs
from unskew.federation.programs import Program, RareSay, Say, configure_malloc, stop_at_end
from unskew.federation.protocol.signed_messages import SOCKET, ask_worker
from unskew.federation.site.site_checks import rejection
from unskew.federation.site.site_folder import SiteFolder

CONNECTED = "connected to the server"
HOPELESS = (2, 3)
"""Exit codes of a worker with invalid arguments or data, which a restart cannot fix."""
GOODBYE_S = 5.0
"""Longest time in seconds to sign off at the server."""


@dataclass
class SiteProcesses:
    """The programs of `unskew site run`. say: prints events of the connection and of the worker."""

    joined: SiteFolder
    data: str
    classes: str = ""
    model: str | None = None
    device: str = "cpu"
    say: Say = print
    approve: str = "ask"

    def __post_init__(self) -> None:
        self._rarely = RareSay(self.say, always=CONNECTED)

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Answer the server's requests until stopped.

        Raises UsageError (E503) if the server will never accept this site, the worker's own UnskewError if
        it rejects its arguments or its data, which a restart cannot fix, and UnskewError (E507) if the
        connection's thread has ended.
        """
        configure_malloc()
        ticket = self.joined.ticket
        if reason := rejection(self.joined):
            raise UsageError("E503", f"{ticket.place}: {reason}")
        with tempfile.TemporaryDirectory(prefix="unskew-") as private:
            path = Path(private) / "worker"
            worker = self._worker(path)
            with stop_at_end(worker):
                while not path.exists():  # the server sees this site once it has its data
                    self._tend(worker)
                    if until():
                        return
                self._take_part(path, worker, until)

    def _take_part(self, path: Path, worker: Program, until: Callable[[], bool]) -> None:
        from unskew.federation.site.connection import AnswerLoop, Fleet

        answering = AnswerLoop(
            Fleet(self.joined), partial(ask_worker, path), self._rarely, self.joined.ticket.site
        )
        thread = threading.Thread(target=answering.run, daemon=True)
        thread.start()
        try:
            while not until():
                if not thread.is_alive():
                    text = "this site's connection ended unexpectedly; start `unskew site run` again."
                    raise UnskewError("E507", text)
                self._tend(worker)
        finally:
            answering.over.set()
            worker.stop()  # or a request that it works on would keep the connection
            thread.join(GOODBYE_S)

    def _tend(self, worker: Program) -> None:
        """Keep the worker running. Raises its own UnskewError if a restart cannot help."""
        code = worker.tend(self._rarely)
        if code in HOPELESS:
            error = UnskewError(*(programs.last_error(worker.log) or ("E507", "the worker ended.")))
            error.exit_code = code
            raise error
        time.sleep(0.2)

    def _worker(self, address: Path) -> Program:
        folder = self.joined.folder
        env = programs.environment(folder / "flower", **{SOCKET: str(address)})
        options = ["--classes", self.classes] if self.classes else []
        options += ["--model", self.model] if self.model else []
        options += ["--device", self.device, "--approve", self.approve]
        module = ["-P", "-m", "unskew.federation.site.worker"]
        command = [sys.executable, *module, str(folder), self.data, *options]

        def seen(line: str) -> None:
            if not programs.CODE.match(line):  # the worker's last words, which `_tend` raises
                programs.echo(printable(line))

        return Program("the worker", command, env, folder / "worker.log", seen, hopeless=HOPELESS)
