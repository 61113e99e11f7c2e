"""The round's exchange over a network: sites train in place of the in-process trainer, and score themselves.

Scores: the weights sent down for a round are those to score for the round before, so sites score them with
the training and that round's metrics are written then. Only the last round's scores need an exchange of
their own. The server scores its own test set if it has one.

Dropped replies: everything that sites have sent is in the run's ledger, even if no merge has used it
because it was malformed, an outlier, of too many samples or in a round with too few replies. `events.jsonl`
gives the reason.

Letters: M metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from unskew.core import encoding, gate
from unskew.core.part import Part, Trip
from unskew.core.replies import Reply
from unskew.core.shares import Share
from unskew.core.trees import Tree, leaves, size_in_bytes
from unskew.core.trip import trip_index
from unskew.errors import Paused
from unskew.federation.coordinator.correspondence import Attendance
from unskew.federation.coordinator.outliers import MOST_LOSS, Event, OutlierFilter, unit_remarks
from unskew.federation.protocol.signed_messages import share_name
from unskew.federation.protocol.study_rules import score_key, score_names
from unskew.federation.protocol.wire_format import (
    MALFORMED_TEXT,
    Limits,
    MalformedReply,
    Packet,
    early_reply_of,
    limits_of,
    reply_of,
)
from unskew.methods.standardise import Standardise
from unskew.privacy.secure_aggregation import SUM
from unskew.records import client_lists
from unskew.records.private_state import Store
from unskew.records.record import Record
from unskew.records.rows import Row
from unskew.round.clients import Broadcast
from unskew.round.evaluation import Evaluation, client_rows, pool, score_row, summary_rows
from unskew.round.loop import due_trips
from unskew.round.randomness import RandomSource, SystemSource
from unskew.scores import kind

UNKNOWN = "?"
"""The ledger's name for undeclared tensors, because their own names are chosen by the site."""
Sizes = dict[str, int]
"""Bytes by the name of a share."""


@dataclass
class DroppedReplies:
    """Records unused replies in the ledger. record: the run's. spec: the declaration of replies to
    training.
    """

    record: Record
    spec: gate.Spec
    received: dict[int, Tree] = field(default_factory=dict[int, Tree])
    """Received trees of this exchange by client."""

    def receive(self, trees: Mapping[int, Tree]) -> None:
        """Remember the contents of clients' messages before they are checked."""
        self.received = {k: dict(tree) for k, tree in trees.items()}

    def note(
        self,
        t: int,
        used: Collection[int],
        shares: Mapping[str, Mapping[str, Share]] | None = None,
        early: Collection[int] | None = None,
    ) -> None:
        """Record what came from clients that are not among `used`.

        shares: declarations by Part, if they are not the training's. early: the clients with used answers
        to early trips; None without early trips.
        """
        declared = {**self.spec.shares, **(shares or {})}
        rows = [
            {
                "t": t,
                "way": "up",
                "share": share,
                "clients": [k],
                "bytes": size,
                "reads": "sum" if share == SUM else "each",
                "guarantee": "none",
                **_disclosure(share, declared),
                "dropped": True,
            }
            for k, tree in self.received.items()
            for share, size in _by_share(
                _sizes(_unused(tree, k in used, early is None or k in early)), declared
            ).items()
        ]
        self.received = {}
        self.record.add("ledger", rows)


def _unused(tree: Tree, used: bool, early: bool) -> Tree:
    """The unused part of a reply. early: its answers to early trips are used."""
    return tree if not used else {} if early else {"early": tree.get("early", {})}


def _sizes(tree: Tree) -> Sizes:
    """Bytes of each share of a reply, without scores, which have rows of their own."""
    sizes: Sizes = {}
    for path, tensor in leaves(tree):
        if isinstance(tensor, Tensor) and path.split("/")[0] != "score":
            share = SUM if path.startswith(f"{SUM}/") else share_name(path)
            sizes[share] = sizes.get(share, 0) + tensor.numel() * tensor.element_size()
    return sizes


def _by_share(sizes: Sizes, declared: Mapping[str, Mapping[str, Share]]) -> Sizes:
    """Bytes by the ledger's names: "w" for weights, and one name for everything undeclared."""
    known = {f"{part}/{leaf.split('/')[0]}" for part, shares in declared.items() for leaf in shares}
    named: Sizes = {}
    for share, size in sizes.items():
        name = "w" if share == "weights" else share if share in known or share == SUM else UNKNOWN
        named[name] = named.get(name, 0) + size
    return named


