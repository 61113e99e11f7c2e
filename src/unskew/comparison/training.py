"""Training of all runs of a plan, by processes of this machine or on a cluster, and the attacks afterwards.

Progress is read from the files of a run, on any worker. An interrupted run continues from its last round, and
an attack that was measured before is not repeated.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from unskew.attacks.perform import quickly
from unskew.comparison import workers
from unskew.comparison.cluster import Cluster
from unskew.comparison.progress import Cell
from unskew.comparison.ray_workers import RayPool
from unskew.comparison.workers import LOST, MOST_LOSSES, RunWorker, WorkerPool
from unskew.errors import Paused, StateError, UsageError
from unskew.records import record
from unskew.round.run import is_reference
from unskew.runs.hardware import parallel_runs
from unskew.runs.reopen import UserCode


@dataclass
class LocalPool:
    """A pool of worker processes on this machine. processes: the most at a time."""

    processes: int
    pause_s = 0.05

    def room(self, count: int) -> bool:
        return count < self.processes

    def hire(self, log: Path) -> RunWorker:
        return workers.WorkerProcess(log)

    def close(self) -> None:
        pass


def train_all(
    cells: list[Cell],
    processes: int,
    look: Callable[[list[Cell]], None],
    cluster: Cluster | None = None,
) -> None:
    """Train all runs, `processes` at a time (0: as many as there is room for), and call `look` several times
    a second.

    cluster: None for this machine. Runs of which any has objects train in this process, one after another,
    each on as many cores as its settings say.

    An interrupt stops every run after it has been saved. A run that its clients did not train (E316) counts
    as finished; tables show that it has no score. A run that lost its node or process continues in another
    one from its last checkpoint, to the same bits, and its cell counts the loss. Raises StateError (E201),
    before anything trains, if the records of a finished run were altered. Raises the error of the first run
    that fails: Paused if it can be resumed, UsageError with the run's code, or StateError (E120) if the error
    has no code; a run in this process raises its own error.
    """
    for cell in cells:
        if cell.ended and (names := record.altered_files(cell.path)):
            file = f"{cell.path / names[0]} is missing, or not as the run wrote it"
            remedy = f"Put it back, or remove {cell.path} to train the run anew."
            raise StateError("E201", f"{cell.method}, seed {cell.seed}: {file}. {remedy}")
    waiting = [c for c in cells if not c.ended]
    for cell in cells:
        cell.code = None if cell in waiting else 0
        cell.look()
    if not waiting:
        look(cells)
        return
    if any(cell.objects.given for cell in cells):
        for cell in waiting:
            workers.train_here(cell, lambda: _looked(cells, look))
        _looked(cells, look)
        return
    device = waiting[0].settings.device
    pool: WorkerPool
    if cluster:
        pool = RayPool(cluster, processes, device)
    else:
        pool = LocalPool(processes or parallel_runs(device))
    with closing(pool):
        _train(cells, waiting, pool, look)


def _looked(cells: list[Cell], look: Callable[[list[Cell]], None]) -> None:
    for cell in cells:
        cell.look()
    look(cells)


def _train(
    cells: list[Cell], waiting: list[Cell], pool: WorkerPool, look: Callable[[list[Cell]], None]
) -> None:
    active: list[RunWorker] = []
    losses = Counter[tuple[Path, int]]()  # of each run since its last finished round
    try:
        while waiting or any(worker.cell for worker in active):
            if waiting and all(worker.cell for worker in active) and pool.room(len(active)):
                active.append(pool.hire(waiting[0].path.parent / "log.txt"))
            for worker in list(active):
                if worker.cell is None and waiting:
                    worker.begin(waiting.pop(0))
                if worker.cell:
                    worker.cell.look()
                    if lost := _settle(worker):
                        lost.losses += 1
                        losses[lost.path, lost.t] += 1
                        if (times := losses[lost.path, lost.t]) >= MOST_LOSSES:
                            raise _given_up(lost, times)
                        waiting.insert(0, lost)
                        active.remove(worker)
                        worker.stop()
            look(cells)
            time.sleep(pool.pause_s)
    finally:
        for worker in active:
            worker.stop()


def lost_in(cells: Sequence[Cell]) -> list[str]:
    """A sentence for each run that lost a process."""
    went_on = "and it went on from its last checkpoint, to the bits it would have had; log.txt says more"
    times = {1: "once", 2: "twice"}
    return [
        f"{cell.method}, seed {cell.seed}: its process died {times.get(cell.losses, f'{cell.losses} times')},"
        f" {went_on}."
        for cell in cells
        if cell.losses
    ]


def _settle(worker: RunWorker) -> Cell | None:
    """Record the end of a worker's run. Returns the run if it was lost and has to continue."""
    cell, code = worker.cell, worker.ended()
    if cell is None or code is None:
        return None
    worker.cell = None
    cell.look()
    if code == LOST:
        return cell
    cell.code = code
    if not cell.done:
        raise _failure(cell)
    return None


def _given_up(cell: Cell, times: int) -> StateError:
    where = f"{cell.method}, seed {cell.seed}: its process died {times} times after round {cell.t}"
    log = cell.path.parent / "log.txt"
    return StateError("E120", f"{where}, most often for want of memory. What it said: {log}.")


def _failure(cell: Cell) -> Exception:
    log = cell.path.parent / "log.txt"
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    last = lines[-1] if lines else f"it ended with code {cell.code} and said nothing"
    if match := re.match(r"(E\d{3}) (.*)", last):
        kind = Paused if cell.code == Paused.exit_code else UsageError
        return kind(match[1], f"{cell.method}, seed {cell.seed}: {match[2]}")
    return StateError("E120", f"{cell.method}, seed {cell.seed} failed: {last} (all of it: {log})")


def attack_all(cells: Sequence[Cell], say: Callable[[str], None]) -> None:
    """Attack every run that has a score and is not a reference. say: receives a line for each run, and the
    reason if an attack is not possible."""
    for cell in cells:
        if is_reference(cell.settings.method) or cell.code:
            continue
        say(f"attacks on {cell.method}, seed {cell.seed}")
        try:
            code = UserCode.of(cell.settings)
            quickly(cell.path, say, replace(code, method=cell.objects.method or code.method))
        except StateError as reason:  # the comparison is fine, but this run cannot be attacked
            say(f"not measured: {reason}")
