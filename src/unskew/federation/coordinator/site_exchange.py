"""The round's exchange over a network: sites train in place of the in-process trainer, and score themselves.
Letters: M metrics."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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
from unskew.federation.coordinator.outliers import norm_outliers, unit_remarks
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

MOST_SCORE, MOST_LOSS = 1e100, 1e12
"""Largest score and loss: sums over sites must stay finite, for the run's files cannot hold infinities."""
MOST_VOID_ROUNDS = 3
"""After so many rounds in a row with too few replies the run pauses, instead of using up the rest of its
rounds."""
UNKNOWN = "?"
"""The ledger's name for undeclared tensors, because their own names are chosen by the site."""
ScoresByScope = dict[str, dict[int, Tensor]]
"""Scope ("global", "kept" or "personal") -> client -> [M]; "SCOPE.METRIC" -> client -> [1], where it is
defined there."""


@dataclass
class SiteScores:
    """The engine's Scoring for clients that are sites. own: scores the server's test set.

    The weights sent down for a round are those to score for the round before, so sites score them with the
    training and that round's metrics are written then. Only the last round's scores need an exchange of their
    own. The server scores its own test set if it has one.
    """

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
        """Metric rows of the server's test set; after the last round also those of the sites, asked here."""
        rows = self.own.rows(t, start, store, last) if self.server_scores else []
        rows = [row for row in rows if row["scope"] == "global"]
        return rows + (self._site_rows(t, self._ask(start, range(len(self.sites.hellos)))) if last else [])

    def due(self, start: Broadcast) -> Broadcast | None:
        """The state of the previous round if its scores are due; its weights are about to be sent."""
        t = start.t - 1
        if t % self.sites.settings.eval_every or not any(h.test for h in self.sites.hellos):
            return None
        return replace(start, t=t, lr=self.sites.settings.lr_in(t))

    def write(self, scored: Broadcast, cohort: Sequence[int], answers: Mapping[int, Any]) -> None:
        """Write the previous round's metrics. answers: the cohort's; the other sites are asked here."""
        hellos = self.sites.hellos
        trained = [k for k in cohort if hellos[k].train]
        by_scope = self._valid_scores(scored, {k: answers[k] for k in trained if k in answers})
        others = self._ask(scored, [k for k in range(len(hellos)) if k not in trained])
        both = {scope: dict(sorted((values | others[scope]).items())) for scope, values in by_scope.items()}
        self.record.add("metrics", self._site_rows(scored.t, both))

    def unasked(self, t: int, answers: Mapping[int, Any]) -> None:
        """Record scores that were not requested. answers: the trees by client."""
        for k, tree in answers.items():
            if size := size_in_bytes({"score": tree}):
                self._charge(t, "score", [k], size, dropped=True)

    def _ask(self, start: Broadcast, ids: Sequence[int]) -> ScoresByScope:
        """The checked scores of those sites that have test samples, from one exchange."""
        asked = [k for k in ids if self.sites.hellos[k].test]
        packets = self.sites.ask("score", start, asked, {}, self.limits)
        sent = self.sites.deliveries.send(start, asked)
        weights = size_in_bytes({n: start.weights[n] for n in self.sites.local.sent})
        slices = [sent.bytes(part) for part in start.down]
        sizes = {k: weights + sum(by_client[k] for by_client in slices) for k in asked}
        for size in sorted(set(sizes.values())):
            to = [k for k in asked if sizes[k] == size]
            self._charge(start.t, "w (to be scored)", to, size, way="down")
        sent.settle([])  # so that training sends what it sends in a simulation, which asks for no scores
        return self._valid_scores(start, {k: packet.tree for k, packet in packets.items()})

    def _valid_scores(self, start: Broadcast, answers: Mapping[int, Any]) -> ScoresByScope:
        """The scores of the declared form; others are dropped and their sites reported."""
        scopes = ["global", "personal", *(["kept"] if self.sites.local.keeps_model else [])]
        scopes += [name for name, (scope, _) in self.named.items() if scope in scopes]
        by_scope: ScoresByScope = {scope: {} for scope in scopes}
        for k, tree in answers.items():
            for scope, values in tree.items() if isinstance(tree, Mapping) else [("?", tree)]:
                if problem := self._problem(scope, values, by_scope):
                    code, text = problem
                    self.sites.tell(start.t, k, code, f"{text} Score dropped.")
                    sent = {"score": values} if isinstance(values, Mapping | Tensor) else {}
                    self._charge(start.t, "score", [k], size_in_bytes(sent), dropped=True)
                else:
                    by_scope[scope][k] = values
        for scope, scores in by_scope.items():
            if scores:
                size = size_in_bytes({"score": next(iter(scores.values()))})
                self._charge(start.t, f"score/{scope}", list(scores), size)
        return by_scope

    def _problem(self, scope: str, values: Any, scopes: Collection[str]) -> tuple[str, str] | None:
        """A code and a sentence, unless the values are scores within their bounds for a requested scope."""
        if scope not in scopes or not isinstance(values, Tensor):
            return "E303", f"'score/{scope}' was not asked for."
        low, high = self.sites.local.fed.task.bounds
        share = Share((len(self.metrics),), low=low, high=high)
        if scope in self.named:
            low, high = (0.0, 1.0) if kind(self.named[scope][1]).share else (-MOST_SCORE, MOST_SCORE)
            share = Share((1,), torch.float64, low, high)
        return gate.leaf_problem(f"score/{scope}", values, share)

    def _charge(self, t: int, share: str, ids: list[int], size: int, way: str = "up", **more: bool) -> None:
        row = {"t": t, "way": way, "share": share, "clients": client_lists.encode_clients(ids), "bytes": size}
        disclosed = {"kind": "statistics", "samples": "client"} if way == "up" else {}
        self.record.add("ledger", [row | {"reads": "each", "guarantee": "none"} | disclosed | more])

    def _site_rows(self, t: int, answers: ScoresByScope) -> list[Row]:
        """Metric rows as in one process; without a test set at the server, `global` is the mean over the
        sites' samples. A metric that the study names is missing where it is undefined.
        """
        by_site: dict[str, dict[int, dict[str, float]]] = {}
        for scope in answers.keys() - self.named.keys():
            by_site[scope] = {k: dict(zip(self.metrics, v.tolist())) for k, v in answers[scope].items()}
        for name, (scope, metric) in self.named.items():
            for k, value in answers.get(name, {}).items():
                if k in by_site.get(scope, {}):
                    by_site[scope][k][metric] = float(value)
        on_clients = by_site.get("kept") or by_site["global"]
        personal = by_site["personal"] or on_clients
        rows: list[Row] = []
        if self.sites.local.sent and not self.server_scores and on_clients:
            tested = {k: self.sites.hellos[k].test for k in on_clients}
            scores = pool(self.sites.local.fed, on_clients, tested)
            rows = [score_row(t, "global", metric, value) for metric, value in scores.items()]
        scopes = {"global@client": on_clients} if self.sites.local.sent else {}
        for scope, values in (scopes | {"personal@client": personal}).items():
            rows += summary_rows(t, scope, values) + client_rows(t, scope, values)
        return rows


