"""Payloads of single samples or of few, recomputed to the bits that the server has, with their samples.

Letters: N payloads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from unskew.attacks.scene import Scene, Visit
from unskew.core.part import Part, Trip
from unskew.core.trees import Weights
from unskew.methods.feddata import FedData
from unskew.methods.fedmix import FedMix
from unskew.methods.flea import FLea
from unskew.round.clients import Broadcast

P = TypeVar("P", bound=Part)


@dataclass(frozen=True)
class Taken:
    """Payloads of clients, and their samples.

    share: the name in the ledger. sent: [N, ...]. x: [N, *shape], the stored samples. y: [N], their classes.
    weights, cut: the model that computed the payloads, and its layer. start: the broadcast.
    """

    share: str
    sent: Tensor
    x: Tensor
    y: Tensor
    weights: Weights
    cut: str
    start: Broadcast


def part_of(scene: Scene, kind: type[P]) -> P | None:
    """The Part of this class in the run's method, or None."""
    return next((p for p in scene.run.method.parts if isinstance(p, kind)), None)


def activations(scene: Scene, part: FLea) -> Taken:
    """The last activations and labels of FLea's clients. Raises StateError (E112) for other bits."""
    trip = part.trips[0]
    visit = _early(scene, part) if trip.early else _late(scene, part, trip)
    kept = scene.before[0]["slices"][part.name]
    sent = torch.cat([r.shares[part.name]["features"] for r in visit.replies])
    labels = torch.cat([r.shares[part.name]["labels"] for r in visit.replies])
    scene.check_same(sent, kept["features"], f"{part.name}/features")
    scene.check_same(labels, kept["labels"], f"{part.name}/labels")
    x = torch.cat([scene.drawn_by(visit, r.client, visit.start.weights)[0] for r in visit.replies])
    return Taken(f"{part.name}/features", sent, x, labels, visit.start.weights, part.cut, visit.start)


def inputs(scene: Scene, part: FedMix | FedData) -> Taken:
    """Averages of inputs (FedMix) or inputs (FedData) sent before round 1, repeated for each sample."""
    visit = first_trip(scene, part)
    group = part.group if isinstance(part, FedMix) else 1
    sent = [r.shares[part.name]["x"] for r in visit.replies]
    scene.check_same(torch.cat(sent), scene.final.slices[part.name]["x"], f"{part.name}/x")
    x = [scene.drawn_by(visit, r.client, visit.start.weights)[0] for r in visit.replies]
    each = torch.cat([s.repeat_interleave(group, 0)[: len(samples)] for s, samples in zip(sent, x)])
    y = torch.zeros(len(each), dtype=torch.int64)
    return Taken(f"{part.name}/x", each, torch.cat(x), y, visit.start.weights, "", visit.start)


def first_trip(scene: Scene, part: Part) -> Visit:
    """The repeated trip of this Part before round 1."""
    visit = scene.first(f"{part.name} before round 1", lambda t, heard, _: heard.visit(part.name))
    assert visit is not None
    return visit


def _late(scene: Scene, part: Part, trip: Trip) -> Visit:
    """The repeated trip after the last round but one, on its merged weights."""
    t = scene.final.t - 1
    start, ids = scene.start_at(scene.before, t), scene.answered(t)
    private = scene.folder.store(scene.before).fetch(ids) if scene.trainer.kept else {}
    return Visit(part, trip, start, private, scene.trainer.visit(trip, part, start, ids, private))


def _early(scene: Scene, part: Part) -> Visit:
    """The trip for activations on weights that the folder no longer has: the run is repeated up to there."""
    last = scene.final.t - 1
    visit = scene.first(
        f"{part.name} early", lambda t, heard, _: heard.visit(part.name) if t == last else None
    )
    assert visit is not None  # a trip that left a buffer took place
    return visit
