"""Local training of a cohort: chunks of clients on worker threads, from what they were sent to their replies.

A chunk is a group of clients that train together; each has one lane, a place on the first axis of stacked
tensors (see `lanes` and `schedule`). The trainer also runs the client side of trips. Letters: G lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol, TypeVar

import torch

from unskew.core import encoding
from unskew.core.client import Fed, replace_fields
from unskew.core.keys import key
from unskew.core.method import Method
from unskew.core.part import Part, Trip
from unskew.core.replies import Reply
from unskew.core.trees import Tree, Weights, tree_map
from unskew.core.trip import trip_index
from unskew.core.user_parts import is_own, trip_answer
from unskew.errors import UsageError
from unskew.round import optimise, precision
from unskew.round.clients import Broadcast, Clients, LocalTraining
from unskew.round.cuda_graphs import StepRecordings
from unskew.round.hook_checks import PaddingTrial, PartAttributes, explain_hook_rules
from unskew.round.lanes import Axis, LaneViews, axis_for, lane_table, sent_table
from unskew.round.layers import DropoutMasks, Kernels, model_draws, use_kernels
from unskew.round.noise import NoiseTables
from unskew.round.precision import BF16, device_mode
from unskew.round.randomness import no_global_random
from unskew.round.sample_privacy import Release, clip_to_bounds, with_sums
from unskew.round.samples import Samples
from unskew.round.schedule import Chunk, Step, chunks, poisson_steps, steps, widths
from unskew.round.step import LaneState, LaneStep, Steps


class Update:
    """One local update of the clients of a chunk; `run` it once.

    private: the private state of the clients that have one; then, a list with that of every lane.
    steps: the chunk's batches, and the tensors that they read and change.
    """

    def __init__(
        self, clients: Clients, axis: Axis, chunk: Chunk, start: Broadcast, private: Mapping[int, Tree]
    ):
        self.clients, self.axis, self.chunk, self.start = clients, axis, chunk, start
        # a client that trains alone may have a second lane as filler; only those of `chunk.work` get a reply
        work, training = axis.work(chunk), clients.training
        self.recipe = training.recipe_in(start.t)
        sent = [start.to(w.client) for w in work]
        self.private = [clients.private_state(private.get(w.client), to) for w, to in zip(work, sent)]
        plan = [axis.widened(step) for step in self._plan()]
        drops_out = bool(clients.mask_shapes)
        streams = {w.client: clients.stream(start.t, w.client) for w in work}
        generators = [key(streams[w.client], start.t, w.client, "dropout") for w in work] if drops_out else []
        dropout = DropoutMasks(clients.mask_shapes, chunk, generators)
        self.state = LaneState(
            axis.stack_weights([clients.lane_weights(to, state) for to, state in zip(sent, self.private)]),
            lane_table(clients, axis, work, self.private, start.t)
            | {"sent": sent_table(axis, sent) if start.own else {}},
            NoiseTables(clients, start, work, streams, widths(chunk, plan)),
            optimise.optimiser(training.optimiser, self._rate(), training.momentum, training.weight_decay),
            torch.zeros(len(work), device=clients.device),
        )
        self.steps = Steps(clients, axis, start, plan, dropout, chunk.frozen, self.state)
        self.kernels = Kernels(axis.folded, chunk.frozen, training.precision == BF16)
        self.views = LaneViews(clients, start)
        self.padding = PaddingTrial(clients)

    def _plan(self) -> list[Step]:
        """The chunk's steps: epochs in shuffled order, or samples drawn one by one."""
        clients, t, recipe = self.clients, self.start.t, self.recipe
        if recipe.apart:
            return poisson_steps(self.chunk, {w.client: clients.drawn(w, t) for w in self.chunk.work}, recipe)
        return steps(self.chunk, {w.client: clients.orders(w.client, t) for w in self.chunk.work}, recipe)

    def run(self, replays: StepRecordings | None = None) -> list[Reply]:
        """Train, and return one reply a client. replays: on a GPU, the steps recorded so far."""
        fed, first_client = self.clients.fed, self.chunk.work[0].client
        with model_draws(fed.net, self.clients.device, fed.seed, self.start.t, first_client, "model"):
            return self._trained(None if fed.net.draws or self.clients.apart else replays)

    def _trained(self, replays: StepRecordings | None) -> list[Reply]:
        hooks, views, axis, state = self.clients.hooks, self.views, self.axis, self.state
        with explain_hook_rules(), use_kernels(self.clients.net, self.kernels):
            with torch.no_grad():
                begun = {p.name: self._passed(p, "begin", views.begin(p)) for p in hooks["begin"]}
                for p in hooks["carry"]:  # what steps change must be no part of anything else
                    begun[p.name] = tree_map(torch.clone, begun.get(p.name, {}))
                state.lane_table["round"] = begun
                for p in hooks["starts"]:
                    self._start_at(axis.map(views.starts(p), state.weights, state.lane_table))
            state.start_optimiser(self.clients)
            if replays:
                replays.train(self.steps)
            else:
                self._train()
            with torch.no_grad():
                finished = {p.name: self._finished(p) for p in hooks["finish"]}
                sent = state.weights
                for p in hooks["sends"]:
                    sent = axis.map(views.sends(p), sent, state.lane_table)
        return [self._reply(g, finished, sent) for g in range(len(self.chunk.work))]

    def _start_at(self, weights: Weights) -> None:
        """Put in what a Part's `starts` returned."""
        for n, t in weights.items():
            self.state.weights[n].copy_(t)

    def _passed(self, p: Part, name: str, hook: Callable[..., Any]) -> Any:
        """What a hook makes that may pass over the clients' data."""
        state = self.state
        result = self.axis.map(hook, state.weights, state.lane_table)
        self.padding.check_pass(
            p, name, state.lane_table, result, lambda t: self.axis.map(hook, state.weights, t)
        )
        return result

    def _finished(self, p: Part) -> tuple[Tree, Tree]:
        """What the Part's `finish` returned, (shares, private slice), both stacked.

        Where a Part protects samples it is one client after the other, each with noisy sums in place of
        samples.
        """
        clients, views, axis, state = self.clients, self.views, self.axis, self.state
        if clients.apart is None:
            return self._passed(p, "finish", views.finish(p))
        release = Release(p.name, "finish", p.totals["finish"])
        shared, kept = [], []
        for g, work in enumerate(self.chunk.work):
            w = tree_map(lambda t, g=g: axis.lane(t, g), state.weights)
            lane = tree_map(lambda t, g=g: axis.lane(t, g), state.lane_table)
            c = with_sums(clients, views.client(p, lane, {}), work.client, self.start, release)
            shares, mine = p.finish(views.whole(w), c)
            shared.append(clip_to_bounds(shares, p.shares(clients.facts)))
            kept.append(mine)
        return axis.stack(shared), axis.stack(kept)

    def _rate(self) -> float | torch.Tensor:
        """The learning rate, on a GPU as the tensor that recorded steps read, so that these have the bits of
        any other."""
        device = self.clients.device
        return self.start.lr if device.type == "cpu" else torch.full((), self.start.lr, device=device)

    def _train(self) -> None:
        step = LaneStep(self.clients, self.axis, self.views, self.kernels, self.state)
        self.padding.check_step(step, self.steps.plan, self.clients.mask_shapes)
        for plan, feed in zip(self.steps.plan, self.steps.feeds()):
            step(plan, feed)

    def _reply(self, g: int, finished: Mapping[str, tuple[Tree, Tree]], sent: Weights) -> Reply:
        """finished: what each Part's `finish` returned, (shares, private slice); sent: the weights to send.
        Both stacked."""
        clients, work = self.clients, self.chunk.work[g]
        select_lane = partial(tree_map, lambda t: self.axis.lane(t, g))
        w = {n: self.axis.lane(t, g).contiguous() for n, t in sent.items() if n in clients.sent}
        private: Tree = {n: t for n, t in self.private[g].items() if n != "kept"}
        private |= {name: select_lane(mine) for name, (_, mine) in finished.items()}
        if clients.kept:
            private["kept"] = {n: self.axis.lane(self.state.weights[n], g).contiguous() for n in clients.kept}
        reply = Reply(
            client=work.client,
            size=float(work.n),
            weights={n: w[n] for n in clients.sent},
            shares={name: select_lane(shares) for name, (shares, _) in finished.items()},
            private={name: state for name, state in private.items() if state},
            loss=0.0 if clients.withholds_loss else self.state.loss_sum[g] / work.samples_seen(self.recipe),
        )
        return self._encoded(g, reply) if clients.method.encoder else reply

    def _encoded(self, g: int, reply: Reply) -> Reply:
        """The reply as it leaves where a Part encodes weights; one client at a time, whatever the lanes."""
        part = self.clients.method.encoder
        assert part is not None
        lane = tree_map(lambda t: self.axis.lane(t, g), self.state.lane_table)
        c = replace_fields(self.views.client(part, lane, {}), mine=reply.private.get(part.name, {}))
        with torch.no_grad():
            return encoding.encode_reply(part, c, reply)


