"""Local training of cohorts: chunks of clients on worker threads, and the client side of trips."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

import torch

from unskew.core.client import Fed
from unskew.core.guarded import answer_of, is_own
from unskew.core.method import Method
from unskew.core.part import Part, Trip
from unskew.core.replies import Reply
from unskew.core.trees import Tree
from unskew.core.trip import place
from unskew.engine import memory
from unskew.engine.client.axis import axis_for
from unskew.engine.client.clients import Clients
from unskew.engine.client.drawing import undrawn
from unskew.engine.client.remembering import Remembered
from unskew.engine.client.replays import Replays
from unskew.engine.client.schedule import Chunk, chunks
from unskew.engine.client.sums import Release, with_sums, within_bounds
from unskew.engine.client.update import Update
from unskew.engine.client.values import LocalTraining, Samples, Start
from unskew.engine.precision import computing
from unskew.errors import UsageError

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Elsewhere(Protocol):
    """Trains chunks of clients in other processes than this one, to the same bits."""

    def train(self, plan: Sequence[Chunk], start: Start, private: Mapping[int, Tree]) -> list[list[Reply]]:
        """The replies of every chunk, in the order of the plan."""
        ...

    def close(self) -> None: ...


class Trainer(Clients):
    """The clients of a run, and the threads that train them. elsewhere: trains them in place of the threads.

    lanes: 1, or the most clients that train side by side. workers: the number of threads, each on one core; on a GPU
    there is one.
    """

    def __init__(
        self, method: Method, fed: Fed, samples: Samples, training: LocalTraining, lanes: int, workers: int = 1
    ):
        super().__init__(method, fed, samples, training)
        self.lanes, self.axis = lanes, axis_for(lanes)
        self.workers = workers if self.device.type == "cpu" else 1
        self.replays = Replays() if self.device.type == "cuda" else None
        self.elsewhere: Elsewhere | None = None
        self.remembered = Remembered([p for p in method.parts if is_own(p)])
        self.widest = 0
        """The most clients that a chunk had in the last cohort."""
        self._pool = self._threads()

    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.workers, initializer=_settle, initargs=(self.device,))

    def close(self) -> None:
        """End the threads; what waits for them is dropped."""
        if self.elsewhere:
            self.elsewhere.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def each(self, function: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer]:
        """The function of every item, computed on the worker threads; in the order of the items."""
        with computing(self.device, self.training.precision):
            return list(self._pool.map(function, items))

    def train(self, start: Start, cohort: Sequence[int], private: Mapping[int, Tree]) -> list[Reply]:
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

    def update(self, chunk: Chunk, start: Start, private: Mapping[int, Tree]) -> list[Reply]:
        """One local update of the clients of a chunk, on this thread."""
        with undrawn(self.method):
            return Update(self, self.axis, chunk, start, private).run(self.replays)

    def begin(self, chunk: Chunk, start: Start, private: Mapping[int, Tree]) -> Future[list[Reply]]:
        """The same on a thread of this trainer's own, which computes on its device."""
        return self._pool.submit(self.update, chunk, start, private)

    def resized(self) -> int:
        """Train fewer clients side by side from here on, a power of two below those of the last cohort, because they did not
        fit into the GPU's memory. Returns how many, 0 where one trained by itself."""
        if self.device.type == "cpu" or self.widest < 2 or self.lanes < 2:
            return 0
        self.resize(1 << ((min(self.lanes, self.widest) - 1).bit_length() - 1))
        return self.lanes

    def resize(self, lanes: int) -> None:
        """Train so many clients side by side from here on. Recordings, which hold memory for more, are given up."""
        self._pool.shutdown(wait=True, cancel_futures=True)  # another chunk may be training still
        self.lanes, self.axis = lanes, axis_for(lanes)
        self.replays = Replays() if self.replays else None
        torch.cuda.empty_cache()
        self._pool = self._threads()

    def remarks(self) -> list[tuple[str, str]]:
        """What a user should know of how this device trains, each with its code; empty before the first round."""
        if not self.replays or not self.replays.refused:
            return []
        return [
            (
                "E132",
                f"the steps of this run cannot be recorded on the GPU, so they take longer: {self.replays.refused}.",
            )
        ]

    def visit(
        self, trip: Trip, part: Part, start: Start, ids: Sequence[int], private: Mapping[int, Tree]
    ) -> list[Reply]:
        """The client side of a trip of this Part, for every client of `ids` that has samples."""

        def answer(k: int) -> Reply:
            state = private.get(k, {})
            with self.evaluating():
                to = start.to(k).reading(part.name, trip.reads)
                w = self.held_weights(to, state)
                c = self.client(k, to, part.name, w, state)
                if self.apart:
                    release = Release(part.name, _named(trip, part), trip.sums)
                    answered = answer_of(trip, part, w, with_sums(self, c, k, start, release))
                    tree = within_bounds(answered, trip.shares(self.facts))
                else:
                    tree = answer_of(trip, part, w, c)
                return Reply(k, float(self.fed.sizes[k]), {}, {part.name: self.placed(tree)})

        return self.each(answer, [k for k in ids if self.fed.sizes[k]])


def _named(trip: Trip, part: Part) -> str:
    """What a trip is called among its Part's. Raises UsageError (E108) where two are the same function: noise of both would
    be drawn for one name."""
    try:
        return f"trip {place(trip, part.trips)}"
    except ValueError as error:
        raise UsageError("E108", f"'{part.name}' cannot run here: {error}; give each a function of its own.") from None


def _settle(device: torch.device) -> None:
    """Prepare a worker thread: it computes on one core, or on this GPU, whose stream its recordings must be made of."""
    torch.set_num_threads(1)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    memory.keep_freed()
