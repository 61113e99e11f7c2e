"""The processes behind `unskew serve`: the front, which sites reach, Flower's SuperLink behind it, and one
process per run.

The server takes the tasks of ordered runs and ends every other run before any code of it is executed.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from unskew.errors import UnskewError, UsageError
from unskew.federation import programs
from unskew.federation.addresses import check_free, default_bind
from unskew.federation.coordinator import orders, superlink
from unskew.federation.coordinator.orders import ENDING
from unskew.federation.coordinator.superlink import APP_HASH, Refused, SuperLink, Task, Unavailable
from unskew.federation.front import access
from unskew.federation.programs import Program, RareSay, Say
from unskew.federation.protocol.signed_messages import persistent_secret
from unskew.federation.tickets import Coordinator

TASK = "UNSKEW_TASK"
"""The environment variable that holds a conductor's run, task and token."""
CONDUCTOR = "unskew.federation.coordinator.conductor"
TAKE_S = 2.0
"""Seconds between requests for tasks while no order waits; such tasks come from strangers and are refused."""
MOST_STARTS = 3
"""A run is given up after its process has been killed this many times."""


@dataclass
class _Run:
    """A run in progress. task: its task at the SuperLink; order: the order's name; path: the run's folder."""

    task: Task
    order: str
    path: Path
    program: Program


@dataclass
class Conductors:
    """One process for each run, restarted if it is killed.

    A task that does not bring our app, or no order of this coordinator, is ended before any code of it runs.
    """

    home: Coordinator
    say: Say
    _runs: list[_Run] = field(default_factory=list)
    _request_time: float = -TAKE_S
    """Time of the last request for tasks."""

    def __post_init__(self) -> None:
        self.secret_file = self.home.folder / "flower" / "tasks.key"
        self._secret, self._link = persistent_secret(self.secret_file), SuperLink(self.home)
        self._rarely = RareSay(self.say)

    def tend(self) -> None:
        """Take the next task, and keep the processes of all runs running."""
        ordered = orders.waiting_orders(self.home.folder) - {run.order for run in self._runs}
        if ordered or time.monotonic() - self._request_time >= TAKE_S:
            self._request_time = time.monotonic()
            try:
                if task := self._link.take(self._secret):
                    self._begin(task)
            except Unavailable:
                pass  # the SuperLink is still starting or is being restarted
            except Refused as error:
                self._rarely(f"E507 the SuperLink gives no tasks: {error}; it is asked again until it does.")
        self._runs = [run for run in self._runs if not self._has_ended(run)]

    def stop(self) -> None:
        """End all processes. Each run prints how to resume it."""
        for run in self._runs:
            run.program.stop()
        self._runs.clear()
        self._link.close()

    def _begin(self, task: Task) -> None:
        if task.app_hash != APP_HASH:
            what = f"it brings an app of its own (SHA-256 {task.app_hash[:16] or 'unknown'})"
            return self._refuse(task, f"{what}, of which nothing was run")
        name = self._link.order_of(task)
        if not orders.exists(self.home.folder, name):
            return self._refuse(task, "no order of this coordinator belongs to it")
        flower = self.home.folder / "flower"
        command = [sys.executable, "-P", "-m", CONDUCTOR, str(self.home.folder), name]
        env = programs.environment(flower, **{TASK: f"{task.run} {task.number} {task.token}"})
        path = orders.read_order(self.home.folder, name).path
        program = Program(f"the process of {path}", command, env, flower / "conductor.log")
        self._runs.append(_Run(task, name, path, program))
        self.say(f"the run in {path} begins, or goes on")

    def _refuse(self, task: Task, why: str) -> None:
        self.say(str(UsageError("E507", f"run {task.run} was refused and ended: {why}.")))
        self._finish(task, f"refused: {why}")

    def _has_ended(self, run: _Run) -> bool:
        """Whether the process has ended by itself, or has been killed too often."""
        code = run.program.code
        if code is None or (code < 0 and run.program.starts < MOST_STARTS):
            run.program.tend(self.say)
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


