"""The actor on a node of a Ray cluster that trains runs there; the driver's side is `RayWorker` in
`ray_workers`.

It is sent to the node as source, so that it can report that unskew is missing there: it imports the standard
library alone. Runs train in a child process, as on one machine, which is interrupted when this process ends
in any way.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from typing import Any

IN_USE_S = 60.0
"""How long to wait for a run that is locked: the worker of a killed driver takes a while to end."""
SHARED_FILE_S = 10.0
"""The longest time until a shared file is visible on another node."""
MOST_MESSAGES = 20_000
"""The most characters of a run's messages that are returned."""
VERSIONS = (
    "import json; from importlib.metadata import version; from unskew.version import revision;"
    "print(json.dumps([revision(), version('torch')]))"
)
"""A program that prints the versions of a node."""


class RunActor:
    """Trains one run after another. order: `folder` and `versions` of the driver, and additional environment
    variables, `env`."""

    def __init__(self, order: dict[str, Any]):
        self.order, self.node = order, platform.node()
        self.env = {**os.environ, "OMP_NUM_THREADS": "1", **order["env"]}
        self.checked = False
        self.process: subprocess.Popen[str] | None = None
        self.said = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - as long as this process

    def train(self, path: str, settings: str, data: str) -> dict[str, Any]:
        """Train the run in this folder to its end.

        settings: the required content of wanted.yaml. data: its data fingerprint, or "". Returns `node`,
        and either `unfit`, a sentence, or `code`, the run's exit code (None if its process died), and `said`,
        its messages.
        """
        if unfit := self._unfit(path, settings):
            return {"node": self.node, "unfit": unfit}
        began = time.monotonic()
        while True:
            code, said = self._train(path, data)
            if not said.rsplit("\n", 1)[-1].startswith("E110 ") or time.monotonic() - began > IN_USE_S:
                return {"node": self.node, "code": code, "said": said}
            time.sleep(1)

    def _train(self, path: str, data: str) -> tuple[int | None, str]:
        process = self._started()
        before = self.said.seek(0, os.SEEK_END)
        assert process.stdin
        assert process.stdout
        line = ""
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(f"{path}\t{data}\n")
            process.stdin.flush()
            line = process.stdout.readline()
        if not line.strip():
            process.wait()
            self.process = None
        self.said.seek(before)
        return int(line) if line.strip() else None, self.said.read().strip()[-MOST_MESSAGES:]

    def _started(self) -> subprocess.Popen[str]:
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "unskew.comparison.workers"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.said,
                text=True,
                env=self.env,
            )
        return self.process

    def _unfit(self, path: str, settings: str) -> str:
        """The reason why this node cannot train the run; "" if it can."""
        if unfit := self._unfit_node():
            return unfit
        file, began = os.path.join(path, "wanted.yaml"), time.monotonic()
        while _text(file) != settings:
            if time.monotonic() - began > SHARED_FILE_S:
                where = os.path.join(self.order["folder"], path)
                return f"does not see {where} as the driver wrote it: all nodes must share the folder of runs"
            time.sleep(0.2)
        return ""

    def _unfit_node(self) -> str:
        """The reason why this node cannot train at all; "" if it can."""
        folder = self.order["folder"]
        try:
            os.chdir(folder)
        except OSError as error:
            return f"has no folder {folder} ({error.strerror}), the driver's, which every node must share"
        if not self.checked and (differs := self._other_versions()):
            return differs
        self.checked = True
        return ""

    def _other_versions(self) -> str:
        ours = self.order["versions"]
        asked = [sys.executable, "-P", "-c", VERSIONS]
        done = subprocess.run(asked, capture_output=True, text=True, env=self.env, check=False, timeout=120)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
            return f"cannot import unskew in {sys.executable} ({last}): install unskew {ours[0]} there"
        there = json.loads(done.stdout)
        if there == ours:
            return ""
        return (
            f"has unskew {there[0]} with torch {there[1]}, and the driver {ours[0]} with torch {ours[1]}:"
            " install the same"
        )


class ClientActor(RunActor):
    """Trains chunks of the clients of one run in this process, which reads the run's data once."""

    def open(self, settings: str, data: str) -> None:
        """Build the run of these settings. data: the required fingerprint of its data."""
        self.unfit = self._unfit_node() or self._built(settings, data)

    def chunk(self, *arguments: Any) -> dict[str, Any]:
        """Train a chunk of clients, with the arguments of `ChunkTrainer.replies`. Returns `replies`, or
        `unfit`, a sentence, and `node`."""
        if self.unfit:
            return {"node": self.node, "unfit": self.unfit}
        return {"replies": self.bench.replies(*arguments)}

    def _built(self, settings: str, data: str) -> str:
        # no file there is a module
        sys.path[:] = [path for path in sys.path if path not in ("", self.order["folder"])]
        os.environ.update(self.order["env"])
        from unskew.comparison.ray_clients import ChunkTrainer
        from unskew.errors import UnskewError

        try:
            self.bench = ChunkTrainer(settings, data)
        except UnskewError as error:
            return f"cannot build the run: {error.text.rstrip('.')}"
        return ""


def _text(file: str) -> str | None:
    try:
        with open(file, encoding="utf-8") as opened:
            return opened.read()
    except OSError:
        return None
