"""Differential privacy of single samples: a gradient for every sample, and noisy sums over a client's
samples.

In a training step each sample trains in a lane of its own: B samples of G clients are B G lanes with batches
of one. A Part bounds each gradient (`sample_grad`) before they are summed and divided by the expected number
of samples. Outside steps a hook sees a client without samples. Its `total` measures one sample at a time, the
protecting Part bounds the values as one vector (`sample_sum`), and noise is added to every number of the sum.
The noise of each sum is keyed by the caller and the number of the call, so no two sums have equal noise.
Letters: B batch, G lanes, S = B G samples, the first of every client before the second of any.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from unskew.core.client import NOISE_DEVIATIONS, Batch, Client, Measure, replace_fields
from unskew.core.part import Part
from unskew.core.random_keys import add_noise
from unskew.core.shares import Noise, Share
from unskew.core.trees import Tree, Weights, flat_tree, nested_tree, tree_map
from unskew.core.trip import Trip, trip_index
from unskew.core.user_parts import trip_answer
from unskew.errors import UsageError
from unskew.round.chunks import Step, Work, poisson_rows
from unskew.round.clients import Broadcast, Clients
from unskew.round.lane_views import Axis, LaneViews, ManyLanes, hidden_counts
from unskew.round.layer_kernels import Kernels, use_kernels
from unskew.round.loss import ClientLoss, StepInputs
from unskew.round.optimisers import per_lane
from unskew.round.samples import on_device

HIDDEN_LEAVES = ("rows", "rows_weight", "round")
"""Leaves of a lane's table that depend on other samples, so hooks must not read them. `LaneViews` hides
`counts` for the same reason."""


class PerSampleGradients:
    """A function of a step, its rows [S], samples [S, ...], weights and inputs; returns ([G] losses summed
    over samples, noisy gradients by name [G, ...]). names: the client of every lane."""

    def __init__(
        self,
        clients: Clients,
        views: LaneViews,
        laws: Mapping[str, Mapping[str, Noise]],
        names: Sequence[int],
    ):
        assert clients.apart is not None
        self.clients, self.views, self.part = clients, views, clients.apart
        self.laws, self.names = laws, names
        self.kernels = Kernels(folded=True)
        self.loss = ManyLanes().loss(ClientLoss(clients, views, self.kernels))

    def __call__(
        self, step: Step, rows: Tensor, x: Tensor, leaves: Weights, inputs: StepInputs
    ) -> tuple[Tensor, Weights]:
        B, G, learnt = step.size, step.width, self.clients.learnt
        lanes = inputs.lane["n"].dim() > 0  # else there is one client and no axis of lanes

        def spread(t: Tensor) -> Tensor:
            """From [G, ...] to [S, ...], with a copy for every sample."""
            stacked = t if lanes else t[None]
            return stacked[None].expand(B, *stacked.shape).reshape(B * G, *stacked.shape[1:])

        def apart(t: Tensor) -> Tensor:
            """From [G, B, ...] to [S, 1, ...]."""
            stacked = t if lanes else t[None]
            return stacked.transpose(0, 1).reshape(B * G, 1, *stacked.shape[2:])

        w = {n: spread(t.detach()).requires_grad_(n in learnt) for n, t in leaves.items()}
        lane: Tree = tree_map(spread, {n: v for n, v in inputs.lane.items() if n not in HIDDEN_LEAVES}) | {
            "round": {}
        }
        weight_S = apart(inputs.weight)
        noise = {
            part: {
                name: (apart if law.per_sample else spread)(inputs.noise[part][name])
                for name, law in laws.items()
            }
            for part, laws in self.laws.items()
        }
        sample_inputs = StepInputs(
            self.clients.samples.y.index_select(0, rows)[:, None],
            weight_S,
            noise,
            tuple(map(apart, inputs.dropout)),
            lane,
        )
        with use_kernels(self.clients.net, self.kernels):
            loss_S = self.loss(w, x[None], sample_inputs)
        grads = torch.autograd.grad(loss_S.sum(), [w[n] for n in learnt], allow_unused=True)
        g = {n: torch.zeros_like(w[n]) if v is None else v for n, v in zip(learnt, grads)}
        with torch.no_grad():
            views, part = self.views, self.part
            g = torch.func.vmap(lambda g, lane: part.sample_grad(g, views.client(part, lane, {})))(g, lane)
            expected_G = spread(inputs.lane["n"])[:G].clamp(max=self.clients.training.recipe.batch)
            means = {
                n: self._noisy(n, self._sum(t, weight_S, B, G), step) / per_lane(expected_G, t)
                for n, t in g.items()
            }
            loss_G = (loss_S.detach() * weight_S[:, 0]).reshape(B, G).sum(0)
            return loss_G, {n: t.to(w[n].dtype) for n, t in means.items()}

    def _noisy(self, name: str, total: Tensor, step: Step) -> Tensor:
        """The sums of a weight's gradients [G, ...] with the noise of each lane's step."""
        normal = self.clients.chance.normal(self.views.start.t, self.part.name)
        shape = tuple(total.shape[1:])
        drawn = [normal(shape, f"{client} {local} {name}") for client, local in zip(self.names, step.local_G)]
        return add_noise(total, self.part.step_noise, on_device(torch.stack(drawn), total.device))

    @staticmethod
    def _sum(t: Tensor, weight_S: Tensor, B: int, G: int) -> Tensor:
        """The sums over samples without padding, from [S, ...] to [G, ...], float64."""
        counted = torch.where(weight_S.reshape(-1, *[1] * (t.dim() - 1)) > 0, t, 0.0)
        return counted.reshape(B, G, *t.shape[1:]).sum(0, dtype=torch.float64)


def drawn_rows(clients: Clients, work: Work, t: int) -> list[np.ndarray]:
    """The rows of each step of a client in round t, of which each is drawn independently."""
    recipe, generator = clients.training.recipe_in(t), clients.chance.samples(t, work.client)
    return poisson_rows(clients.samples.rows[work.client], work.steps(recipe.epochs), recipe.batch, generator)


def noise_seed(clients: Clients, t: int, k: int) -> object:
    """The seed of the random numbers of client k's steps in round t: the study's seed.

    At a site that protects samples it is random and secret. The number that a sample receives depends on the
    other samples of its step, so a reader who could draw the numbers again would learn about them.
    """
    if clients.apart is None or not clients.chance.secret:
        return clients.fed.seed
    return clients.chance.samples(t, k).bytes(32).hex()


def withholds_loss(clients: Clients) -> bool:
    """Whether replies omit the training loss, which has no noise: at a site that protects samples."""
    return clients.apart is not None and clients.chance.secret


NUMBERS_AT_ONCE = 1 << 24
"""The approximate number of values of single samples that are in memory at a time."""
ROWS_AT_ONCE = 256
"""The most samples that are measured side by side."""


@dataclass(frozen=True)
class Release:
    """A place that asks for sums. part: the Part's name. place: "finish", or a trip by its index. allowed:
    the declared number of sums, which epsilon accounts for."""

    part: str
    place: str
    allowed: int


def without_samples(clients: Clients, c: Client) -> Client:
    """The client as hooks may see it if a Part protects samples: reading samples or class counts raises
    UsageError (E108)."""
    if clients.apart is None:
        return c
    by = clients.apart.name

    def refuse(*_: object) -> NoReturn:
        raise UsageError(
            "E108", f"a hook reads the client's samples, which no noise of '{by}' covers; take it out."
        )

    return replace_fields(c, counts=hidden_counts(by), data=refuse, chosen=refuse)


def with_sums(clients: Clients, c: Client, k: int, start: Broadcast, release: Release) -> Client:
    """Client k for a hook that declares to read only sums: `Client.total` adds noise. c: the client; start:
    the broadcast."""
    assert clients.apart is not None
    blind = without_samples(clients, c)
    return replace_fields(
        blind,
        summed=NoisySums(clients, blind, k, start, release),
        floor=NOISE_DEVIATIONS * clients.apart.sum_noise,
    )


def finish_with_sums(
    p: Part, axis: Axis, views: LaneViews, work: Sequence[Work], weights: Weights, table: Tree
) -> tuple[Tree, Tree]:
    """The results of the Part's `finish`, (shares, private slice), stacked over lanes. Clients are processed
    one after the other, with noisy sums in place of samples."""
    clients, release = views.clients, Release(p.name, "finish", p.totals["finish"])
    shared, kept = [], []
    for g, one in enumerate(work):
        w, lane = (tree_map(lambda t, g=g: axis.lane(t, g), tree) for tree in (weights, table))
        c = with_sums(clients, views.client(p, lane, {}), one.client, views.start, release)
        shares, mine = p.finish(views.whole(w), c)
        shared.append(clip_to_bounds(shares, p.shares(clients.facts)))
        kept.append(mine)
    return axis.stack(shared), axis.stack(kept)


def trip_with_sums(
    trip: Trip, part: Part, clients: Clients, w: Weights, c: Client, k: int, start: Broadcast
) -> Tree:
    """Client k's answer in a trip, with noisy sums in place of samples. start: the broadcast.

    The trip's index keys its noise. Raises UsageError (E108) if two trips of the Part run one function, and
    so have one index.
    """
    try:
        place = f"trip {trip_index(trip, part.trips)}"
    except ValueError as error:
        text = f"'{part.name}' cannot run here: {error}; give each a function of its own."
        raise UsageError("E108", text) from None
    c = with_sums(clients, c, k, start, Release(part.name, place, trip.sums))
    return clip_to_bounds(trip_answer(trip, part, w, c), trip.shares(clients.facts))


@dataclass
class NoisySums:
    """`Client.total` with noise, at most as often as declared. k: the client. asked: the number of calls."""

    clients: Clients
    c: Client
    k: int
    start: Broadcast
    release: Release
    asked: int = field(default=0)

    def __call__(self, measure: Measure, raw: bool) -> dict[str, Tensor]:
        """Raises UsageError (E108) for more sums than declared, for which epsilon does not account."""
        part, place, allowed = self.release.part, self.release.place, self.release.allowed
        if self.asked >= allowed:
            text = (
                f"'{part}' asks for more sums over samples than the {allowed} of '{place}' that it declares"
            )
            raise UsageError("E108", f"{text}, and epsilon counts no others; let it declare all of them.")
        turn, self.asked = self.asked, self.asked + 1
        sums, apart = self._sums(measure, raw), self.clients.apart
        assert apart is not None
        normal = self.clients.chance.normal(self.start.t, part)

        def drawn(name: str, total: Tensor) -> Tensor:
            return normal(tuple(total.shape), f"sums {self.k} {place} {turn} {name}")

        return {
            name: add_noise(t, apart.sum_noise, drawn(name, t)).to(torch.float32) for name, t in sums.items()
        }

    def _sums(self, measure: Measure, raw: bool) -> dict[str, Tensor]:
        """The sums without noise, float64."""
        clients, apart, sums = self.clients, self.clients.apart, dict[str, Tensor]()
        assert apart is not None
        kernels, samples, whole = Kernels(folded=True), clients.samples, self.start.to(self.k)

        def of_one(x: Tensor, y: Tensor) -> dict[str, Tensor]:
            seen = x[None] if raw else clients.prepared(x[None], self.c, whole)
            measured = measure(Batch(seen, y[None], torch.ones(1, device=x.device)))
            return apart.sample_sum(measured, self.c)

        with torch.no_grad(), use_kernels(clients.net, kernels), kernels.differentiating():
            for rows in self._pieces(of_one):
                index = on_device(rows, clients.device)
                for name, of_each in torch.func.vmap(of_one)(samples.x[index], samples.y[index]).items():
                    total = of_each.double().sum(0)
                    sums[name] = sums[name] + total if name in sums else total
        return sums

    def _pieces(self, of_one: Any) -> Iterator[np.ndarray]:
        """The client's rows in pieces whose values fit into memory; measures one sample to find its size."""
        rows, samples = self.clients.samples.rows[self.k], self.clients.samples
        first = on_device(rows[:1], self.clients.device)
        one = torch.func.vmap(of_one)(samples.x[first], samples.y[first])
        many = max(1, min(ROWS_AT_ONCE, NUMBERS_AT_ONCE // max(1, sum(t.numel() for t in one.values()))))
        for begin in range(0, len(rows), many):
            yield rows[begin : begin + many]


def clip_to_bounds(tree: Tree, declared: Mapping[str, Share]) -> Tree:
    """A tree that was computed from noisy sums, clipped to the bounds of its Shares, which noise may
    exceed."""
    shared = flat_tree(tree)
    return nested_tree(
        {path: _clip(t, declared[path]) if path in declared else t for path, t in shared.items()}
    )


def _clip(t: Tensor, share: Share) -> Tensor:
    t = t.clamp(share.low, share.high) if t.dtype.is_floating_point else t
    norm = t.double().norm()
    if share.norm is None or norm <= share.norm:
        return t
    return (t * (share.norm / norm) * (1 - 1e-6)).to(t.dtype)
