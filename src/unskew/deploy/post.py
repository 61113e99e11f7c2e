"""The coordinator's signed correspondence with the sites of one run: requests go out sealed, replies come back checked."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from unskew.core.trees import Tree
from unskew.deploy.hello import Hello, versions
from unskew.deploy.identity import Private, Public
from unskew.deploy.journal import Journal
from unskew.deploy.sealed import Sealed
from unskew.deploy.wire import Limits, Packed, Packet, WireError, pack, seal, unseal
from unskew.errors import printable

GREETING = Limits(0, 0)
GREETING_S = 120.0
"""How long a node may take at most to say which site it is."""
POLL_S = 0.5
MOST_PAUSE_S = 30.0
"""A node that does not say which site it is is asked again after 1, 2, 4 ... seconds, at most so many."""
AGAIN_S = 5.0
"""How often a site whose operator has not decided yet is asked again."""
UNDECIDED = "E522"
MOST_TEXT = 500
"""Characters of what a site says of an error."""
Request = tuple[dict[str, Any], Tree]
"""What a request's header says beside run, serial, site, kind and t; and its tensors."""
Answers = dict[int, Sealed | str]
Tell = Callable[[int, str, str], None]
"""(round, code, sentence)"""


class Channel(Protocol):
    """What carries messages to nodes, which have numbers, and brings their replies."""

    def nodes(self) -> list[int]:
        """Those that are connected now."""
        ...

    def ask(self, requests: Mapping[int, Sealed], kind: str, t: int, deadline_s: float, most: int) -> Answers:
        """One reply a node, once all have answered or the deadline is reached. most: bytes of tensors that a reply may have.

        A node that failed is represented by a text that says why; one that was silent is missing.
        """
        ...


class Declined(WireError):
    """An answer in which a site, by its own signature, refuses a request."""


@dataclass(frozen=True)
class Contact:
    """How a coordinator reaches its sites.

    sites: all of the federation, in the order of client ids; key: signs requests; keys: those of the admitted sites,
    which may become fewer while a run goes on.
    bounds: the most samples, for training and testing together, that a site may say it holds.
    """

    channel: Channel
    sites: tuple[str, ...]
    key: Private
    keys: Mapping[str, Public]
    bounds: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass
