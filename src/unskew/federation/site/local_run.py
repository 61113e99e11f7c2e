"""One run as a site takes part in it: the method, the model and the trainer, built once and kept in memory;
the run's folder, `SITE/runs/NUMBER/`; and the slices that the site holds of it. Letters: M metrics."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unskew.config import Settings
from unskew.core.method import Method
from unskew.core.part import Part, overrides
from unskew.core.replies import Reply
from unskew.core.trees import Tree, Weights, flat_tree, nested_tree, sorted_tree, tree_map
from unskew.core.trip import Trip
from unskew.data.samples.dataset import Dataset
from unskew.errors import StateError, UsageError, printable
from unskew.federation.protocol.study_rules import SiteView, check_noise, prepare, score_key, score_names
from unskew.federation.protocol.wire_format import Packet
from unskew.federation.site.site_ledger import KEPT_ROUNDS, AnsweredRequest, policy_refusal
from unskew.methods import registry
from unskew.privacy.secure_aggregation import SecureAggregation
from unskew.records import checkpoints
from unskew.records.checkpoints import digest
from unskew.round.clients import Broadcast
from unskew.round.evaluation import Evaluation
from unskew.round.randomness import SystemSource
from unskew.round.trainer import Trainer
from unskew.runs import predictions
from unskew.runs.assemble import scoring_of, trainer_of
from unskew.runs.resolve import run_on
from unskew.runs.run_folder import fingerprint
from unskew.scores import BY_CLASS
from unskew.system import disk
from unskew.system.disk import AT_SITE as SETUP

TensorForm = tuple[tuple[int, ...], torch.dtype]
"""The shape and type of a tensor."""


def form_text(value: Any) -> str:
    """The shape and type of a tensor, as text."""
    return f"{list(value.shape)} of {str(value.dtype)[6:]}" if isinstance(value, Tensor) else "no tensor"


@dataclass
class SiteRun:
    """A run at a site.

    k: this site's client id. first: the weights before round 1, including those that never leave the
    server. described: form and number of the samples, stored with the model. facts: the study's settings,
    the number of clients and the largest client's samples, as sent by the server.
    """

    settings: Settings
    k: int
    method: Method
    trainer: Trainer
    scoring: Evaluation
    first: Weights
    described: Mapping[str, Any]
    facts: Mapping[str, Any]

    @property
    def secure(self) -> SecureAggregation | None:
        """The secure aggregation of replies; None if the coordinator sees each reply."""
        return self.settings.secure

    @cached_property
    def slice_forms(self) -> dict[str, dict[str, TensorForm]]:
        """The form of each broadcast tensor by Part, without Parts that make a slice for each client."""
        forms: dict[str, dict[str, TensorForm]] = {}
        fed, first = self.trainer.fed, dict(self.first)
        with torch.random.fork_rng(devices=[]):
            for part in self.method.parts:
                if overrides(part, "dispatch"):
                    continue
                try:  # without memory for a slice as large as the model
                    tree = part.server_init({n: t.to("meta") for n, t in first.items()}, fed)
                except Exception:  # of a hook that looks at values
                    tree = part.server_init(first, fed)
                sent = flat_tree({leaf: t for leaf, t in tree.items() if leaf not in part.keeps_at_server})
                forms[part.name] = {path: (tuple(t.shape), t.dtype) for path, t in sent.items()}
        return forms

    @cached_property
    def set_up_with(self) -> str:
        """A digest of the setup that all sites of the run have in common."""
        return digest(self.first, json.dumps(self.facts, sort_keys=True))

    def withheld(self, least: int) -> list[str]:
        """The metrics that stay here: means over classes, if one has fewer than `least` test samples."""
        by_class = [metric.key for metric in self.trainer.fed.metrics if metric.key in BY_CLASS]
        return by_class if by_class and 0 < self._fewest_samples < least else []

    @cached_property
    def _fewest_samples(self) -> int:
        """The fewest test samples of a class that has any; for several labels, the fewest with or without a
        label. 0 without samples.
        """
        y = self.scoring.y[self.scoring.test[self.k]]
        counts = np.unique(y, return_counts=True)[1]
        if y.dtype == bool:
            counts = np.concatenate([y.sum(0), len(y) - y.sum(0)])
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

    def _trip(self, name: str, place: int) -> tuple[Part, Trip]:
        part = next((p for p in self.method.parts if p.name == name), None)
        if part is None or place >= len(part.trips):
            raise UsageError("E310", f"the study's method has no trip {place} of '{printable(name)[:64]}'.")
        return part, part.trips[place]

    def start(self, t: int, lr: float, tree: Tree) -> Broadcast:
        """The broadcast of round t from the server's tree."""
        sent = tree.get("w", {})
        weights = {n: sent[n] if n in sent else self.first[n] for n in self.first}
        return Broadcast(t, lr, weights, tree.get("down", {}))

    def to_device(self, tree: Tree) -> Tree:
        """The tensors on this site's training device."""
        device = self.trainer.device
        return tree if device.type == "cpu" else tree_map(lambda t: t.to(device), tree)


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
    # for what a guarantee rests on; everything else is keyed, as in the simulator
    trainer.chance = SystemSource()
    if trainer.device.type != "cpu":
        first = {n: first[n].to(trainer.device) for n in forms}
    summary = view.summary()
    own_sizes = view.train.sizes[: len(summary["names"])].tolist()  # others' are bounds
    sizes = {**summary["sizes"], "train": own_sizes}
    described = {"inputs": predictions.input_facts(view), "federation": {**summary, "sizes": sizes}}
    common = {n: facts[n] for n in ("settings", "clients", "largest")}
    scoring = scoring_of(trainer, view)
    return SiteRun(settings, facts["k"], method, trainer, scoring, first, described, common)


