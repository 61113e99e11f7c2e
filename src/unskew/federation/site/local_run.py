"""One run as a site takes part in it: the method, the model and the trainer, built once and kept in memory.

It also checks the slices of Parts that a request must contain, so that a slice made by another version of a
Part is reported before it is used.

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
    """The initial slices of this site's own Parts at the server. first: the weights before round 1."""

    def __init__(self, method: Method, fed: Fed, first: Weights):
        self.method, self.fed, self.first = method, fed, first

    @cached_property
    def _forms(self) -> dict[str, dict[str, TensorForm]]:
        """The form of each broadcast tensor by Part, without Parts that make a slice for each client."""
        with torch.random.fork_rng(devices=[]):
            return {p.name: self._slice_forms(p) for p in self.method.parts if not overrides(p, "dispatch")}

    def _slice_forms(self, part: Part) -> dict[str, TensorForm]:
        try:  # without memory for a slice as large as the model
            tree = part.server_init({n: t.to("meta") for n, t in self.first.items()}, self.fed)
        except Exception:  # of a hook that looks at values
            tree = part.server_init(dict(self.first), self.fed)
        sent_leaves = {leaf: t for leaf, t in tree.items() if leaf not in part.keeps_at_server}
        return {path: (tuple(t.shape), t.dtype) for path, t in flat_tree(sent_leaves).items()}

    def _expected(self, part: Part, reads: Reads) -> Iterator[tuple[str, TensorForm]]:
        """The tensors that a request must contain of this Part's slice."""
        only = reads.get(part.name)
        for path, form in self._forms.get(part.name, {}).items():
            if only is None or path.partition("/")[0] in only:
                yield path, form

    def check(self, down: Any, reads: Reads) -> None:
        """Raises UsageError (E504) for a slice with a missing tensor, or one of another type or shape than at
        this site.

        The first axis may have another length, such as the number of samples that a method collects; in a
        user's own Part every axis may.
        """
        if not isinstance(down, Mapping):
            raise UsageError("E310", "the request's slices are one tensor, expected some for each Part.")
        for part in self.method.parts:
            leaves = _leaves(down, part)
            for path, form in self._expected(part, reads) if part.name in down else ():
                if path not in leaves:
                    raise _mismatch(part, f"without '{path}', which it has at this site")
                if not is_own(part) and _inner(leaves[path]) != _inner_of(form):
                    raise _mismatch(
                        part,
                        f"with '{path}' as {_tensor_form(leaves[path])}; at this site it is {_form(*form)}",
                    )

    def explain(self, error: Exception, down: Any, reads: Reads) -> Exception:
        """The error, or UsageError (E504) if it was caused by slices that do not fit the Parts at this
        site.
        """
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
                    text = f"with '{path}' as {_tensor_form(leaves[path])}"
                    return _mismatch(part, f"{text}; at this site it is {_form(shape, dtype)}")
        return error


def _leaves(down: Any, part: Part) -> dict[str, Any]:
    """The tensors of a Part's slice in a request, by path."""
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


def _tensor_form(value: Any) -> str:
    return _form(tuple(value.shape), value.dtype) if isinstance(value, Tensor) else "no tensor"


def _form(shape: tuple[int, ...], dtype: torch.dtype) -> str:
    return f"{list(shape)} of {str(dtype).removeprefix('torch.')}"


