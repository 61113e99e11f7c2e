"""Runs by their folders: opened again, and many at once, one process a core.

A comparison's cells are ordinary runs. Each is trained by a process of its own that reads the cell's config.yaml, so
nothing but text passes between processes, and a comparison that was killed goes on where its cells stopped.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from unskew import config, disk
from unskew.config import Settings
from unskew.disk import check_name
from unskew.engine import resolve
from unskew.engine.disk.folder import Folder, check_same, maker
from unskew.engine.disk.lock import Lock
from unskew.errors import StateError, UsageError, suggestion
from unskew.revision import revision


@dataclass
class Cell:
    """One method with one seed: its folder, and how far it is."""

    method: str
    seed: int
    path: Path
    settings: Settings
    t: int = 0
    score: float = float("nan")
    client_mean: float = float("nan")
    client_worst: float = float("nan")
    megabytes: float = 0.0
    code: int | None = None
    _read: tuple[int, int] = (0, 0)

    @property
    def done(self) -> bool:
        return self.code == 0

    @property
    def ended(self) -> bool:
        """Whether its result is there, whoever trained it."""
        return (self.path / "model.safetensors").exists()

    def look(self) -> None:
        """Read what the cell's process has written since the last look; anew where it went back to an earlier round."""
        files = [self.path / "metrics.jsonl", self.path / "ledger.jsonl"]
        sizes = [f.stat().st_size if f.exists() else 0 for f in files]
        if any(size < begin for size, begin in zip(sizes, self._read)):
            self._read, self.t, self.megabytes = (0, 0), 0, 0.0
        marks = []
        for path, size, begin in zip(files, sizes, self._read):
            whole = b""
            if size > begin:
                with open(path, "rb") as lines:
                    lines.seek(begin)
                    whole, _, _ = lines.read().rpartition(b"\n")
            try:
                for line in whole.splitlines():
                    self._take(json.loads(line))
            except (ValueError, TypeError, KeyError):  # written anew behind our mark: all of it at the next look
                self._read, self.t, self.megabytes = (0, 0), 0, 0.0
                return
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
                case "global", "accuracy" | "dice":
                    self.score = row["value"]
                case "global@client", "mean":
                    self.client_mean = row["value"]
                case "global@client", "worst":
                    self.client_worst = row["value"]


def plan(parent: Path, methods: Sequence[str], seeds: Sequence[int], options: dict[str, Any]) -> list[Cell]:
    """The cells of a comparison. Refused here, before anything is written, if a method or a setting cannot be read."""
    cells, unused = [], dict(options.get("set") or {})
    for method in methods:
        base = config.build({**options, "method": method})
        arguments = resolve.arguments_for(method, base.set)
        unused = {part: v for part, v in unused.items() if part not in arguments}
        base = resolve.compared(base.replace(set=arguments))
        for seed in seeds:
            cells.append(Cell(method, seed, parent / f"{slug(method)}--s{seed}", base.replace(seed=seed)))
    if unused:
        part = next(iter(unused))
        raise UsageError("E102", f"--set names '{part}', which is a part of none of them.{suggestion(part, methods)}")
    paths = [c.path for c in cells]
    if len(set(paths)) < len(paths):
        raise UsageError("E119", "two of the methods to compare are the same; name each once.")
    for cell in cells:
        if (cell.path / "config.yaml").exists():
            check_same(cell.path, cell.settings)
    return cells


def describe(parent: Path, methods: Sequence[str], seeds: Sequence[int], options: dict[str, Any]) -> None:
    """compare.yaml, from which a comparison is resumed."""
    shared = {
        n: v for n, v in config.build({**options, "method": "fedavg"}).as_dict().items() if n not in ("method", "seed")
    }
    parent.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump({"methods": list(methods), "seeds": list(seeds), "settings": shared}, sort_keys=False)
    disk.replace(parent / "compare.yaml", text)


