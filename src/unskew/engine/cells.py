"""Runs by their folders: opened again, and many at once, one process a core.

A comparison's cells are ordinary runs. Each is trained by a process of its own that reads the cell's config.yaml, so
nothing but text passes between processes, and a comparison that was killed goes on where its cells stopped.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from unskew import config, data
from unskew.config import Settings
from unskew.core.method import Method
from unskew.data.federation import Dataset, Federation
from unskew.engine import setup
from unskew.engine.folder import Folder, check_name
from unskew.errors import StateError, UsageError

LOCAL, CENTRALISED = "local", "centralised"


def federation_for(settings: Settings, method: Method, given: Federation | Dataset | str | tuple | None = None) -> Federation:
    """The federation of a run: dealt out already, or from a set, or from arrays."""
    if isinstance(given, Federation):
        federation = given
    else:
        if isinstance(given, tuple):
            given = data.arrays(*given)
        dataset = given if isinstance(given, Dataset) else setup.dataset_of(settings)
        federation = setup.federation_of(settings, dataset, method)
    return federation.pooled() if settings.method == CENTRALISED else federation


def folder_at(path: Path) -> Folder:
    """A run's folder, opened from its config.yaml."""
    file = path / "config.yaml"
    if not file.exists():
        raise StateError("E117", f"{path} is no run: it has no config.yaml. Runs are folders under runs/.")
    settings = config.load(file)
    if settings.data == "(given)" or settings.model == "(given)":
        raise StateError("E118", f"{path} was begun from Python with its own data or model; resume it with unskew.run(..., name='{path.name}').")
    method = Method() if settings.method == CENTRALISED else Method.parse(settings.method, settings.set)
    return Folder(path, settings, method, federation_for(settings, method))


@dataclass
class Cell:
    """One method with one seed: its folder, its process, and how far it is."""

    method: str
    seed: int
    path: Path
    settings: Settings
    process: subprocess.Popen | None = None
    t: int = 0
    accuracy: float = float("nan")
    client_mean: float = float("nan")
    client_worst: float = float("nan")
    megabytes: float = 0.0
    code: int | None = None
    _read: tuple[int, int] = (0, 0)

    @property
    def done(self) -> bool:
        return self.code == 0

    def look(self) -> None:
        """Read what the cell's process has written since the last look."""
        marks = []
        for file, begin in zip(("metrics.jsonl", "ledger.jsonl"), self._read):
            path = self.path / file
            if not path.exists() or path.stat().st_size < begin:
                marks.append(0)
                continue
            with open(path, "rb") as lines:
                lines.seek(begin)
                whole, _, _ = lines.read().rpartition(b"\n")
            for line in whole.splitlines():
                self._take(json.loads(line))
            marks.append(begin + len(whole) + (1 if whole else 0))
        self._read = (marks[0], marks[1])

    def _take(self, row: dict[str, Any]) -> None:
        if "way" in row:
            each = row["bytes"]
            self.megabytes += (each * len(row["clients"]) if isinstance(each, int) else sum(each)) / 1e6
            return
        self.t = max(self.t, row["t"])
        if row["client"] is None:
            match row["scope"], row["metric"]:
                case "global", "accuracy":
                    self.accuracy = row["value"]
                case "global@client", "mean":
                    self.client_mean = row["value"]
                case "global@client", "worst":
                    self.client_worst = row["value"]


def plan(parent: Path, methods: Sequence[str], seeds: Sequence[int], options: dict[str, Any]) -> list[Cell]:
    """The cells of a comparison; refused here, before anything trains, if a method or a setting cannot be read."""
    cells = []
    for method in methods:
        base = config.build({**options, "method": method})
        if method != CENTRALISED:
            used = Method.parse(method, {p: v for p, v in base.set.items() if re.search(rf"\b{p}\b", method)})
            base = base.replace(method=str(used) if method != LOCAL else LOCAL, set={})
        if method == CENTRALISED:
            base = base.replace(availability="full", set={})
        for seed in seeds:
            cells.append(Cell(method, seed, parent / f"{slug(method)}--s{seed}", base.replace(seed=seed)))
    paths = [c.path for c in cells]
    if len(set(paths)) < len(paths):
        raise UsageError("E119", "two of the methods to compare are the same; name each once.")
    parent.mkdir(parents=True, exist_ok=True)
    shared = {n: v for n, v in config.build({**options, "method": "fedavg"}).as_dict().items() if n not in ("method", "seed", "set")}
    described = yaml.safe_dump({"methods": list(methods), "seeds": list(seeds), "settings": shared}, sort_keys=False)
    (parent / "compare.yaml").write_text(described)
    for cell in cells:
        cell.path.mkdir(exist_ok=True)
        file = cell.path / "config.yaml"
        if file.exists():
            config.check_same(config.load(file), cell.settings, cell.path)
    return cells


def slug(method: str) -> str:
    """A folder name for a method string: `fedprox(mu=0.01)+fedrdn` -> `fedprox-mu-0.01-_fedrdn`."""
    return check_name(re.sub(r"[^a-z0-9._-]+", "-", method.lower().replace("+", "_")).strip("-_.")[:48])


def run_all(cells: list[Cell], processes: int, watch: Callable[[list[Cell]], None]) -> None:
    """Train all cells, `processes` at a time. On an interrupt every cell saves and stops; a failed cell is raised."""
    waiting = [c for c in cells if not (c.path / "model.safetensors").exists()]
    for cell in cells:
        if cell not in waiting:
            cell.code = 0
            cell.look()
    running: list[Cell] = []
    try:
        while waiting or running:
            while waiting and len(running) < processes:
                cell = waiting.pop(0)
                cell.process = _begin(cell)
                running.append(cell)
            for cell in list(running):
                cell.look()
                cell.code = cell.process.poll() if cell.process else None
                if cell.code is not None:
                    cell.look()
                    running.remove(cell)
                    if cell.code:
                        raise _failure(cell)
            watch(cells)
            time.sleep(0.1)
    finally:
        for cell in running:
            if cell.process:
                cell.process.send_signal(signal.SIGINT)
        for cell in running:
            if cell.process:
                cell.process.wait()


def _begin(cell: Cell) -> subprocess.Popen:
    wanted = cell.path / "wanted.yaml"
    wanted.write_text(config.dump(cell.settings.replace(workers=1)))
    with open(cell.path / "log.txt", "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "unskew.engine.cells", str(cell.path)], stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )


def _failure(cell: Cell) -> Exception:
    lines = [line for line in (cell.path / "log.txt").read_text(errors="replace").splitlines() if line.strip()]
    said = lines[-1] if lines else f"it ended with code {cell.code} and said nothing"
    if found := re.match(r"(E\d{3}) (.*)", said):
        return UsageError(found[1], f"{cell.method}, seed {cell.seed}: {found[2]}")
    return StateError("E120", f"{cell.method}, seed {cell.seed} failed: {said} (all of it: {cell.path / 'log.txt'})")


def _end_with_parent() -> None:
    """Linux: be interrupted when the process that started us ends, however it ends."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGINT)


def main(path: Path) -> int:
    """The life of one cell's process."""
    from unskew.errors import UnskewError

    _end_with_parent()
    try:
        settings = config.load(path / "wanted.yaml")
        method = Method() if settings.method == CENTRALISED else Method.parse(settings.method, settings.set)
        Folder(path, settings, method, federation_for(settings, method)).go(print, lambda *_: None)
    except UnskewError as error:
        print(error, flush=True)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main(Path(sys.argv[1])))
