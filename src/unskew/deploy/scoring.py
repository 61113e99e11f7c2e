"""Scores of a run over a network: each site scores itself, the server its own test set if it has one.

The weights that go down for a round are those whose scores the round before is owed, so sites score them on the way and
that round's metrics are written then. Only the last round's scores need an exchange of their own.

Letters: M metrics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from unskew import many
from unskew.core import gate
from unskew.core.trees import size_in_bytes
from unskew.core.values import Share
from unskew.deploy.attendance import Attendance
from unskew.deploy.judging import named, score_names
from unskew.deploy.wire import Limits, Packet
from unskew.engine.client.values import Start
from unskew.engine.disk.lines import Row
from unskew.engine.disk.record import Record
from unskew.engine.disk.store import Store
from unskew.engine.server.rows import client_rows, pooled, row, summary_rows
from unskew.engine.server.scores import Evaluation
from unskew.scores import kind

MOST_SCORE = 1e100
"""No score is larger than this: sums over sites must stay finite, or the run's files would hold what is no number."""
Answers = dict[str, dict[int, Tensor]]
"""Scope ("global", "kept" or "personal") -> client -> [M]; "SCOPE.METRIC" -> client -> [1], where it is defined there."""


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
        scopes, beside = ("global", "kept", "personal"), [metric.key for metric in fed.metrics]
        self.beside = {named(scope, m): (scope, m) for scope in scopes for m in beside}
        """By the name that it has among a site's scores, whose weights a metric that the study names is of, and which it is."""
        self.limits = Limits(8 * len(self.metrics) + 16 * len(beside), 2 + 2 * len(beside))
        """The most that the scores of a site take."""
        nobody_uses_the_servers = local.keeps_model and local.sent and any(h.test for h in hellos)
        self.server_scores = bool(len(self.own.y)) and not nobody_uses_the_servers
        """Whether `global` is the score of the server's test set."""

    def rows(self, t: int, start: Start, store: Store, last: bool) -> list[Row]:
        """Metric rows of the server's test set; after the last round also those of the sites, which are asked here."""
        rows = [r for r in self.own.rows(t, start, store, last) if r["scope"] == "global"] if self.server_scores else []
        return rows + (self._site_rows(t, self._ask(start, range(len(self.sites.hellos)))) if last else [])

    def due(self, start: Start) -> Start | None:
        """The state of the round before, whose weights are about to go down, if its scores are due."""
        t = start.t - 1
        if t % self.sites.settings.eval_every or not any(h.test for h in self.sites.hellos):
            return None
        return replace(start, t=t, lr=self.sites.settings.lr_in(t))

    def write(self, scored: Start, cohort: Sequence[int], answers: Mapping[int, Any]) -> None:
        """Write the metrics of the round before. answers: of the cohort; sites that did not train are asked here."""
        hellos = self.sites.hellos
        trained = [k for k in cohort if hellos[k].train]
        by_scope = self._checked(scored, {k: answers[k] for k in trained if k in answers})
        others = self._ask(scored, [k for k in range(len(hellos)) if k not in trained])
        both = {scope: dict(sorted({**values, **others[scope]}.items())) for scope, values in by_scope.items()}
        self.record.add("metrics", self._site_rows(scored.t, both))

    def unasked(self, t: int, answers: Mapping[int, Any]) -> None:
        """Write down scores that nobody has asked for. answers: by client, what came in their place."""
        for k, tree in answers.items():
            if size := size_in_bytes({"score": tree}):
                self._charge(t, "up", "score", [k], size, dropped=True)

    def _ask(self, start: Start, ids: Sequence[int]) -> Answers:
        """The checked scores of those sites that have test samples; one exchange."""
        asked = [k for k in ids if self.sites.hellos[k].test]
        if asked:
            weights = size_in_bytes({n: start.weights[n] for n in self.sites.local.sent})
            self._charge(start.t, "down", "w (to be scored)", asked, weights + size_in_bytes(start.to(asked[0]).down))
        packets: dict[int, Packet] = self.sites.ask("score", start, asked, {}, self.limits)
        return self._checked(start, {k: packet.tree for k, packet in packets.items()})

    def _checked(self, start: Start, answers: Mapping[int, Any]) -> Answers:
        """The scores that have the declared form; the others are dropped and their sites named."""
        by_scope: Answers = {"global": {}, "personal": {}} | ({"kept": {}} if self.sites.local.keeps_model else {})
        by_scope |= {name: {} for name, (scope, _) in self.beside.items() if scope in by_scope}
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

    def _beside(self, answers: Answers, scope: str, k: int) -> dict[str, float]:
        """The metrics that the study names, as site k gave them; those that are undefined there are not among them."""
        mine = {m: answers[name] for name, (of, m) in self.beside.items() if of == scope and name in answers}
        return {m: float(values[k]) for m, values in mine.items() if k in values}

    def _problem(self, scope: str, values: Any, by_scope: Answers) -> tuple[str, str] | None:
        """A code and a sentence, unless these are scores in their bounds of a scope that was asked for."""
        if scope not in by_scope or not isinstance(values, Tensor):
            return "E303", f"'score/{scope}' was not asked for."
        low, high = self.sites.local.fed.task.bounds
        share = Share((len(self.metrics),), low=low, high=high)
        if scope in self.beside:
            low, high = (0.0, 1.0) if kind(self.beside[scope][1]).share else (-MOST_SCORE, MOST_SCORE)
            share = Share((1,), torch.float64, low, high)
        return gate.leaf_problem(f"score/{scope}", values, share)

    def _charge(self, t: int, way: str, what: str, ids: list[int], size: int, **more: bool) -> None:
        facts = {"t": t, "way": way, "share": what, "clients": many.written(ids), "bytes": size}
        disclosed = {"kind": "statistics", "samples": "client"} if way == "up" else {}
        self.record.add("ledger", [facts | {"reads": "each", "guarantee": "none"} | disclosed | more])

    def _site_rows(self, t: int, answers: Answers) -> list[Row]:
        """As in one process; without a test set at the server, `global` is the mean over the sites' test samples."""
        by_site = {
            scope: {k: dict(zip(self.metrics, v.tolist())) | self._beside(answers, scope, k) for k, v in values.items()}
            for scope, values in answers.items()
            if scope not in self.beside
        }
        kept = by_site.get("kept", {})
        on_clients = kept or by_site["global"]
        personal = by_site["personal"] or on_clients
        rows: list[Row] = []
        if self.sites.local.sent and not self.server_scores and on_clients:
            scores = pooled(self.sites.local.fed, on_clients, {k: self.sites.hellos[k].test for k in on_clients})
            rows = [row(t, "global", metric, value) for metric, value in scores.items()]
        scopes = {"global@client": on_clients} if self.sites.local.sent else {}
        for scope, values in (scopes | {"personal@client": personal}).items():
            rows += summary_rows(t, scope, values) + client_rows(t, scope, values)
        return rows
