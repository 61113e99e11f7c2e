"""A trial of a user's model on a training step before a run begins: alone, and with clients side by side.

Letters: B batch, C classes, G lanes.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from unskew.core import module_inputs
from unskew.core.modules import batch_norms, tensor_roles
from unskew.core.network import Network
from unskew.core.trees import Weights
from unskew.errors import UsageError
from unskew.round.lane_views import Axis, ManyLanes, SingleLane
from unskew.round.layer_kernels import Kernels, mask_shapes, use_kernels
from unskew.system import python_files
from unskew.tasks.task import Task

TRIAL_SAMPLES, TRIAL_LANES = 4, 2
"""Number of samples in the step, and of clients side by side; more would only take longer."""
PADDING, TOLERANCE, LEAST = 4, 1e-3, 1e-3
"""Number of padding rows of clients side by side; the largest difference that they and other kernels may
make, relative to a tensor's largest value; and the lower bound of that value, relative to the largest value
of all tensors."""
OBJECT = np.dtype(object)
LOUD_SCALE = 16.0
"""Factor on the weights in the test for a forward that bounds them."""


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

        Raises UsageError (E123) if a training step fails, if the model changes what a pass would lose, or if
        it uses a generator that a run does not seed.
        """
        before, others = self._generator_state(), _global_states()
        try:
            with module_inputs.check_whole_numbers(self.net.module):
                self._step(SingleLane(), self.x, self.y, 1)
            by_itself = not torch.equal(before, self._generator_state()) or self.drops_out_by_itself()
            check_state(self.net, self.x)
        except UsageError:
            raise
        except Exception as error:
            raise UsageError(
                "E123", f"the model cannot be trained: {python_files.one_line(error)}."
            ) from error
        if drawn := [name for name, state in _global_states().items() if state != others[name]]:
            text = f"the model's forward draws from {drawn[0]}, which no seed of a run reaches"
            raise UsageError("E123", f"{text}, so that no two runs would be equal; draw with torch.rand(()).")
        return by_itself

    def drops_out_by_itself(self) -> bool:
        """Whether a dropout layer receives a tensor with a first axis other than the batch."""
        return None in mask_shapes(self.net)

    def _generator_state(self) -> Tensor:
        """The state of torch's generator on the samples' device."""
        on_cpu = self.x.device.type == "cpu"
        return torch.get_rng_state() if on_cpu else torch.cuda.get_rng_state(self.x.device)

    def side_by_side(self) -> str:
        """The reason why clients cannot train side by side with this model; "" if they can."""
        if self.drops_out_by_itself():
            return "a dropout layer's first axis is not the batch, so no sample has a mask of its own"
        x = torch.cat([self.x, self._strangers()])
        y = torch.cat([self.y, self.y[:1].expand(PADDING, *self.y.shape[1:])])
        stacked = torch.stack([x] * TRIAL_LANES, 1), torch.stack([y] * TRIAL_LANES)
        with _running_layers() as running:
            try:
                many = self._step(ManyLanes(), *stacked, TRIAL_LANES, PADDING)
            except Exception as error:
                text = python_files.one_line(error).split(". ")[0]
                names = {layer: name for name, layer in self.net.module.named_modules() if name}
                if layers := [layer for layer in running if layer in names]:
                    text = f"{text}, in the layer {names[layers[-1]]} ({type(layers[-1]).__name__})"
                return text + (" (its own dropout? give it dropout=0.0)" if "random" in str(error) else "")
        alone = self._step(SingleLane(), self.x, self.y, 1)
        least = LEAST * max(_largest_value(t) for t in alone.values())
        for n, t in alone.items():
            difference = max(_largest_value(t - lane) for lane in many[n])
            if not difference <= TOLERANCE * max(_largest_value(t), least):
                return (
                    f"'{n}' then comes out otherwise: does a sample's answer depend on others of its batch?"
                )
        return ""

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
        changes. For whole numbers that a model looks up, they are the samples' numbers in another order."""
        rows = (-1, *[1] * (self.x.dim() - 1))
        loud = torch.tensor([10.0, -10.0, 3.0, -3.0], device=self.x.device).reshape(rows)
        beyond = loud * (1 + self.x[:1].abs())
        if not self.net.embeds:
            return beyond
        if self.net.layout is None:
            return self.x.flip(0)[:1].flip(-1).expand(PADDING, *self.x.shape[1:])
        floats = torch.as_tensor(self.net.layout.scalable()[self.net.layout.channel_of], device=self.x.device)
        return torch.where(floats, beyond, self.x.flip(0)[:1])

    def _step(self, axis: Axis, x: Tensor, y: Tensor, lanes: int, padding: int = 0) -> Weights:
        """The loss, the gradients and the running statistics after a step, stacked for several lanes.

        padding: the number of samples at the end that do not count.
        """
        net, kernels = self.net, Kernels(axis.folded)
        kernels.padded = padding > 0
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
        learnt = [leaves[n] for n in net.trainable]
        grads: Any = torch.autograd.grad(losses.sum(), learnt, allow_unused=True)
        results = {n: g for n, g in zip(net.trainable, grads) if g is not None}
        return {"loss": losses.detach(), **results, **{n: leaves[n] for n in net.buffers}}


