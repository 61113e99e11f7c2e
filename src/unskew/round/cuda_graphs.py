"""CUDA graphs: training steps on a GPU are recorded once and replayed, to avoid the launch overhead of
kernels.

The second step of each shape is recorded, and later steps are replayed, also in later rounds. Letters: G
lanes.
"""

# pyright: reportPrivateImportUsage=false
# torch's optimisers consist of its _foreach functions, which have no public names.

from __future__ import annotations

import gc
import threading
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from unskew.core.trees import Tree, flat_tree, leaves, tree_map
from unskew.round.lanes import LaneViews
from unskew.round.layers import Kernels, use_kernels
from unskew.round.optimise import optimiser
from unskew.round.schedule import Step
from unskew.round.step import Feed, LaneState, LaneStep, Steps
from unskew.system.python_files import one_line

MOST_STAGES = 12
"""Maximum number of stages in memory; the least recently used stage is dropped first."""
_RECORDING_LOCK = threading.Lock()
"""A lock for watching and recording, because warnings and garbage collection belong to the process."""
NOT_IN_STEPS = ("rows", "rows_weight")
"""Leaves of the lane table that steps do not read."""


class StepRecordings:
    """The recorded steps of a run, by stage.

    read: the fields "t" and "lr" that hooks have read as numbers. A recording contains such a number as a
    constant, so it is only replayed in rounds with an equal number. refused: the reason why this run's steps
    cannot be recorded; "" if they can.
    """

    def __init__(self, recorder: Recorder | None = None):
        self.recorder, self.refused = recorder or CudaGraphs(), ""
        self.stages: OrderedDict[object, Stage] = OrderedDict()
        self.read: set[str] = set()

    def train(self, steps: Steps) -> None:
        """Run all steps of an update and change its state, as `Update` would without recordings."""
        known = len(self.read)
        stage = self._stage(steps)
        with use_kernels(steps.clients.net, stage.kernels):
            for step, feed in zip(steps.plan, steps.feeds()):
                stage.take(step, feed)
        if len(self.read) > known:  # hooks have read more fields, which the key must contain
            self.stages.clear()
            self.stages[self._key(steps)] = stage
        stage.unload(steps.state)

    def _stage(self, steps: Steps) -> Stage:
        key = self._key(steps)
        stage = self.stages.get(key)
        if stage is None:
            stage = self.stages[key] = Stage(self, steps)
            while len(self.stages) > MOST_STAGES:
                self.stages.popitem(last=False)
        self.stages.move_to_end(key)
        stage.load(steps)
        return stage

    def _key(self, steps: Steps) -> object:
        shapes = tuple((path, tuple(t.shape), t.dtype) for path, t in leaves(tensors_of(steps)))
        return shapes, steps.frozen, tuple((fact, getattr(steps.start, fact)) for fact in sorted(self.read))


class Stage:
    """Tensors at fixed addresses for the steps of all updates of one shape."""

    def __init__(self, replays: StepRecordings, steps: Steps):
        self.replays = replays
        tree = tree_map(torch.clone, tensors_of(steps))
        self.held = [t for _, t in leaves(tree)]
        clients, training = steps.clients, steps.clients.training
        self.lr = torch.full((), steps.start.lr, device=steps.clients.device)
        state = steps.state
        self.state = LaneState(
            tree["weights"],
            tree["lanes"],
            state.noise.over(tree["noise"]),
            optimiser(training.optimiser, self.lr, training.momentum, training.weight_decay),
            torch.zeros_like(state.loss_sum),
        )
        self.state.start_optimiser(clients)
        start = replace(steps.start, weights=tree["start"], down=tree["down"])
        self.kernels = Kernels(steps.axis.folded, frozen=steps.frozen)
        views = LaneViews(clients, start, replays.read)
        self.step = LaneStep(clients, steps.axis, views, self.kernels, self.state)
        self.recorded: dict[object, Recording] = {}
        self.seen: Counter[object] = Counter()

    def load(self, steps: Steps) -> None:
        """Copy the initial tensors of this update to the fixed addresses."""
        torch._foreach_copy_(self.held, [t for _, t in leaves(tensors_of(steps))])
        self.lr.fill_(steps.start.lr)
        for group in self.state.optimiser.state:
            torch._foreach_zero_(group)
        self.state.loss_sum.zero_()

    def unload(self, state: LaneState) -> None:
        """Copy the results of the steps to `state`."""
        torch._foreach_copy_(list(state.weights.values()), [self.state.weights[n] for n in state.weights])
        state.loss_sum.copy_(self.state.loss_sum)
        for p in self.step.clients.hooks["carry"]:
            carried, held = (
                flat_tree(table["round"][p.name]) for table in (state.lane_table, self.state.lane_table)
            )
            torch._foreach_copy_(list(carried.values()), list(held.values()))

    def take(self, step: Step, feed: Feed) -> None:
        """Run one step: the first of its shape directly, later ones by a recording."""
        shape = (step.width, step.active, step.size, step.short, feed.weight is None)
        self.seen[shape] += 1
        if self.seen[shape] > 1 and not self.replays.refused and shape not in self.recorded:
            self._record(shape, step, feed)
        if shape in self.recorded:
            self.recorded[shape].replay(feed)
        elif self.seen[shape] == 1 and not self.replays.refused:
            self.replays.refused = self.replays.recorder.watch(lambda: self.step(step, feed))
        else:
            self.step(step, feed)

    def _record(self, shape: object, step: Step, feed: Feed) -> None:
        fixed = feed.clone()
        try:
            self.recorded[shape] = Recording(
                self.replays.recorder.record(lambda: self.step(step, fixed)), fixed
            )
        except torch.OutOfMemoryError:  # fewer clients may be recorded, see `LaneRetry`
            raise
        except RuntimeError as error:
            self.replays.refused = one_line(error)