@dataclass
class SiteRun:
    """A run at a site.

    k: this site's client id. first: the weights before round 1, including those that never leave the
    server. described: form and number of the samples, stored with the model. slices: initial slices of
    Parts. facts: the study's settings, the number of clients and the largest client's samples, as sent by
    the server.
    """

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
        """The secure aggregation of replies; None if the coordinator sees each reply."""
        return self.settings.secure

    @cached_property
    def set_up_with(self) -> str:
        """A digest of the setup that all sites of the run have in common."""
        return digest(self.first, json.dumps(self.facts, sort_keys=True))

    def withheld(self, least: int) -> list[str]:
        """The metrics that stay at the site: means over classes, if a class has fewer than `least` test
        samples.
        """
        by_class = [metric.key for metric in self.trainer.fed.metrics if metric.key in BY_CLASS]
        return by_class if by_class and 0 < self._fewest_samples < least else []

    def stays(self, least: int) -> list[str]:
        """A line for the site's operator about withheld metrics; none if no metric is withheld."""
        why = f"because a class or label has fewer than {least} test samples (least_samples)"
        return [f"{'':<20}stays here: {', '.join(names)}, {why}"] if (names := self.withheld(least)) else []

    @cached_property
    def _fewest_samples(self) -> int:
        """The fewest test samples of a class that has any; for several labels, the fewest with or without a
        label. 0 without samples.
        """
        y = self.scoring.y[self.scoring.test[self.k]]
        counts = (
            np.concatenate([y.sum(0), len(y) - y.sum(0)])
            if y.dtype == bool
            else np.unique(y, return_counts=True)[1]
        )
        return int(min(counts[counts > 0], default=0))

    def scores(self, start: Broadcast, private: Tree, least: int) -> Tree:
        """Scores on this site's own test samples: scope -> [M].

        "global": with the received weights; "kept": with the weights that stay here; "personal": with the
        weights that Parts make for this site. "SCOPE.METRIC", [1]: each metric that the study names, if it
        is defined and not withheld.
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
            named_scores = {
                score_key(scope, m): torch.tensor([v], dtype=torch.float64)
                for m, v in scores.items()
                if m not in names and m not in withheld
            }
            return {scope: torch.tensor([scores[m] for m in names])} | named_scores

        return {path: t for tree in self.trainer.each(score, list(states)) for path, t in tree.items()}

    def visit_trip(self, start: Broadcast, name: str, place: int, private: Tree) -> list[Reply]:
        """The client side of trip number `place` of a Part; empty if this site has no samples.

        private: this site's private state, used if it contains weights. Raises UsageError: E310 for an
        unknown trip, E520 in a round in which the Part does not make the trip, because the approval covers
        the method's own schedule.
        """
        part, trip = self._trip(name, place)
        if not trip.when(start.t, self.settings.rounds):
            raise policy_refusal(f"'{name}' has nothing to ask after round {start.t}")
        states = {self.k: private} if self.trainer.kept else {}
        return self.trainer.visit(trip, part, start, [self.k], states)

    def reads(self, header: Mapping[str, Any]) -> Reads:
        """The leaves of slices that a request must contain. Raises UsageError (E310) for an unknown trip."""
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
        """The broadcast of round t from the server's tree. Weights in a file stay there if all were sent."""
        sent = tree.get("w", {})
        if isinstance(sent, StoredTensors) and self.first.keys() <= sent.keys():
            return Broadcast(t, lr, sent.in_order(self.first), tree.get("down", {}))
        return Broadcast(
            t, lr, {n: sent[n] if n in sent else self.first[n] for n in self.first}, tree.get("down", {})
        )

    def to_device(self, tree: Tree) -> Tree:
        """The tensors on this site's training device; with a CPU, tensors in a file stay there."""
        return (
            tree if self.trainer.device.type == "cpu" else tree_map(lambda t: t.to(self.trainer.device), tree)
        )


def build_run(
    site: str, settings: Settings, data: Dataset, facts: Mapping[str, Any], first: Weights
) -> SiteRun:
    """Build a run. settings: as the site runs them, with its device. facts: k, clients and largest, as sent
    by the server.

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
    own_sizes = {
        **summary["sizes"],
        "train": view.train.sizes[: len(summary["names"])].tolist(),
    }  # others' are bounds
    described = {"inputs": predictions.input_facts(view), "federation": {**summary, "sizes": own_sizes}}
    slices, run_facts = (
        PartSlices(method, run.fed, first),
        {n: facts[n] for n in ("settings", "clients", "largest")},
    )
    return SiteRun(
        settings, facts["k"], method, trainer, scoring_of(trainer, view), first, described, slices, run_facts
    )