class Post:
    """Asks sites by name. Every request, reply and refusal is noted in the journal, and every refusal is told.

    run: the run's number; deadline_s: how long an exchange waits. nodes: which node each site that has answered is at.
    name: what this coordinator calls the run, for the operators of sites; versions: of what it runs.
    """

    run: str
    contact: Contact
    deadline_s: float
    tell: Tell = lambda t, code, text: None
    journal: Journal | None = None
    name: str = ""
    versions: Mapping[str, str] = field(default_factory=versions)
    nodes: dict[str, int] = field(default_factory=dict)
    left_out: set[str] = field(default_factory=set)
    """Sites that are not asked, because they may not take part or are not to."""
    differing: dict[str, str] = field(default_factory=dict)
    """By site, why it is not asked until that is mended, as a sentence without its full stop."""
    refusals: dict[str, Declined] = field(default_factory=dict[str, Declined])
    """Sites that do not want to take part, or whose operators have not decided yet, and what they said last."""
    _absent: set[tuple[int, str]] = field(default_factory=set)
    """(round, site): who was named because it could not be asked."""
    _strangers: set[int] = field(default_factory=set)
    """Nodes that are not asked again."""
    _again: dict[int, tuple[float, float]] = field(default_factory=dict)
    """By node that has not said which site it is: when it is asked again, and the pause after that."""
    _serial: int = 0

    def __post_init__(self) -> None:
        if self.journal:  # which grows whenever a process begins, and by a line a request: no number comes twice
            self._serial = self.journal.count << 20

    @contextmanager
    def holding(self, code: str) -> Iterator[list[tuple[int, str, str]]]:
        """Inside the block, collect what would be told with this code: whose fault it is must be found out first."""
        tell, held = self.tell, list[tuple[int, str, str]]()
        self.tell = lambda t, c, text: held.append((t, c, text)) if c == code else tell(t, c, text)
        try:
            yield held
        finally:
            self.tell = tell

    def connected(self) -> set[str]:
        """The sites whose nodes are there now."""
        there = set(self.contact.channel.nodes())
        return {site for site, node in self.nodes.items() if node in there}

    def ask(self, kind: str, t: int, requests: Mapping[str, Request], limits: Limits) -> dict[str, Packet]:
        """The checked replies by site; a site without one is named (E304, E307, E310, E311, E312 or its own code)."""
        connected, sealed, packed = self.connected(), {}, dict[int, Packed]()  # most are sent one tree: packed once
        for site, (header, tree) in requests.items():
            if site not in connected or site not in self.contact.keys:
                self.absent(site, t)
                continue
            packed[id(tree)] = packed.get(id(tree)) or pack(tree)
            sealed[site] = self._sealed(site, kind, t, header, packed[id(tree)])
            self._note("asked", site=site, kind=kind, t=t, request=sealed[site].digest, bytes=sealed[site].size)
        by_node, packets = {self.nodes[site]: request for site, request in sealed.items()}, {}
        replies = self.contact.channel.ask(by_node, kind, t, self.deadline_s, limits.blob) if by_node else {}
        for site, request in sealed.items():
            reply = replies.get(self.nodes[site])
            if packet := self._checked(site, t, request, reply, limits):
                packets[site] = packet
                assert isinstance(reply, Sealed)
                self._note("answered", site=site, kind=kind, t=t, reply=reply.digest, bytes=reply.size)
        return packets

    def leave_out(self, site: str, code: str, text: str) -> None:
        """Do not ask a site from now on, whatever it says. text: why, as a sentence."""
        self.left_out.add(site)
        self.refusals.pop(site, None)
        self._refuse(site, 0, code, text)

    def set_aside(self, site: str, text: str) -> None:
        """Do not ask a site until it says something else of itself. text: why, without its full stop."""
        self.differing[site] = text
        self.nodes.pop(site)

    def absent(self, site: str, t: int) -> None:
        """Tell, once a round, that a site cannot be asked. The scores of round t are asked for in round t + 1."""
        if self._absent & {(t, site), (t + 1, site)}:
            return
        self._absent = {(at, s) for at, s in self._absent if at >= t - 1} | {(t, site)}
        if site not in self.contact.keys:
            return self._refuse(site, t, "E310", f"{site} is no longer admitted and was not asked.")
        if text := self.differing.get(site):
            return self._refuse(site, t, "E504", f"{text}, so it was not asked.")
        self._refuse(site, t, "E311", f"{site} is not connected and was not asked.")

    def greet(self, settings: Mapping[str, Any], patience_s: float = GREETING_S) -> dict[str, Hello]:
        """Ask nodes that have not said which site they are, which may take `patience_s` at most.

        Returns the sites that now did, also at a new node."""
        requests, header = {}, {"settings": settings, "name": self.name, "versions": self.versions}
        for node in self.contact.channel.nodes():
            if node not in self.nodes.values() and node not in self._strangers and self._due(node):
                requests[node] = self._sealed("*", "hello", 0, header, {})
        deadline_s = min(self.deadline_s, patience_s)
        replies = self.contact.channel.ask(requests, "hello", 0, deadline_s, GREETING.blob) if requests else {}
        hellos = {}
        for node, request in requests.items():
            if hello := self._introduced(node, request, replies.get(node)):
                hellos[hello.site] = hello
                self.nodes[hello.site] = node
        return hellos

    def _due(self, node: int) -> bool:
        """Whether a node is to be asked now; if so, it is asked again after twice the pause."""
        due, pause_s = self._again.get(node, (0.0, 1.0))
        if time.monotonic() < due:
            return False
        self._again[node] = time.monotonic() + pause_s, min(2 * pause_s, MOST_PAUSE_S)
        return True

    def _declined(self, site: str, node: int, refusal: Declined) -> None:
        """Tell of a site that does not want to take part, once as long as it says the same; it is asked again."""
        if refusal.code == UNDECIDED:
            self._again[node] = time.monotonic() + AGAIN_S, AGAIN_S
        before = self.refusals.get(site)
        if _is_decision(refusal.code):
            self.refusals[site] = refusal
        if before is None or before.text != refusal.text:
            self._refuse(site, 0, refusal.code, f"{site}: {refusal.text}")

    def _note(self, what: str, **facts: Any) -> None:
        if self.journal:
            self.journal.note(what, **facts)

    def _refuse(self, site: str, t: int, code: str, text: str) -> None:
        self._note("refused", site=site, t=t, code=code, text=text)
        self.tell(t, code, text)

    def _sealed(self, site: str, kind: str, t: int, header: Mapping[str, Any], tree: Tree | Packed) -> Sealed:
        self._serial += 1
        fixed = {"run": self.run, "serial": self._serial, "site": site, "kind": kind, "t": t}
        return seal({**header, **fixed}, tree, self.contact.key)

    def _checked(self, site: str, t: int, request: Sealed, reply: Sealed | str | None, limits: Limits) -> Packet | None:
        if reply is None:
            text = f"{site} did not answer within {self.deadline_s:g} s; the round goes on without it."
            return self._refuse(site, t, "E311", text)
        if isinstance(reply, str):
            code, text = (reply[:4], reply[5:]) if reply.startswith(("E203 ", "E304 ")) else ("E312", reply)
            return self._refuse(site, t, code, f"{site} failed: {printable(text[:MOST_TEXT])}.")
        key = self.contact.keys.get(site)
        if key is None:
            return self._refuse(site, t, "E310", f"{site}: its admission was taken back meanwhile. Reply dropped.")
        try:
            return _read(site, key, request, reply, limits)
        except WireError as error:
            return self._refuse(site, t, error.code, f"{site}: {error.text} Reply dropped.")
        except Exception as error:  # one site's reply must never end the run of all
            return self._refuse(site, t, "E310", f"{site}: {_unread(error)} Reply dropped.")

    def _introduced(self, node: int, request: Sealed, reply: Sealed | str | None) -> Hello | None:
        """Which site a node is; None, and the reason told, if it does not prove to be an admitted one."""
        if reply is None or isinstance(reply, str):
            reason = f": {printable(reply[:MOST_TEXT])}" if reply else ""
            return self._refuse("?", 0, "E312", f"a node ({node}) does not say which site it is{reason}.")
        site = _claimed(reply)
        key = self.contact.keys.get(site)
        if key is None:
            self._strangers.add(node)
            text = f"a node ({node}) says it is '{site}', which is not an admitted site; it is not asked again."
            return self._refuse("?", 0, "E310", text)
        if not key.signed(reply.text.encode(), reply.signature):  # before anything else names a site that may be honest
            return self._refuse("?", 0, "E310", f"a node ({node}) says it is '{site}' without that site's signature.")
        try:
            hello = Hello.read(_read(site, key, request, reply, GREETING).header["hello"])
        except Declined as error:
            return self._declined(site, node, error)
        except WireError as error:
            return self._refuse(site, 0, error.code, f"{site}: {error.text}")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            text = f"{site} describes its data in an unknown form ({printable(str(error)[:200])})."
            return self._refuse(site, 0, "E310", text)
        except Exception as error:
            return self._refuse(site, 0, "E310", f"{site}: {_unread(error)}")
        if hello.site != site:
            return self._refuse(site, 0, "E310", f"{site} introduces itself as '{hello.site}', which is another site.")
        most, count = self.contact.bounds.get(site), hello.train + hello.test
        if most is not None and count > most:
            self._strangers.add(node)
            text = f"{site} says it holds {count:,} samples, but at most {most:,} were agreed with it."
            return self.leave_out(site, "E505", f"{text} It is left out of this run.")
        self.refusals.pop(site, None)
        self._note("introduced", site=site, key=key.fingerprint, hello=hello.as_json())
        return hello


