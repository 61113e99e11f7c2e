"""One run as a site takes part in it: the method, the model and the trainer, built once and kept warm.

Letters: M metrics.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from unskew.config import Settings
from unskew.core.method import Method
from unskew.core.part import Part
from unskew.core.replies import Reply
from unskew.core.trees import Tree, Weights, tree_map
from unskew.core.trip import Trip
from unskew.data.dataset import Dataset
from unskew.deploy.federations import SitesView
from unskew.deploy.judging import named, score_names
from unskew.deploy.refusing import refusal
from unskew.deploy.shelf import Shelf
from unskew.deploy.slices import Reads, Slices
from unskew.deploy.studies import check_noise, prepared
from unskew.engine import predictions
from unskew.engine.assemble import scoring_of, trainer_of
from unskew.engine.chance import System
from unskew.engine.client.trainer import Trainer
from unskew.engine.client.values import Start
from unskew.engine.disk.state import digest
from unskew.engine.resolve import run_on
from unskew.engine.server.scores import Evaluation
from unskew.errors import UsageError, printable
from unskew.methods import registry
from unskew.privacy import secure
from unskew.privacy.secure import SecureAggregation
from unskew.scores import BY_CLASS


@dataclass
class SiteRun:
    """k: this site's client id. first: the weights before round 1, among them those that never leave the server. described:
    what its samples are and how many, for whoever opens the model later. slices: what Parts begin with. facts: the study's
    settings, how many clients there are and how many samples the largest has, as the server sent them."""

    settings: Settings
    k: int
    method: Method
    trainer: Trainer
    scoring: Evaluation
    first: Weights
    described: Mapping[str, Any]
    slices: Slices
    facts: Mapping[str, Any]

    @property
    def secure(self) -> SecureAggregation | None:
        """How this site's replies are summed so that the coordinator sees the sum alone; None where it sees each."""
        return secure.parse(self.settings.secure_aggregation)

    @cached_property
    def set_up_with(self) -> str:
        """A digest of all that every site of the run is told alike when it is set up."""
        return digest(self.first, json.dumps(self.facts, sort_keys=True))

    def withheld(self, least: int) -> list[str]:
        """The metrics that stay here, because they are means over classes of which one has fewer test samples. least: how many
        must stand behind a number that leaves."""
        by_class = [metric.key for metric in self.trainer.fed.metrics if metric.key in BY_CLASS]
        return by_class if by_class and 0 < self._rarest < least else []

    def stays(self, least: int) -> list[str]:
        """The same as a line for the site's operator; none where nothing is withheld."""
        why = f"because a class or label has fewer than {least} test samples (least_samples)"
        return [f"{'':<20}stays here: {', '.join(names)}, {why}"] if (names := self.withheld(least)) else []

    @cached_property
    def _rarest(self) -> int:
        """The fewest test samples that a class has; of several labels a sample, that have a label or lack it. 0 without any."""
        y = self.scoring.y[self.scoring.test[self.k]]
        counts = (
            np.concatenate([y.sum(0), len(y) - y.sum(0)]) if y.dtype == bool else np.unique(y, return_counts=True)[1]
        )
        return int(min(counts[counts > 0], default=0))

    def scores(self, start: Start, private: Tree, least: int) -> Tree:
        """Scores on this site's own test samples, by whose weights: scope -> [M].

        "global": with the weights as they came; "kept": with those that stay here; "personal": with what Parts make
        for this site. "SCOPE.METRIC", [1]: of each metric that the study names, where it is defined and not `withheld`.
        """
        if not len(self.scoring.test[self.k]):
            return {}
        withheld = self.withheld(least)
        states = {"global": {}} if self.trainer.sent else {}
        if self.trainer.keeps_model and (private or not self.trainer.kept):
            states = {"kept": private}
        if self.scoring.own_weights and (private or not self.trainer.kept):
            states["personal"] = private

        def score(scope: str) -> Tree:
            scores = self.scoring.client_scores(self.k, start, states[scope], own=scope == "personal")
            names = score_names(self.trainer.fed)
            beside = {
                named(scope, m): torch.tensor([v], dtype=torch.float64)
                for m, v in scores.items()
                if m not in names and m not in withheld
            }
            return {scope: torch.tensor([scores[m] for m in names])} | beside

        return {path: t for tree in self.trainer.each(score, list(states)) for path, t in tree.items()}

    def visited(self, start: Start, name: str, place: int, private: Tree) -> list[Reply]:
        """The client side of trip number `place` of the Part called `name`; empty if this site has no samples.

        private: what this site keeps, which is used if weights are among it. Raises UsageError: E310 for a trip that the
        method does not have, E520 in a round in which the Part makes no such trip: what was approved is what the method
        says, and when.
        """
        part, trip = self._trip(name, place)
        if not trip.when(start.t, self.settings.rounds):
            raise refusal(f"'{name}' has nothing to ask after round {start.t}")
        states = {self.k: private} if self.trainer.kept else {}
        return self.trainer.visit(trip, part, start, [self.k], states)

    def reads(self, header: Mapping[str, Any]) -> Reads:
        """What a request of this header has to bring of slices. Raises UsageError (E310) as `visited` does."""
        if header["kind"] != "visit":
            return {}
        part, trip = self._trip(header["part"], header["trip"])
        return {part.name: trip.reads}

    def _trip(self, name: str, place: int) -> tuple[Part, Trip]:
        part = next((p for p in self.method.parts if p.name == name), None)
        if part is None or place >= len(part.trips):
            raise UsageError("E310", f"the study's method has no trip {place} of '{printable(name)[:64]}'.")
        return part, part.trips[place]

    def start(self, t: int, lr: float, tree: Tree) -> Start:
        """What round t begins with, from what the server has sent. Weights on the disk stay there, if all were sent."""
        sent = tree.get("w", {})
        if isinstance(sent, Shelf) and self.first.keys() <= sent.keys():
            return Start(t, lr, sent.in_order(self.first), tree.get("down", {}))
        return Start(t, lr, {n: sent[n] if n in sent else self.first[n] for n in self.first}, tree.get("down", {}))

    def moved(self, tree: Tree) -> Tree:
        """The tensors on the device this site trains on; those on the disk may stay there."""
        return tree if self.trainer.device.type == "cpu" else tree_map(lambda t: t.to(self.trainer.device), tree)


