"""The server's programs: the front, which sites reach, Flower's SuperLink behind it, and what conducts the runs."""

from __future__ import annotations

import json
import time
from collections import deque
from dataclasses import dataclass, field

from unskew import disk
from unskew.deploy import commands, federation_journal, logs
from unskew.deploy.addresses import check_free, default_bind, is_local
from unskew.deploy.conductors import Conductors
from unskew.deploy.front import refusals
from unskew.deploy.identity import Public
from unskew.deploy.renewal import Renewal
from unskew.deploy.superlink import Refused, SuperLink, Unavailable
from unskew.deploy.supervise import Program, Say
from unskew.deploy.tickets import Coordinator
from unskew.errors import UnskewError, UsageError

MOST_ENDS, WITHIN_S = 3, 60.0
"""A program that has ended by itself so often, within so many seconds, is not restarted again."""


@dataclass
class Server:
    """What `unskew serve` runs. bind: the address to listen at; default: the host if it is an address, else 0.0.0.0.

    Raises UsageError (E503) without TLS at an address that other machines reach.
    """

    home: Coordinator
    bind: str = ""
    say: Say = print
    form: logs.Form = "text"
    registered: dict[str, str] = field(default_factory=dict)
    """The public keys registered with the SuperLink, by site."""
    refused: int = 0
    """Attempts that the front has refused."""
    _told: deque[str] = field(default_factory=deque[str])
    """Lines of the front that nobody has looked at yet."""
    _ends: list[tuple[float, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        flower = self.home.folder / "flower"
        self.bind = self.bind or default_bind(self.home.host)
        if not self.home.tls and not is_local(self.bind):
            raise UsageError("E503", f"without TLS the server listens on loopback only; got --bind {self.bind}.")
        commands.choose_inner_port(self.home)
        self.renewal = Renewal(self.home, self.say)
        self.conductors, self._link = Conductors(self.home, self.say, self.form), SuperLink(self.home)
        env = commands.environment(flower)
        link = commands.superlink(self.home, self.conductors.secret_file)
        self.program = Program("the SuperLink", link, env, flower / "superlink.log", self.form)
        door = commands.front(self.home, self.bind)
        self.front = Program("the front", door, env, flower / "front.log", self.form, self._told.append)
        self._book = flower / "registered.json"
        self.registered = json.loads(self._book.read_text()) if self._book.exists() else {}

    def tend(self) -> None:
        """Keep the programs and the runs going, register newly admitted sites, and report who was refused.

        Raises UsageError (E507) if the front or the SuperLink keeps ending.
        """
        if self.renewal.tend():
            self.program.stop()  # it reads its certificate when it starts; the front reads it again by itself
        for program in (self.front, self.program):
            code = program.tend(self.say)
            if code is not None and code >= 0:  # not killed by somebody
                self._ended(program)
        self.conductors.tend()
        self.report_refusals()
        if not self.home.tls:
            return  # Flower authenticates nodes over TLS only; requests and replies are signed all the same
        for site, key in self.home.admitted().items():
            if self.registered.get(site) != key.text:
                self._register(site, key)

    def stop(self) -> None:
        """End the runs' processes, which say how to resume them, then the front and the SuperLink."""
        self.conductors.stop()
        self._link.close()
        self.front.stop()
        self.report_refusals()
        self.program.stop()

    def report_refusals(self) -> None:
        """Tell, and keep in the federation's journal, whom the front has refused since the last time."""
        lines = [self._told.popleft() for _ in range(len(self._told))]
        facts = [fact for line in lines if (fact := refusals.read(line))]
        for fact in facts:
            self.refused += int(fact["times"])
            self.say(
                f"refused {fact['who']}: {fact['why']}" + (f" ({fact['times']} times)" if fact["times"] != 1 else "")
            )
        try:
            federation_journal.note(self.home, [("refused", fact) for fact in facts])
        except (UnskewError, OSError) as error:  # a disk that strangers' attempts have filled must not end the server
            self.say(f"the federation's journal lacks {len(facts)} lines about refusals: {error}")

    def _ended(self, program: Program) -> None:
        now = time.monotonic()
        self._ends = [(when, name) for when, name in self._ends if when > now - WITHIN_S] + [(now, program.name)]
        if [name for _, name in self._ends].count(program.name) >= MOST_ENDS:
            raise UsageError("E507", f"{program.name} does not stay up; see {program.log}.")

    def _register(self, site: str, key: Public) -> None:
        try:
            self._link.register(site, key)
        except (Refused, Unavailable):
            return  # it is tried again; a SuperLink that does not stay up is reported by itself
        self.registered[site] = key.text
        disk.replace(self._book, json.dumps(self.registered))
        self.say(f"{site} is admitted")


def begin(home: Coordinator, bind: str, say: Say, form: logs.Form = "text") -> Server:
    """A server whose ports are free. Raises UsageError (E507) if sites could not reach it, or another one runs already."""
    bind = bind.removeprefix("[").removesuffix("]")
    check_free(bind or default_bind(home.host), home.port)
    commands.choose_inner_port(home, again=True)
    return Server(home, bind, say, form)