Item = TypeVar("Item")
Answer = TypeVar("Answer")


class RemoteTraining(Protocol):
    """Trains chunks of clients in other processes than this one, to the same bits."""

    def train(
        self, plan: Sequence[Chunk], start: Broadcast, private: Mapping[int, Tree]
    ) -> list[list[Reply]]:
        """The replies of every chunk, in the order of the plan."""
        ...

    def close(self) -> None: ...


class Trainer(Clients):
    """The clients of a run, and the threads that train them. elsewhere: trains them in place of the threads.

    lanes: 1, or the most clients that train side by side. workers: the number of threads, each on one core;
    on a GPU there is one.
    """

    def __init__(
        self,
        method: Method,
        fed: Fed,
        samples: Samples,
        training: LocalTraining,
        lanes: int,
        workers: int = 1,
    ):
        super().__init__(method, fed, samples, training)
        self.lanes, self.axis = lanes, axis_for(lanes)
        self.workers = workers if self.device.type == "cpu" else 1
        self.replays = StepRecordings() if self.device.type == "cuda" else None
        self.elsewhere: RemoteTraining | None = None
        self.remembered = PartAttributes([p for p in method.parts if is_own(p)])
        self.widest = 0
        """The most clients that a chunk had in the last cohort."""
        self._pool = self._threads()

    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.workers, initializer=_prepare_thread, initargs=(self.device,))

    def close(self) -> None:
        """End the threads; what waits for them is dropped."""
        if self.elsewhere:
            self.elsewhere.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def each(self, function: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer]:
        """The function of every item, computed on the worker threads; in the order of the items."""
        with device_mode(self.device, self.training.precision):
            return list(self._pool.map(function, items))

    def train(self, start: Broadcast, cohort: Sequence[int], private: Mapping[int, Tree]) -> list[Reply]:
        """One local update of every client in the cohort that has samples; replies in the order of ids.

        private: the private state of the clients that have one.
        """
        plan = chunks(cohort, self.fed.sizes, self.training.recipe, self.lanes, gpu=self.device.type != "cpu")
        self.widest = max((len(chunk.work) for chunk in plan), default=0)
        if self.elsewhere:
            by_chunk = self.elsewhere.train(plan, start, private)
        else:
            by_chunk = self.each(lambda chunk: self.update(chunk, start, private), plan)
        self.remembered.check()
        return sorted((reply for replies in by_chunk for reply in replies), key=lambda r: r.client)

    def update(self, chunk: Chunk, start: Broadcast, private: Mapping[int, Tree]) -> list[Reply]:
        """One local update of the clients of a chunk, on this thread."""
        with no_global_random(self.method):
            return Update(self, self.axis, chunk, start, private).run(self.replays)

    def begin(self, chunk: Chunk, start: Broadcast, private: Mapping[int, Tree]) -> Future[list[Reply]]:
        """The same on a thread of this trainer's own, which computes on its device."""
        return self._pool.submit(self.update, chunk, start, private)

    def resized(self) -> int:
        """Train fewer clients side by side from here on, a power of two below those of the last cohort,
        because they did not fit into the GPU's memory. Returns how many, 0 where one trained by itself."""
        if self.device.type == "cpu" or self.widest < 2 or self.lanes < 2:
            return 0
        self.resize(1 << ((min(self.lanes, self.widest) - 1).bit_length() - 1))
        return self.lanes

    def resize(self, lanes: int) -> None:
        """Train so many clients side by side from here on. Recordings, which hold memory for more, are given
        up."""
        self._pool.shutdown(wait=True, cancel_futures=True)  # another chunk may be training still
        self.lanes, self.axis = lanes, axis_for(lanes)
        self.replays = StepRecordings() if self.replays else None
        torch.cuda.empty_cache()
        self._pool = self._threads()

    def remarks(self) -> list[tuple[str, str]]:
        """What a user should know of how this device trains, each with its code; empty before the first
        round."""
        if not self.replays or not self.replays.refused:
            return []
        return [
            (
                "E132",
                (
                    "the steps of this run cannot be recorded on the GPU, so they take longer:"
                    f" {self.replays.refused}."
                ),
            )
        ]

    def visit(
        self, trip: Trip, part: Part, start: Broadcast, ids: Sequence[int], private: Mapping[int, Tree]
    ) -> list[Reply]:
        """The client side of a trip of this Part, for every client of `ids` that has samples."""

        def answer(k: int) -> Reply:
            state = private.get(k, {})
            with self.evaluating():
                to = start.to(k).reading(part.name, trip.reads)
                w = self.held_weights(to, state)
                c = self.client(k, to, part.name, w, state)
                if self.apart:
                    release = Release(part.name, _trip_name(trip, part), trip.sums)
                    answered = trip_answer(trip, part, w, with_sums(self, c, k, start, release))
                    tree = clip_to_bounds(answered, trip.shares(self.facts))
                else:
                    tree = trip_answer(trip, part, w, c)
                return Reply(k, float(self.fed.sizes[k]), {}, {part.name: self.placed(tree)})

        return self.each(answer, [k for k in ids if self.fed.sizes[k]])


def _trip_name(trip: Trip, part: Part) -> str:
    """What a trip is called among its Part's. Raises UsageError (E108) where two are the same function: noise
    of both would be drawn for one name."""
    try:
        return f"trip {trip_index(trip, part.trips)}"
    except ValueError as error:
        raise UsageError(
            "E108", f"'{part.name}' cannot run here: {error}; give each a function of its own."
        ) from None


def _prepare_thread(device: torch.device) -> None:
    """Prepare a worker thread: it computes on one core, or on this GPU, whose stream its recordings must be
    made of."""
    torch.set_num_threads(1)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    precision.keep_freed()
