"""Training steps are recorded once and replayed, to avoid what Python and the launches of kernels cost.

After the first few steps of a shape one is recorded, and later ones are replayed, also in later rounds: on a
GPU as a CUDA graph, on a CPU as a list of operators, whose first replay is compared with an ordinary step.
Letters: G lanes, L lanes of a stage, S steps.
"""

# pyright: reportPrivateImportUsage=false
# torch's optimisers consist of its _foreach functions, which have no public names.

from __future__ import annotations

import math
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from unskew.core.trees import Tree, flat_tree, leaves
from unskew.recorders.cuda_graphs import CudaGraphs
from unskew.recorders.operators import Operators
from unskew.round.chunks import Step
from unskew.round.lane_views import LaneViews
from unskew.round.layer_kernels import Kernels, use_kernels
from unskew.round.noise import PAD_STEPS
from unskew.round.optimisers import Optimiser, optimiser
from unskew.round.samples import Feed
from unskew.round.step import LaneState, LaneStep, Steps

MOST_STAGES = 12
"""Maximum number of stages in memory; the least recently used stage is dropped first."""
STAGE_BYTES = 1 << 24
"""The most bytes of a stage on a CPU. Steps with larger weights take so long that Python does not matter."""
NOT_IN_STEPS = ("rows", "rows_weight")
"""Leaves of the lane table that steps do not read."""
DIFFERS = "a recorded step gave other numbers than an ordinary one; perhaps a hook reads a value that changes"


Recorder: TypeAlias = Operators | CudaGraphs
"""Records what a function computes on tensors at fixed addresses."""


