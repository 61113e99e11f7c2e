"""The coordinator's signed correspondence with the sites of one run: it signs requests, checks replies, and
waits for absent sites.

`Correspondence` asks sites by name, `Attendance` by client id; the latter greets and sets up new sites.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from unskew.config import Settings
from unskew.core.trees import Tree, Weights, flat_tree
from unskew.errors import printable
from unskew.federation.journal import Journal
from unskew.federation.protocol.hello import Hello, versions
from unskew.federation.protocol.signed_messages import PrivateKey, PublicKey, SignedMessage
from unskew.federation.protocol.wire_format import (
    Limits,
    PackedTree,
    Packet,
    WireError,
    pack,
    seal,
    unseal,
)
from unskew.federation.tickets import Coordinator
from unskew.records.private_state import DiskStore
from unskew.round.clients import Broadcast
from unskew.round.deliveries import Deliveries
from unskew.round.trainer import Trainer

NO_TENSORS = Limits(0, 0)
GREETING_S, BRIEFLY_S = 120.0, 10.0
"""Longest wait in seconds for a node to identify its site; the latter if enough other sites are connected."""
POLL_S = 0.5
MOST_PAUSE_S = 30.0
"""An unidentified node is asked again after 1, 2, 4, ... seconds, up to this pause."""
AGAIN_S = 5.0
"""Seconds until a site with an undecided operator is asked again."""
UNDECIDED = "E522"
MOST_TEXT = 500
"""Characters of a site's error text."""
RequestContent = tuple[dict[str, Any], Tree]
"""Fields of a request's header in addition to run, serial, site, kind and t; and its tensors."""
NodeAnswers = dict[int, SignedMessage | str]


class Channel(Protocol):
    """Carries messages to numbered nodes and brings their replies."""

    def nodes(self) -> list[int]:
        """The nodes that are connected now."""
        ...

    def ask(
        self, requests: Mapping[int, SignedMessage], kind: str, t: int, deadline_s: float, most: int
    ) -> NodeAnswers:
        """One reply per node, after all have answered or the deadline is reached. most: most bytes of a
        reply's tensors.

        The reply of a node that failed is a text with the reason; a silent node has none.
        """
        ...


class SiteRefusal(WireError):
    """A site's signed refusal of a request."""


@dataclass(frozen=True)
class Contact:
    """A coordinator's access to its sites.

    sites: all of the federation, in the order of client ids; key: signs requests; keys: those of the
    sites that are admitted at this moment, which may become fewer during a run.
    """

    channel: Channel
    sites: tuple[str, ...]
    key: PrivateKey
    keys: Callable[[], Mapping[str, PublicKey]]

    @staticmethod
    def of(home: Coordinator, channel: Channel) -> Contact:
        """The contact of a federation's coordinator with its admitted sites."""
        admitted = home.admitted()
        sites = tuple(site for site in home.sites if site in admitted) or home.sites
        return Contact(channel, sites, home.key, home.admitted)


