"""A head of a Ray cluster with its client server, started as people start it: `ray start --head`, on loopback
alone."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.federation.loopback import below
from tests.ports import free_port

STORE = 80 << 20


class Head:
    """A running head. nodes, outside: `--on` for one of its nodes and for a machine outside the cluster."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, client_port: int):
        self.process = process
        self.nodes, self.outside = f"ray:127.0.0.1:{port}", f"ray://127.0.0.1:{client_port}"

    def kill(self) -> None:
        """-9, with everything it has started: what a machine does that loses its power."""
        for pid in (*below(self.process.pid), self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def head(cpus: int, inside: Sequence[str] = (), **env: str) -> Iterator[Head]:
    """Of one node with so many cores, stopped at the end. inside: words before its command. env: more of its
    environment.

    Its folder has a short name, because the names of sockets that lie in it may have 107 bytes.
    """
    port, client_port = free_port(), free_port()
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    words = [
        *inside,
        str(Path(sys.executable).with_name("ray")),
        "start",
        "--head",
        "--block",
        "--port",
        str(port),
        "--ray-client-server-port",
        str(client_port),
        "--num-cpus",
        str(cpus),
        "--object-store-memory",
        str(STORE),
        "--include-dashboard",
        "false",
        "--disable-usage-stats",
        "--temp-dir",
        folder,
    ]
    alone = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # as on a Mac, where Ray listens on loopback alone
    log = Path(folder) / "log.txt"
    with open(log, "wb") as said:
        process = subprocess.Popen(
            words,
            cwd="/",
            env={**os.environ, **alone, **env},
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    running = Head(process, port, client_port)
    try:
        _until_it_answers(running, log)
        yield running
    finally:
        left = below(process.pid)
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        for pid in (*left, process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _until_it_answers(running: Head, log: Path) -> None:
    end = time.monotonic() + 120
    while "Ray runtime started" not in log.read_text():
        assert running.process.poll() is None, log.read_text()
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.2)
