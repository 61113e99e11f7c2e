"""The round's exchange over a network with secure aggregation: training, shares, masked numbers, opening of
the sum.

Sites that leave before they send their numbers are left out of the sum. If too few remain nothing is
opened, and the round is skipped.
"""

from __future__ import annotations

import base64
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from unskew.core.replies import Reply
from unskew.core.trees import Tree
from unskew.federation.coordinator.correspondence import NO_TENSORS
from unskew.federation.coordinator.site_exchange import SiteExchange
from unskew.federation.protocol.masked_sums import Opening, SumNotOpened, dtype_of, false_share_text
from unskew.federation.protocol.roster import (
    KEYS,
    MOST_KEY,
    MOST_SEALED,
    MOST_SIGNATURE,
    Roster,
    RosterEntry,
    is_texts,
)
from unskew.federation.protocol.wire_format import Limits, Packet
from unskew.privacy.fixed_point import shares_of_weight
from unskew.privacy.secure_aggregation import LEAST_SITES, SUM
from unskew.round.clients import Broadcast
from unskew.round.exchange import clipping_event, fixed_point_of
from unskew.round.run import Run

MOST_SHARE = 200
"""Characters of one share."""
MOST_SAMPLES = 1e15
"""More than any site has, and so few that their sum is exact."""


