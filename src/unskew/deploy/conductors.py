"""The runs that a server conducts: it takes the tasks of ordered runs, and ends every other run before any of it runs."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from unskew.deploy import commands, logs, orders
from unskew.deploy.bundle import APP_HASH
from unskew.deploy.identity import secret_of
from unskew.deploy.orders import ENDING
from unskew.deploy.superlink import Refused, SuperLink, Task, Unavailable
from unskew.deploy.supervise import Program, Say
from unskew.deploy.tickets import Coordinator
from unskew.errors import UsageError

TASK = "UNSKEW_TASK"
"""The environment variable that tells a conductor its run, its task and its token."""
TAKE_S = 2.0
"""How often tasks are asked for while no order waits: of strangers, who can only be refused."""
MOST_STARTS = 3
"""A run whose process has been killed this often is given up."""


@dataclass
class _Run:
    """task: at the SuperLink; order: the name of its order; path: the run's folder."""

    task: Task
    order: str
    path: Path
    program: Program


@dataclass
class Conductors:
    """One process for each run, started again if it is killed."""

    home: Coordinator
    say: Say
    form: logs.Form = "text"
    restarts: int = 0
    _runs: list[_Run] = field(default_factory=list)
    _took: float = -TAKE_S
    """When tasks were asked for last."""
    _refused: bool = False
    """Whether the SuperLink has refused to give tasks, and has given none since."""

    def __post_init__(self) -> None:
        self.secret_file = self.home.folder / "flower" / "tasks.key"
        self._secret, self._link = secret_of(self.secret_file), SuperLink(self.home)

    def tend(self) -> None:
        """Take the next task, and keep the processes of all runs running."""
        ordered = orders.waiting(self.home.folder) - {run.order for run in self._runs}
        if ordered or time.monotonic() - self._took >= TAKE_S:
            self._took = time.monotonic()
            self._take()
        self._runs = [run for run in self._runs if not self._ended(run)]

    def _take(self) -> None:
        try:
            if task := self._link.take(self._secret):
                self._begin(task)
        except Unavailable:
            return  # it starts, or is started again
        except Refused as error:
            if not self._refused:
                self.say(f"E507 the SuperLink gives no tasks: {error}; it is asked again until it does.")
            self._refused = True
            return
        if self._refused:
            self._refused = False
            self.say("the SuperLink gives tasks again")

    @property
    def active(self) -> list[Path]:
        """The folders of the runs that go on."""
        return [run.path for run in self._runs]

    def stop(self) -> None:
        """End all processes. Each run says how to resume it."""
        for run in self._runs:
            run.program.stop()
        self._runs.clear()
        self._link.close()

    def _begin(self, task: Task) -> None:
        if task.app_hash != APP_HASH:
            what = f"it brings an app of its own (SHA-256 {task.app_hash[:16] or 'unknown'}), of which nothing was run"
            return self._refuse(task, what)
        name = self._link.order_of(task)
        if not orders.exists(self.home.folder, name):
            return self._refuse(task, "no order of this coordinator belongs to it")
        flower = self.home.folder / "flower"
        command = [sys.executable, "-P", "-m", "unskew.deploy.conductor", str(self.home.folder), name]
        env = commands.environment(flower, **{TASK: f"{task.run} {task.number} {task.token}"})
        path = orders.read(self.home.folder, name).path
        program = Program(f"the process of {path}", command, env, flower / "conductor.log", self.form)
        self._runs.append(_Run(task, name, path, program))
        self.say(f"the run in {path} begins, or goes on")

    def _refuse(self, task: Task, why: str) -> None:
        self.say(str(UsageError("E510", f"run {task.run} was refused and ended: {why}.")))
        self._finish(task, f"refused: {why}")

    def _ended(self, run: _Run) -> bool:
        """Whether the process has ended by itself, or has been killed too often."""
        code = run.program.code
        if code is None or (code < 0 and run.program.starts < MOST_STARTS):
            if run.program.tend(self.say) is not None:
                self.restarts += 1
            return False
        problem = "" if code == 0 else f"the run's process ended with code {code}"
        if code < 0:
            self.say(f"E507 {run.program.name} was killed {run.program.starts} times and is given up.")
        self._finish(run.task, problem)
        orders.withdraw(self.home.folder, run.order)
        self.say(f"the run in {run.path} has ended; {ENDING} there says how")
        return True

    def _finish(self, task: Task, problem: str) -> None:
        try:
            self._link.finish(task, problem)
        except (Refused, Unavailable) as error:
            self.say(f"E507 the SuperLink does not take the end of run {task.run}: {error}")
