"""The round's exchange over the wire: what the in-process trainer does, done by sites.

Letters: K sites, M metrics.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unskew.config import Settings
from unskew.core import gate
from unskew.core.part import Part, Trip
from unskew.core.replies import Reply
from unskew.core.trees import Tree, Weights, flat, size_in_bytes
from unskew.core.values import Share
from unskew.deploy.post import POLL_S, Post
from unskew.deploy.roster import Hello
from unskew.deploy.wire import Limits, Packet
from unskew.engine.client.trainer import Trainer
from unskew.engine.client.values import Start
from unskew.engine.disk.record import Record, Row
from unskew.engine.disk.store import Disk
from unskew.engine.server.loop import due, rate
from unskew.engine.server.scores import Evaluation, _each, _means, _row, _summary
from unskew.errors import Paused

VOID_ROUNDS = 3
"""So many rounds in a row with too few answers, and the run pauses rather than burn the rest."""


class Away(Disk):
    """Private state stays at the sites: here only which round each one's counted state is of."""

    def __init__(self, folder: Path, index: Mapping[int, int] | None = None):
        super().__init__(folder, index)

    def fetch(self, clients: Iterable[int]) -> dict[int, Tree]:
        return {}

    def put(self, t: int, found: Mapping[int, Tree]) -> None:
        self.index |= dict.fromkeys(found, t)

    def sweep(self, *also: Mapping[int, int]) -> None:
        """Sites remove their own files."""