def described(parent: Path) -> list[Cell]:
    """The cells of a comparison that has begun. Raises StateError: E117 where there is none, E111 for a damaged file."""
    file = parent / "compare.yaml"
    if not file.is_file():
        raise StateError("E117", f"{parent} is no comparison: it has no compare.yaml.")
    try:
        found = yaml.safe_load(file.read_text())
        methods, seeds, settings = (found[n] for n in ("methods", "seeds", "settings"))
    except (yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise StateError("E111", f"{file} cannot be read: {' '.join(str(error).split())}.") from None
    return plan(parent, methods, seeds, settings)


def announce(parent: Path, plan: Iterable[Cell]) -> None:
    """now.json: which runs a table that has just begun consists of, for whoever watches it; the last one begun counts."""
    parent.mkdir(parents=True, exist_ok=True)
    told = [[c.method, c.seed, c.path.relative_to(parent).as_posix(), c.settings.rounds] for c in plan]
    disk.replace(parent / "now.json", json.dumps(told))


def announced(parent: Path) -> list[Cell]:
    """The runs of the table that was begun last in this folder. Raises StateError (E111) for a damaged file."""
    try:
        told = json.loads((parent / "now.json").read_text())
        return [Cell(method, seed, parent / path, Settings(rounds=rounds)) for method, seed, path, rounds in told]
    except (OSError, ValueError, TypeError) as error:
        raise StateError("E111", f"{parent / 'now.json'} cannot be read: {error}.") from None


def slug(method: str) -> str:
    """A folder name for a method string: `fedprox(mu=0.01)+fedrdn` -> `fedprox-mu-0.01-_fedrdn`; of a file its name."""
    short = re.sub(r"(^|\+)[^+(]*/", r"\1", method.lower())
    return check_name(re.sub(r"[^a-z0-9._-]+", "-", short.replace("+", "_")).strip("-_.")[:48])


def makers(paths: Iterable[Path]) -> dict[str, int]:
    """How many of these runs were begun by which unskew; those that have not begun are left out."""
    return dict(sorted(Counter(who for path in set(paths) if (who := maker(path))).items()))


def by_others(paths: Iterable[Path]) -> list[Path]:
    """The runs among these that another unskew than this one began."""
    return [path for path in paths if maker(path) not in ("", revision())]


def discard(paths: Iterable[Path]) -> None:
    """Remove runs, one after another. Raises StateError (E110) for one in use, which stays."""
    for path in paths:
        with Lock(path):
            shutil.rmtree(path)


class Worker:
    """A process that trains one cell after another, so that torch is loaded once. Paths go in, exit codes come out."""

    def __init__(self, log: Path):
        self.log, self.cell = log, None
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "unskew.comparison.cells"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        assert self.process.stdout
        os.set_blocking(self.process.stdout.fileno(), False)

    cell: Cell | None

    def begin(self, cell: Cell) -> None:
        assert self.process.stdin
        cell.path.mkdir(exist_ok=True)
        disk.replace(cell.path / "wanted.yaml", config.dump(cell.settings.replace(workers=1)))
        self.cell = cell
        self.process.stdin.write(f"{cell.path}\n")
        self.process.stdin.flush()

    def ended(self) -> int | None:
        """The exit code of the cell in work, or None while it trains."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        if line.strip():
            return int(line)
        return self.process.poll()

    def stop(self) -> None:
        """Interrupt what is in work; it has been saved after every round."""
        if self.process.poll() is None:
            if self.cell:
                self.process.send_signal(signal.SIGINT)
            self.process.stdin.close()  # type: ignore[union-attr]
        self.process.wait()
        self.process.stdout.close()  # type: ignore[union-attr]


def run_all(cells: list[Cell], processes: int, watch: Callable[[list[Cell]], None]) -> None:
    """Train all cells, `processes` at a time. On an interrupt every cell is saved and stops; a failed cell is raised."""
    waiting = [c for c in cells if not c.ended]
    for cell in cells:
        cell.code = None if cell in waiting else 0
        cell.look()
    workers: list[Worker] = []
    try:
        while waiting or any(w.cell for w in workers):
            if waiting and len(workers) < processes and all(w.cell for w in workers):
                workers.append(Worker(waiting[0].path.parent / "log.txt"))
            for worker in workers:
                if worker.cell is None and waiting:
                    worker.begin(waiting.pop(0))
                if worker.cell:
                    worker.cell.look()
                    _settle(worker)
            watch(cells)
            time.sleep(0.05)
    finally:
        for worker in workers:
            worker.stop()


def _settle(worker: Worker) -> None:
    cell, code = worker.cell, worker.ended()
    if cell is None or code is None:
        return
    cell.code, worker.cell = code, None
    cell.look()
    if code:
        raise _failure(cell)


def _failure(cell: Cell) -> Exception:
    log = cell.path.parent / "log.txt"
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    said = lines[-1] if lines else f"it ended with code {cell.code} and said nothing"
    if found := re.match(r"(E\d{3}) (.*)", said):
        return UsageError(found[1], f"{cell.method}, seed {cell.seed}: {found[2]}")
    return StateError("E120", f"{cell.method}, seed {cell.seed} failed: {said} (all of it: {log})")


def _end_with_parent() -> None:
    """Linux: be interrupted when the process that started us ends, however it ends."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGINT)


def train(path: Path) -> int:
    """Train one cell to its end; its exit code."""
    from unskew.errors import UnskewError

    try:
        settings = config.load(path / "wanted.yaml")
        Folder(path, resolve.resolve(settings)).go(_tell, lambda *_: None)
    except UnskewError as error:
        _tell(str(error))
        return error.exit_code
    return 0


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """The life of a worker process: a path per line in, an exit code per line out."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are born ignoring it
    _end_with_parent()
    try:
        for line in sys.stdin:
            print(train(Path(line.rstrip("\n"))), flush=True)
    except KeyboardInterrupt:
        os._exit(130)


if __name__ == "__main__":
    main()