@dataclass
class SecureExchange(SiteExchange):
    """The exchange of a run with summed replies. Studies that need any other exchange are refused."""

    run: Run | None = None
    _masked: dict[int, Tree] = field(default_factory=dict[int, Tree])
    """This round's masked numbers by client."""

    def __post_init__(self) -> None:
        super().__post_init__()
        run = self.run
        assert run
        assert run.secure
        self.secure = run.secure
        self.numbers = fixed_point_of(run.method, run.fed, run.secure, self.sent)
        self.weighting, self.cap = run.weighting, run.settings.cap
        self.ids = {hello.site: k for k, hello in enumerate(self.sites.hellos)}

    def train(self, start: Broadcast, cohort: Sequence[int], private: Mapping[int, Tree]) -> list[Reply]:
        """As many equal replies as sites are in the sum; none, and an event with the reason, if it is not
        opened.

        Raises Paused (E206) after three such rounds in a row.
        """
        header, limits = dict[str, Any](), NO_TENSORS
        if scored := self.scores.due(start):
            header["score"], limits = scored.lr, limits + self.scores.limits
        packets = self.sites.ask("train", start, cohort, header, limits)
        if scored:
            scores = {k: packet.tree.get("score", {}) for k, packet in packets.items()}
            self.scores.write(scored, cohort, scores)
        replies: list[Reply] = []
        self._masked = {}
        try:
            replies = self._sum_replies(start, self._roster(start.t, packets))
            self._void = 0
        except SumNotOpened as why:
            self._skip(start.t, why.code, str(why), "a sum")
        finally:
            used = {r.client for r in replies}
            self._record_unused(start.t, {k: tree for k, tree in self._masked.items() if k not in used})
        return replies

    def _sum_replies(self, start: Broadcast, roster: Roster) -> list[Reply]:
        """The phases after the training. Raises SumNotOpened for too few sites or an invalid sum."""
        opening = self._opening(start.t, roster)
        came, left = list(opening.vectors), list(opening.left)
        headers = {self.ids[site]: {"came": came, "left": left} for site in came}
        if left:
            signatures = self._signatures(start.t, headers, opening)
            headers = {k: {**header, "signatures": signatures} for k, header in headers.items()}
        shares_by_site: dict[str, dict[str, bytes]] = {}
        for k, packet in self.sites.follow_up("open", start.t, headers, NO_TENSORS).items():
            try:
                shares_by_site[self._site(k)] = _shares_in(packet, {*came, *left})
            except ValueError:
                text = "it gave shares of other sites than it was asked for. They are not used."
                self.sites.tell(start.t, k, "E303", text)
        total = opening.total(shares_by_site)
        for giver, dealer in sorted(opening.false.items()):
            self.sites.post.tell(start.t, "E318", false_share_text(giver, dealer, start.t))
        if problem := self.numbers.problem(total, len(came)):
            text = f"the sum is none of honest numbers ({problem}); which of {', '.join(came)} spoilt it"
            raise SumNotOpened(f"{text} cannot be known.", "E318")
        if cut := self.numbers.cut(total):
            self.sites.post.tell(start.t, "E322", clipping_event(start.t, cut, len(came), self.secure))
        weight = shares_of_weight([one.samples for one in roster.listed], self.weighting, self.cap)
        inside = sum(p for one, p in zip(roster.listed, weight) if one.site in came)
        members = sorted((Reply(self.ids[s], roster[s].samples, {}) for s in came), key=lambda r: r.client)
        return self.numbers.replies(total, start.weights, members, inside)

    def _opening(self, t: int, roster: Roster) -> Opening:
        """Deal shares and collect masked numbers."""
        needed = max(self.secure.needed(len(roster)), self.sites.min_sites)
        self._need(len(roster), len(roster), max(LEAST_SITES, needed), "have trained")
        header = {"roster": [one.as_json() for one in roster.listed]}
        packets = self.sites.follow_up("share", t, {self.ids[s]: header for s in roster.sites}, NO_TENSORS)
        dealt = self._dealt(t, packets, roster)
        self._need(len(dealt), len(roster), needed, "have dealt shares of their keys")
        headers = {self.ids[s]: {"dealt": {o: dealt[o]["dealt"][s] for o in dealt if o != s}} for s in dealt}
        limits = Limits(self.numbers.length * self.secure.bits // 8, self.numbers.tensors)
        packets = self.sites.follow_up("mask", t, headers, limits)
        self._masked = {k: {SUM: dict(packet.tree)} for k, packet in packets.items()}
        vectors = {}
        for k, packet in packets.items():
            try:
                vectors[self._site(k)] = self.numbers.vector(packet.tree, dtype_of(self.secure.bits))
            except (ValueError, AttributeError, TypeError):
                self._exclude(t, k, "E303", "its numbers are others than those that are summed.")
        self._need(len(vectors), len(roster), needed, "have sent masked numbers")
        left = tuple(sorted(set(dealt) - set(vectors)))
        commitments = {site: str(header["seed"]) for site, header in dealt.items()}
        context, threshold = str(next(iter(dealt.values()))["context"]), self.secure.needed(len(roster))
        return Opening(roster, threshold, self.secure.bits, context, commitments, vectors, left)

    def _signatures(self, t: int, headers: Mapping[int, dict[str, Any]], opening: Opening) -> dict[str, str]:
        """Each site's signature of who is present and who left, without which no site releases a key."""
        packets = self.sites.follow_up("agree", t, headers, NO_TENSORS)
        signatures = {
            self._site(k): str(p.header.get("signature"))[:MOST_SIGNATURE] for k, p in packets.items()
        }
        self._need(len(signatures), len(opening.roster), opening.needed, "have signed who left")
        return signatures

    def _dealt(self, t: int, packets: Mapping[int, Packet], roster: Roster) -> dict[str, dict[str, Any]]:
        """The headers of the sites that have dealt a share to each other site, with the most common context,
        because the masks of sites with another context would not cancel.
        """
        dealt = dict[int, dict[str, Any]]()
        for k, packet in packets.items():
            header, others = packet.header, set(roster.sites) - {self._site(k)}
            digests = all(re.fullmatch(r"[0-9a-f]{64}", str(header.get(n))) for n in ("seed", "context"))
            shares = header.get("dealt")
            if digests and is_texts(shares, MOST_SEALED) and set(shares) == others:
                dealt[k] = header
            else:
                self._exclude(t, k, "E303", "it has not dealt a share to every site.")
        contexts = Counter(header["context"] for header in dealt.values()).most_common(1)
        for k in [k for k, header in dealt.items() if header["context"] != contexts[0][0]]:
            text = "it was sent other weights, settings or another list than most."
            self._exclude(t, k, "E318", text)
            del dealt[k]
        return {self._site(k): header for k, header in dealt.items()}

    def _roster(self, t: int, packets: Mapping[int, Packet]) -> Roster:
        """The sites that have trained and sent their keys, in the order of client ids, as a simulation weighs
        them.

        Their samples are limited to the number that they registered. Sites that share a key are left out,
        because every site would refuse the list.
        """
        listed: list[RosterEntry] = []
        for k, packet in packets.items():
            n: Any = packet.header.get("n")
            keys: Any = packet.header.get("keys")
            if n == 0:
                continue
            if not _are_keys(keys) or not isinstance(n, int | float) or not 0 < n < MOST_SAMPLES:
                self._exclude(t, k, "E303", "its number of samples or its keys are missing.")
                continue
            listed.append(RosterEntry(self._site(k), min(float(n), float(self.sites.hellos[k].train)), *keys))
        keys, counts = np.unique([key for one in listed for key in one.keys], return_counts=True)
        shared = set(keys[counts > 1].tolist())
        for site in sorted(one.site for one in listed if shared.intersection(one.keys)):
            self._exclude(t, self.ids[site], "E318", "a key that it has sent is not its own alone.")
        return Roster(tuple(one for one in listed if not shared.intersection(one.keys)))

    def _need(self, sites: int, of: int, needed: int, what: str) -> None:
        if sites < needed:
            raise SumNotOpened(f"{sites} of {of} sites {what}, and {needed} are needed. Nothing was opened.")

    def _exclude(self, t: int, k: int, code: str, text: str) -> None:
        self.sites.tell(t, k, code, f"{text} It is left out of the sum.")

    def _site(self, k: int) -> str:
        return self.sites.hellos[k].site


def _are_keys(value: Any) -> bool:
    """True for texts in the form of a site's public keys."""
    texts = isinstance(value, list) and all(isinstance(k, str) and len(k) <= MOST_KEY for k in value)
    return texts and len(value) == KEYS


def _shares_in(packet: Packet, about: set[str]) -> dict[str, bytes]:
    """The shares of these sites' keys. Raises ValueError if they are others."""
    texts = packet.header.get("shares")
    if not is_texts(texts, MOST_SHARE) or set(texts) != about:
        raise ValueError
    return {site: base64.b64decode(text, validate=True) for site, text in texts.items()}
