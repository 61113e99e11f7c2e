"""The commands of docs/deploy.md, followed as they stand there from an empty folder to the first round, with
people at terminals."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shlex
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'unskew[flower]'")

from tests.federation import fake  # noqa: F401  skips where cryptography is missing
from tests.federation.loopback import below, samples
from tests.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.flower]
PAGE = Path(__file__).parents[2] / "docs/deploy.md"
SITES = "abc"


class Terminal:
    """A command on a terminal, at which somebody reads and types."""

    def __init__(self, folder: Path, command: str):
        self.line, inner = os.openpty()
        words = [sys.executable, "-m", *shlex.split(command)]
        self.process = subprocess.Popen(
            words, cwd=folder, stdin=inner, stdout=inner, stderr=inner, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0), env={**os.environ, "COLUMNS": "200"},
        )  # fmt: skip
        os.close(inner)
        self.text = ""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while piece := os.read(self.line, 4096):
                self.text += piece.decode(errors="replace").replace("\r", "")

    def until(self, text: str, seconds: float = 90) -> str:
        """What stands on the line after this text, once it has been printed."""
        end = time.monotonic() + seconds
        while not (match := re.search(re.escape(text) + r"(.*)\n", self.text + "\n")):
            over = self.process.poll() is not None or time.monotonic() > end
            assert not over, f"no '{text}' in:\n{self.text}"
            time.sleep(0.1)
        return match[1].strip()

    def type(self, text: str) -> None:
        os.write(self.line, f"{text}\n".encode())

    def end(self, seconds: float = 120) -> str:
        """What it has printed, once it has ended well."""
        assert self.process.wait(seconds) == 0, self.text
        time.sleep(0.2)
        return self.text

    def stop(self) -> None:
        left = [*below(self.process.pid), self.process.pid]
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)


def documented() -> list[str]:
    """The numbered path: what a new administrator types, as the page has it."""
    part = PAGE.read_text().partition("### Set up a federation")[2].partition("Where nobody sits")[0]
    return [line.split(" #")[0].strip() for line in part.splitlines() if line.startswith("    unskew ")]


def study() -> str:
    """The study of the page."""
    return PAGE.read_text().partition("```yaml\n")[2].partition("```")[0]


@pytest.fixture
def machine(tmp_path) -> Iterator[tuple[Path, list[Terminal]]]:
    """A folder with three sites' data and a study, and the terminals that are open there."""
    dealt, open_ = samples(), []
    for k, site in enumerate(SITES):
        np.savez(tmp_path / f"{site}.npz", x=dealt.x[dealt.train[k]], y=dealt.y[dealt.train[k]])
    (tmp_path / "study.yaml").write_text(study().replace("rounds: 20", "rounds: 1"))
    try:
        yield tmp_path, open_
    finally:
        for terminal in reversed(open_):
            terminal.stop()


def test_three_sites_reach_their_first_round_with_the_commands_of_the_page(machine):
    folder, open_ = machine
    typed: list[str] = []

    def start(command: str) -> Terminal:
        typed.append(command)
        open_.append(Terminal(folder, command))
        return open_[-1]

    init, serve, join, admit, run, approve = documented()
    host = f"127.0.0.1:{free_port()}"
    fingerprint = re.search(r"coordinator +(\S+)", start(init.replace("fl.hospital-a.org:8000", host)).end())
    assert fingerprint
    server = start(serve)
    server.until("admitted 0 of 3 sites")
    keys = {}
    for site in SITES:
        (folder / f"{site}.ticket").write_bytes(
            (folder / f"federations/lung/tickets/{site}.ticket").read_bytes()
        )
        own = join.replace("b.ticket", f"{site}.ticket").replace("/data/lung", f"{site}.npz")
        terminal = start(own.replace("no,yes", "0,1,2,3,4,5,6,7,8,9") + f" --folder site-{site}")
        terminal.until("first 8 pairs:")
        terminal.type(fingerprint[1][:23])  # as it was read out
        keys[site] = terminal.until("read out: ")
        (folder / f"{site}.pub").write_bytes((folder / f"site-{site}/{site}.pub").read_bytes())
    admitting = start(admit)
    admitting.until("Has every site read out this fingerprint")
    assert all(key in admitting.text for key in keys.values())
    admitting.type("y")
    admitting.end()
    for terminal in open_[2:5]:
        terminal.until("connected to the server")
    running = start(run)
    for site, terminal in zip(SITES, open_[2:5], strict=True):
        number = terminal.until("decide: unskew site approve ").split()[0]
        assert "weights" in terminal.text
        start(approve.replace("RUN", number) + f" --folder site-{site}").end()
    assert "round 1: 3/3 sites" in running.end()