@dataclass(frozen=True)
class Recording:
    """run: computes one recorded step from the feed at this address."""

    run: Callable[[], None]
    feed: Feed

    def replay(self, feed: Feed) -> None:
        torch._foreach_copy_(self.feed.tensors, feed.tensors)
        self.run()


def tensors_of(steps: Steps) -> Tree:
    """All tensors that the steps of an update read, without each step's feed and without constants of the
    run."""
    state, start = steps.state, steps.start
    lanes = {n: t for n, t in state.lane_table.items() if n not in NOT_IN_STEPS}
    tree: Tree = {"weights": state.weights, "lanes": lanes, "start": start.weights}
    return {**tree, "down": _with_spare_rows(steps), "noise": state.noise.tables}


def _with_spare_rows(steps: Steps) -> Tree:
    """The broadcast slices, padded with zero rows where steps read by row. Otherwise a buffer of varying
    length would make every round record its steps again."""
    down = dict(steps.start.down)
    for p in steps.clients.method.parts:
        if p.name in down and p.read_by_row:
            down[p.name] = {n: pad_rows(t) if n in p.read_by_row else t for n, t in down[p.name].items()}
    return down


def pad_rows(rows: torch.Tensor) -> torch.Tensor:
    """[N, ...] -> [M, ...] with M >= N from a few lengths, at most a quarter or 16 rows more; no rows stay no
    rows."""
    N = len(rows)
    apart = max(16, 1 << max(0, N.bit_length() - 3))
    more = -N % apart
    return torch.cat([rows, rows.new_zeros(more, *rows.shape[1:])]) if more else rows


class Recorder(Protocol):
    """Records what a function computes."""

    def watch(self, function: Callable[[], None]) -> str:
        """Call the function. Returns the reason why it cannot be recorded; "" if none is known."""
        ...

    def record(self, function: Callable[[], None]) -> Callable[[], None]:
        """A function that computes the recorded operations. The function itself computes nothing while it is
        recorded.

        Raises RuntimeError if it cannot be recorded.
        """
        ...


class CudaGraphs:
    """Records kernels as CUDA graphs.

    The graphs share one memory pool, because none keeps data in it between launches.
    """

    def __init__(self) -> None:
        self.pool: Any = None
        self.stream: Any = None  # one for all, because a pool returns memory only to its own stream

    def watch(self, function: Callable[[], None]) -> str:
        """Call the function. A function that waits for the GPU, to read or copy a value, cannot be
        recorded."""
        here, waits = threading.get_ident(), list[str]()

        def note(message: Any, category: Any, filename: str, line: int, *_: Any) -> None:
            # Other threads serve other GPUs.
            if threading.get_ident() == here and "called a synchronizing" in str(message):
                waits.append(f"{filename}, line {line} waits for the GPU")

        with _RECORDING_LOCK, warnings.catch_warnings():
            before = torch.cuda.get_sync_debug_mode()
            warnings.simplefilter("always")
            warnings.showwarning = note
            torch.cuda.set_sync_debug_mode("warn")
            try:
                function()
            finally:
                torch.cuda.set_sync_debug_mode(before)
        return waits[0] if waits else ""

    def record(self, function: Callable[[], None]) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        with _RECORDING_LOCK, self._recording(graph):
            function()
        self.pool = self.pool or graph.pool()
        return graph.replay

    @contextmanager
    def _recording(self, graph: torch.cuda.CUDAGraph) -> Iterator[None]:
        """A context in which kernels are recorded instead of run. It disables garbage collection, because
        freeing memory would end a recording."""
        self.stream = stream = self.stream or torch.cuda.Stream()
        collects = gc.isenabled()
        stream.wait_stream(torch.cuda.current_stream())
        gc.disable()
        try:
            with torch.cuda.stream(stream):
                graph.capture_begin(
                    *(() if self.pool is None else (self.pool,)), capture_error_mode="thread_local"
                )
                try:
                    yield
                except BaseException:
                    # A failed recording cannot be ended; the first error gives the reason.
                    with suppress(RuntimeError):
                        graph.capture_end()
                    raise
                graph.capture_end()
        finally:
            if collects:
                gc.enable()
        torch.cuda.current_stream().wait_stream(stream)