@dataclass
class SiteExchange:
    """The engine's Exchange for clients that are sites. Noise comes from the server's operating system.

    Everything that sites have sent is in the run's ledger, even if no merge has used it because it was
    malformed, an outlier or in a round with too few replies. `events.jsonl` gives the reason.
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
        self.spec = encoding.spec_of(local.method, local.fed, self.sent, self.sites.first)

    def remarks(self) -> list[tuple[str, str]]:
        """None, because each site trains on a device of its own and reports its own remarks."""
        return []

    def close(self) -> None:
        self.sites.local.close()

    def train(self, start: Broadcast, cohort: Sequence[int], private: Mapping[int, Tree]) -> list[Reply]:
        """One exchange for the training, the early trips, and the scores of the previous round.

        Returns no reply, after a report, if fewer than `min_sites` replies came. Raises Paused (E206) after
        three such rounds in a row.
        """
        local, rounds = self.sites.local, self.sites.settings.rounds
        early = [(p, trip) for p, trip in due_trips(local.method, start.t, rounds) if trip.early]
        shares = {p.name: trip.shares(local.fed) for p, trip in early}
        early_spec = gate.Spec({}, shares, {})
        limits = limits_of(self.spec) + limits_of(early_spec)
        header = dict[str, Any]()
        if early:
            header["early"] = [[p.name, trip_index(trip, p.trips)] for p, trip in early]
        if scored := self.scores.due(start):
            header["score"], limits = scored.lr, limits + self.scores.limits
        packets = self.sites.ask("train", start, cohort, header, limits)
        received = {k: dict(packet.tree) for k, packet in packets.items()}
        used: list[Reply] = []
        try:
            answers = {k: packet.tree.pop("score", {}) for k, packet in packets.items()}
            if scored:
                self.scores.write(scored, cohort, answers)
            else:
                self.scores.unasked(start.t, answers)
            self._early = self._early_replies(start, packets, early_spec)
            replies = self._read(start.t, packets, lambda k, p: reply_of(k, p, self.spec.weights))
            if not self.protected:  # with a guarantee no reply may count because of the others
                replies = self._in_proportion(start, replies, self.spec)
            used = self._enough(start.t, len(cohort), self._with_a_loss(start.t, replies))
        finally:
            ids, early_ids = {r.client for r in used}, {r.client for r in self._early}
            unused = {k: tree for k, tree in received.items() if k not in ids}
            unused |= {k: {"early": received[k].get("early", {})} for k in ids - early_ids}
            self._record_unused(start.t, unused, shares)
        self._early = [r for r in self._early if r.client in ids]
        return used

    def visit(
        self, trip: Trip, part: Part, start: Broadcast, ids: Sequence[int], private: Mapping[int, Tree]
    ) -> list[Reply]:
        """The client side of a trip in one exchange, unless its answers have come with the training.

        Raises Paused (E206) if fewer than `min_sites` answer before round 1.
        """
        shares = {part.name: trip.shares(self.sites.local.fed)}
        if trip.early and start.t:
            early = [
                replace(r, shares={part.name: r.shares[part.name]})
                for r in self._early
                if part.name in r.shares
            ]
            unused = {r.client: {"early": dict(r.shares)} for r in early if r.client not in ids}
            self._record_unused(start.t, unused, shares)
            return [r for r in early if r.client in ids]
        spec = gate.Spec({}, shares, {})
        header = {"part": part.name, "trip": trip_index(trip, part.trips)}
        packets = self.sites.ask("visit", start, ids, header, limits_of(spec))
        received = {k: dict(packet.tree) for k, packet in packets.items()}
        replies = self._in_proportion(start, self._read(start.t, packets, reply_of), spec)
        used = {r.client for r in replies}
        self._record_unused(start.t, {k: t for k, t in received.items() if k not in used}, shares)
        if isinstance(part, Standardise):
            for site, text in unit_remarks(self.sites.hellos, replies, part.name).items():
                self.sites.post.tell(start.t, "E504", f"{site}: {text}.")
        if start.t == 0 and len(replies) < self.sites.min_sites:
            text = f"before round 1 {len(replies)} sites answered; {self.sites.min_sites} are needed."
            raise Paused("E206", text)
        return replies

    def _early_replies(self, start: Broadcast, packets: Mapping[int, Packet], spec: gate.Spec) -> list[Reply]:
        """The answers to early trips, of this declaration, which are taken from the packets."""
        trees = {k: packet.tree.pop("early", {}) for k, packet in packets.items()}
        replies = self._read(start.t, packets, lambda k, packet: early_reply_of(k, trees[k], packet))
        compared = spec.shares and not self.protected
        return self._in_proportion(start, replies, spec) if compared else replies

    def _read(
        self, t: int, packets: Mapping[int, Packet], read: Callable[[int, Packet], Reply | None]
    ) -> list[Reply]:
        """The replies in these packets; malformed ones are dropped and their sites reported."""
        replies = []
        for k, packet in packets.items():
            try:
                if reply := read(k, packet):
                    replies.append(reply)
            except MalformedReply:
                self.sites.tell(t, k, "E303", MALFORMED_TEXT)
            except Exception as error:  # one site's reply must never end the run of all
                text = f"its reply cannot be read ({type(error).__name__}). Reply dropped."
                self.sites.tell(t, k, "E310", text)
        return replies

    def _in_proportion(self, start: Broadcast, replies: list[Reply], spec: gate.Spec) -> list[Reply]:
        """The replies without outliers, which are reported. spec: the declaration of this exchange."""
        local = self.sites.local
        passing = {r.client for r in self._gate(replies, spec)[0]}
        compared = [r for r in replies if r.client in passing]
        if spec.encoded:
            compared, _ = encoding.decode_replies(local.method, compared, start.received, local.fed, start.t)
        of_samples = {part for part, shares in spec.shares.items() if _are_of_samples(shares.values())}
        refused = norm_outliers(local.fed.shared, start.weights, compared, start.received, of_samples)
        for k, text in refused.items():
            self.sites.tell(start.t, k, "E318", f"{text}. Reply dropped.")
        return [r for r in replies if r.client not in refused]

    def _gate(self, replies: Sequence[Reply], spec: gate.Spec) -> tuple[list[Reply], list[gate.Refusal]]:
        """The gate's verdict on copies of the replies."""
        return gate.check([replace(r) for r in replies], spec, self.sites.local.fed.sizes)

    def _with_a_loss(self, t: int, replies: Sequence[Reply]) -> list[Reply]:
        """The replies with a loss that can be averaged; the sites of the others are reported."""
        kept = [reply for reply in replies if abs(reply.loss) <= MOST_LOSS]
        for k in [r.client for r in replies if not abs(r.loss) <= MOST_LOSS]:
            text = f"the loss is no number up to {MOST_LOSS:g} in size. Reply dropped."
            self.sites.tell(t, k, "E301", text)
        return kept

    def _enough(self, t: int, asked: int, replies: list[Reply]) -> list[Reply]:
        """The replies, or none of them if there are too few."""
        if len(replies) >= self.sites.min_sites or (self.protected and not asked):
            self._void = 0
            return replies
        text = f"{len(replies)} of {asked} sites answered; {self.sites.min_sites} are needed."
        self._skip(t, "E309", text, "enough replies")
        return []

    def _skip(self, t: int, code: str, why: str, lacking: str) -> None:
        """Report a round without effect. Raises Paused (E206) for the third one in a row."""
        self._void += 1
        if self._void >= MOST_VOID_ROUNDS:
            text = f"Round {t} is the {MOST_VOID_ROUNDS}rd in a row without {lacking}, so the run pauses"
            raise Paused("E206", f"{why} {text}; every round before it is saved.")
        self.sites.post.tell(t, code, f"round {t}: {why} Round skipped, model unchanged.")

    def _record_unused(
        self,
        t: int,
        unused: Mapping[int, Tree],
        shares: Mapping[str, Mapping[str, Share]] | None = None,
    ) -> None:
        """Record in the ledger what came from sites and was not used. unused: trees by client. shares:
        declarations by Part in addition to the training's.

        Scores have rows of their own. Undeclared tensors count as the widest disclosure.
        """
        weights = Share((), kind="weights", samples="client")
        declared: dict[str, Share] = {"weights": weights, SUM: weights}
        for part, by_leaf in {**self.spec.shares, **(shares or {})}.items():
            for leaf, share in by_leaf.items():
                declared.setdefault(f"{part}/{leaf.partition('/')[0]}", share)
        rows: list[Row] = []
        for k, tree in unused.items():
            sizes = dict[str, int]()
            for path, tensor in leaves(tree):
                if isinstance(tensor, Tensor) and path.partition("/")[0] != "score":
                    name = SUM if path.startswith(f"{SUM}/") else share_name(path)
                    name = name if name in declared else UNKNOWN
                    sizes[name] = sizes.get(name, 0) + tensor.numel() * tensor.element_size()
            for name, size in sizes.items():
                share = declared.get(name, Share(()))
                row = {"t": t, "way": "up", "share": "w" if name == "weights" else name, "clients": [k]}
                reads = {"bytes": size, "reads": "sum" if name == SUM else "each", "guarantee": "none"}
                disclosed = {"kind": share.discloses, "samples": share.samples, "dropped": True}
                rows.append(row | reads | disclosed)
        self.scores.record.add("ledger", rows)


def _are_of_samples(shares: Iterable[Share]) -> bool:
    """True if all shared numbers, except labels and counts, are inputs or features of samples."""
    kinds = {share.discloses for share in shares if share.dtype.is_floating_point}
    return bool(kinds) and kinds <= {"inputs", "features"}