def build(site: str, settings: Settings, data: Dataset, facts: Mapping[str, Any], first: Weights) -> SiteRun:
    """settings: as the site runs them, its device included. facts: k, clients and largest, as the server sends them.

    Raises UsageError: E504 if the model differs from the server's, E506 if a guarantee would be false over a network.
    """
    method = registry.parse(settings.method, settings.set)
    view = SitesView.of(prepared(data, settings), facts["k"], facts["clients"], facts["largest"])
    run = run_on(view, settings, method)
    check_noise(method, run.fed)
    forms = {n: (tuple(t.shape), t.dtype) for n, t in run.fed.net.weights().items()}
    if forms != {n: (tuple(t.shape), t.dtype) for n, t in first.items()}:
        raise UsageError("E504", f"site {site} builds another model from '{settings.model}' than the server.")
    trainer = trainer_of(run)
    trainer.chance = System()  # for what a guarantee rests on; everything else is keyed, as in the simulator
    if trainer.device.type != "cpu":
        first = {n: first[n].to(trainer.device) for n in forms}
    summary = view.summary()
    own = {**summary["sizes"], "train": view.train.sizes[: len(summary["names"])].tolist()}  # others' are bounds
    described = {"inputs": predictions.facts(view), "federation": {**summary, "sizes": own}}
    slices, of_all = Slices(method, run.fed, first), {n: facts[n] for n in ("settings", "clients", "largest")}
    return SiteRun(settings, facts["k"], method, trainer, scoring_of(trainer, view), first, described, slices, of_all)
