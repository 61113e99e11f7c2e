"""One run as a site takes part in it: the method, the model and the trainer, built once and kept in memory;
and the slices of Parts that a request must bring, so that a slice made by other code of a Part is named
before it is used.

Letters: M metrics.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unskew.config import Settings
from unskew.core.client import Fed
from unskew.core.method import Method
from unskew.core.part import Part, overrides
from unskew.core.replies import Reply
from unskew.core.trees import Tree, Weights, flat_tree, tree_map
from unskew.core.trip import Trip
from unskew.core.user_parts import is_own
from unskew.data.samples.dataset import Dataset
from unskew.errors import UsageError, printable
from unskew.federation.protocol.study_rules import SiteView, check_noise, prepare, score_key, score_names
from unskew.federation.protocol.wire_format import StoredTensors
from unskew.federation.site.site_ledger import policy_refusal
from unskew.methods import registry
from unskew.privacy.secure_aggregation import SecureAggregation
from unskew.records.checkpoints import digest
from unskew.round.clients import Broadcast
from unskew.round.evaluation import Evaluation
from unskew.round.randomness import SystemSource
from unskew.round.trainer import Trainer
from unskew.runs import predictions
from unskew.runs.assemble import scoring_of, trainer_of
from unskew.runs.resolve import run_on
from unskew.scores import BY_CLASS

TensorForm = tuple[tuple[int, ...], torch.dtype]
"""The shape and type of a tensor."""

Reads = Mapping[str, Collection[str] | None]
"""By Part, which leaves of its slice a request brings; all of them where it says nothing, or None."""


class PartSlices:
    """What this site's own Parts begin with at the server. first: the weights before round 1."""

    def __init__(self, method: Method, fed: Fed, first: Weights):
        self.method, self.fed, self.first = method, fed, first

    @cached_property
    def _forms(self) -> dict[str, dict[str, TensorForm]]:
        """By Part, what it broadcasts; not of a Part that makes a slice for each client."""
        with torch.random.fork_rng(devices=[]):
            return {p.name: self._of(p) for p in self.method.parts if not overrides(p, "dispatch")}

    def _of(self, part: Part) -> dict[str, TensorForm]:
        try:  # without memory for a slice as large as the model
            tree = part.server_init({n: t.to("meta") for n, t in self.first.items()}, self.fed)
        except Exception:  # of a hook that looks at values
            tree = part.server_init(dict(self.first), self.fed)
        kept = {leaf: t for leaf, t in tree.items() if leaf not in part.keeps_at_server}
        return {path: (tuple(t.shape), t.dtype) for path, t in flat_tree(kept).items()}

    def _expected(self, part: Part, reads: Reads) -> Iterator[tuple[str, TensorForm]]:
        """What a request has to bring of this Part's slice."""
        only = reads.get(part.name)
        for path, form in self._forms.get(part.name, {}).items():
            if only is None or path.partition("/")[0] in only:
                yield path, form

    def check(self, down: Any, reads: Reads) -> None:
        """Raises UsageError (E504) for a slice that lacks a tensor, or holds one of another type or shape
        than it has here. A first axis may be of another length, as that of samples is which a method
        collects; of a user's own Part any axis."""
        if not isinstance(down, Mapping):
            raise UsageError("E310", "the request's slices are one tensor, expected some for each Part.")
        for part in self.method.parts:
            leaves = _leaves(down, part)
            for path, form in self._expected(part, reads) if part.name in down else ():
                if path not in leaves:
                    raise _mismatch(part, f"without '{path}', which it has at this site")
                if not is_own(part) and _inner(leaves[path]) != _inner_of(form):
                    raise _mismatch(
                        part, f"with '{path}' as {_shown(leaves[path])}; at this site it is {_form(*form)}"
                    )

    def explained(self, error: Exception, down: Any, reads: Reads) -> Exception:
        """What a request ended with, or (E504) that slices are not those that Parts here read, if that is
        why: a KeyError or an error of torch's says nothing of it."""
        is_known = isinstance(error, UsageError)
        cause = error.__cause__ if is_known else error
        is_lacking = isinstance(cause, KeyError)
        if not is_lacking and (is_known or not isinstance(cause, RuntimeError | IndexError | ValueError)):
            return error
        for part in self.method.parts:
            leaves = _leaves(down, part)
            for path, (shape, dtype) in self._expected(part, reads):
                if is_lacking and path not in leaves:
                    return _mismatch(part, f"without '{path}', which it has at this site")
                is_fixed = bool(shape) and shape[0] > 1  # what begins with none or one may grow
                if not is_lacking and is_fixed and path in leaves and tuple(leaves[path].shape) != shape:
                    text = (
                        f"with '{path}' as {_shown(leaves[path])}; at this site it is {_form(shape, dtype)}"
                    )
                    return _mismatch(part, text)
        return error