@dataclass
class HeldSlices:
    """The slices of a run that the site holds. path: their file. tree: the received leaves, by Part. numbers:
    the coordinator's number of each leaf's content, by `part/leaf`.

    A request leaves out the leaves of slices that the site holds already, and those that are still the zeros
    with which they began (see `round/deliveries.py`). The file lets a restarted site need nothing again. A
    new setup removes it, and the coordinator then sends everything.
    """

    path: Path
    tree: Tree
    numbers: dict[str, int]

    @staticmethod
    def read(path: Path) -> HeldSlices:
        """The slices in a file; none if it is missing or damaged."""
        try:
            tree, facts = checkpoints.read(path)
            return HeldSlices(path, tree, dict(facts["numbers"]))
        except (FileNotFoundError, StateError, KeyError):
            return HeldSlices(path, {}, {})

    def complete(self, request: Packet, run: SiteRun) -> None:
        """Give a request the slices that it leaves out, and hold those that it brings.

        Its SHA-256 becomes that of the whole content, so that requests of equal content are one order,
        whichever part of it was sent. Raises StateError (E205) if the site does not hold what it should.
        """
        numbers, sent = request.header.pop("slices", {}), request.tree.get("down", {})
        if not numbers or not isinstance(sent, Mapping):
            return
        down: Tree = {part: dict(tree) for part, tree in sent.items() if isinstance(tree, Mapping)}
        came = [path for path in numbers if _leaf(path, down) is not None]
        for path, number in numbers.items():
            part, _, leaf = path.partition("/")
            if path in came:
                # a copy, which does not keep the whole message in memory
                held = tree_map(torch.clone, {leaf: down[part][leaf]})
                self.tree[part], self.numbers[path] = self.tree.get(part, {}) | held, number
            elif number == 0:
                down.setdefault(part, {}).update(_zeros(path, run))
            elif self.numbers.get(path) == number:
                down.setdefault(part, {})[leaf] = self.tree[part][leaf]
            else:
                raise StateError("E205", f"the site does not hold '{path}'; it has to be set up again.")
        if came:
            checkpoints.write(self.path, self.tree, {"numbers": self.numbers})
        for part in run.method.parts:
            for leaf, index in sorted(part.row_of.items(), key=lambda entry: entry[1]):  # own rows are first
                if numbers.get(f"{part.name}/{leaf}"):
                    row = int(down[part.name][index][run.k]) if index else run.k
                    down[part.name][leaf] = _placed(down[part.name][leaf], row, run.trainer.fed.clients)
        request.tree["down"] = sorted_tree(down)
        whole = {branch: request.tree[branch] for branch in ("w", "down") if branch in request.tree}
        request.header["sha256"] = checkpoints.digest(whole)
        request.header.pop("axes", None)


def _leaf(path: str, down: Tree) -> Any:
    part, _, leaf = path.partition("/")
    return down.get(part, {}).get(leaf)


