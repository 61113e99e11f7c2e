"""The hardware of a run: its device, and the number of lanes.

The number of clients that fit into a GPU's memory is predicted from the model. On a CPU clients train side by
side if the steps of one client are small, because kernel calls then take as long as the computation; with
large steps the activations of several clients would exceed the caches. Both decisions follow from the model
and the batch size, never from a timing, so that equal settings give equal bits (`benchmarks/own_models.py`
measures both cases).
Letters: B batch, G lanes.
"""

from __future__ import annotations

import os
import re
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from unskew.config import Settings
from unskew.core.client import Fed
from unskew.core.method import Method
from unskew.core.network import Network
from unskew.core.part import Part
from unskew.core.trees import bytes_text, size_in_bytes
from unskew.data.clients.federation import Federation
from unskew.errors import UsageError, excerpt, suggestion
from unskew.round.lane_views import ManyLanes
from unskew.round.layer_kernels import Kernels, use_kernels
from unskew.round.precision import TF32, device_mode
from unskew.runs import model_trial
from unskew.runs.model_trial import TRIAL_LANES
from unskew.system.machine import usable_memory

MEMORY_SHARE = 0.6
"""The share of the GPU's memory for lanes; the rest is for Parts' own passes and other programs."""
PASSES_PER_LANE, COPIES_PER_LANE = 1.5, 8
"""The memory of a lane: this multiple of a pass's saved tensors, plus this number of copies of the
weights."""


def lanes_that_fit(memory: int, net: Network, batch: int, most: int) -> int:
    """The most lanes that fit into `memory` bytes: a power of two, so that similar GPUs agree, and at most
    `most`."""
    frozen = size_in_bytes({n: net.initial[n] for n in net.constants})
    fit = max(0, int(MEMORY_SHARE * memory) - frozen) // max(1, lane_bytes(net, batch))
    return min(most, 1 << max(0, fit.bit_length() - 1))


def lane_bytes(net: Network, batch: int) -> int:
    """The approximate bytes of one client's training step: saved tensors, weights and optimiser state.
    Weights that are frozen in the model, which all lanes share, do not count."""
    kept: dict[int, int] = {}

    def note(t: Tensor) -> Tensor:
        kept[t.untyped_storage()._cdata] = t.untyped_storage().nbytes()  # pyright: ignore[reportPrivateUsage]
        return t

    net = net.copy()
    with torch.device("meta"):
        w = {
            n: torch.empty((TRIAL_LANES, *t.shape), dtype=t.dtype)
            for n, t in net.initial.items()
            if n not in net.constants
        }
        common = {n: torch.empty(net.initial[n].shape, dtype=net.initial[n].dtype) for n in net.constants}
        x = torch.empty((batch, TRIAL_LANES, *net.shape))
    w |= {n: w[n].requires_grad_() for n in net.trainable}
    with (
        torch.autograd.graph.saved_tensors_hooks(note, lambda t: t),
        use_kernels(net, Kernels(ManyLanes.folded)),
    ):
        torch.func.vmap(lambda w, x: net.run({**common, **w}, x, train=True)[0], in_dims=(0, 1))(w, x)
    return int(PASSES_PER_LANE * sum(kept.values()) + COPIES_PER_LANE * size_in_bytes(w)) // TRIAL_LANES


TRIAL_ROWS = 2
"""The rows of the trial batch; batch normalisation needs two."""
SMALL_BYTES, SMALL_PRODUCTS = 16_000_000, 60_000_000
"""Limits of a small step of one client: bytes of memory, and multiplications of the forward pass."""
COPIES_PER_STEP = 8
"""The number of copies of the weights in a step: weights, gradients, optimiser state, and merged weights."""


