"""Asking the sites of a run by client id: whoever is away is waited for, whoever is new is greeted and set up first."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from unskew.config import Settings
from unskew.core.trees import Tree, Weights, flat
from unskew.deploy.hello import Hello, changed
from unskew.deploy.post import GREETING_S, POLL_S, Post
from unskew.deploy.shelf import put_away
from unskew.deploy.wire import Limits, Packet
from unskew.engine.client.trainer import Trainer
from unskew.engine.client.values import Start
from unskew.engine.disk.store import Disk

BRIEFLY_S = 10.0
"""How long a node may take to say which site it is where enough sites are there to go on without it."""


@dataclass
class Attendance:
    """Which sites of a run can be asked, and what they are sent.

    local: the server's own trainer, which has a model and no samples. hellos: the sites in the order of client ids.
    store: says which round each client's private state was counted in. min_sites: how many sites are waited for.
    """

    post: Post
    local: Trainer
    hellos: Sequence[Hello]
    settings: Settings
    store: Disk
    min_sites: int = 1
    ready: set[str] = field(default_factory=set)
    """The sites that have been set up and have answered since."""
    refused: dict[int, Tree] = field(default_factory=dict[int, Tree])
    """By client id, what came with the last question from sites that claim too many samples, and was not handed on."""

    def __post_init__(self) -> None:
        net = self.local.fed.net
        self.first: Weights = put_away(net.weights(), self.store.folder.parent)
        """The weights before round 1, of which a site is sent all when it is set up."""
        net.hold(self.first)

    def tell(self, t: int, code: str, text: str) -> None:
        self.post.tell(t, code, text)

    def ask(
        self, kind: str, start: Start, ids: Sequence[int], header: dict[str, Any], limits: Limits
    ) -> dict[int, Packet]:
        """Send what the round starts from and collect the replies, by client id in ascending order.

        kind: "train", "visit" or "score", of which sites without training samples are only asked the last. header: what
        the request says beside the learning rate.
        """
        may = [k for k in ids if self.hellos[k].site not in self.post.left_out]
        ids = [k for k in may if self.hellos[k].train or kind == "score"]
        if not ids:
            return {}
        self._gather(min(self.min_sites, len(ids)))
        self._set_up(start.t, [k for k in ids if self.hellos[k].site not in self.ready])
        tree, requests = self._broadcast(start), {}
        for k in ids:
            if self.hellos[k].site in self.ready:
                facts = header | {"lr": start.lr, "base": self.store.index.get(k, 0)}
                requests[self.hellos[k].site] = (facts, self._broadcast(start.to(k)) if start.own else tree)
        packets = self.post.ask(kind, start.t, requests, limits)
        self.ready -= set(requests) - set(packets)  # whoever failed is set up anew before it is asked again
        by_client = {k: packets[self.hellos[k].site] for k in ids if self.hellos[k].site in packets}
        within = {k: packet for k, packet in by_client.items() if self._within_bound(start.t, k, packet)}
        self.refused = {k: packet.tree for k, packet in by_client.items() if k not in within}
        return within

    def follow_up(self, kind: str, t: int, headers: Mapping[int, dict[str, Any]], limits: Limits) -> dict[int, Packet]:
        """The replies, by client id in ascending order, of sites that were asked for something in this round already.

        headers: by client id, what the request says. Sites that are away are not waited for.
        """
        sites = {k: self.hellos[k].site for k in sorted(headers)}
        packets = self.post.ask(kind, t, {sites[k]: (headers[k], {}) for k in sites}, limits)
        self.ready -= set(sites.values()) - set(packets)
        return {k: packets[site] for k, site in sites.items() if site in packets}

    def _within_bound(self, t: int, k: int, packet: Packet) -> bool:
        """Whether a reply claims no more samples than were agreed with its site, which is named otherwise."""
        site, claim = self.hellos[k].site, packet.header.get("n")
        most = self.post.contact.bounds.get(site)
        if most is None or not isinstance(claim, int | float) or claim <= most:
            return True
        text = f"claims {claim:g} samples, but at most {most:,} were agreed with it. Reply dropped."
        self.tell(t, "E505", f"{site} round {t}: {text}")
        return False

    def _broadcast(self, start: Start) -> Tree:
        """The weights that leave the server, or differ from those the sites were set up with; and the Parts' slices."""
        sent = self.local.sent
        weights = {n: t for n, t in start.weights.items() if n in sent or not torch.equal(t, self.first[n])}
        return ({"w": weights} if weights else {}) | ({"down": start.down} if flat(start.down) else {})

    def _gather(self, least: int) -> None:
        """Greet new nodes, whom nobody waits for long unless too few sites are connected: then for one deadline."""
        until = time.monotonic() + self.post.deadline_s
        while True:
            enough = self._connected() >= least
            for hello in self.post.greet(self.settings.as_dict(), BRIEFLY_S if enough else GREETING_S).values():
                self._readmit(hello)
            if self._connected() >= least or time.monotonic() >= until:
                return
            time.sleep(POLL_S)

    def _connected(self) -> int:
        connected = self.post.connected() - self.post.left_out
        return sum(h.site in connected for h in self.hellos)

    def _readmit(self, hello: Hello) -> None:
        """Take back a site that was greeted after the run began, unless it holds other data than it did then."""
        before = {h.site: h for h in self.hellos}.get(hello.site)
        self.ready.discard(hello.site)
        if hello.site in self.post.left_out:
            return
        if before is None:
            self.post.left_out.add(hello.site)
            self.tell(0, "E504", f"{hello.site} came after the run began and can take part in the next one.")
        elif text := changed(before, hello):
            self.post.set_aside(hello.site, text)
        else:
            self.post.differing.pop(hello.site, None)

    def _set_up(self, t: int, ids: Sequence[int]) -> None:
        """Tell sites what the run is; those that are not there are named."""
        largest = max(h.train for h in self.hellos)
        facts = {"settings": self.settings.as_dict(), "clients": len(self.hellos), "largest": largest}
        connected = self.post.connected()
        tree = {"w": self.first}
        requests = {self.hellos[k].site: (facts | {"k": k}, tree) for k in ids if self.hellos[k].site in connected}
        for site in sorted({self.hellos[k].site for k in ids} - connected):
            self.post.absent(site, t)
        self.ready |= set(self.post.ask("setup", t, requests, Limits(0, 0))) if requests else set()
