"""The processes behind `unskew serve`: the front, which sites reach, and Flower's SuperLink behind it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from unskew.errors import UsageError
from unskew.federation import programs
from unskew.federation.addresses import check_free, default_bind
from unskew.federation.coordinator import superlink
from unskew.federation.coordinator.superlink import Refused, SuperLink, Unavailable
from unskew.federation.front.proxy import REFUSED
from unskew.federation.programs import Program, Say
from unskew.federation.tickets import Coordinator

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
    _ends: list[tuple[float, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        flower = self.home.folder / "flower"
        self.bind = self.bind.removeprefix("[").removesuffix("]") or default_bind(self.home.host)
        check_free(self.bind, self.home.port)
        flower.chmod(0o700)  # Flower's server admits everybody who reaches its socket there
        self._link, env = SuperLink(self.home), programs.environment(flower)
        command = superlink.superlink_command(self.home)
        self.program = Program("the SuperLink", command, env, flower / "superlink.log")
        front = superlink.front_command(self.home, self.bind)
        self.front = Program("the front", front, env, flower / "front.log", self._front_line)
        self._registered: tuple[dict[str, str], float] = {}, 0.0

    def tend(self) -> None:
        """Keep the programs going, and register newly admitted sites.

        Raises UsageError (E507) if the front or the SuperLink keeps ending.
        """
        for program in (self.front, self.program):
            code = program.tend(self.say)
            if code is not None and code >= 0:  # not killed
                self._has_ended(program)
        self._reconcile()

    def _front_line(self, line: str) -> None:
        if line.startswith(REFUSED):
            self.say(line)

    def stop(self) -> None:
        """End the front, then the SuperLink."""
        self._link.close()
        self.front.stop()
        self.program.stop()

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
