"""The server's programs: Flower's SuperLink, with which every admitted site is registered, and what conducts the runs."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from unskew import disk
from unskew.deploy import commands
from unskew.deploy.conductors import Conductors
from unskew.deploy.identity import Public
from unskew.deploy.superlink import Refused, SuperLink, Unavailable
from unskew.deploy.supervise import Program, Say
from unskew.deploy.tickets import Coordinator
from unskew.errors import UsageError

MOST_STARTS = 3
"""A SuperLink that has ended this often is not restarted again."""
_STRANGER = re.compile(r"ApiError:2004\] [^\n]*?(-----BEGIN PUBLIC KEY-----.*?-----END PUBLIC KEY-----)")
"""In Flower's log: a node whose key it does not know."""


@dataclass
class Server:
    """What `unskew serve` runs. bind: the address to listen at; default: the host if it is an address, else 0.0.0.0."""

    home: Coordinator
    bind: str = ""
    say: Say = print
    registered: dict[str, str] = field(default_factory=dict)
    """The public keys registered with the SuperLink, by site."""
    _read: int = 0
    _strangers: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        host, flower = self.home.host, self.home.folder / "flower"
        here = host == "localhost" or commands.is_address(host)
        self.bind = self.bind or (host if here else "0.0.0.0")
        self.conductors, self._link = Conductors(self.home, self.say), SuperLink(self.home)
        command = commands.superlink(self.home, self.bind, self.conductors.secret_file)
        self.program = Program("the SuperLink", command, commands.environment(flower), flower / "superlink.log")
        self._read = self.program.log.stat().st_size if self.program.log.exists() else 0
        self._book = flower / "registered.json"
        self.registered = json.loads(self._book.read_text()) if self._book.exists() else {}

    def tend(self) -> None:
        """Keep the SuperLink and the runs going, register newly admitted sites, and report whom it turned away.

        Raises UsageError (E507) if the SuperLink keeps ending.
        """
        if self.program.tend(self.say) is not None and self.program.starts >= MOST_STARTS:
            raise UsageError("E507", f"Flower's SuperLink does not stay up; see {self.program.log}.")
        self.conductors.tend()
        self.report_strangers()
        if not self.home.tls:
            return  # Flower authenticates nodes over TLS only; requests and replies are signed all the same
        for site, key in self.home.admitted().items():
            if self.registered.get(site) != key.text:
                self._register(site, key)

    def stop(self) -> None:
        """End the runs' processes, which say how to resume them, and then the SuperLink."""
        self.conductors.stop()
        self._link.close()
        self.program.stop()

    def report_strangers(self) -> None:
        """Name each key that Flower has turned away, once; an incomplete line of its log is read next time."""
        if not self.program.log.exists():
            return
        with open(self.program.log, "rb") as log:
            log.seek(self._read)
            whole, end, _ = log.read().rpartition(b"\n")
            self._read += len(whole) + len(end)
        for key in _STRANGER.findall(whole.decode(errors="replace")):
            if key not in self._strangers:
                self._strangers.add(key)
                self.say(f"a site was turned away: its key {_fingerprint(key)} is not admitted")

    def _register(self, site: str, key: Public) -> None:
        try:
            self._link.register(site, key)
        except (Refused, Unavailable):
            return  # it is tried again; a SuperLink that does not stay up is reported by itself
        self.registered[site] = key.text
        disk.replace(self._book, json.dumps(self.registered))
        self.say(f"{site} is admitted")


def _fingerprint(pem: str) -> str:
    """The fingerprint of a key as Flower logs it, with its line ends spelt out."""
    try:
        return Public.from_pem(pem.replace("\\n", "\n")).fingerprint
    except UsageError:
        return "(unreadable)"