@dataclass
class Remote:
    """An Exchange whose clients are sites. `local` is the server's own trainer, which has a model and no samples.

    min_sites: with fewer replies a round is void. hellos: the sites in the order of client ids.
    """

    local: Trainer
    post: Post
    hellos: Sequence[Hello]
    settings: Settings
    store: Disk
    record: Record
    min_sites: int = 1
    ready: set[str] = field(default_factory=set)
    scored: Callable[[int, dict[str, dict[int, Tensor]]], list[Row]] = lambda t, told: []
    """Metric rows of round t from what sites say; `Scores` sets it."""
    _void: int = 0
    _early: list[Reply] = field(default_factory=list)
    """Of this round's training: what early trips ask for, by Part in `shares`."""

    def __post_init__(self) -> None:
        self.device, self.sent, self.kept = self.local.device, self.local.sent, self.local.kept
        self.hooks = self.local.hooks
        self.first: Weights = self.local.fed.net.weights()
        w = self.first
        shares = {p: s for p, s in self.local.method.shares(self.local.fed).items() if s}
        self.spec = gate.Spec({n: tuple(w[n].shape) for n in self.sent}, shares, {n: w[n].dtype for n in self.sent})
        self._say, self.post.tell = self.post.tell, self.tell

    def tell(self, t: int, code: str, text: str) -> None:
        self.record.add("events", [{"t": t, "code": code, "text": text}])
        self._say(t, code, text)

    def close(self) -> None:
        self.local.close()

    def train(self, start: Start, cohort: Sequence[int], private: Mapping[int, Tree]) -> list[Reply]:
        """One exchange: the weights that go down are scored, too, where the last round's scores are due."""
        early = [(p, trip) for p, trip in due(self.local.method, start.t, self.settings.rounds) if trip.early]
        shares = {p.name: trip.shares(self.local.fed) for p, trip in early}
        scoring, limits = self._before(start), limits_of(self.spec) + limits_of(gate.Spec({}, shares, {}))
        header: dict[str, Any] = {"early": [[p.name, _place(trip, p)] for p, trip in early]} if early else {}
        if scoring:
            header["score"], limits = scoring.lr, limits + self._score_limits
        found = self._ask("train", start, cohort, header, limits)
        said = {k: packet.tree.pop("score", {}) for k, packet in found.items()}
        if scoring:
            self._write_scores(scoring, cohort, said)
        self._early = self._early_of(start.t, found)
        replies = [r for k, packet in found.items() if (r := self._reply(start.t, k, packet))]
        if len(replies) >= self.min_sites:
            self._void = 0
            return replies
        self._void += 1
        text = f"{len(replies)} of {len(cohort)} sites answered; {self.min_sites} are needed."
        if self._void >= VOID_ROUNDS:
            raise Paused(
                "E206", f"{text} That is round {start.t}, the {VOID_ROUNDS}rd in a row: paused; the last is saved."
            )
        self.tell(start.t, "E313", f"round {start.t}: {text} Round skipped, model unchanged.")
        return []

    def visit(
        self, trip: Trip, part: Part, start: Start, ids: Sequence[int], private: Mapping[int, Tree]
    ) -> list[Reply]:
        if trip.early and start.t:
            said = [r for r in self._early if r.client in ids and part.name in r.shares]
            return [replace(r, shares={part.name: r.shares[part.name]}) for r in said]
        spec = gate.Spec({}, {part.name: trip.shares(self.local.fed)}, {})
        header = {"part": part.name, "trip": _place(trip, part)}
        found = self._ask("visit", start, ids, header, limits_of(spec))
        replies = [r for k, packet in found.items() if (r := self._reply(start.t, k, packet))]
        if start.t == 0 and len(replies) < self.min_sites:
            raise Paused("E206", f"before round 1 {len(replies)} sites answered; {self.min_sites} are needed.")
        return replies

    def _early_of(self, t: int, found: Mapping[int, Packet]) -> list[Reply]:
        """What came for early trips, for the gate to check; `n` is the training's."""
        said = []
        for k, packet in found.items():
            tree = packet.tree.pop("early", {})
            if isinstance(tree, dict) and all(isinstance(v, dict) for v in tree.values()):
                said.append(Reply(k, _size(packet), {}, tree, {}, 0.0))
            else:
                self._formless(t, k)
        return said

    def _write_scores(self, scoring: Start, cohort: Sequence[int], said: Mapping[int, Any]) -> None:
        """Metric rows of the round before; sites that did not train in this one are asked for theirs."""
        on_the_way = [k for k in cohort if self.hellos[k].train]
        told = self._checked(scoring, {k: said[k] for k in on_the_way if k in said})
        others = self.scores(scoring, [k for k in range(len(self.hellos)) if k not in on_the_way])
        both = {scope: dict(sorted({**values, **others[scope]}.items())) for scope, values in told.items()}
        self.record.add("metrics", self.scored(scoring.t, both))

    def _before(self, start: Start) -> Start | None:
        """The last round's state, if its scores are due and sites can give them; the same weights are about to go down."""
        t = start.t - 1
        if t % self.settings.eval_every or not any(h.test for h in self.hellos):
            return None
        return replace(start, t=t, lr=rate(self.settings, t))

    @property
    def _score_limits(self) -> Limits:
        return Limits(8 * len(metric_names(self.local)), 2)

    def scores(self, start: Start, ids: Sequence[int]) -> dict[str, dict[int, Tensor]]:
        """scope -> site -> [M]: what those sites that have test rows say of the model on them, checked; one exchange."""
        wanted = [k for k in ids if self.hellos[k].test]
        if wanted:
            sent = size_in_bytes({n: start.weights[n] for n in self.sent}) + size_in_bytes(start.down)
            self.record.add("ledger", [_charge(start.t, "down", "w (to be scored)", wanted, sent)])
        found = self._ask("score", start, wanted, {}, self._score_limits)
        return self._checked(start, {k: packet.tree for k, packet in found.items()})

    def _checked(self, start: Start, said: Mapping[int, Any]) -> dict[str, dict[int, Tensor]]:
        """Scores of the right form; what is not is dropped and told."""
        share = Share((len(metric_names(self.local)),), low=0, high=1, what="scores on the site's own test samples")
        found: dict[str, dict[int, Tensor]] = {"global": {}, "personal": {}} | ({"kept": {}} if self.kept else {})
        for k, tree in said.items():
            for scope, values in tree.items() if isinstance(tree, dict) else [("?", tree)]:
                problem = (
                    ("E303", f"'score/{scope}' was not asked for.")
                    if scope not in found or not isinstance(values, Tensor)
                    else gate._leaf_problem(f"score/{scope}", values, share)
                )
                if problem:
                    self.tell(
                        start.t, problem[0], f"{self.hellos[k].site} round {start.t}: {problem[1]} Score dropped."
                    )
                else:
                    found[scope][k] = values
        for scope, values in found.items():
            if values:
                each = next(iter(values.values()))
                size = each.numel() * each.element_size()
                self.record.add("ledger", [_charge(start.t, "up", f"score/{scope}", list(values), size)])
        return found

    def _ask(
        self, kind: str, start: Start, ids: Sequence[int], header: dict[str, Any], limits: Limits
    ) -> dict[int, Packet]:
        """By client id, ascending. Sites that are not set up for this run are, first."""
        ids = [k for k in ids if self.hellos[k].train or kind == "score"]
        if not ids:
            return {}
        self._gather(min(self.min_sites, len(ids)))
        self._set_up([k for k in ids if self.hellos[k].site not in self.ready])
        down = {n: t for n, t in start.weights.items() if n in self.sent or not torch.equal(t, self.first[n])}
        tree: Tree = ({"w": down} if down else {}) | ({"down": start.down} if flat(start.down) else {})
        asked = {}
        for k in ids:
            if self.hellos[k].site in self.ready:
                base = self.store.index.get(k, 0)
                asked[self.hellos[k].site] = (header | {"lr": start.lr, "base": base}, tree)
        found = self.post.ask(kind, start.t, asked, limits)
        self.ready &= set(found) | (self.ready - set(asked))  # whoever failed is set up anew before it is asked again
        return {k: found[self.hellos[k].site] for k in ids if self.hellos[k].site in found}

    def _gather(self, least: int) -> None:
        """Wait for sites that are away, at most a deadline long, and greet nodes that are new."""
        until = time.monotonic() + self.post.deadline_s
        while True:
            for hello in self.post.greet(self.settings.as_dict()).values():
                self._back(hello)
            there = set(self.post.channel.nodes())
            here = sum(self.post.at.get(h.site) in there for h in self.hellos)
            if here >= least or time.monotonic() >= until:
                return
            time.sleep(POLL_S)

    def _back(self, hello: Hello) -> None:
        """A site that came later or anew: not asked unless it holds what it held when the run began."""
        before = {h.site: h for h in self.hellos}.get(hello.site)
        if before is None:
            self.tell(0, "E504", f"{hello.site} came after the run began; it takes part in the next one.")
        elif hello != before:
            self.tell(0, "E504", f"{hello.site} says other things of its data or versions than when the run began.")
        else:
            self.ready.discard(hello.site)
            return
        self.post.at.pop(hello.site)

    def _set_up(self, ids: Sequence[int]) -> None:
        largest = max(h.train for h in self.hellos)
        facts = {"settings": self.settings.as_dict(), "clients": len(self.hellos), "largest": largest}
        there = set(self.post.channel.nodes())
        asked = {
            self.hellos[k].site: (facts | {"k": k}, {"w": self.first})
            for k in ids
            if self.post.at.get(self.hellos[k].site) in there
        }
        self.ready |= set(self.post.ask("setup", 0, asked, Limits(0, 0))) if asked else set()

    def _reply(self, t: int, k: int, packet: Packet) -> Reply | None:
        """What the gate then checks; None if the site has nothing to say, or says it in no form there is."""
        loss, tree = packet.header.get("loss"), packet.tree
        if packet.header.get("n") == 0:
            return None
        shares = tree.get("shares", {})
        if set(tree) - {"w", "shares"} or not all(isinstance(v, dict) for v in (tree.get("w", {}), shares)):
            return self._formless(t, k)
        if not all(isinstance(v, dict) for v in shares.values()):
            return self._formless(t, k)
        return Reply(k, _size(packet), flat(tree.get("w", {})), shares, {}, _number(loss))

    def _formless(self, t: int, k: int) -> None:
        self.tell(
            t, "E303", f"{self.hellos[k].site} round {t}: the tensors have other names than a reply's. Reply dropped."
        )