class StepRecordings:
    """The recorded steps of a run, by thread and stage.

    lanes: the most clients of a chunk. stages: by thread and key, in the order of their last use. read: the
    fields "t" and "lr" that hooks have read as numbers. A recording contains such a number as a constant, so
    it is only replayed in rounds with an equal number. refused: the reason why this run's steps cannot be
    recorded; "" if they can.
    """

    def __init__(self, recorder: Recorder, lanes: int = 1):
        self.recorder, self.lanes, self.refused = recorder, lanes, ""
        self.on_cpu = isinstance(recorder, Operators)
        self.read: set[str] = set()
        self._asked: set[int] = set()
        self.stages: dict[int, OrderedDict[object, Stage]] = {}

    def train(self, steps: Steps) -> bool:
        """Run all steps of an update and change its state, as `Update` would without recordings. Returns
        False, and computes nothing, where a recording does not pay: on a CPU for large models, for steps that
        no earlier update resembled, and if hooks read a number that differs from round to round."""
        if self.on_cpu and (self.refused or not isinstance(steps.start.weights, dict)):
            return False  # weights that are not in a dict are on a disk
        known, tensors = len(self.read), flat_tree(tensors_of(steps))
        shapes = self._shapes(steps, tensors)
        key = self._key(steps, tensors, shapes)
        if self.on_cpu and not self._pays(key, tensors, shapes):
            return False
        stage = self._stage(key, steps, shapes)
        stage.load(steps, tensors)
        with use_kernels(steps.clients.net, stage.kernels):
            for step, feed in zip(steps.plan, steps.feeds()):
                stage.take(step, feed)
        if len(self.read) > known:  # hooks have read more fields, which the key must contain
            stages = self.stages[threading.get_ident()] = OrderedDict()
            stages[self._key(steps, tensors, shapes)] = stage
        stage.unload(steps.state)
        return True

    def _pays(self, key: object, tensors: dict[str, Tensor], shapes: dict[str, tuple[int, ...]]) -> bool:
        seen = hash(key) in self._asked
        self._asked.add(hash(key))
        return (
            seen
            and sum(math.prod(shapes[path]) * t.element_size() for path, t in tensors.items()) <= STAGE_BYTES
        )

    def _stage(self, key: object, steps: Steps, shapes: dict[str, tuple[int, ...]]) -> Stage:
        stages = self.stages.setdefault(threading.get_ident(), OrderedDict())
        stage = stages.get(key)
        if stage is None:
            stage = stages[key] = Stage(self, steps, shapes)
            while len(stages) > MOST_STAGES:
                stages.popitem(last=False)
        stages.move_to_end(key)
        return stage

    def _key(self, steps: Steps, tensors: dict[str, Tensor], shapes: dict[str, tuple[int, ...]]) -> object:
        layout = tuple(
            (path, shapes[path], t.dtype, t.stride()[1:] if _kind(path) != "noise" else ())
            for path, t in tensors.items()
        )
        return layout, steps.frozen, tuple((fact, getattr(steps.start, fact)) for fact in sorted(self.read))

    def _shapes(self, steps: Steps, tensors: dict[str, Tensor]) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor of a stage. On a CPU there is room for all lanes, and for the noise of
        more steps, so that one stage serves chunks of any size."""
        shapes = {path: tuple(t.shape) for path, t in tensors.items()}
        if not self.on_cpu:
            return shapes
        for path, shape in shapes.items():
            kind = _kind(path)
            if kind == "noise":
                shapes[path] = shape = (shape[0], -(-shape[1] // PAD_STEPS) * PAD_STEPS, *shape[2:])
            if steps.axis.folded and kind in ("weights", "lanes", "noise"):
                shapes[path] = (max(shape[0], self.lanes), *shape[1:])
        return shapes


class Stage:
    """Tensors at fixed addresses for the steps of all updates of one shape."""

    def __init__(self, recordings: StepRecordings, steps: Steps, shapes: dict[str, tuple[int, ...]]):
        self.recordings, recorder = recordings, recordings.recorder
        tensors = tensors_of(steps)
        self.held = {path: _room(t, shapes[path]) for path, t in leaves(tensors)}
        tree = _with_tensors(tensors, self.held)
        clients, state = steps.clients, steps.state
        self.optimiser = optimiser(clients.training, steps.start.lr, clients.device)
        lanes = len(self.held["lanes/id"]) if steps.axis.folded else len(state.loss_sum)
        self.state = LaneState(
            tree["weights"],
            tree["lanes"],
            state.noise.over(tree["noise"]),
            Untraced(self.optimiser, recorder) if isinstance(recorder, Operators) else self.optimiser,
            state.loss_sum.new_zeros(lanes),
        )
        self.state.start_optimiser(clients)
        start = replace(steps.start, weights=tree["start"], down=tree["down"])
        self.kernels = Kernels(steps.axis.folded, steps.frozen)
        views = LaneViews(clients, start, recordings.read)
        self.step = LaneStep(clients, steps.axis, views, self.kernels, self.state)
        self.recorded: dict[object, Recording | None] = {}
        self.seen: Counter[object] = Counter()

    def load(self, steps: Steps, tensors: dict[str, Tensor]) -> None:
        """Copy the initial tensors of this update to the fixed addresses."""
        parts = [_part(self.held[path], t.shape) for path, t in tensors.items()]
        torch._foreach_copy_(parts, list(tensors.values()))
        if isinstance(self.optimiser.lr, Tensor):
            self.optimiser.lr.fill_(steps.start.lr)
        else:
            self.optimiser.lr = steps.start.lr
        for group in self.optimiser.state:
            torch._foreach_zero_(group)
        self.state.loss_sum.zero_()

    def unload(self, state: LaneState) -> None:
        """Copy the results of the steps to `state`."""
        results = [(t, self.state.weights[n]) for n, t in state.weights.items()]
        results.append((state.loss_sum, self.state.loss_sum))
        for p in self.step.clients.hooks["carry"]:
            held = flat_tree(self.state.lane_table["round"][p.name])
            results += [(t, held[path]) for path, t in leaves(state.lane_table["round"][p.name])]
        torch._foreach_copy_([t for t, _ in results], [_part(place, t.shape) for t, place in results])

    def take(self, step: Step, feed: Feed) -> None:
        """Run one step: the first ones of its shape directly, later ones by a recording."""
        shape = step.width, step.active, step.size, step.short, step.resting, feed.weight is None
        recordings, recorder = self.recordings, self.recordings.recorder
        if recording := self.recorded.get(shape):
            if recording.checked:
                recording.replay(feed)
            else:
                self._check(shape, recording, step, feed)
            return
        self.seen[shape] += 1
        if recordings.refused or shape in self.recorded:
            self.step(step, feed)
        elif self.seen[shape] == 1:
            recordings.refused = recorder.watch(lambda: self.step(step, feed))
        elif self.seen[shape] <= recorder.calls_before:
            self.step(step, feed)
        elif recorder.exact:
            self._record(shape, step, feed)
        else:
            fixed = feed.clone()
            self._keep(shape, recorder.record(lambda: self.step(step, fixed)), fixed)

    def _record(self, shape: object, step: Step, feed: Feed) -> None:
        """Take a step, and record it. A recording step that gives other bits is not kept."""
        fixed, results = feed.clone(), list[Any]()
        recorder = self.recordings.recorder
        if self._agrees(lambda: results.append(recorder.record(lambda: self.step(step, fixed))), step, feed):
            self._keep(shape, results[0], fixed)
        else:
            self._keep(shape, DIFFERS, fixed)

    def _keep(self, shape: object, result: Callable[[], None] | str, feed: Feed) -> None:
        """Keep a recording, or the reason why there is none."""
        if isinstance(result, str):
            self.recordings.refused, self.recorded[shape] = result, None
        else:
            self.recorded[shape] = Recording(result, feed, checked=not self.recordings.recorder.exact)

    def _check(self, shape: object, recording: Recording, step: Step, feed: Feed) -> None:
        """Take a step both ways. A recording that gives other bits is dropped, and all others with it."""
        recording.checked = self._agrees(lambda: recording.replay(feed), step, feed)
        if not recording.checked:
            self.recordings.refused = DIFFERS
            self.recorded = dict.fromkeys(self.recorded)

    def _agrees(self, other: Callable[[], None], step: Step, feed: Feed) -> bool:
        """Compute a step in another way and then in the ordinary one, and keep the second result. Returns
        whether both have the same bits."""
        changing = self._changing()
        before = [t.clone() for t in changing]
        other()
        results = [t.clone() for t in changing]
        torch._foreach_copy_(changing, before)
        self.step(step, feed)
        return all(map(_same_bits, results, changing))

    def _changing(self) -> list[Tensor]:
        """The tensors that steps change."""
        state = self.state
        carried = [state.lane_table["round"][p.name] for p in self.step.clients.hooks["carry"]]
        groups = [t for group in state.optimiser.state for t in group]
        return [*state.weights.values(), *groups, state.loss_sum, *(t for c in carried for _, t in leaves(c))]


@dataclass
class Recording:
    """run: computes one recorded step from the feed at this address. checked: whether a replay has equalled
    an ordinary step, where it must."""

    run: Callable[[], None]
    feed: Feed
    checked: bool

    def replay(self, feed: Feed) -> None:
        """Run the recorded step on another step's tensors."""
        torch._foreach_copy_(self.feed.tensors, feed.tensors)
        self.run()