RECONCILE_S = 30.0
"""Seconds between comparisons of the SuperLink's nodes with the admitted keys."""
MOST_ENDS, WITHIN_S = 3, 60.0
"""A program that ends by itself this often within this many seconds is not restarted again."""


@dataclass
class Server:
    """The programs of `unskew serve`. bind: the address to listen on; default: the host if it is an address,
    else 0.0.0.0. Raises UsageError (E507) if its port is taken.
    """

    home: Coordinator
    bind: str = ""
    say: Say = print
    _front_lines: deque[str] = field(default_factory=deque[str])
    """Lines of the front that have not been processed yet."""
    _ends: list[tuple[float, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        flower = self.home.folder / "flower"
        self.bind = self.bind.removeprefix("[").removesuffix("]") or default_bind(self.home.host)
        check_free(self.bind, self.home.port)
        flower.chmod(0o700)  # Flower's server admits everybody who reaches its socket there
        self.conductors, self._link = Conductors(self.home, self.say), SuperLink(self.home)
        env = programs.environment(flower)
        link = superlink.superlink_command(self.home, self.conductors.secret_file)
        self.program = Program("the SuperLink", link, env, flower / "superlink.log")
        front = superlink.front_command(self.home, self.bind)
        self.front = Program("the front", front, env, flower / "front.log", self._front_lines.append)
        self._registered: tuple[dict[str, str], float] = {}, 0.0

    def tend(self) -> None:
        """Keep the programs and the runs going, register newly admitted sites, and report refused ones.

        Raises UsageError (E507) if the front or the SuperLink keeps ending.
        """
        for program in (self.front, self.program):
            code = program.tend(self.say)
            if code is not None and code >= 0:  # not killed
                self._has_ended(program)
        self.conductors.tend()
        self.report_refusals()
        self._reconcile()

    def stop(self) -> None:
        """End the runs' processes, which print how to resume the runs, then the front and the SuperLink."""
        self.conductors.stop()
        self._link.close()
        self.front.stop()
        self.report_refusals()
        self.program.stop()

    def report_refusals(self) -> None:
        """Print the front's refusals since the last call and record them in the federation's journal."""
        lines = [self._front_lines.popleft() for _ in range(len(self._front_lines))]
        facts = [fact for line in lines if (fact := access.parse_refusal(line))]
        for fact in facts:
            times = f" ({fact['times']} times)" if fact["times"] != 1 else ""
            self.say(f"refused {fact['who']}: {fact['why']}{times}")
        try:
            self.home.record(*(("refused", fact) for fact in facts))
        except (UnskewError, OSError) as error:  # a disk that strangers have filled must not end the server
            self.say(f"the federation's journal lacks {len(facts)} lines about refusals: {error}")

    def _has_ended(self, program: Program) -> None:
        now = time.monotonic()
        self._ends = [(when, name) for when, name in self._ends if when > now - WITHIN_S]
        self._ends.append((now, program.name))
        if [name for _, name in self._ends].count(program.name) >= MOST_ENDS:
            raise UsageError("E507", f"{program.name} does not stay up; see {program.log}.")

    def _reconcile(self) -> None:
        """Make the nodes of the SuperLink those of the admitted keys, after a change and every RECONCILE_S
        seconds."""
        admitted = self.home.admitted()
        texts, (last_texts, last) = {site: key.text for site, key in admitted.items()}, self._registered
        if texts == last_texts and time.monotonic() < last + RECONCILE_S:
            return
        keys = {superlink.flower_key(key): site for site, key in admitted.items()}
        try:
            nodes = self._link.nodes()
            for key in nodes.keys() - keys.keys():
                self._link.unregister(nodes[key])
            for key, site in keys.items():
                if key not in nodes:
                    self._link.register(site, admitted[site])
                    self.say(f"{site} is admitted")
        except (Refused, Unavailable):
            return  # it is tried again; a SuperLink that does not stay up is reported by itself
        self._registered = texts, time.monotonic()