@dataclass
class Scores:
    """Scoring of a run over the wire: sites score themselves; the server its own test set, if it has one.

    A round's scores come with the next round's training, whose sites get the same weights; the last round's by
    themselves. Then the rows are written that `rows` had to leave out.
    """

    remote: Remote
    own: Evaluation

    def __post_init__(self) -> None:
        self.remote.scored = self._told
        keep = self.remote.kept and self.remote.sent and any(h.test for h in self.remote.hellos)
        self.server_scores = bool(len(self.own.y)) and not keep
        """Whether `global` is the score of the server's test set."""

    def rows(self, t: int, start: Start, store: Any, last: bool) -> list[Row]:
        """As in one process; without a test set at the server, `global` is the mean over the sites' test samples."""
        rows = [r for r in self.own.rows(t, start, store, last) if r["scope"] == "global"] if self.server_scores else []
        return rows + (self._told(t, self.remote.scores(start, range(len(self.remote.hellos)))) if last else [])

    def _told(self, t: int, told: dict[str, dict[int, Tensor]]) -> list[Row]:
        by_site = {scope: {k: self._named(v) for k, v in found.items()} for scope, found in told.items()}
        kept = by_site.get("kept", {})
        here = kept or by_site["global"]
        personal = by_site["personal"] or here
        rows: list[Row] = []
        if self.remote.sent and not self.server_scores:
            scores = _means(kept) if kept else self._pooled(here) if here else {}
            rows = [_row(t, "global", m, v) for m, v in scores.items()]
        scopes = {"global@client": here} if self.remote.sent else {}
        for scope, values in (scopes | {"personal@client": personal}).items():
            rows += _summary(t, scope, values) + _each(t, scope, values)
        return rows

    def _named(self, values_M: Tensor) -> dict[str, float]:
        return dict(zip(metric_names(self.remote.local), values_M.tolist()))

    def _pooled(self, values: dict[int, dict[str, float]]) -> dict[str, float]:
        n = np.array([self.remote.hellos[k].test for k in values], dtype=float)
        share = n / n.sum()
        return {
            m: float(sum(s * v[m] for s, v in zip(share, values.values()))) for m in metric_names(self.remote.local)
        }


def metric_names(trainer: Trainer) -> list[str]:
    """What a task tells of a single client, in order."""
    fed = trainer.fed
    one = np.zeros((1, *fed.task.pixels(fed.shape)), np.int64)
    return list(fed.task.client_scores(one, one, fed.classes))


def limits_of(spec: gate.Spec) -> Limits:
    return Limits(spec.max_bytes, len(spec.weights) + sum(map(len, spec.shares.values())))


def _place(trip: Trip, part: Part) -> int:
    """Which of its Part's trips this is: a Part may make them anew each time it is asked, from the same functions."""
    return next(i for i, other in enumerate(part.trips) if _code(other.client) == _code(trip.client))


def _code(client: Any) -> Any:
    return getattr(client, "__code__", client)


def _size(packet: Packet) -> float:
    return _number(packet.header.get("n"))


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and abs(value) < 1e300 else float("nan")


def _charge(t: int, way: str, what: str, ids: list[int], size: int) -> Row:
    row = {"t": t, "way": way, "share": what, "clients": ids, "bytes": size}
    return row | {"reads": "each", "guarantee": "none"}