def _leaves(down: Any, part: Part) -> dict[str, Any]:
    """What a request holds of a Part's slice, by path."""
    sent = down.get(part.name, {}) if isinstance(down, Mapping) else {}
    return flat_tree(sent) if isinstance(sent, Mapping) else {}


def _mismatch(part: Part, text: str) -> UsageError:
    return UsageError(
        "E504",
        f"the coordinator sends the slice of '{part.name}' {text}; run the same version of it at both ends.",
    )


def _inner(value: Any) -> object:
    return _inner_of((tuple(value.shape), value.dtype)) if isinstance(value, Tensor) else None


def _inner_of(form: TensorForm) -> object:
    """A form without the length of its first axis."""
    shape, dtype = form
    return len(shape), shape[1:], dtype


def _shown(value: Any) -> str:
    return _form(tuple(value.shape), value.dtype) if isinstance(value, Tensor) else "no tensor"


def _form(shape: tuple[int, ...], dtype: torch.dtype) -> str:
    return f"{list(shape)} of {str(dtype).removeprefix('torch.')}"


@dataclass
class SiteRun:
    """k: this site's client id. first: the weights before round 1, among them those that never leave the
    server. described: what its samples are and how many, for whoever opens the model later. slices: what
    Parts begin with. facts: the study's settings, how many clients there are and how many samples the largest
    has, as the server sent them."""

    settings: Settings
    k: int
    method: Method
    trainer: Trainer
    scoring: Evaluation
    first: Weights
    described: Mapping[str, Any]
    slices: PartSlices
    facts: Mapping[str, Any]

    @property
    def secure(self) -> SecureAggregation | None:
        """How this site's replies are summed so that the coordinator sees the sum alone; None where it sees
        each."""
        return self.settings.secure

    @cached_property
    def set_up_with(self) -> str:
        """A digest of all that every site of the run is told alike when it is set up."""
        return digest(self.first, json.dumps(self.facts, sort_keys=True))

    def withheld(self, least: int) -> list[str]:
        """The metrics that stay here, because they are means over classes of which one has fewer test
        samples. least: how many must stand behind a number that leaves."""
        by_class = [metric.key for metric in self.trainer.fed.metrics if metric.key in BY_CLASS]
        return by_class if by_class and 0 < self._rarest < least else []

    def stays(self, least: int) -> list[str]:
        """The same as a line for the site's operator; none where nothing is withheld."""
        why = f"because a class or label has fewer than {least} test samples (least_samples)"
        return [f"{'':<20}stays here: {', '.join(names)}, {why}"] if (names := self.withheld(least)) else []

    @cached_property
    def _rarest(self) -> int:
        """The fewest test samples that a class has; of several labels a sample, that have a label or lack it.
        0 without any."""
        y = self.scoring.y[self.scoring.test[self.k]]
        counts = (
            np.concatenate([y.sum(0), len(y) - y.sum(0)])
            if y.dtype == bool
            else np.unique(y, return_counts=True)[1]
        )
        return int(min(counts[counts > 0], default=0))

    def scores(self, start: Broadcast, private: Tree, least: int) -> Tree:
        """Scores on this site's own test samples, by whose weights: scope -> [M].

        "global": with the weights as they came; "kept": with those that stay here; "personal": with what
        Parts make for this site. "SCOPE.METRIC", [1]: of each metric that the study names, where it is
        defined and not `withheld`.
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
                score_key(scope, m): torch.tensor([v], dtype=torch.float64)
                for m, v in scores.items()
                if m not in names and m not in withheld
            }
            return {scope: torch.tensor([scores[m] for m in names])} | beside

        return {path: t for tree in self.trainer.each(score, list(states)) for path, t in tree.items()}

    def visited(self, start: Broadcast, name: str, place: int, private: Tree) -> list[Reply]:
        """The client side of trip number `place` of the Part called `name`; empty if this site has no
        samples.

        private: what this site keeps, which is used if weights are among it. Raises UsageError: E310 for a
        trip that the method does not have, E520 in a round in which the Part makes no such trip: what was
        approved is what the method says, and when.
        """
        part, trip = self._trip(name, place)
        if not trip.when(start.t, self.settings.rounds):
            raise policy_refusal(f"'{name}' has nothing to ask after round {start.t}")
        states = {self.k: private} if self.trainer.kept else {}
        return self.trainer.visit(trip, part, start, [self.k], states)

    def reads(self, header: Mapping[str, Any]) -> Reads:
        """What a request of this header has to bring of slices. Raises UsageError (E310) as `visited`
        does."""
        if header["kind"] != "visit":
            return {}
        part, trip = self._trip(header["part"], header["trip"])
        return {part.name: trip.reads}

    def _trip(self, name: str, place: int) -> tuple[Part, Trip]:
        part = next((p for p in self.method.parts if p.name == name), None)
        if part is None or place >= len(part.trips):
            raise UsageError("E310", f"the study's method has no trip {place} of '{printable(name)[:64]}'.")
        return part, part.trips[place]

    def start(self, t: int, lr: float, tree: Tree) -> Broadcast:
        """What round t begins with, from what the server has sent. Weights on the disk stay there, if all
        were sent."""
        sent = tree.get("w", {})
        if isinstance(sent, StoredTensors) and self.first.keys() <= sent.keys():
            return Broadcast(t, lr, sent.in_order(self.first), tree.get("down", {}))
        return Broadcast(
            t, lr, {n: sent[n] if n in sent else self.first[n] for n in self.first}, tree.get("down", {})
        )

    def moved(self, tree: Tree) -> Tree:
        """The tensors on the device this site trains on; those on the disk may stay there."""
        return (
            tree if self.trainer.device.type == "cpu" else tree_map(lambda t: t.to(self.trainer.device), tree)
        )


def build_run(
    site: str, settings: Settings, data: Dataset, facts: Mapping[str, Any], first: Weights
) -> SiteRun:
    """settings: as the site runs them, its device included. facts: k, clients and largest, as the server
    sends them.

    Raises UsageError: E504 if the model differs from the server's, E506 if a guarantee would be false over a
    network.
    """
    method = registry.parse(settings.method, settings.set)
    view = SiteView.of(prepare(data, settings), facts["k"], facts["clients"], facts["largest"])
    run = run_on(view, settings, method)
    check_noise(method, run.fed)
    forms = {n: (tuple(t.shape), t.dtype) for n, t in run.fed.net.weights().items()}
    if forms != {n: (tuple(t.shape), t.dtype) for n, t in first.items()}:
        raise UsageError("E504", f"site {site} builds another model from '{settings.model}' than the server.")
    trainer = trainer_of(run)
    trainer.chance = (
        SystemSource()
    )  # for what a guarantee rests on; everything else is keyed, as in the simulator
    if trainer.device.type != "cpu":
        first = {n: first[n].to(trainer.device) for n in forms}
    summary = view.summary()
    own = {
        **summary["sizes"],
        "train": view.train.sizes[: len(summary["names"])].tolist(),
    }  # others' are bounds
    described = {"inputs": predictions.input_facts(view), "federation": {**summary, "sizes": own}}
    slices, of_all = (
        PartSlices(method, run.fed, first),
        {n: facts[n] for n in ("settings", "clients", "largest")},
    )
    return SiteRun(
        settings, facts["k"], method, trainer, scoring_of(trainer, view), first, described, slices, of_all
    )
