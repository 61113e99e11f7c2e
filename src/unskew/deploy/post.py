"""Asking sites by name: sealed requests out, checked packets back, everything that went wrong told with the site's name."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from unskew.core.trees import Tree
from unskew.deploy.identity import Private, Public
from unskew.deploy.journal import Journal
from unskew.deploy.roster import Hello
from unskew.deploy.sealed import Sealed
from unskew.deploy.wire import Limits, Packet, WireError, seal, unseal

GREETING = Limits(0, 0)
POLL_S = 0.5
TRIES = 3
"""A node that does not say who it is so many times is not asked again."""


class Channel(Protocol):
    """What carries messages: nodes by number, and one exchange with several of them at once."""

    def nodes(self) -> list[int]:
        """Those that are there now."""
        ...

    def ask(self, asked: Mapping[int, Sealed], kind: str, t: int, deadline_s: float) -> dict[int, Sealed | str]:
        """Answers until all have come or the deadline is reached; text where a node failed; silent nodes are missing."""
        ...


Tell = Callable[[int, str, str], None]
"""(round, code, sentence)"""


@dataclass
class Post:
    """The coordinator's signed correspondence with the sites of one run.

    keys: every admitted site's public key. at: where each site that has answered is. deadline_s: of one exchange.
    journal: where every request, answer and refusal is noted.
    """

    run: str
    channel: Channel
    key: Private
    keys: Mapping[str, Public]
    deadline_s: float
    tell: Tell = lambda t, code, text: None
    journal: Journal | None = None
    at: dict[str, int] = field(default_factory=dict)
    _strangers: dict[int, int] = field(default_factory=dict)
    _serial: int = 0

    def ask(
        self, kind: str, t: int, asked: Mapping[str, tuple[dict[str, Any], Tree]], limits: Limits
    ) -> dict[str, Packet]:
        """Answers by site, of those that answered well; the others are told: E304, E307, E310, E311, E312 or their own."""
        there = set(self.channel.nodes())
        sealed = {}
        for site, (header, tree) in asked.items():
            if self.at.get(site) not in there:
                self._refused(site, t, "E311", f"{site} is not connected; asked nothing.")
                continue
            sealed[site] = self._sealed(site, kind, t, header, tree)
            self.note("asked", site=site, kind=kind, t=t, request=sealed[site].digest, bytes=_size(sealed[site]))
        raw = self.channel.ask({self.at[s]: m for s, m in sealed.items()}, kind, t, self.deadline_s) if sealed else {}
        found = {}
        for site, request in sealed.items():
            answer = raw.get(self.at[site])
            if packet := self._checked(site, t, request, answer, limits):
                found[site] = packet
                assert isinstance(answer, Sealed)
                self.note("answered", site=site, kind=kind, t=t, reply=answer.digest, bytes=_size(answer))
        return found

    def note(self, what: str, **facts: Any) -> None:
        if self.journal:
            self.journal.note(what, **facts)

    def _refused(self, site: str, t: int, code: str, text: str) -> None:
        self.note("refused", site=site, t=t, code=code, text=text)
        self.tell(t, code, text)

    def greet(self, settings: Mapping[str, Any]) -> dict[str, Hello]:
        """Ask nodes that have not said who they are; the sites that newly did. A site at a new node has moved."""
        asked = {}
        for node in self.channel.nodes():
            if node not in self.at.values() and self._strangers.get(node, 0) < TRIES:
                self._strangers[node] = self._strangers.get(node, 0) + 1
                asked[node] = self._sealed("*", "hello", 0, {"settings": settings}, {})
        raw = self.channel.ask(asked, "hello", 0, min(self.deadline_s, 120)) if asked else {}
        found = {}
        for node, request in asked.items():
            if hello := self._introduced(node, request, raw.get(node)):
                found[hello.site] = hello
                self.at[hello.site] = node
        return found

    def _sealed(self, site: str, kind: str, t: int, header: Mapping[str, Any], tree: Tree) -> Sealed:
        self._serial = max(self._serial + 1, time.time_ns())
        head = {"run": self.run, "serial": self._serial, "site": site, "kind": kind, "t": t}
        return seal({**header, **head}, tree, self.key)

    def _checked(self, site: str, t: int, request: Sealed, raw: Sealed | str | None, limits: Limits) -> Packet | None:
        if raw is None:
            self._refused(
                site, t, "E311", f"{site} did not answer within {self.deadline_s:g} s; the round goes on without it."
            )
            return None
        if isinstance(raw, str):
            self._refused(site, t, "E312", f"{site} failed: {raw}.")
            return None
        try:
            return self._read(site, self.keys[site], request, raw, limits)
        except WireError as error:
            self._refused(site, t, error.code, f"{site}: {error.text} Reply dropped.")
            return None

    def _introduced(self, node: int, request: Sealed, raw: Sealed | str | None) -> Hello | None:
        if raw is None or isinstance(raw, str):
            self._refused("?", 0, "E312", f"a node ({node}) does not say which site it is{f': {raw}' if raw else ''}.")
            return None
        site = _claimed(raw)
        if site not in self.keys:
            text = f"a node ({node}) says it is '{site}', which is no admitted site; it is not asked again."
            self._refused("?", 0, "E310", text)
            self._strangers[node] = TRIES
            return None
        try:
            hello = Hello.read(self._read(site, self.keys[site], request, raw, GREETING).header["hello"])
            self.note("introduced", site=site, key=self.keys[site].fingerprint, hello=hello.as_json())
            return hello
        except WireError as error:
            self._refused(site, 0, error.code, f"{site}: {error.text}")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self._refused(site, 0, "E310", f"{site} describes its data in no form we know ({error}).")
        return None

    @staticmethod
    def _read(site: str, key: Public, request: Sealed, raw: Sealed, limits: Limits) -> Packet:
        packet = unseal(raw, key, limits)
        if packet.header.get("re") != request.digest or packet.header.get("site") != site:
            raise WireError("E307", "it answered another request than this one.")
        if code := packet.header.get("code"):
            raise WireError(str(code)[:4], str(packet.header.get("text"))[:500])
        return packet


def _size(m: Sealed) -> int:
    return len(m.text.encode()) + len(m.signature) + len(m.blob)


def _claimed(raw: Sealed) -> str:
    """Which site a node says it is, before its signature is checked with that site's key."""
    import json

    try:
        return str(json.loads(raw.text[: 1 << 20]).get("site"))[:64]
    except (ValueError, AttributeError, RecursionError):
        return "?"


def names(sites: Sequence[str], most: int = 6) -> str:
    return ", ".join(sites[:most]) + (f" and {len(sites) - most} more" if len(sites) > most else "")
