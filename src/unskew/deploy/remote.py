"""The round's exchange over a network: what the in-process trainer does, done by sites."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from unskew.core import encoding, gate
from unskew.core.part import Part, Trip
from unskew.core.replies import Reply
from unskew.core.trees import Tree
from unskew.core.trip import place
from unskew.deploy.attendance import Attendance
from unskew.deploy.dropped import Dropped
from unskew.deploy.replies import MALFORMED, Malformed, early_reply_of, limits_of, reply_of
from unskew.deploy.scoring import SiteScores
from unskew.deploy.soundness import MOST_LOSS, Event, Soundness
from unskew.deploy.units import unlike
from unskew.deploy.wire import Packet
from unskew.engine.chance import Chance, System
from unskew.engine.client.values import Start
from unskew.engine.server.loop import due
from unskew.errors import Paused
from unskew.methods.standardise import Standardise

MOST_VOID_ROUNDS = 3
"""After so many rounds in a row with too few replies the run pauses, instead of using up the rest of its rounds."""


@dataclass
class Remote:
    """The engine's Exchange for clients that are sites. Noise that protects comes from the server's operating system."""

    sites: Attendance
    scores: SiteScores
    _void: int = 0
    """How many rounds in a row had too few replies."""
    _early: list[Reply] = field(default_factory=list)
    """Sent with this round's training: what early trips ask for, by Part in `shares`."""

    def __post_init__(self) -> None:
        local = self.sites.local
        self.device, self.sent, self.kept, self.hooks = local.device, local.sent, local.kept, local.hooks
        self.chance: Chance = System()
        self.protected = local.method.protector is not None
        self.soundness = Soundness(self.sites)
        self.spec = encoding.spec_of(local.method, local.fed, self.sent, self.sites.first)
        self.dropped = Dropped(self.scores.record, self.spec)

    def remarks(self) -> list[tuple[str, str]]:
        """None: every site trains on a device of its own, and says itself what is to be said."""
        return []

    def resized(self) -> int:
        """0: sites train one client each."""
        return 0

    def close(self) -> None:
        self.sites.local.close()

    def train(self, start: Start, cohort: Sequence[int], private: Mapping[int, Tree]) -> list[Reply]:
        """One exchange for the training, what early trips ask for, and the scores that the round before is owed.

        Returns no reply at all, and says why, if fewer than `min_sites` have come. Raises Paused (E206) when that has
        happened in three rounds in a row.
        """
        local = self.sites.local
        early = [(p, trip) for p, trip in due(local.method, start.t, self.sites.settings.rounds) if trip.early]
        shares = {p.name: trip.shares(local.fed) for p, trip in early}
        limits = limits_of(self.spec) + limits_of(gate.Spec({}, shares, {}))
        header: dict[str, Any] = {"early": [[p.name, place(trip, p.trips)] for p, trip in early]} if early else {}
        if scored := self.scores.due(start):
            header["score"], limits = scored.lr, limits + self.scores.limits
        with self.sites.post.holding("E301") as failed:
            packets = self.sites.ask("train", start, cohort, header, limits)
        self.dropped.receive({k: packet.tree for k, packet in packets.items()} | self.sites.refused)
        used: list[Reply] = []
        try:
            used = self._trained(start, cohort, packets, (scored, gate.Spec({}, shares, {})), failed)
        finally:
            self.dropped.note(start.t, {r.client for r in used}, shares, {r.client for r in self._early})
        self._early = [r for r in self._early if r.client in {one.client for one in used}]
        return used

    def _trained(
        self,
        start: Start,
        cohort: Sequence[int],
        packets: Mapping[int, Packet],
        asked: tuple[Start | None, gate.Spec],
        failed: Sequence[Event],
    ) -> list[Reply]:
        """The replies in these packets that may be merged. asked: whose scores were asked for, and what early trips ask for.

        failed: sites' own E301. Raises Paused as `train` does.
        """
        scored, early = asked
        answers = {k: packet.tree.pop("score", {}) for k, packet in packets.items()}
        if scored:
            self.scores.write(scored, cohort, answers)
        else:
            self.scores.unasked(start.t, answers)
        trees = {k: packet.tree.pop("early", {}) for k, packet in packets.items()}
        self._early = self._read(start.t, packets, lambda k, packet: early_reply_of(k, trees[k], packet))
        if early.shares and not self.protected:
            self._early = self.soundness.in_proportion(start, self._early, early)
        replies = self._read(start.t, packets, lambda k, packet: reply_of(k, packet, self.spec.weights))
        if self.protected:  # whether a reply counts must not depend on the others, and the clip bounds each
            for event in failed:
                self.sites.tell(*event)
        else:
            replies = self.soundness.trained(start, replies, self.spec, failed)
        return self._with_a_loss(start.t, self._enough(start.t, len(cohort), replies))

    def visit(
        self, trip: Trip, part: Part, start: Start, ids: Sequence[int], private: Mapping[int, Tree]
    ) -> list[Reply]:
        """The client side of a trip; one exchange, unless its answers have come with the training.

        Raises Paused (E206) if fewer than `min_sites` answer before round 1.
        """
        if trip.early and start.t:
            here = [r for r in self._early if part.name in r.shares]
            self.dropped.receive({r.client: {"early": {part.name: r.shares[part.name]}} for r in here})
            self.dropped.note(start.t, ids, {part.name: trip.shares(self.sites.local.fed)})
            replies = [r for r in here if r.client in ids]
            return [replace(r, shares={part.name: r.shares[part.name]}) for r in replies]
        spec = gate.Spec({}, {part.name: trip.shares(self.sites.local.fed)}, {})
        header = {"part": part.name, "trip": place(trip, part.trips)}
        packets = self.sites.ask("visit", start, ids, header, limits_of(spec))
        self.dropped.receive({k: packet.tree for k, packet in packets.items()} | self.sites.refused)
        replies = self.soundness.in_proportion(start, self._read(start.t, packets, reply_of), spec)
        self.dropped.note(start.t, {r.client for r in replies}, spec.shares)
        if isinstance(part, Standardise):
            for site, text in unlike(self.sites.hellos, replies, part.name).items():
                self.sites.tell(start.t, "E528", f"{site}: {text}.")
        if start.t == 0 and len(replies) < self.sites.min_sites:
            text = f"before round 1 {len(replies)} sites answered; {self.sites.min_sites} are needed."
            raise Paused("E206", text)
        return replies

    def _read(self, t: int, packets: Mapping[int, Packet], read: Callable[[int, Packet], Reply | None]) -> list[Reply]:
        """The replies in these packets; a malformed one is dropped and its site named."""
        replies = []
        for k, packet in packets.items():
            try:
                reply = read(k, packet)
            except Malformed:
                self.sites.tell(t, "E303", f"{self.sites.hellos[k].site} round {t}: {MALFORMED}")
                continue
            except Exception as error:  # one site's reply must never end the run of all
                text = f"its reply cannot be read ({type(error).__name__}). Reply dropped."
                self.sites.tell(t, "E310", f"{self.sites.hellos[k].site} round {t}: {text}")
                continue
            if reply:
                replies.append(reply)
        return replies

    def _with_a_loss(self, t: int, replies: Sequence[Reply]) -> list[Reply]:
        """The replies to training whose loss is a number that can be averaged; the sites of the others are named."""
        for reply in replies:
            if not abs(reply.loss) <= MOST_LOSS:
                text = f"the loss is no number up to {MOST_LOSS:g} in size. Reply dropped."
                self.sites.tell(t, "E301", f"{self.sites.hellos[reply.client].site} round {t}: {text}")
        return [reply for reply in replies if abs(reply.loss) <= MOST_LOSS]

    def _enough(self, t: int, asked: int, replies: list[Reply]) -> list[Reply]:
        """The replies, or none of them if there are too few."""
        if len(replies) >= self.sites.min_sites or (self.protected and not asked):
            self._void = 0
            return replies
        self._void += 1
        text = f"{len(replies)} of {asked} sites answered; {self.sites.min_sites} are needed."
        if self._void >= MOST_VOID_ROUNDS:
            void = f"Round {t} is the {MOST_VOID_ROUNDS}rd in a row without enough replies, so the run pauses"
            raise Paused("E206", f"{text} {void}; every round before it is saved.")
        self.sites.tell(t, "E313", f"round {t}: {text} Round skipped, model unchanged.")
        return []