def check_state(net: Network, x: Tensor) -> None:
    """Raises UsageError (E123) if a training pass changes anything but buffers of floats in place: the change
    would be lost, because every pass has weights and buffers of its own, and no run saves attributes.

    Weights are larger than the initial ones, which an upper bound may not change. An attribute may follow
    from the samples: only what a second, equal pass changes once more is refused.
    """
    module = net.module_with({n: t.to(x.device) for n, t in net.initial.items()}).train()
    module_inputs.attach_lookup(module)
    module_inputs.attach_layout(module, net.layout)
    for _, layer in batch_norms(module):
        layer.num_batches_tracked = None
    for name in tensor_roles(module).fixed:
        module.get_submodule(name).eval()
    buffers = dict(module.named_buffers())
    whole = {n: b.clone() for n, b in buffers.items() if not b.is_floating_point()}
    with torch.no_grad():
        for p in module.parameters():
            p.mul_(LOUD_SCALE)
        weights = {n: (p._version, p.clone()) for n, p in module.named_parameters()}
        first, second = _attributes_after(module, x), _attributes_after(module, x)
    for n, p in module.named_parameters():
        if p._version != weights[n][0] or not torch.equal(p, weights[n][1]):
            what = f"weight '{n}', as max_norm of an embedding or clamp_ does"
            raise _lost(what, "compute with changed values")
    for n, b in module.named_buffers():
        if b is not buffers.get(n) or (n in whole and not torch.equal(b, whole[n])):
            raise _lost(f"buffer '{n}'", "make it one of floats and update it in place: self.NAME.copy_(...)")
    for n, value in second.items():
        same = n in first and value.shape == first[n].shape
        if not same or not torch.allclose(value, first[n], rtol=1e-4, equal_nan=True):
            raise _lost(f"attribute '{n}' at every pass", "leave it out, or make it a buffer of floats")


def _lost(what: str, remedy: str) -> UsageError:
    return UsageError("E123", f"the model's forward changes its {what}, which would be lost; {remedy}.")


def _attributes_after(module: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """The numbers and arrays among the attributes of a user's layers after a pass, by name."""
    with torch.random.fork_rng([] if x.device.type == "cpu" else [x.device]):  # both passes draw the same
        module(x)
    own = [(n, layer) for n, layer in module.named_modules() if _is_own(layer)]
    values = {f"{n}.{key}".lstrip("."): value for n, layer in own for key, value in vars(layer).items()}
    return {
        name: torch.as_tensor(value, dtype=torch.float64, device="cpu").detach().clone()
        for name, value in values.items()
        if isinstance(value, int | float | Tensor | np.ndarray) and getattr(value, "dtype", 0) is not OBJECT
    }


def _is_own(layer: nn.Module) -> bool:
    return not type(layer).__module__.startswith("torch.nn.")


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


def _largest_value(t: Tensor) -> float:
    return float(t.abs().max()) if t.numel() else 0.0


@contextlib.contextmanager
def _running_layers() -> Iterator[list[nn.Module]]:
    """The layers that have begun and not ended their forward pass, the innermost last; after an error those
    in which it arose."""
    running: list[nn.Module] = []

    def end(*_: Any) -> None:
        running.pop()

    begins = register_module_forward_pre_hook(lambda layer, _: running.append(layer))
    ends = register_module_forward_hook(end)
    try:
        yield running
    finally:
        begins.remove()
        ends.remove()
