"""Training of all runs of a plan by processes of this machine, and the attacks afterwards.

Progress is read from the files of a run. An interrupted run continues from its last round, and an attack that
was measured before is not repeated.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from unskew.attacks.attack import quick_attacks
from unskew.comparison import workers
from unskew.comparison.progress import Cell
from unskew.errors import Paused, StateError, UsageError
from unskew.records import record
from unskew.round.run import is_reference
from unskew.runs.hardware import parallel_runs
from unskew.runs.reopen import UserCode

PAUSE_S = 0.05
"""The time between two looks at the runs."""
END_SIGNALS = (-signal.SIGINT, -signal.SIGTERM)
"""Exit codes of processes that were ended on purpose. With others, such as SIGKILL for lack of memory,
a run continues in another process."""
MOST_LOSSES = 3
"""The number of lost processes after which the run itself is considered the cause."""


def train_all(cells: list[Cell], processes: int, look: Callable[[list[Cell]], None]) -> None:
    """Train all runs, `processes` at a time (0: one on each core, or one on a GPU), and call `look` several
    times a second.

    Runs of which any has objects train in this process, one after another, each on as many cores as its
    settings say.

    An interrupt stops every run after it has been saved. A run that its clients did not train (E316) counts
    as finished; tables show that it has no score. A run that lost its process continues in another one from
    its last checkpoint, to the same bits. Raises StateError (E201), before anything trains, if the records of
    a finished run were altered. Raises the error of the first run that fails: Paused if it can be resumed,
    UsageError with the run's code, or StateError (E120) if the error has no code; a run in this process
    raises its own error.
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
    if any(cell.objects.given for cell in cells):
        for cell in waiting:
            workers.train_here(cell, partial(_looked, cell, cells, look))
    elif waiting:
        _train(cells, waiting, processes or parallel_runs(waiting[0].settings.device), look)
    look(cells)


def _looked(cell: Cell, cells: list[Cell], look: Callable[[list[Cell]], None]) -> None:
    cell.look()
    look(cells)


def _train(
    cells: list[Cell], waiting: list[Cell], processes: int, look: Callable[[list[Cell]], None]
) -> None:
    active: list[workers.WorkerProcess] = []
    try:
        while waiting or any(worker.cell for worker in active):
            if waiting and all(worker.cell for worker in active) and len(active) < processes:
                active.append(workers.WorkerProcess(waiting[0].path.parent / "log.txt"))
            for worker in list(active):
                if worker.cell is None and waiting:
                    worker.begin(waiting.pop(0))
                if lost := _settle(worker):
                    waiting.insert(0, lost)
                    active.remove(worker)
                    worker.stop()
            look(cells)
            time.sleep(PAUSE_S)
    finally:
        for worker in active:
            worker.stop()


def _settle(worker: workers.WorkerProcess) -> Cell | None:
    """Read the progress and the end of a worker's run. Returns the run if it lost its process and has to
    continue."""
    cell = worker.cell
    if cell is None:
        return None
    code = worker.ended()
    cell.look()
    if code is None:
        return None
    worker.cell = None
    if code < 0 and code not in END_SIGNALS:
        cell.losses += 1
        if cell.losses < MOST_LOSSES:
            return cell
        text = f"{cell.method}, seed {cell.seed}: its process died {cell.losses} times"
        log = cell.path.parent / "log.txt"
        raise StateError("E120", f"{text}, most often for want of memory. What it said: {log}.")
    cell.code = code
    if not cell.done:
        raise _failure(cell)
    return None


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
            quick_attacks(cell.path, say, replace(code, method=cell.objects.method or code.method))
        except StateError as reason:  # the comparison is fine, but this run cannot be attacked
            say(f"not measured: {reason}")
