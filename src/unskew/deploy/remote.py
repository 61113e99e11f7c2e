"""The round's exchange over the wire: what the in-process trainer does, done by sites.

Letters: K sites, M metrics.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unskew.config import Settings
from unskew.core import gate
from unskew.core.part import Part, Share, Trip
from unskew.core.replies import Reply
from unskew.core.trees import Tree, Weights, flat, size_in_bytes
from unskew.deploy.post import POLL_S, Post
from unskew.deploy.roster import Hello
from unskew.deploy.wire import Limits, Packet
from unskew.engine.evaluate import Evaluation, _each, _means, _row, _summary
from unskew.engine.lanes import Start, Trainer
from unskew.engine.record import Record, Row
from unskew.engine.store import Disk
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
    _void: int = 0

    def __post_init__(self) -> None:
        self.device, self.sent, self.kept = self.local.device, self.local.sent, self.local.kept
        self.hooks = self.local.hooks
        self.first: Weights = self.local.fed.net.weights()
        w = self.first
        shares = {p: s for p, s in self.local.method.shares(self.local.fed).items() if s}
        self.spec = gate.Spec({n: tuple(w[n].shape) for n in self.sent}, shares, {n: w[n].dtype for n in self.sent})
        self.post.tell = self.tell

    def tell(self, t: int, code: str, text: str) -> None:
        self.record.add("events", [{"t": t, "code": code, "text": text}])

    def close(self) -> None:
        self.local.close()

    def train(self, start: Start, cohort: Sequence[int], private: Mapping[int, Tree]) -> list[Reply]:
        found = self._ask("train", start, cohort, {}, limits_of(self.spec))
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
        spec = gate.Spec({}, {part.name: trip.shares(self.local.fed)}, {})
        header = {"part": part.name, "trip": _place(trip, part)}
        found = self._ask("visit", start, ids, header, limits_of(spec))
        replies = [r for k, packet in found.items() if (r := self._reply(start.t, k, packet))]
        if start.t == 0 and len(replies) < self.min_sites:
            raise Paused("E206", f"before round 1 {len(replies)} sites answered; {self.min_sites} are needed.")
        return replies

    def scores(self, start: Start) -> dict[str, dict[int, Tensor]]:
        """scope -> site -> [M]: what sites say of the model on their own test rows, checked."""
        wanted = [k for k, hello in enumerate(self.hellos) if hello.test]
        names = metric_names(self.local)
        share = Share((len(names),), low=0, high=1, what="scores on the site's own test samples")
        found: dict[str, dict[int, Tensor]] = {"global": {}, "personal": {}}
        for k, packet in self._ask("score", start, wanted, {}, Limits(8 * len(names), 2)).items():
            for scope, values in packet.tree.items():
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
        self._charge_scores(start, found, wanted)
        return found

    def _charge_scores(self, start: Start, found: dict[str, dict[int, Tensor]], asked: list[int]) -> None:
        rows: list[Row] = []
        if asked:
            sent = size_in_bytes({n: start.weights[n] for n in self.sent}) + size_in_bytes(start.down)
            rows.append(_charge(start.t, "down", "w (to be scored)", asked, sent))
        for scope, values in found.items():
            if values:
                each = next(iter(values.values()))
                rows.append(_charge(start.t, "up", f"score/{scope}", list(values), each.numel() * each.element_size()))
        self.record.add("ledger", rows)

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
        n, loss, tree = packet.header.get("n"), packet.header.get("loss"), packet.tree
        if n == 0:
            return None
        shares = tree.get("shares", {})
        if set(tree) - {"w", "shares"} or not all(isinstance(v, dict) for v in (tree.get("w", {}), shares)):
            return self._formless(t, k)
        if not all(isinstance(v, dict) for v in shares.values()):
            return self._formless(t, k)
        size, said = (float(v) if isinstance(v, int | float) and abs(v) < 1e300 else float("nan") for v in (n, loss))
        return Reply(k, size, flat(tree.get("w", {})), shares, {}, said)

    def _formless(self, t: int, k: int) -> None:
        self.tell(
            t, "E303", f"{self.hellos[k].site} round {t}: the tensors have other names than a reply's. Reply dropped."
        )


@dataclass
class Scores:
    """Scoring of a run over the wire: sites score themselves; the server its own test set, if it has one."""

    remote: Remote
    own: Evaluation

    def rows(self, t: int, start: Start, store: Any, last: bool) -> list[Row]:
        """As in one process; without a test set at the server, `global` is the mean over the sites' test samples."""
        told = self.remote.scores(start)
        by_site = {scope: {k: self._named(v) for k, v in found.items()} for scope, found in told.items()}
        rows = [r for r in self.own.rows(t, start, store, last) if r["scope"] == "global"]
        here, personal = by_site["global"], by_site["personal"] or by_site["global"]
        if self.remote.kept and personal and self.remote.sent:
            rows = [_row(t, "global", m, v) for m, v in _means(personal).items()]
        elif here and not rows:
            rows = [_row(t, "global", m, v) for m, v in self._pooled(here).items()]
        for scope, values in (("global@client", here), ("personal@client", personal)):
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
    return list(fed.task.brief(one, one, fed.classes))


def limits_of(spec: gate.Spec) -> Limits:
    return Limits(spec.max_bytes, len(spec.weights) + sum(map(len, spec.shares.values())))


def _place(trip: Trip, part: Part) -> int:
    """Which of its Part's trips this is: a Part may make them anew each time it is asked, from the same functions."""
    return next(i for i, other in enumerate(part.trips) if _code(other.client) == _code(trip.client))


def _code(client: Any) -> Any:
    return getattr(client, "__code__", client)


def _charge(t: int, way: str, what: str, ids: list[int], size: int) -> Row:
    row = {"t": t, "way": way, "share": what, "clients": ids, "bytes": size}
    return row | {"reads": "each", "guarantee": "none"}