@dataclass
class Correspondence:
    """Asks sites by name. Every request, reply and refusal is written to the journal, and every refusal is
    reported.

    run: the run's number; deadline_s: the longest wait of an exchange; nodes: the node of each site that
    has answered. name: the coordinator's name of the run, for the sites' operators.
    """

    run: str
    contact: Contact
    deadline_s: float
    tell: Callable[[int, str, str], None] = lambda t, code, text: None
    journal: Journal | None = None
    name: str = ""
    nodes: dict[str, int] = field(default_factory=dict)
    left_out: set[str] = field(default_factory=set)
    """Sites that are excluded from the run."""
    refusals: dict[str, SiteRefusal] = field(default_factory=dict[str, SiteRefusal])
    """The latest refusal of each site that does not take part or has an undecided operator."""
    _absent: set[tuple[int, str]] = field(default_factory=set)
    """(round, site) of reported absences."""
    _strangers: set[int] = field(default_factory=set)
    """Nodes that are never asked again."""
    _next_greeting: dict[int, tuple[float, float]] = field(default_factory=dict)
    """(time of the next request, pause after it) by unidentified node."""
    _serial: int = 0

    def __post_init__(self) -> None:
        if self.journal:  # it grows with every process and request, so no number comes twice
            self._serial = self.journal.count << 20

    def connected(self) -> set[str]:
        """The sites with a connected node."""
        connected_nodes = set(self.contact.channel.nodes())
        return {site for site, node in self.nodes.items() if node in connected_nodes}

    def ask(
        self, kind: str, t: int, requests: Mapping[str, RequestContent], limits: Limits
    ) -> dict[str, Packet]:
        """The checked replies by site. A site without a reply is reported (E303, E307, E310, E311 or
        its own code).
        """
        connected, admitted = self.connected(), self.contact.keys()
        packed = dict[int, PackedTree]()  # most sites are sent the same tree
        sealed, digests, packets = dict[int, SignedMessage](), dict[str, str](), {}
        for site, (header, tree) in requests.items():
            if site not in connected or site not in admitted:
                self.absent(site, t)
                continue
            packed[id(tree)] = packed.get(id(tree)) or pack(tree)
            sealed[self.nodes[site]] = one = self._seal(site, kind, t, header, packed[id(tree)])
            digests[site] = one.digest
            self._note("asked", site=site, kind=kind, t=t, request=one.digest, bytes=one.size)
        replies = self.contact.channel.ask(sealed, kind, t, self.deadline_s, limits.blob) if sealed else {}
        one = sealed = packed = None  # their bytes can be freed, and those of each reply once it is read
        for site, digest in digests.items():
            reply = replies.pop(self.nodes[site], None)
            if packet := self._check_reply(site, t, digest, reply, limits):
                packets[site] = packet
                assert isinstance(reply, SignedMessage)
                self._note("answered", site=site, kind=kind, t=t, reply=reply.digest, bytes=reply.size)
        return packets

    def leave_out(self, site: str, code: str, text: str) -> None:
        """Exclude a site from now on. text: the reason, as a sentence."""
        self.left_out.add(site)
        self.refusals.pop(site, None)
        self._refuse(site, 0, code, text)

    def absent(self, site: str, t: int) -> None:
        """Report once a round that a site cannot be asked. Scores of round t are requested in round t + 1."""
        if self._absent & {(t, site), (t + 1, site)}:
            return
        self._absent = {(at, s) for at, s in self._absent if at >= t - 1} | {(t, site)}
        if site not in self.contact.keys():
            self._refuse(site, t, "E310", f"{site} is no longer admitted and was not asked.")
        else:
            self._refuse(site, t, "E311", f"{site} is not connected and was not asked.")

    def greet(self, settings: Mapping[str, Any], patience_s: float = GREETING_S) -> dict[str, Hello]:
        """Ask unidentified nodes for their sites, for at most `patience_s` seconds. Returns the sites that
        answered.

        A known site may answer from a new node.
        """
        requests, header = {}, {"settings": settings, "name": self.name, "versions": versions()}
        for node in self.contact.channel.nodes():
            due, pause_s = self._next_greeting.get(node, (0.0, 1.0))
            if node in self.nodes.values() or node in self._strangers or time.monotonic() < due:
                continue
            self._next_greeting[node] = time.monotonic() + pause_s, min(2 * pause_s, MOST_PAUSE_S)
            requests[node] = self._seal("*", "hello", 0, header, {})
        if not requests:
            return {}
        deadline_s = min(self.deadline_s, patience_s)
        replies = self.contact.channel.ask(requests, "hello", 0, deadline_s, NO_TENSORS.blob)
        hellos = {}
        for node, request in requests.items():
            if hello := self._identify(node, request.digest, replies.get(node)):
                hellos[hello.site] = hello
                self.nodes[hello.site] = node
        return hellos

    def _note(self, what: str, **facts: Any) -> None:
        if self.journal:
            self.journal.note(what, **facts)

    def _refuse(self, site: str, t: int, code: str, text: str) -> None:
        self._note("refused", site=site, t=t, code=code, text=text)
        self.tell(t, code, text)

    def _seal(
        self, site: str, kind: str, t: int, header: Mapping[str, Any], tree: Tree | PackedTree
    ) -> SignedMessage:
        self._serial += 1
        fixed = {"run": self.run, "serial": self._serial, "site": site, "kind": kind, "t": t}
        return seal({**header, **fixed}, tree, self.contact.key)

    def _check_reply(
        self, site: str, t: int, request: str, reply: SignedMessage | str | None, limits: Limits
    ) -> Packet | None:
        if reply is None:
            text = f"{site} did not answer within {self.deadline_s:g} s; the round goes on without it."
            return self._refuse(site, t, "E311", text)
        if isinstance(reply, str):
            code, text = (reply[:4], reply[5:]) if reply.startswith("E303 ") else ("E311", reply)
            return self._refuse(site, t, code, f"{site} failed: {printable(text[:MOST_TEXT])}.")
        try:
            if (key := self.contact.keys().get(site)) is None:
                raise WireError("E310", "its admission was taken back meanwhile.")
            return _read_reply(site, key, request, reply, limits)
        except WireError as error:
            return self._refuse(site, t, error.code, f"{site}: {error.text} Reply dropped.")
        except Exception as error:  # one site's reply must never end the run of all
            text = f"its reply cannot be read ({type(error).__name__})."
            return self._refuse(site, t, "E310", f"{site}: {text} Reply dropped.")

    def _identify(self, node: int, request: str, reply: SignedMessage | str | None) -> Hello | None:
        """The description of a node's site; None, after a report, unless it proves to be an admitted site.

        request: the digest of the request.
        """
        if reply is None or isinstance(reply, str):
            reason = f": {printable(reply[:MOST_TEXT])}" if reply else ""
            return self._refuse("?", 0, "E311", f"a node ({node}) does not say which site it is{reason}.")
        site = _claimed_site(reply)
        key = self.contact.keys().get(site)
        if key is None:
            self._strangers.add(node)
            text = "which is not an admitted site; it is not asked again."
            return self._refuse("?", 0, "E310", f"a node ({node}) says it is '{site}', {text}")
        if not key.signed(reply.text.encode(), reply.signature):
            # no other report may name a site that is perhaps honest
            text = f"a node ({node}) says it is '{site}' without that site's signature."
            return self._refuse("?", 0, "E310", text)
        try:
            hello = Hello.read(_read_reply(site, key, request, reply, NO_TENSORS).header["hello"])
        except SiteRefusal as error:
            return self._record_decline(site, node, error)
        except WireError as error:
            return self._refuse(site, 0, error.code, f"{site}: {error.text}")
        except Exception as error:
            reason = printable(f"{type(error).__name__}: {error}"[:200])
            return self._refuse(site, 0, "E310", f"{site} describes its data in an unknown form ({reason}).")
        if hello.site != site:
            text = f"{site} introduces itself as '{hello.site}', which is another site."
            return self._refuse(site, 0, "E310", text)
        self.refusals.pop(site, None)
        self._note("introduced", site=site, key=key.fingerprint, hello=hello.as_json())
        return hello

    def _record_decline(self, site: str, node: int, refusal: SiteRefusal) -> None:
        """Report a site's refusal to take part, once per reason. The site is asked again later."""
        if refusal.code == UNDECIDED:
            self._next_greeting[node] = time.monotonic() + AGAIN_S, AGAIN_S
        before = self.refusals.get(site)
        if refusal.code[:2] in ("E1", "E4", "E5"):  # of the study or the site's data, and so probably final
            self.refusals[site] = refusal
        if before is None or before.text != refusal.text:
            self._refuse(site, 0, refusal.code, f"{site}: {refusal.text}")