def _disclosure(name: str, declared: Mapping[str, Mapping[str, Share]]) -> dict[str, Any]:
    """The ledger's kind and number of samples of a share; for undeclared shares the widest disclosure."""
    part, _, leaf = name.partition("/")
    share = next((s for path, s in declared.get(part, {}).items() if path.split("/")[0] == leaf), Share(()))
    if name in ("w", SUM):
        share = Share((), kind="weights", samples="client")
    return {"kind": share.discloses, "samples": share.samples}


MOST_SCORE = 1e100
"""No score is larger than this: sums over sites must stay finite, or the run's files would hold what is no
number."""
ScoresByScope = dict[str, dict[int, Tensor]]
"""Scope ("global", "kept" or "personal") -> client -> [M]; "SCOPE.METRIC" -> client -> [1], where it is
defined there."""


@dataclass
class SiteScores:
    """The engine's Scoring for clients that are sites. own: scores the server's test set."""

    sites: Attendance
    own: Evaluation
    record: Record

    def __post_init__(self) -> None:
        local = self.sites.local
        fed, hellos = local.fed, self.sites.hellos
        self.metrics = score_names(fed)
        scopes, named = ("global", "kept", "personal"), [metric.key for metric in fed.metrics]
        self.named = {score_key(scope, m): (scope, m) for scope in scopes for m in named}
        """The scope and metric of each score that the study names, by its name among a site's scores."""
        self.limits = Limits(8 * len(self.metrics) + 16 * len(named), 2 + 2 * len(named))
        """The largest scores of a site."""
        scores_stay_at_sites = local.keeps_model and local.sent and any(h.test for h in hellos)
        self.server_scores = bool(len(self.own.y)) and not scores_stay_at_sites
        """The scope `global` is the score of the server's test set."""

    def rows(self, t: int, start: Broadcast, store: Store, last: bool) -> list[Row]:
        """Metric rows of the server's test set; after the last round also those of the sites, which are asked
        here.
        """
        rows = (
            [r for r in self.own.rows(t, start, store, last) if r["scope"] == "global"]
            if self.server_scores
            else []
        )
        return rows + (self._site_rows(t, self._ask(start, range(len(self.sites.hellos)))) if last else [])

    def due(self, start: Broadcast) -> Broadcast | None:
        """The state of the previous round if its scores are due; its weights are about to be sent."""
        t = start.t - 1
        if t % self.sites.settings.eval_every or not any(h.test for h in self.sites.hellos):
            return None
        return replace(start, t=t, lr=self.sites.settings.lr_in(t))

    def write(self, scored: Broadcast, cohort: Sequence[int], answers: Mapping[int, Any]) -> None:
        """Write the metrics of the previous round. answers: the cohort's; sites that did not train are asked
        here.
        """
        hellos = self.sites.hellos
        trained = [k for k in cohort if hellos[k].train]
        by_scope = self._valid_scores(scored, {k: answers[k] for k in trained if k in answers})
        others = self._ask(scored, [k for k in range(len(hellos)) if k not in trained])
        both = {
            scope: dict(sorted({**values, **others[scope]}.items())) for scope, values in by_scope.items()
        }
        self.record.add("metrics", self._site_rows(scored.t, both))

    def unasked(self, t: int, answers: Mapping[int, Any]) -> None:
        """Record scores that were not requested. answers: the trees by client."""
        for k, tree in answers.items():
            if size := size_in_bytes({"score": tree}):
                self._charge(t, "up", "score", [k], size, dropped=True)

    def _ask(self, start: Broadcast, ids: Sequence[int]) -> ScoresByScope:
        """The checked scores of those sites that have test samples, from one exchange."""
        asked = [k for k in ids if self.sites.hellos[k].test]
        if asked:
            weights = size_in_bytes({n: start.weights[n] for n in self.sites.local.sent})
            self._charge(
                start.t, "down", "w (to be scored)", asked, weights + size_in_bytes(start.to(asked[0]).down)
            )
        packets: dict[int, Packet] = self.sites.ask("score", start, asked, {}, self.limits)
        return self._valid_scores(start, {k: packet.tree for k, packet in packets.items()})

    def _valid_scores(self, start: Broadcast, answers: Mapping[int, Any]) -> ScoresByScope:
        """The scores of the declared form; others are dropped and their sites reported."""
        by_scope: ScoresByScope = {"global": {}, "personal": {}} | (
            {"kept": {}} if self.sites.local.keeps_model else {}
        )
        by_scope |= {name: {} for name, (scope, _) in self.named.items() if scope in by_scope}
        for k, tree in answers.items():
            for scope, values in tree.items() if isinstance(tree, Mapping) else [("?", tree)]:
                if problem := self._problem(scope, values, by_scope):
                    code, text = problem
                    site = self.sites.hellos[k].site
                    self.sites.tell(start.t, code, f"{site} round {start.t}: {text} Score dropped.")
                    sent = {"score": values} if isinstance(values, Mapping | Tensor) else {}
                    self._charge(start.t, "up", "score", [k], size_in_bytes(sent), dropped=True)
                else:
                    by_scope[scope][k] = values
        for scope, scores in by_scope.items():
            if scores:
                size = size_in_bytes({"score": next(iter(scores.values()))})
                self._charge(start.t, "up", f"score/{scope}", list(scores), size)
        return by_scope

    def _named_metrics(self, answers: ScoresByScope, scope: str, k: int) -> dict[str, float]:
        """Site k's values of the metrics that the study names; metrics that are undefined there are
        missing.
        """
        values_by_metric = {
            m: answers[name] for name, (of, m) in self.named.items() if of == scope and name in answers
        }
        return {m: float(values[k]) for m, values in values_by_metric.items() if k in values}

    def _problem(self, scope: str, values: Any, by_scope: ScoresByScope) -> tuple[str, str] | None:
        """A code and a sentence, unless the values are scores within their bounds for a requested scope."""
        if scope not in by_scope or not isinstance(values, Tensor):
            return "E303", f"'score/{scope}' was not asked for."
        low, high = self.sites.local.fed.task.bounds
        share = Share((len(self.metrics),), low=low, high=high)
        if scope in self.named:
            low, high = (0.0, 1.0) if kind(self.named[scope][1]).share else (-MOST_SCORE, MOST_SCORE)
            share = Share((1,), torch.float64, low, high)
        return gate.leaf_problem(f"score/{scope}", values, share)

    def _charge(self, t: int, way: str, what: str, ids: list[int], size: int, **more: bool) -> None:
        facts = {
            "t": t,
            "way": way,
            "share": what,
            "clients": client_lists.encode_clients(ids),
            "bytes": size,
        }
        disclosed = {"kind": "statistics", "samples": "client"} if way == "up" else {}
        self.record.add("ledger", [facts | {"reads": "each", "guarantee": "none"} | disclosed | more])

    def _site_rows(self, t: int, answers: ScoresByScope) -> list[Row]:
        """Metric rows as in one process; without a test set at the server, `global` is the mean over the
        sites' samples.
        """
        by_site = {
            scope: {
                k: dict(zip(self.metrics, v.tolist())) | self._named_metrics(answers, scope, k)
                for k, v in values.items()
            }
            for scope, values in answers.items()
            if scope not in self.named
        }
        kept = by_site.get("kept", {})
        on_clients = kept or by_site["global"]
        personal = by_site["personal"] or on_clients
        rows: list[Row] = []
        if self.sites.local.sent and not self.server_scores and on_clients:
            scores = pool(
                self.sites.local.fed, on_clients, {k: self.sites.hellos[k].test for k in on_clients}
            )
            rows = [score_row(t, "global", metric, value) for metric, value in scores.items()]
        scopes = {"global@client": on_clients} if self.sites.local.sent else {}
        for scope, values in (scopes | {"personal@client": personal}).items():
            rows += summary_rows(t, scope, values) + client_rows(t, scope, values)
        return rows