class Untraced(Optimiser):
    """An optimiser with a step that a recorder calls as it is, because its learning rate is a number that
    differs between rounds."""

    def __init__(self, optimiser: Optimiser, recorder: Operators):
        self.optimiser, self.recorder = optimiser, recorder

    def start(self, w: list[Tensor], lanes: Tensor | None = None) -> None:
        self.optimiser.start(w, lanes)
        self.state = self.optimiser.state

    def step(self, w: list[Tensor], g: list[Tensor], state: list[list[Tensor]], local_G: Tensor) -> None:
        self.recorder.untraced(self._step, [w, state], g, local_G)

    def _step(self, changed: Any, g: list[Tensor], local_G: Tensor) -> None:
        self.optimiser.step(changed[0], g, changed[1], local_G)


def _kind(path: str) -> str:
    return path.partition("/")[0]


def _room(t: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A copy of t in a tensor of this shape, which may be longer along the first two axes, with the strides
    of t along the others."""
    if tuple(t.shape) == shape:
        return t.clone()
    first, *rest = shape
    each = t[0].clone() if tuple(t.shape[1:]) == tuple(rest) else t.new_zeros(rest)
    size = math.prod(rest)
    return t.new_zeros(first * size).as_strided(shape, (size, *each.stride()))


def _part(place: Tensor, shape: torch.Size) -> Tensor:
    """The first entries of a tensor along its axes, in this shape."""
    for axis, (room, length) in enumerate(zip(place.shape, shape)):
        if room != length:
            place = place.narrow(axis, 0, length)
    return place


def _same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


def _with_tensors(tree: Tree, tensors: dict[str, Tensor], prefix: str = "") -> Tree:
    """The tree with other tensors, by path."""
    return {
        n: _with_tensors(v, tensors, f"{prefix}{n}/") if isinstance(v, dict) else tensors[f"{prefix}{n}"]
        for n, v in tree.items()
    }


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
    """The rows [N, ...] followed by rows of zeros, [M, ...]. M takes few values, so that few shapes are
    recorded, and exceeds N by at most a quarter, or 16; it is 0 if N is 0."""
    N = len(rows)
    apart = max(16, 1 << max(0, N.bit_length() - 3))
    more = -N % apart
    return torch.cat([rows, rows.new_zeros(more, *rows.shape[1:])]) if more else rows
