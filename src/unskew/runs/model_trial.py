"""A trial of a user's model on a training step before a run begins: alone, and with clients side by side.

Letters: B batch, C classes, G lanes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unskew.core import module_inputs
from unskew.core.network import Network
from unskew.core.trees import Weights
from unskew.errors import UsageError
from unskew.round.lanes import Axis, ManyLanes, SingleLane
from unskew.round.layers import Kernels, mask_shapes, use_kernels
from unskew.system import python_files
from unskew.tasks.task import Task

TRIAL_SAMPLES, TRIAL_LANES = 4, 2
"""Number of samples in the step, and of clients side by side; more would only take longer."""
LANE_TOLERANCE = 1e-3
"""The largest difference between kernels, relative to the largest value."""
PADDING, MIXED, LEAST = 4, 1e-2, 1e-3
"""Number of padding rows in the step; the largest difference they may make, relative to a tensor's largest
value; and the lower bound of that value, relative to the largest value of all tensors."""
IN_A_VIEW = (
    "the model changes a view of an activation in place (x.view(...) and then an operation such as relu_),"
    " which is a copy where the activation lies otherwise in memory; change the activation itself, or go on"
    " with what reshape gives."
)


LOUD_SCALE = 16.0
"""Factor on the weights in the test for a forward that bounds them."""
CHANGED_WEIGHT = (
    "the model's forward changes its weight '{}', as max_norm of an embedding or clamp_ does, which would be"
    " lost: every client's pass has weights of its own; compute with the changed values and leave the weight"
    " as it is."
)


@dataclass(frozen=True)
class ModelTrial:
    """A network and the data of its trial. x: samples [B, *shape]. y: targets."""

    net: Network
    task: Task
    x: Tensor
    y: Tensor

    @staticmethod
    def of(net: Network, task: Task, samples: Tensor, classes: int) -> ModelTrial:
        """A trial of a copy of the network. samples: some of the data; zeros replace an empty tensor."""
        x = samples if len(samples) else torch.zeros((TRIAL_SAMPLES, *net.shape), device=samples.device)
        labels = torch.arange(len(x), device=x.device) % classes
        pixels = task.pixels(net.shape)
        places = labels.reshape(-1, *[1] * len(pixels)).expand(-1, *pixels)
        y = task.targets(places, classes) if pixels else F.one_hot(labels, classes).float()
        return ModelTrial(net.copy(), task, x, y)

    def alone(self) -> bool:
        """Run one training step. Returns whether the model draws random numbers by itself; dropout over
        samples does not count, because it uses its client's key.

        Raises UsageError (E123) if a training step fails, if the model changes its attributes, or if it uses
        a generator that a run does not seed.
        """
        before, others = self._generator_state(), _global_states()
        try:
            with module_inputs.check_whole_numbers(self.net.module), keep_buffers(self.net.module):
                self._step(SingleLane(), self.x, self.y, 1)
                check_attributes(self.net.module, lambda: self._again(before))
                self.check_weights_stay()
            by_itself = not torch.equal(before, self._generator_state()) or self.drops_out_by_itself()
        except UsageError:
            raise
        except Exception as error:
            raise UsageError(
                "E123", f"the model cannot be trained: {python_files.one_line(error)}."
            ) from error
        if drawn := [name for name, state in _global_states().items() if state != others[name]]:
            raise UsageError(
                "E123",
                f"the model's forward draws from {drawn[0]}, which no seed of a run reaches, so that no two"
                " runs would be equal; draw with torch, such as torch.rand(()).",
            )
        return by_itself

    def _again(self, state: Tensor) -> None:
        """Repeat the step, from the generator state before the first step."""
        self._set_generator(state)
        self._step(SingleLane(), self.x, self.y, 1)

    def drops_out_by_itself(self) -> bool:
        """Whether a dropout layer receives a tensor with a first axis other than the batch."""
        return None in mask_shapes(self.net)

    def _generator_state(self) -> Tensor:
        """The state of torch's generator on the samples' device."""
        return (
            torch.get_rng_state() if self.x.device.type == "cpu" else torch.cuda.get_rng_state(self.x.device)
        )

    def _set_generator(self, state: Tensor) -> None:
        (
            torch.set_rng_state(state)
            if self.x.device.type == "cpu"
            else torch.cuda.set_rng_state(state, self.x.device)
        )

    def side_by_side(self) -> str:
        """The reason why clients cannot train side by side with this model; "" if they can."""
        if self.drops_out_by_itself():
            return "a dropout layer's first axis is not the batch, so no sample has a mask of its own"
        padded = [
            torch.cat([self.x, self._strangers()]),
            torch.cat([self.y, self.y[:1].expand(PADDING, *self.y.shape[1:])]),
        ]
        try:
            many, longer = (
                self._step(
                    ManyLanes(),
                    torch.stack([x] * TRIAL_LANES, 1),
                    torch.stack([y] * TRIAL_LANES),
                    TRIAL_LANES,
                    padding,
                )
                for x, y, padding in ((self.x, self.y, 0), (*padded, PADDING))
            )
        except Exception as error:
            return python_files.one_line(error).split(". ")[0] + self._layer_note(error)
        alone = self._step(SingleLane(), self.x, self.y, 1)
        far = [n for n, t in alone.items() if _differ(t, many[n])]
        if far:
            return f"'{far[0]}' then comes out otherwise"
        least = LEAST * max(_largest_value(t) for t in alone.values())
        if any(
            _lane_difference(t, longer[n]) > MIXED * max(_largest_value(t), least) for n, t in alone.items()
        ):
            return (
                "what it says of a sample depends on the others in its batch, so that batches cannot be"
                " padded"
            )
        return ""

    def _layer_note(self, error: Exception) -> str:
        """The innermost layer in which an error arose, and its setting of dropout if that is the cause."""
        names, found, trace = {id(m): n for n, m in self.net.module.named_modules()}, None, error.__traceback__
        while trace:
            owner = trace.tb_frame.f_locals.get("self")
            found, trace = (owner if names.get(id(owner)) else found), trace.tb_next
        if found is None:
            return ""
        dropout = getattr(found, "dropout", 0) and "random" in str(error)
        remedy = ", which runs with dropout=0.0" if dropout else ""
        return f" in the layer '{names[id(found)]}' ({type(found).__name__}){remedy}"

    def says_probabilities(self) -> bool:
        """Whether the model returns probabilities instead of logits, as after a softmax: numbers of at least
        0 with sum 1."""
        if self.task.name != "classification":
            return False
        with use_kernels(self.net, Kernels(folded=False)), torch.no_grad():
            z = self.net.run({n: t.to(self.x.device) for n, t in self.net.initial.items()}, self.x)[0]
        return z.shape[1] > 1 and bool((z >= 0).all()) and torch.allclose(z.sum(1), z.new_ones(()), atol=1e-4)

    def _strangers(self) -> Tensor:
        """Inputs [PADDING, *shape] outside the range of the samples, so that even a maximum over the batch
        changes.

        For whole numbers that a model looks up, they are the samples' numbers in another order.
        """
        loud = torch.tensor([10.0, -10.0, 3.0, -3.0], device=self.x.device).reshape(
            -1, *[1] * (self.x.dim() - 1)
        )
        beyond = loud * (1 + self.x[:1].abs())
        if not self.net.embeds:
            return beyond
        known = self.x.flip(0)[:1].flip(-1) if self.net.layout is None else self.x.flip(0)[:1]
        if self.net.layout is None:
            return known.expand(PADDING, *known.shape[1:])
        floats = torch.as_tensor(self.net.layout.scalable()[self.net.layout.channel_of], device=self.x.device)
        return torch.where(floats, beyond, known)

    def check_weights_stay(self) -> None:
        """Raises UsageError (E123) if the forward changes a weight, because a pass has its own weights, and
        the change would be lost. The weights are larger than the initial ones, which an upper bound may not
        change."""
        state = self._generator_state()
        first = {n: t.to(self.x.device) for n, t in self.net.initial.items()}
        names = [*self.net.trainable, *self.net.constants]
        w = {n: t * LOUD_SCALE if n in names else t.clone() for n, t in first.items()}
        before = {n: w[n]._version for n in names}
        kernels, weight = Kernels(False), torch.ones(len(self.x), device=self.x.device)
        with use_kernels(self.net, kernels), kernels.training(weight, None), torch.no_grad():
            self.net.run(w, self.x, train=True)
        for n in names:
            if w[n]._version != before[n] or not torch.equal(w[n], first[n] * LOUD_SCALE):
                raise UsageError("E123", CHANGED_WEIGHT.format(n))
        self._set_generator(state)

    def _step(self, axis: Axis, x: Tensor, y: Tensor, lanes: int, padding: int = 0) -> Weights:
        """The loss, the gradients and the running statistics after a step, stacked for several lanes.

        padding: the number of samples at the end that do not count.
        """
        net, kernels = self.net, Kernels(axis.folded)
        kernels.padded, kernels.copied = padding > 0, None if axis.folded else []
        count = (y.shape[1] if lanes > 1 else len(y)) - padding
        weight = (torch.arange(count + padding, device=x.device) < count).float()
        start = {n: t.to(x.device) for n, t in net.initial.items()}
        common = {n: start[n] for n in start if lanes == 1 or n in net.constants}
        changed = net.buffers if lanes == 1 else tuple(n for n in start if n not in common)
        # Constants, which may be large, are not copied.
        leaves = {n: t for n, t in common.items() if n not in net.constants}
        leaves |= axis.stack_weights([{n: start[n] for n in changed}] * lanes)
        leaves |= {n: leaves[n].detach().requires_grad_() for n in net.trainable}

        def loss(w: Weights, x: Tensor, y: Tensor) -> Tensor:
            with kernels.training(weight, None):
                z = net.run({**common, **w}, x, train=True)[0]
            if not isinstance(z, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance] -- a user's model may return anything
                text = (
                    f"in training it returns its answer as {type(z).__name__}, and a round takes logits alone"
                )
                raise UsageError("E123", f"the model cannot be trained: {text}; return no auxiliary outputs.")
            return (self.task.loss(z, y) * weight).sum() / count

        with use_kernels(net, kernels):
            losses = axis.loss(loss)(leaves, x, y)
        if any(t._version for t in kernels.copied or ()):  # pyright: ignore[reportPrivateUsage]
            raise UsageError("E123", IN_A_VIEW)
        learnt = [leaves[n] for n in net.trainable]
        grads: Any = torch.autograd.grad(losses.sum(), learnt, allow_unused=True)
        results = {n: g for n, g in zip(net.trainable, grads) if g is not None}
        return {"loss": losses.detach(), **results, **{n: leaves[n] for n in net.buffers}}


@contextmanager
def keep_buffers(module: nn.Module) -> Iterator[None]:
    """A context in which a forward pass may only update buffers of floats in place; other changes would be
    lost.

    Raises UsageError (E123) for a buffer that a layer replaces, and for a changed buffer of whole numbers.
    """
    whole = {n: b.clone() for n, b in module.named_buffers() if not b.is_floating_point()}
    before: dict[str, dict[str, Tensor | None]] = {}

    def note(name: str) -> Callable[..., None]:
        return lambda layer, _args: before.update({name: dict(layer.named_buffers(recurse=False))})

    def compare(name: str) -> Callable[..., None]:
        def hook(layer: nn.Module, _args: object, _output: object) -> None:
            for key, buffer in layer.named_buffers(recurse=False):
                if buffer is not before[name].get(key) and f"{name}.{key}".lstrip(".") not in whole:
                    raise UsageError(
                        "E123",
                        "the model's forward assigns a new tensor to its buffer"
                        f" '{f'{name}.{key}'.lstrip('.')}', which would be lost; update it in place, such as"
                        f" self.{key}.copy_(...).",
                    )

        return hook

    hooks = [
        handle
        for name, layer in module.named_modules()
        for handle in (
            layer.register_forward_pre_hook(note(name)),
            layer.register_forward_hook(compare(name)),
        )
    ]
    try:
        yield
    finally:
        for handle in hooks:
            handle.remove()
    now = dict(module.named_buffers())
    if changed := [n for n, then in whole.items() if n not in now or not torch.equal(then, now[n])]:
        raise UsageError(
            "E123",
            f"the model's forward changes '{changed[0]}', a buffer of whole numbers, which would be lost"
            " because they cannot be averaged; make it a buffer of floats and update it in place.",
        )


_MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))


def check_attributes(module: nn.Module, again: Callable[[], object]) -> None:
    """Raises UsageError (E123) if an equal pass, `again`, changes the attributes of the user's layers once
    more. Attributes that follow from the samples are equal both times."""
    first = _attributes(module)
    again()
    second = _attributes(module)
    if changed := [n for n, value in second.items() if n not in first or not _alike(first[n], value)]:
        raise UsageError(
            "E123",
            f"the model's forward changes its attribute '{changed[0]}' at every pass, which no run could save"
            " or resume, and which clients would take from one another; leave it out, or make it a buffer of"
            " floats that is updated in place.",
        )


def _attributes(module: nn.Module) -> dict[str, Any]:
    """Copies of the attributes that are neither parameters, buffers nor layers, by name."""
    return {
        f"{name}.{key}".lstrip("."): _snapshot(value)
        for name, layer in module.named_modules()
        if not type(layer).__module__.startswith("torch.nn.")
        for key, value in vars(layer).items()
        if key not in _MODULE_ATTRIBUTES
    }


def _snapshot(value: Any) -> Any:
    """A copy of numbers, texts, arrays and their containers; None for other objects."""
    if isinstance(value, Tensor | np.ndarray):
        return torch.as_tensor(value).detach().clone() if value.dtype != object else None
    if isinstance(value, dict):
        return {str(key): _snapshot(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_snapshot(v) for v in value]
    return value if isinstance(value, bool | int | float | str) else None


def _alike(a: Any, b: Any) -> bool:
    """Whether two copies are equal, up to the order of sums on a GPU."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_alike(v, b[key]) for key, v in a.items())
    if isinstance(a, list):
        return len(a) == len(b) and all(map(_alike, a, b))
    if isinstance(a, Tensor):
        return a.shape == b.shape and torch.allclose(a.double(), b.double(), rtol=1e-4, equal_nan=True)
    return a == b or (isinstance(a, float) and math.isclose(a, b, rel_tol=1e-4))