MOST_VOID_ROUNDS = 3
"""After so many rounds in a row with too few replies the run pauses, instead of using up the rest of its
rounds."""


@dataclass
class SiteExchange:
    """The engine's Exchange for clients that are sites. Protective noise comes from the server's operating
    system.
    """

    sites: Attendance
    scores: SiteScores
    _void: int = 0
    """Number of rounds in a row with too few replies."""
    _early: list[Reply] = field(default_factory=list)
    """This round's answers to early trips, by Part in `shares`."""

    def __post_init__(self) -> None:
        local = self.sites.local
        self.device, self.sent, self.kept, self.hooks = local.device, local.sent, local.kept, local.hooks
        self.chance: RandomSource = SystemSource()
        self.protected = local.method.protector is not None
        self.outliers = OutlierFilter(self.sites)
        self.spec = encoding.spec_of(local.method, local.fed, self.sent, self.sites.first)
        self.dropped = DroppedReplies(self.scores.record, self.spec)

    def remarks(self) -> list[tuple[str, str]]:
        """None, because each site trains on a device of its own and reports its own remarks."""
        return []

    def reduce_lanes(self) -> int:
        """0, because sites train one client each."""
        return 0

    def close(self) -> None:
        self.sites.local.close()

    def train(self, start: Broadcast, cohort: Sequence[int], private: Mapping[int, Tree]) -> list[Reply]:
        """One exchange for the training, the early trips, and the scores of the previous round.

        Returns no reply, after a report, if fewer than `min_sites` replies came. Raises Paused (E206) after
        three such rounds in a row.
        """
        local = self.sites.local
        early = [
            (p, trip)
            for p, trip in due_trips(local.method, start.t, self.sites.settings.rounds)
            if trip.early
        ]
        shares = {p.name: trip.shares(local.fed) for p, trip in early}
        limits = limits_of(self.spec) + limits_of(gate.Spec({}, shares, {}))
        header: dict[str, Any] = (
            {"early": [[p.name, trip_index(trip, p.trips)] for p, trip in early]} if early else {}
        )
        if scored := self.scores.due(start):
            header["score"], limits = scored.lr, limits + self.scores.limits
        with self.sites.post.holding("E301") as failed:
            packets = self.sites.ask("train", start, cohort, header, limits)
        self.dropped.receive({k: packet.tree for k, packet in packets.items()} | self.sites.refused)
        used: list[Reply] = []
        try:
            used = self._mergeable(start, cohort, packets, (scored, gate.Spec({}, shares, {})), failed)
        finally:
            self.dropped.note(start.t, {r.client for r in used}, shares, {r.client for r in self._early})
        self._early = [r for r in self._early if r.client in {one.client for one in used}]
        return used

    def _mergeable(
        self,
        start: Broadcast,
        cohort: Sequence[int],
        packets: Mapping[int, Packet],
        asked: tuple[Broadcast | None, gate.Spec],
        failed: Sequence[Event],
    ) -> list[Reply]:
        """The replies in these packets that may be merged. asked: the scored state and the declaration of
        early trips.

        failed: the sites' own E301. Raises Paused as `train` does.
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
            self._early = self.outliers.in_proportion(start, self._early, early)
        replies = self._read(start.t, packets, lambda k, packet: reply_of(k, packet, self.spec.weights))
        if self.protected:  # whether a reply counts must not depend on the others, and the clip bounds each
            for event in failed:
                self.sites.tell(*event)
        else:
            replies = self.outliers.without_outliers(start, replies, self.spec, failed)
        return self._with_a_loss(start.t, self._enough(start.t, len(cohort), replies))

    def visit(
        self, trip: Trip, part: Part, start: Broadcast, ids: Sequence[int], private: Mapping[int, Tree]
    ) -> list[Reply]:
        """The client side of a trip in one exchange, unless its answers have come with the training.

        Raises Paused (E206) if fewer than `min_sites` answer before round 1.
        """
        if trip.early and start.t:
            early = [r for r in self._early if part.name in r.shares]
            self.dropped.receive({r.client: {"early": {part.name: r.shares[part.name]}} for r in early})
            self.dropped.note(start.t, ids, {part.name: trip.shares(self.sites.local.fed)})
            replies = [r for r in early if r.client in ids]
            return [replace(r, shares={part.name: r.shares[part.name]}) for r in replies]
        spec = gate.Spec({}, {part.name: trip.shares(self.sites.local.fed)}, {})
        header = {"part": part.name, "trip": trip_index(trip, part.trips)}
        packets = self.sites.ask("visit", start, ids, header, limits_of(spec))
        self.dropped.receive({k: packet.tree for k, packet in packets.items()} | self.sites.refused)
        replies = self.outliers.in_proportion(start, self._read(start.t, packets, reply_of), spec)
        self.dropped.note(start.t, {r.client for r in replies}, spec.shares)
        if isinstance(part, Standardise):
            for site, text in unit_remarks(self.sites.hellos, replies, part.name).items():
                self.sites.tell(start.t, "E504", f"{site}: {text}.")
        if start.t == 0 and len(replies) < self.sites.min_sites:
            text = f"before round 1 {len(replies)} sites answered; {self.sites.min_sites} are needed."
            raise Paused("E206", text)
        return replies

    def _read(
        self, t: int, packets: Mapping[int, Packet], read: Callable[[int, Packet], Reply | None]
    ) -> list[Reply]:
        """The replies in these packets; malformed ones are dropped and their sites reported."""
        replies = []
        for k, packet in packets.items():
            try:
                reply = read(k, packet)
            except MalformedReply:
                self.sites.tell(t, "E303", f"{self.sites.hellos[k].site} round {t}: {MALFORMED_TEXT}")
                continue
            except Exception as error:  # one site's reply must never end the run of all
                text = f"its reply cannot be read ({type(error).__name__}). Reply dropped."
                self.sites.tell(t, "E310", f"{self.sites.hellos[k].site} round {t}: {text}")
                continue
            if reply:
                replies.append(reply)
        return replies

    def _with_a_loss(self, t: int, replies: Sequence[Reply]) -> list[Reply]:
        """The replies with a loss that can be averaged; the sites of the others are reported."""
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
        self.sites.tell(t, "E309", f"round {t}: {text} Round skipped, model unchanged.")
        return []