def _is_decision(code: str) -> bool:
    """Whether a site that greets with this code speaks of the study or its own data, and so will most likely say it again."""
    return code[:2] in ("E1", "E4", "E5")


def _read(site: str, key: Public, request: Sealed, reply: Sealed, limits: Limits) -> Packet:
    """A site's reply to this request. Raises WireError, of a site that refused Declined with its code and text."""
    packet = unseal(reply, key, limits)
    if packet.header.get("re") != request.digest or packet.header.get("site") != site:
        raise WireError("E307", "it answered another request than this one.")
    if code := packet.header.get("code"):
        raise Declined(_code(code), printable(str(packet.header.get("text"))[:MOST_TEXT]))
    return packet


def _code(code: Any) -> str:
    """An error's code as a site gives it; E312 for anything that looks like none."""
    return code if isinstance(code, str) and re.fullmatch(r"E\d{3}", code) else "E312"


def _unread(error: Exception) -> str:
    return f"its reply cannot be read ({type(error).__name__})."


def _claimed(reply: Sealed) -> str:
    """Which site a node says it is, before its signature is checked with that site's key."""
    try:
        return printable(str(json.loads(reply.text[: 1 << 20]).get("site"))[:64])
    except (ValueError, AttributeError, RecursionError):
        return "?"


def names(sites: Sequence[str], most: int = 6) -> str:
    """The first names, and how many more there are."""
    return ", ".join(sites[:most]) + (f" and {len(sites) - most} more" if len(sites) > most else "")