def _read_reply(site: str, key: PublicKey, request: str, reply: SignedMessage, limits: Limits) -> Packet:
    """A site's reply to the request with this digest. Raises WireError, and SiteRefusal for a refusal by the
    site."""
    packet = unseal(reply, key, limits)
    if packet.header.get("re") != request or packet.header.get("site") != site:
        raise WireError("E307", "it answered another request than this one.")
    if code := packet.header.get("code"):
        known = isinstance(code, str) and re.fullmatch(r"E\d{3}", code)
        text = printable(str(packet.header.get("text"))[:MOST_TEXT])
        raise SiteRefusal(code if known else "E311", text)
    return packet


def _claimed_site(reply: SignedMessage) -> str:
    """The site that a node claims to be, before its signature is checked with that site's key."""
    try:
        return printable(str(json.loads(reply.text[: 1 << 20]).get("site"))[:64])
    except (ValueError, AttributeError, RecursionError):
        return "?"


@dataclass
class Attendance:
    """The sites of a run that can be asked, and the contents of the requests to them.

    local: the server's own trainer, with a model and without samples. hellos: the sites in the order of
    client ids. store: knows the last counted round of each client. min_sites: the number of sites to wait
    for.
    """

    post: Correspondence
    local: Trainer
    hellos: Sequence[Hello]
    settings: Settings
    store: DiskStore
    min_sites: int = 1
    ready: set[str] = field(default_factory=set)
    """The sites that have been set up and have answered every request since."""

    def __post_init__(self) -> None:
        self.deliveries = Deliveries(self.local.method, len(self.hellos))
        """What the sites hold of the slices, which the loop counts by, too."""
        self.first: Weights = dict(self.local.fed.net.initial)
        """The weights before round 1, of which a site is sent all when it is set up."""

    def tell(self, t: int, k: int, code: str, text: str) -> None:
        """Report an event of round t at client k."""
        self.post.tell(t, code, f"{self.hellos[k].site} round {t}: {text}")

    def ask(
        self, kind: str, start: Broadcast, ids: Sequence[int], header: dict[str, Any], limits: Limits
    ) -> dict[int, Packet]:
        """Send the round's start and collect the replies, by client id in ascending order.

        kind: "train", "visit" or "score"; sites without training samples are asked only for scores. header:
        fields of the request in addition to the learning rate.
        """
        site_of = {k: self.hellos[k].site for k in ids if self.hellos[k].train or kind == "score"}
        site_of = {k: site for k, site in site_of.items() if site not in self.post.left_out}
        if not site_of:
            return {}
        self._gather(min(self.min_sites, len(site_of)))
        self._set_up(start.t, {k: site for k, site in site_of.items() if site not in self.ready})
        untrained = [k for k in site_of if not self.hellos[k].train]
        self.deliveries.forget(untrained)  # a round counts slices for them that they do not get
        sent, trees, requests = self.deliveries.send(start, list(site_of)), {}, {}
        for k, site in site_of.items():
            if site in self.ready:
                facts = header | {"lr": start.lr, "base": self.store.index.get(k, 0)}
                facts |= {"slices": numbers} if (numbers := sent.numbers_of(k)) else {}
                content = (k,) if start.own else sent.contents(k)  # most sites are sent the same
                tree = trees[content] = trees.get(content) or self._broadcast(start.to(k), sent.slices(k))
                requests[site] = (facts, tree)
        packets = self.post.ask(kind, start.t, requests, limits)
        self.ready -= requests.keys() - packets.keys()  # a site that failed is set up again
        return {k: packets[site] for k, site in site_of.items() if site in packets}

    def follow_up(
        self, kind: str, t: int, headers: Mapping[int, dict[str, Any]], limits: Limits
    ) -> dict[int, Packet]:
        """The replies, by client id in ascending order, to a second request to sites in this round.

        headers: fields of the requests by client id. Absent sites are not waited for.
        """
        sites = {k: self.hellos[k].site for k in sorted(headers)}
        packets = self.post.ask(kind, t, {sites[k]: (headers[k], {}) for k in sites}, limits)
        self.ready -= set(sites.values()) - packets.keys()
        return {k: packets[site] for k, site in sites.items() if site in packets}

    def _broadcast(self, start: Broadcast, down: Tree) -> Tree:
        """The weights that leave the server or differ from the setup's, and slices of Parts."""
        sent = self.local.sent
        weights = {n: t for n, t in start.weights.items() if n in sent or not torch.equal(t, self.first[n])}
        return ({"w": weights} if weights else {}) | ({"down": down} if flat_tree(down) else {})

    def _gather(self, least: int) -> None:
        """Greet new nodes: briefly if enough sites are connected, else for one deadline."""
        until = time.monotonic() + self.post.deadline_s
        while True:
            patience_s = BRIEFLY_S if self._connected() >= least else GREETING_S
            for hello in self.post.greet(self.settings.as_dict(), patience_s).values():
                self._readmit(hello)
            if self._connected() >= least or time.monotonic() >= until:
                return
            time.sleep(POLL_S)

    def _connected(self) -> int:
        connected = self.post.connected() - self.post.left_out
        return sum(h.site in connected for h in self.hellos)

    def _readmit(self, hello: Hello) -> None:
        """Take back a site that was greeted after the run began, if it took part then."""
        self.ready.discard(hello.site)
        if hello.site not in self.post.left_out | {h.site for h in self.hellos}:
            self.post.left_out.add(hello.site)
            text = f"{hello.site} came after the run began and can take part in the next one."
            self.post.tell(0, "E504", text)

    def _set_up(self, t: int, sites: Mapping[int, str]) -> None:
        """Send the run's setup to sites, by client id; absent ones are reported."""
        largest = max(h.train for h in self.hellos)
        facts = {"settings": self.settings.as_dict(), "clients": len(self.hellos), "largest": largest}
        connected, tree = self.post.connected(), {"w": self.first}
        requests = {site: (facts | {"k": k}, tree) for k, site in sites.items() if site in connected}
        for site in sorted(set(sites.values()) - connected):
            self.post.absent(site, t)
        self.deliveries.forget(sites)
        self.ready |= set(self.post.ask("setup", t, requests, NO_TENSORS)) if requests else set()