def is_small(net: Network, batch: int) -> bool:
    """Whether a step of one client is small. False for a model that cannot run on zeros."""
    weight_bytes = COPIES_PER_STEP * size_in_bytes(dict(net.initial))
    if weight_bytes > SMALL_BYTES:  # before a large model is copied
        return False
    net, kept, products = net.copy(), dict[int, int](), ProductCounter()
    w = net.weights()
    own = {t.untyped_storage().data_ptr() for t in w.values()}
    w |= {n: w[n].requires_grad_() for n in net.trainable}

    def note(t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return t

    saved = torch.autograd.graph.saved_tensors_hooks(note, lambda t: t)
    plain = use_kernels(net, Kernels(folded=False))
    try:
        with (
            torch.random.fork_rng(devices=[]),
            torch.enable_grad(),
            saved,
            plain,
            products,
        ):
            # it refers to the saved tensors
            _answers = net.run(w, torch.zeros((TRIAL_ROWS, *net.shape)), train=True)
    except Exception:
        return False
    share = batch / TRIAL_ROWS
    return (
        share * sum(kept.values()) + weight_bytes <= SMALL_BYTES and share * products.count <= SMALL_PRODUCTS
    )


class ProductCounter(TorchFunctionMode):
    """A context that counts the multiplications of convolutions and dense layers. (torch's own counter takes
    seconds to load.)"""

    count = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        y = func(*args, **(kwargs or {}))
        if func in WEIGHT_LAYERS and len(args) > 1:
            self.count += y.numel() * args[1][0].numel()
        return y


WEIGHT_LAYERS = {torch.conv1d, torch.conv2d, torch.conv3d, F.linear}
"""Layers whose outputs each take as many multiplications as a row of the weights, the second argument, has
numbers."""


def check_memory(method: Method, fed: Fed, has: int | None = None) -> None:
    """Raises UsageError (E108) if the replies of all clients to a trip do not fit into the server's memory.

    Only Shares of a fixed size count. has: bytes of memory; by default the amount that this process may use.
    """
    has = has or usable_memory()
    for part in method.parts:
        for trip in part.trips:
            each = sum(s.max_bytes for s in trip.shares(fed).values() if None not in s.shape)
            if trip.everyone and each * fed.clients > has:
                text = (
                    f"its server would hold {bytes_text(each * fed.clients)} at once, {bytes_text(each)} from"
                )
                text = (
                    f"{text} each of {fed.clients} clients, and this machine has {bytes_text(has)} of memory"
                )
                remedy = (
                    f"take a model whose head reads fewer features than {fed.features}, or other arguments"
                )
                raise UsageError("E108", f"'{part.name}' cannot run here: {text}; {remedy}.")


MOST_LANES, MOST_LANES_ON_GPU = 16, 256
SOFTMAX_REMARK = (
    "the model's answers are probabilities already (a softmax at its end?), and the loss takes logits: it"
    " would take a softmax of them again, with which training is slow and ends lower; leave the model's out."
)
LIGHTNING_REMARK = (
    "of a LightningModule the forward alone is used: its training_step, loss, optimiser, schedules and"
    " callbacks are not; give a loss by loss=, and set optimiser= and lr=."
)


def device_of(settings: Settings) -> str:
    """`cpu`, or torch's name of a GPU. Raises UsageError: E109 for an unknown device or a GPU that
    torch does not find."""
    device = settings.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d{1,4})?", device):
        near = suggestion("cuda" if device.lower() in ("gpu", "mps") else device, ("auto", "cpu", "cuda"))
        raise UsageError("E109", f"device must be auto, cpu, cuda or cuda:1; got {excerpt(device)}.{near}")
    index = int(device.partition(":")[2] or 0)
    if device != "cpu" and index >= torch.cuda.device_count():
        gpus = f"finds {torch.cuda.device_count() or 'no'} GPUs"
        raise UsageError("E109", f"device is {device}, and torch {torch.__version__} {gpus}; use device=cpu.")
    if settings.precision == TF32 and device == "cpu":
        raise UsageError("E109", "precision=tf32 is for GPUs, and this run computes on cpu; leave it out.")
    return device


def lanes_of(settings: Settings, net: Network, device: str) -> int:
    """The most clients that train side by side. `auto` depends on the model and the device's kind and memory,
    never on a timing."""
    if settings.fixed_lanes is not None:
        return settings.fixed_lanes
    if device == "cpu":
        pays = is_small(net, settings.batch) if net.folds is None else net.folds
        return MOST_LANES if pays else 1
    memory = torch.cuda.get_device_properties(torch.device(device)).total_memory
    try:
        return lanes_that_fit(memory, net, settings.batch, MOST_LANES_ON_GPU)
    except RuntimeError:  # layers that cannot run under vmap, which the trial of the model reports
        return MOST_LANES


def try_model(
    fed: Fed, federation: Federation, device: str, lanes: int, apart: Part | None = None, auto: bool = False
) -> tuple[int, tuple[tuple[str, str], ...]]:
    """(lanes, remarks) for a user's own model, after it has taken a training step.

    apart: the Part that sees the gradient of each sample, for which samples train side by side. auto: whether
    the number of lanes is automatic, so that one lane needs no remark.
    Raises UsageError: E123 for a model that cannot be trained, E108 for one that cannot train with `apart`.
    """
    rows = federation.train.rows[: model_trial.TRIAL_SAMPLES]
    samples = torch.as_tensor(federation.x[rows], dtype=torch.float32).to(device)
    trial_ = model_trial.ModelTrial.of(fed.net, fed.task, samples, fed.classes)
    # as training will compute: with factors rounded to TF32, as torch has convolutions by default, lanes
    # differ too much
    with torch.random.fork_rng([] if device == "cpu" else [samples.device]), device_mode(samples.device):
        fed.net.draws = trial_.alone()
        reason = trial_.side_by_side() if lanes > 1 or apart else ""
        remarks = (("E128", SOFTMAX_REMARK),) if trial_.says_probabilities() else ()
    if any(kind.__name__ == "LightningModule" for kind in type(fed.net.module).__mro__):
        remarks = (*remarks, ("E128", LIGHTNING_REMARK))
    if not reason:
        return lanes, remarks
    if apart:
        text = (
            f"every sample needs a gradient of its own, and this model cannot train several at once: {reason}"
        )
        raise UsageError(
            "E108", f"'{apart.name}' cannot run here: {text}; take a model without such a layer."
        )
    if auto and device == "cpu":
        return 1, remarks
    text = f"this model cannot train several clients side by side, so lanes=1 is used: {reason}."
    return 1, (*remarks, ("E128", text))


def core_count() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def parallel_runs(device: str = "auto") -> int:
    """How many runs to train at a time: one on each core, or one where they would share a GPU, on which they
    take turns."""
    return 1 if device != "cpu" and torch.cuda.is_available() else core_count()
