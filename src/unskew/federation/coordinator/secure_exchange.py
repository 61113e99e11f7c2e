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
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
from torch import Tensor

from unskew.core.replies import Reply
from unskew.core.trees import Tree
from unskew.errors import Paused
from unskew.federation.coordinator.site_exchange import MOST_VOID_ROUNDS, SiteExchange
from unskew.federation.protocol.wire_format import Limits, Packet
from unskew.federation.sums.primitives import dtype_of
from unskew.federation.sums.roster import (
    KEYS,
    MOST_KEY,
    MOST_SEALED,
    MOST_SIGNATURE,
    Roster,
    RosterEntry,
    is_texts,
)
from unskew.federation.sums.sum_opening import Opening, SumNotOpened, false_share_text
from unskew.privacy.fixed_point import shares_of_weight
from unskew.privacy.secure_aggregation import LEAST_SITES, SUM
from unskew.round.clients import Broadcast
from unskew.round.exchange import clipping_event, fixed_point_of
from unskew.round.run import Run

NO_TENSORS = Limits(0, 0)
MOST_SHARE = 200
"""Characters of one share."""
MOST_SAMPLES = 1e15
"""More than any site has, and so few that their sum is exact."""


@dataclass
class SecureExchange(SiteExchange):
    """The exchange of a run with summed replies. Studies that need any other exchange are refused."""

    run: Run | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        run = self.run
        assert run
        assert run.secure
        self.secure = run.secure
        self.numbers = fixed_point_of(run.method, run.fed, run.secure, self.sent)
        self.weighting, self.cap = run.weighting, run.settings.cap

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
            self.scores.write(
                scored, cohort, {k: packet.tree.get("score", {}) for k, packet in packets.items()}
            )
        try:
            replies = self._sum_replies(start, self._roster(start.t, packets))
            self.dropped.note(start.t, {r.client for r in replies})
            self._void = 0
            return replies
        except SumNotOpened as why:
            self.dropped.note(start.t, ())
            self._void += 1
            if self._void >= MOST_VOID_ROUNDS:
                text = (
                    f"{why} Round {start.t} is the {MOST_VOID_ROUNDS}rd in a row without a sum, so the run"
                    " pauses"
                )
                raise Paused("E206", f"{text}; every round before it is saved.") from None
            self.sites.tell(start.t, why.code, f"round {start.t}: {why} Round skipped, model unchanged.")
            return []

    def _sum_replies(self, start: Broadcast, roster: Roster) -> list[Reply]:
        """The phases after the training. Raises SumNotOpened if too few sites are left or the sum is
        invalid.
        """
        opening = self._opening(start.t, roster)
        came, left = list(opening.vectors), list(opening.left)
        headers = {self._id(site): {"came": came, "left": left} for site in came}
        if left:
            signatures = self._signatures(start.t, headers, opening)
            headers = {k: {**header, "signatures": signatures} for k, header in headers.items()}
        packets = self.sites.follow_up("open", start.t, headers, NO_TENSORS)
        shares_by_site = {
            self._site(k): shares
            for k, p in packets.items()
            if (shares := self._shares_of(start.t, k, p, {*came, *left}))
        }
        total = opening.total(shares_by_site)
        for giver, dealers in sorted(opening.false.items()):
            self.sites.tell(start.t, "E318", false_share_text(giver, dealers, start.t))
        if problem := self.numbers.problem(total, len(came)):
            text = (
                f"the sum is none of honest numbers ({problem}); which of {', '.join(came)} spoilt it nobody"
                " can see"
            )
            raise SumNotOpened(f"{text}.", "E318")
        if cut := self.numbers.cut(total):
            self.sites.tell(start.t, "E322", clipping_event(start.t, cut, len(came), self.secure))
        weight = shares_of_weight([one.samples for one in roster.listed], self.weighting, self.cap)
        inside = sum(p for one, p in zip(roster.listed, weight) if one.site in came)
        members = sorted((Reply(self._id(s), roster[s].samples, {}) for s in came), key=lambda r: r.client)
        return self.numbers.replies(total, start.weights, members, inside)

    def _opening(self, t: int, roster: Roster) -> Opening:
        """Deal shares and collect masked numbers."""
        needed = max(self.secure.needed(len(roster)), self.sites.min_sites)
        self._need(len(roster), len(roster), max(LEAST_SITES, needed), "have trained")
        rows = [one.as_json() for one in roster.listed]
        packets = self.sites.follow_up(
            "share", t, {self._id(s): {"roster": rows} for s in roster.sites}, NO_TENSORS
        )
        dealt = self._same_context(
            t, {self._site(k): p.header for k, p in packets.items() if self._has_dealt(t, k, p, roster)}
        )
        self._need(len(dealt), len(roster), needed, "have dealt shares of their keys")
        headers = {self._id(s): {"dealt": {o: dealt[o]["dealt"][s] for o in dealt if o != s}} for s in dealt}
        bytes_ = self.numbers.length * self.secure.bits // 8
        packets = self.sites.follow_up("mask", t, headers, Limits(bytes_, self.numbers.tensors))
        self.dropped.receive({k: {SUM: dict(packet.tree)} for k, packet in packets.items()})
        vectors = {self._site(k): y for k, p in packets.items() if (y := self._vector(t, k, p)) is not None}
        self._need(len(vectors), len(roster), needed, "have sent masked numbers")
        left = tuple(sorted(set(dealt) - set(vectors)))
        commitments = {site: str(header["seed"]) for site, header in dealt.items()}
        context = str(next(iter(dealt.values()))["context"])
        return Opening(
            roster, self.secure.needed(len(roster)), self.secure.bits, context, commitments, vectors, left
        )

    def _signatures(self, t: int, headers: Mapping[int, dict[str, Any]], opening: Opening) -> dict[str, str]:
        """Each site's signature of the lists of present and departed sites, without which no site releases a
        key.
        """
        packets = self.sites.follow_up("agree", t, headers, NO_TENSORS)
        signatures = {
            self._site(k): str(p.header.get("signature"))[:MOST_SIGNATURE] for k, p in packets.items()
        }
        self._need(len(signatures), len(opening.roster), opening.needed, "have signed who left")
        return signatures

    def _same_context(self, t: int, dealt: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """The sites with the most common context. The masks of sites with another context would not
        cancel.
        """
        (most, _), *_ = [*Counter(header["context"] for header in dealt.values()).most_common(1), ("", 0)]
        for site in [site for site, header in dealt.items() if header["context"] != most]:
            text = "it was sent other weights, settings or another list than most. It is left out of the sum."
            self.sites.tell(t, "E318", f"{site} round {t}: {text}")
            del dealt[site]
        return dealt

    def _roster(self, t: int, packets: Mapping[int, Packet]) -> Roster:
        """The sites that have trained and sent their keys, in the order of client ids, as a simulation weighs
        them.

        Their samples are limited to the number that they registered.
        """
        listed: list[RosterEntry] = []
        for k, packet in packets.items():
            n, keys = packet.header.get("n"), packet.header.get("keys")
            if n == 0:
                continue
            if not _are_keys(keys) or not isinstance(n, int | float) or not 0 < n < MOST_SAMPLES:
                self._tell(
                    t, k, "E303", "its number of samples or its keys are missing. It is left out of the sum."
                )
                continue
            listed.append(RosterEntry(self._site(k), min(float(n), float(self.sites.hellos[k].train)), *keys))
        roster = Roster(tuple(_without_duplicates(listed)))
        for site in sorted({one.site for one in listed} - set(roster.sites)):
            text = "a key that it has sent is not its own alone. It is left out of the sum."
            self.sites.tell(t, "E318", f"{site} round {t}: {text}")
        return roster

    def _has_dealt(self, t: int, k: int, packet: Packet, roster: Roster) -> bool:
        dealt, others = packet.header.get("dealt"), set(roster.sites) - {self._site(k)}
        digests = all(
            re.fullmatch(r"[0-9a-f]{64}", str(packet.header.get(name))) for name in ("seed", "context")
        )
        if digests and is_texts(dealt, MOST_SEALED) and set(dealt) == others:
            return True
        self._tell(t, k, "E303", "it has not dealt a share to every site. It is left out of the sum.")
        return False

    def _vector(self, t: int, k: int, packet: Packet) -> Tensor | None:
        try:
            return self.numbers.vector(packet.tree, dtype_of(self.secure.bits))
        except (ValueError, AttributeError, TypeError):
            self._tell(
                t, k, "E303", "its numbers are others than those that are summed. It is left out of the sum."
            )
            return None

    def _shares_of(self, t: int, k: int, packet: Packet, about: set[str]) -> dict[str, bytes] | None:
        texts = packet.header.get("shares")
        try:
            if not is_texts(texts, MOST_SHARE) or set(texts) != about:
                raise ValueError
            return {site: base64.b64decode(text, validate=True) for site, text in texts.items()}
        except ValueError:
            self._tell(
                t, k, "E303", "it gave shares of other sites than it was asked for. They are not used."
            )
            return None

    def _need(self, sites: int, of: int, needed: int, what: str) -> None:
        if sites < needed:
            raise SumNotOpened(f"{sites} of {of} sites {what}, and {needed} are needed. Nothing was opened.")

    def _tell(self, t: int, k: int, code: str, text: str) -> None:
        self.sites.tell(t, code, f"{self._site(k)} round {t}: {text}")

    def _site(self, k: int) -> str:
        return self.sites.hellos[k].site

    def _id(self, site: str) -> int:
        return next(k for k, hello in enumerate(self.sites.hellos) if hello.site == site)


def _are_keys(value: Any) -> TypeGuard[tuple[str, str, str]]:
    """True for texts in the form of a site's public keys."""
    return (
        isinstance(value, list)
        and len(value) == KEYS
        and all(isinstance(k, str) and len(k) <= MOST_KEY for k in value)
    )


def _without_duplicates(listed: Sequence[RosterEntry]) -> list[RosterEntry]:
    """The entries without sites that share a key, which every site would refuse."""
    keys, counts = np.unique([key for one in listed for key in one.keys], return_counts=True)
    duplicates = set(keys[counts > 1].tolist())
    return [one for one in listed if not duplicates.intersection(one.keys)]
