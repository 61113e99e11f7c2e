"""Payloads of single samples or of few, recomputed to the bits that the server has, with their samples.

Letters: N payloads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar

import torch
from torch import Tensor

from unskew.attacks import decoders
from unskew.attacks.auxiliary_samples import Samples
from unskew.attacks.decoders import TrainingSet
from unskew.attacks.inversion import Search
from unskew.attacks.target_run import RecordedRound, TargetRun, Visit
from unskew.core.network import Network
from unskew.core.part import Part, Trip
from unskew.core.replies import Reply
from unskew.core.trees import Weights
from unskew.methods.feddata import FedData
from unskew.methods.fedmix import FedMix
from unskew.methods.flea import FLea
from unskew.methods.scaffold import Scaffold
from unskew.records.checkpoints import State

P = TypeVar("P", bound=Part)
Exchanges = Annotated[
    Literal["every", "ends", "last"],
    "the exchanges of activations that are read: all, the first and the last, or the last",
]


@dataclass(frozen=True)
class Payloads:
    """Payloads of clients, and their samples.

    share: the name in the ledger. sent: [N, ...]. x: [N, *shape], the stored samples. y, client: [N], their
    classes, and the clients that sent them. weights, cut: the model that computed the payloads, and its
    layer. t: the round.
    """

    share: str
    sent: Tensor
    x: Tensor
    y: Tensor
    client: Tensor
    weights: Weights
    cut: str
    t: int


def part_of(target: TargetRun, kind: type[P]) -> P | None:
    """The Part of this class in the run's method, or None."""
    return next((p for p in target.run.method.parts if isinstance(p, kind)), None)


def activations(target: TargetRun, part: FLea, exchanges: Exchanges) -> list[Payloads]:
    """FLea's activations and labels in each of these exchanges. Raises StateError (E112) for other bits."""
    last, trip, visits = target.final.t - 1, part.trips[0], dict[int, Visit]()
    asked = {"every": range(1, last + 1), "ends": (1, last), "last": (last,)}[exchanges]
    # weights of earlier rounds, and of the round of an early trip, are no longer in the folder
    if repeated := [t for t in asked if t < last or trip.early]:
        visits = _visits(target, part, repeated)
    if not trip.early:
        visits[last] = _late(target, part, trip)
    candidates = [_activations(target, part, visit) for _, visit in sorted(visits.items()) if visit.replies]
    kept = target.before[0]["slices"][part.name]
    target.check_same(candidates[-1].sent, kept["features"], f"{part.name}/features")
    target.check_same(candidates[-1].y, kept["labels"], f"{part.name}/labels")
    return candidates


def _activations(target: TargetRun, part: FLea, visit: Visit) -> Payloads:
    sent, labels = (
        torch.cat([r.shares[part.name][leaf] for r in visit.replies]) for leaf in ("features", "labels")
    )
    x = [target.drawn_by(visit, r.client, visit.start.weights)[0] for r in visit.replies]
    share, weights = f"{part.name}/features", visit.start.weights
    return Payloads(share, sent, torch.cat(x), labels, _owners(visit, x), weights, part.cut, visit.start.t)


def _visits(target: TargetRun, part: Part, rounds: Collection[int]) -> dict[int, Visit]:
    """The trips of a Part in these rounds, for which the run is repeated."""
    visits = dict[int, Visit]()

    def note(t: int, recorded: RecordedRound, _: State) -> dict[int, Visit] | None:
        if t in rounds and (visit := recorded.visit(part.name)):
            visits[t] = visit
        return visits if t == max(rounds) else None

    return dict(target.first(f"{part.name} in rounds {sorted(rounds)}", note) or {})


def clearest(target: TargetRun, candidates: Sequence[Payloads], own: Samples, seed: int) -> Payloads:
    """The activations in which ridge regression reads the attacker's own samples best."""
    x = target.seen(own.x)
    x = Search.like(x).standardised(x)

    def error(taken: Payloads) -> float:
        training = TrainingSet(at_cut(target, taken, own.x), x, 0, seed)
        _, rows = training.parts()
        return float((decoders.linear_decoder(training)(training.sent[rows]) - x[rows]).pow(2).mean())

    return candidates[0] if len(candidates) == 1 else min(candidates, key=error)


def at_cut(target: TargetRun, taken: Payloads, x: Tensor) -> Tensor:
    """Activations [N, ...] of stored samples, with the model and the cut of other activations."""
    features = map_of(target.trainer.net, taken)
    with target.trainer.evaluating(), torch.no_grad():
        return torch.cat([features(target.seen(piece)) for piece in x.split(256)])


def map_of(net: Network, taken: Payloads) -> Callable[[Tensor], Tensor]:
    """The map from inputs as the model sees them to the activations that were sent."""
    until = net.check_cut(taken.cut)
    return lambda x: net.run(taken.weights, x, until=until)[0]


def inputs(target: TargetRun, part: FedMix | FedData) -> Payloads:
    """Averages of inputs (FedMix) or inputs (FedData) sent before round 1, repeated for each sample."""
    visit = first_trip(target, part)
    group = part.group if isinstance(part, FedMix) else 1
    sent = [r.shares[part.name]["x"] for r in visit.replies]
    target.check_same(torch.cat(sent), target.final.slices[part.name]["x"], f"{part.name}/x")
    w = target.final.weights  # which such a reply does not depend on
    x = [target.drawn_by(visit, r.client, w)[0] for r in visit.replies]
    each = torch.cat([s.repeat_interleave(group, 0)[: len(samples)] for s, samples in zip(sent, x)])
    y = torch.zeros(len(each), dtype=torch.int64)
    return Payloads(f"{part.name}/x", each, torch.cat(x), y, _owners(visit, x), w, "", 0)


def _owners(visit: Visit, x: Sequence[Tensor]) -> Tensor:
    """[N]: the client of each sample."""
    return torch.tensor([r.client for r, samples in zip(visit.replies, x) for _ in samples])


def first_trip(target: TargetRun, part: Part) -> Visit:
    """The repeated trip of this Part before round 1."""
    visit = target.first(f"{part.name} before round 1", lambda t, recorded, _: recorded.visit(part.name))
    assert visit is not None
    return visit


def _late(target: TargetRun, part: Part, trip: Trip) -> Visit:
    """The repeated trip after the last round but one, on its merged weights."""
    t = target.final.t - 1
    start, ids = target.start_at(target.before, t), target.answered(t)
    private = target.folder.store(target.before).fetch(ids) if target.trainer.kept else {}
    return Visit(part, trip, start, private, target.trainer.visit(trip, part, start, ids, private))


def control_variate(target: TargetRun, reply: Reply) -> Weights:
    """SCAFFOLD's control variate of a client after the last round: the sum of all changes that it sent, which
    is its mean gradient in that round; {} for other methods."""
    part = part_of(target, Scaffold)
    if part is None:
        return {}
    before = target.last_round.private.get(reply.client, {}).get(part.name, {}).get("c", {})
    change = reply.shares[part.name]["delta"]
    return {n: t + before[n] if n in before else t for n, t in change.items()}