def _zeros(path: str, run: SiteRun) -> Tree:
    """The leaf as it was before round 1."""
    part, _, leaf = path.partition("/")
    forms = run.slice_forms.get(part, {})
    return nested_tree(
        {
            place: torch.zeros(shape, dtype=dtype)
            for place, (shape, dtype) in forms.items()
            if place.partition("/")[0] == leaf
        }
    )


def _placed(row: torch.Tensor, at: int, clients: int) -> torch.Tensor:
    """The table of which a client was sent one row [1, ...]: zeros elsewhere."""
    table = torch.zeros((clients, *row.shape[1:]), dtype=row.dtype)
    table[at] = row[0]
    return table


RECEIVED = "received.safetensors"
"""The last received weights, with the rest of their request."""
HELD = "slices.safetensors"
"""The slices of Parts as they came last (see `local_run.py`)."""
PRIVATE = "private-{}.safetensors"
"""The private state after a round."""
STATELESS = "stateless"
"""Marks that this site has trained in the run without private state."""
SAMPLES = "samples"
"""The fingerprint of the samples at the begin of the run."""
NOISY_ROUNDS = 2
"""Rounds of stored noisy replies; a coordinator goes back by two rounds at most."""


@dataclass(frozen=True)
class SiteRunFolder:
    """The folder of a run. path: named after the run's number. site: the site's name.

    It contains the number of the last answered request, the run's setup, and the site's private state, after
    round t in `private-<t>.safetensors`. A request names the last round of this site that the server has
    counted, so a late answer, or a server that returns to its checkpoint, changes nothing.

    An operator may remove all `*.safetensors` of a run that is over. Files that protect the site remain: the
    number of the last request, so that no old request is answered again, the last round with a noisy reply,
    and the list and ledger of what has left.
    """

    path: Path
    site: str

    def check_new(self, serial: object) -> None:
        """Store a request's serial number.

        Raises UsageError (E307) unless it is larger than all before, or if the largest one is no longer
        known.
        """
        book = self.path / "serial"
        written = book.read_bytes() if book.exists() else b"0"
        if not written.isdigit():
            text = f"which requests of the run were answered cannot be read any more ({book})"
            raise UsageError("E307", f"{text}, so that it gets no answers here; start a new run.")
        if not isinstance(serial, int) or serial <= int(written):
            raise UsageError("E307", "the request is older than one that was already answered.")
        disk.replace(book, str(serial))

    def write_setup(self, tree: Tree, facts: Mapping[str, Any], data: Dataset) -> None:
        """Store the run's setup, and at the first time also the fingerprint of the samples.

        Slices of Parts are removed, because the coordinator sends them again.
        """
        (self.path / HELD).unlink(missing_ok=True)
        if not (self.path / SAMPLES).exists():
            disk.replace(self.path / SAMPLES, _fingerprint(data))
        checkpoints.write(self.path / SETUP, tree, facts)

    def check_same(self, data: Dataset) -> None:
        """Raises UsageError (E504) if the run began here with other samples.

        They may be equal in number, and the coordinator compares only numbers, and only if it lost this site.
        """
        samples = self.path / SAMPLES
        if samples.exists() and samples.read_text() != _fingerprint(data):
            text = f"site {self.site} holds other samples than when the run began"
            raise UsageError("E504", f"{text}; give it those of then, in their order, or leave the site out.")

    def read_setup(self) -> tuple[Tree, dict[str, Any]]:
        """The run's setup. Raises StateError (E205) if there is none here, or it is damaged."""
        try:
            return checkpoints.read(self.path / SETUP)
        except (FileNotFoundError, StateError):
            raise StateError("E205", f"site {self.site} has not been set up for this run.") from None

    def write_received(self, request: Packet, run: SiteRun, t: int) -> None:
        """Store the weights after round t, so that the site has the model after the run (see
        `site_model.py`).

        Nothing is stored for round 0, before which nothing was trained.
        """
        if t:
            base = request.header.get("base", 0)
            facts = {"t": t, "lr": run.settings.lr_in(t), "base": base, "site": self.site}
            checkpoints.write(self.path / RECEIVED, request.tree, {**run.described, **facts})

    def read_private(self, request: Packet) -> Tree:
        """The private state after this site's last counted round; {} before that.

        Raises StateError (E201) if it is missing although other rounds have private state.
        """
        t = request.header.get("base", 0)
        if t and self._private(t).exists():
            return checkpoints.read(self._private(t))[0]
        if t and self._private_rounds():
            raise StateError("E201", f"site {self.site} has lost its private state of round {t}.")
        return {}

    def keep(self, request: Packet, private: Tree) -> None:
        """Store the private state after the requested round, {} if there is none. Remove old state, except
        one round before the last counted one, to which the server may return, and later rounds that the
        server may still count.

        Raises StateError (E201) if the server has counted a round of this site but the folder, which may
        have been lost and set up anew, contains no private state.
        """
        base, t, stateless = request.header.get("base", 0), request.header["t"], self.path / STATELESS
        if private:
            if base and not self._private_rounds() and not stateless.exists():
                raise StateError("E201", f"site {self.site} has lost its private state of round {base}.")
            checkpoints.write(self._private(t), private, {"t": t})
        elif not stateless.exists():
            disk.replace(stateless, "")
        rounds = self._private_rounds()
        uncounted = [late for late in rounds if base < late <= t - KEPT_ROUNDS]
        for old in [early for early in rounds if early < base][:-1] + uncounted:
            self._private(old).unlink()

    def _private(self, t: int) -> Path:
        return self.path / PRIVATE.format(t)

    def _private_rounds(self) -> list[int]:
        return sorted(int(p.stem.partition("-")[2]) for p in self.path.glob(PRIVATE.format("*")))

    def visit_replies(
        self, run: SiteRun, request: Packet, start: Broadcast, trip: tuple[str, int], private: Tree
    ) -> list[Reply]:
        """The replies to a trip; with a guarantee, stored replies are repeated with their first noise.

        trip: name of its Part, and its index among the Part's trips.
        """
        answer = partial(run.visit_trip, start, *trip, private)
        names = [p.name for p in run.method.parts]
        if not run.method.samples_apart or trip[0] not in names:
            return answer()
        return self.noisy_replies(request, answer, f"noisy-trip{names.index(trip[0])}.{trip[1]}", -1)

    def noisy_replies(
        self, request: Packet, answer: Callable[[], list[Reply]], name: str = "noisy", before: int = 0
    ) -> list[Reply]:
        """The result of `answer`, or its stored result for an earlier request with an equal order.

        A guarantee counts one reply per round and trip, for any number of requests. A site draws this noise,
        and the samples of every step, from its operating system, so a second reply would contain other noise,
        and a reader of both would learn more than epsilon allows. The reply is therefore stored before it is
        sent, and sent again if the coordinator was killed and asks again. Scores are not stored; no noise
        covers them.

        name: of the file with the last answered round, which stays when an operator removes the replies.
        before: that round while there is no file; a trip may be due before round 1. Raises UsageError (E520)
        for another order in an answered round, or if the reply is no longer stored.
        """
        t, book = request.header["t"], self.path / name
        # everything in a request that determines the reply
        order = AnsweredRequest.of({n: v for n, v in request.header.items() if n != "score"}).order
        written = book.read_bytes() if book.exists() else str(before).encode()
        if book.exists() and not written.isdigit():
            raise policy_refusal(f"which rounds were answered cannot be read from {book}, so none is")
        if t > int(written):
            replies = answer()
            for reply in replies:
                branches = {"w": reply.weights, "shares": reply.shares, "private": reply.private}
                tree = {branch: tensors for branch, tensors in branches.items() if flat_tree(tensors)}
                facts = {"order": order, "client": reply.client, "size": reply.size}
                checkpoints.write(self._noisy(name, t), tree, facts)
                disk.replace(book, str(t))
                numbers = [p.stem.removeprefix(f"{name}-") for p in self.path.glob(f"{name}-*.safetensors")]
                for old in sorted(int(number) for number in numbers if number.isdigit())[:-NOISY_ROUNDS]:
                    self._noisy(name, old).unlink()
            return replies
        try:
            tree, facts = checkpoints.read(self._noisy(name, t))
        except (FileNotFoundError, StateError):
            raise policy_refusal(f"round {t} is over, and its guarantee counts one reply a round") from None
        if facts["order"] != order:
            text = f"round {t} was answered for another order already"
            raise policy_refusal(f"{text}, and its guarantee counts one reply a round")
        branches = (tree.get(branch, {}) for branch in ("w", "shares", "private"))
        return [Reply(facts["client"], facts["size"], *branches)]

    def _noisy(self, name: str, t: int) -> Path:
        return self.path / f"{name}-{t}.safetensors"


def _fingerprint(data: Dataset) -> str:
    return fingerprint(SiteView.of(data, 0, 1, 0), by_sample=True)