def _global_states() -> dict[str, Any]:
    """The states of the global generators of Python and NumPy."""
    _, words, place, *_ = np.random.get_state()
    return {"Python's `random`": random.getstate(), "`numpy.random`": (words.tobytes(), place)}  # type: ignore[union-attr]


def check_single_samples(net: Network, task: Task, batch: int) -> None:
    """Raises UsageError (E109) for batches of one sample if the model cannot normalise them."""
    if batch > 1 or not net.norms:
        return
    try:
        ModelTrial.of(net, task, torch.zeros((1, *net.shape)), 1).alone()
    except UsageError as error:
        if "more than 1 value per channel" not in error.text:
            raise
        raise UsageError(
            "E109",
            "batch=1 leaves batch normalisation a single value per channel; take batch=2 or more, or a model"
            " without it.",
        ) from error


def _differ(alone: Tensor, many: Tensor) -> bool:
    return _lane_difference(alone, many) > LANE_TOLERANCE * max(1.0, _largest_value(alone))


def _largest_value(t: Tensor) -> float:
    return float(t.abs().max()) if t.numel() else 0.0


def _lane_difference(alone: Tensor, many: Tensor) -> float:
    """The largest difference between any lane and the result of one client alone."""
    return max((_largest_value(alone - lane) for lane in many), default=0.0)
