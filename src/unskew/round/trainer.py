"""Local training of a round's clients: `Update` trains one chunk of them, `Trainer` all chunks on threads.

A chunk is a group of clients that train together; each has one lane, an index on the first axis of stacked
tensors (see `lane_views` and `chunks`). `Update.run` calls the Parts' hooks in this order: `begin`, `starts`,
the steps (see `step`), `finish`, `sends`, `encode`. The trainer also runs the client side of trips. Letters:
G lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch

from unskew.core import encoding
from unskew.core.client import Fed, replace_fields
from unskew.core.method import Method
from unskew.core.part import Part, Trip
from unskew.core.random_keys import key
from unskew.core.replies import Reply
from unskew.core.trees import Tree, Weights, tree_map
from unskew.core.user_parts import trip_answer
from unskew.recorders.cuda_graphs import CudaGraphs
from unskew.recorders.operators import Operators
from unskew.round.chunks import Chunk, Step, chunks, poisson_steps, steps, widths
from unskew.round.clients import Broadcast, Clients, LocalTraining
from unskew.round.lane_views import Axis, LaneViews, axis_for, lane_table, sent_table
from unskew.round.layer_kernels import DropoutMasks, Kernels, model_draws, use_kernels
from unskew.round.noise import NoiseTables
from unskew.round.optimisers import optimiser
from unskew.round.precision import device_mode, prepare_thread
from unskew.round.recordings import StepRecordings
from unskew.round.sample_privacy import (
    drawn_rows,
    finish_with_sums,
    noise_seed,
    trip_with_sums,
    withholds_loss,
)
from unskew.round.samples import Samples
from unskew.round.step import LaneState, LaneStep, Steps
from unskew.round.step_hooks import with_resting


class Update:
    """One local update of the clients of a chunk; call `run` once.

    The argument `private` maps the clients that have private state to it; the attribute lists the state of
    every lane. steps: the chunk's batches, and the tensors that they read and change.
    """

    def __init__(
        self, clients: Clients, axis: Axis, chunk: Chunk, start: Broadcast, private: Mapping[int, Tree]
    ):
        self.clients, self.axis, self.chunk, self.start = clients, axis, chunk, start
        # a client that trains alone may have a second lane as filler; only lanes of `chunk.work` give replies
        work = axis.work(chunk)
        self.recipe = clients.training.recipe_in(start.t)
        sent = [start.to(w.client) for w in work]
        self.private = [clients.private_state(private.get(w.client), to) for w, to in zip(work, sent)]
        plan = [axis.widened(step) for step in self._plan()]
        drops_out = bool(clients.mask_shapes)
        streams = {w.client: noise_seed(clients, start.t, w.client) for w in work}
        generators = [key(streams[w.client], start.t, w.client, "dropout") for w in work] if drops_out else []
        dropout = DropoutMasks(clients.mask_shapes, chunk, generators)
        self.state = LaneState(
            axis.stack_weights([clients.lane_weights(to, state) for to, state in zip(sent, self.private)]),
            lane_table(clients, axis, work, self.private, start.t)
            | {"sent": sent_table(axis, sent) if start.own else {}},
            NoiseTables(clients, start, work, streams, widths(chunk, plan)),
            optimiser(clients.training, start.lr, clients.device),
            torch.zeros(len(work), device=clients.device),
        )
        self.steps = Steps(clients, axis, start, plan, dropout, chunk.frozen, self.state)
        self.kernels = Kernels(axis.folded, chunk.frozen)
        self.views = LaneViews(clients, start)

    def _plan(self) -> list[Step]:
        """The chunk's steps: over epochs in shuffled order, or with samples drawn independently."""
        clients, t, recipe = self.clients, self.start.t, self.recipe
        if recipe.apart:
            drawn = {w.client: drawn_rows(clients, w, t) for w in self.chunk.work}
            return poisson_steps(self.chunk, drawn, recipe)
        return steps(self.chunk, {w.client: clients.orders(w.client, t) for w in self.chunk.work}, recipe)

    def run(self, replays: StepRecordings | None = None) -> list[Reply]:
        """Train the chunk and return one reply for each client. replays: the recorded steps."""
        fed, first_client = self.clients.fed, self.chunk.work[0].client
        with model_draws(fed.net, self.clients.device, fed.seed, self.start.t, first_client, "model"):
            return self._train(None if fed.net.draws or self.clients.apart else replays)

    def _train(self, replays: StepRecordings | None) -> list[Reply]:
        """Call the hooks of a client's round in order, with the steps between them."""
        hooks, views, axis, state = self.clients.hooks, self.views, self.axis, self.state
        fed = self.clients.fed
        with use_kernels(self.clients.net, self.kernels):
            with torch.no_grad():
                by_part = {
                    p.name: axis.map(views.reading(p, p.begin), state.weights, state.lane_table)
                    for p in hooks["begin"]
                }
                for p in hooks["carry"]:  # steps change these in place, so they must not alias other tensors
                    by_part[p.name] = tree_map(torch.clone, by_part.get(p.name, {}))
                state.lane_table["round"] = by_part
                for p in hooks["starts"]:
                    weights = axis.map(views.changing(p, p.starts, True), state.weights, state.lane_table)
                    for n, w in weights.items():
                        state.weights[n].copy_(w)
                    if p.chooses:
                        received = {n: state.weights[n].clone() for n in fed.shared}
                        state.lane_table["sent"] = state.lane_table["sent"] | {"weights": received}
                plan = with_resting(self.clients, axis, views, self.steps.plan, state.lane_table)
                self.steps = replace(self.steps, plan=plan)
            state.start_optimiser(self.clients)
            step = LaneStep(self.clients, axis, views, self.kernels, state)
            if not (replays and replays.train(self.steps)):
                for plan, feed in zip(self.steps.plan, self.steps.feeds()):
                    step(plan, feed)
            with torch.no_grad():
                results = {p.name: self._finish(p) for p in hooks["finish"]}
                sent = state.weights
                for p in hooks["sends"]:
                    sent = axis.map(views.changing(p, p.sends), sent, state.lane_table)
        return [self._reply(g, results, sent) for g in range(len(self.chunk.work))]

    def _finish(self, p: Part) -> tuple[Tree, Tree]:
        """The result of the Part's `finish`: (shares, private slice), both stacked over lanes."""
        views, axis, state = self.views, self.axis, self.state
        if self.clients.apart:
            return finish_with_sums(p, axis, views, self.chunk.work, state.weights, state.lane_table)
        return axis.map(views.reading(p, p.finish), state.weights, state.lane_table)

    def _reply(self, g: int, results: Mapping[str, tuple[Tree, Tree]], sent: Weights) -> Reply:
        """The reply of the client in lane g. results: by Part, what `finish` returned: (shares, private
        slice); sent: the weights to send; all stacked over lanes."""
        clients, work = self.clients, self.chunk.work[g]
        select_lane = partial(tree_map, lambda t: self.axis.lane(t, g))
        w = {n: self.axis.lane(t, g).contiguous() for n, t in sent.items() if n in clients.sent}
        private: Tree = {n: t for n, t in self.private[g].items() if n != "kept"}
        private |= {name: select_lane(mine) for name, (_, mine) in results.items()}
        if clients.kept:
            private["kept"] = {n: self.axis.lane(self.state.weights[n], g).contiguous() for n in clients.kept}
        reply = Reply(
            client=work.client,
            size=float(work.n),
            weights={n: w[n] for n in clients.sent},
            shares={name: select_lane(shares) for name, (shares, _) in results.items()},
            private={name: state for name, state in private.items() if state},
            loss=0.0 if withholds_loss(clients) else self.state.loss_sum[g] / work.samples_seen(self.recipe),
        )
        if part := clients.method.encoder:
            # each client is encoded separately, for any number of lanes
            c = self.views.client(part, select_lane(self.state.lane_table), {})
            c = replace_fields(c, mine=reply.private.get(part.name, {}))
            with torch.no_grad():
                return encoding.encode_reply(part, c, reply)
        return reply


Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Trainer(Clients):
    """The clients of a run, and the threads that train them.

    lanes: the most clients that train side by side. workers: the number of threads, each on one core; on a
    GPU there is one.
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
        recorders = {"cpu": Operators, "cuda": CudaGraphs}
        kind = recorders.get(self.device.type)
        self.replays = StepRecordings(kind(), lanes) if kind else None
        self._pool = ThreadPoolExecutor(self.workers, initializer=prepare_thread, initargs=(self.device,))

    def close(self) -> None:
        """End the threads and drop the work that waits for them."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def each(self, function: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer]:
        """The function's value for every item, in order, computed on the worker threads."""
        with device_mode(self.device, self.training.precision):
            return list(self._pool.map(function, items))

    def train(self, start: Broadcast, cohort: Sequence[int], private: Mapping[int, Tree]) -> list[Reply]:
        """One local update of every client in the cohort that has samples; returns replies in the order of
        ids. private: the private state of the clients that have one."""
        plan = chunks(cohort, self.fed.sizes, self.training.recipe, self.lanes, gpu=self.device.type != "cpu")
        by_chunk = self.each(lambda chunk: self.update(chunk, start, private), plan)
        return sorted((reply for replies in by_chunk for reply in replies), key=lambda r: r.client)

    def update(self, chunk: Chunk, start: Broadcast, private: Mapping[int, Tree]) -> list[Reply]:
        """One local update of the clients of a chunk, on this thread."""
        return Update(self, self.axis, chunk, start, private).run(self.replays)

    def remarks(self) -> list[tuple[str, str]]:
        """Remarks for the user on training with this device, as (code, text); empty before the first
        round."""
        if not self.replays or not self.replays.refused:
            return []
        text = "the steps of this run cannot be recorded and replayed, so they take longer:"
        return [("E128", f"{text} {self.replays.refused}.")]

    def visit(
        self, trip: Trip, part: Part, start: Broadcast, ids: Sequence[int], private: Mapping[int, Tree]
    ) -> list[Reply]:
        """Run the client side of a trip for every client of `ids` that has samples; returns their replies."""

        def answer(k: int) -> Reply:
            state = private.get(k, {})
            with self.evaluating():
                to = start.to(k).reading(part.name, trip)
                w = self.held_weights(to, state)
                c = self.client(k, to, part.name, w, state)
                if self.apart:
                    tree = trip_with_sums(trip, part, self, w, c, k, start)
                else:
                    tree = trip_answer(trip, part, w, c)
                return Reply(k, float(self.fed.sizes[k]), {}, {part.name: self.placed(tree)})

        return self.each(answer, [k for k in ids if self.fed.sizes[k]])
