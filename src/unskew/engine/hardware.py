"""What a run computes on: its device, how many clients train there side by side, and how many runs at a time."""

from __future__ import annotations

import os
import re

import numpy as np
import torch

from unskew.config import Settings
from unskew.core.client import Fed
from unskew.core.network import Network
from unskew.core.part import Part
from unskew.data.federation import Federation
from unskew.engine.client import room, small, trial
from unskew.engine.precision import BF16, TF32, computing, has_bf16
from unskew.errors import UsageError, excerpt, suggestion

MOST_LANES, MOST_LANES_ON_GPU = 16, 256
SOFTMAX = (
    "the model's answers are probabilities already (a softmax at its end?), and the loss takes logits: it would take a softmax "
    "of them again, with which training is slow and ends lower; leave the model's out."
)
LANES = re.compile(r"[1-9][0-9]{0,4}")


def device_of(settings: Settings) -> str:
    """`cpu`, or a GPU as torch names it. Raises UsageError: E109 for another word, E113 for a GPU that torch does not find."""
    device = settings.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d{1,4})?", device):
        near = suggestion("cuda" if device.lower() in ("gpu", "mps") else device, ("auto", "cpu", "cuda"))
        raise UsageError("E109", f"device must be auto, cpu, cuda or cuda:1; got {excerpt(device)}.{near}")
    _check_precision(settings.precision, device)
    index = int(device.partition(":")[2] or 0)
    if device != "cpu" and index >= torch.cuda.device_count():
        gpus = f"finds {torch.cuda.device_count() or 'no'} GPU{'s' * (torch.cuda.device_count() > 1)}"
        raise UsageError("E113", f"device is {device}, and torch {torch.__version__} {gpus}; use device=cpu.")
    return device


def _check_precision(precision: str, device: str) -> None:
    if device == "cpu" and precision == TF32:
        raise UsageError("E109", "precision=tf32 is for GPUs, and this run computes on the CPU; leave it out.")
    if device != "cpu" and precision == BF16:
        text = "precision=bf16 is for CPUs, and this run computes on a GPU; leave it out, or take precision=tf32"
        raise UsageError("E109", f"{text}.")
    if precision == BF16 and not has_bf16():
        text = "precision=bf16 needs a processor that computes with bfloat16 numbers, which this one does not"
        raise UsageError("E109", f"{text}; leave it out.")


def check_rounds(net: Network, precision: str) -> None:
    """Raises UsageError (E109) where a model has nothing that bf16 would round: it would train as with float32."""
    if precision == BF16 and not any(w.ndim in (3, 4) and w.shape[1] > 1 for w in net.initial.values()):
        text = (
            "precision=bf16 rounds convolutions of several channels in one or two dimensions, and this model has none"
        )
        raise UsageError("E109", f"{text}; leave it out.")


def lanes_of(settings: Settings, net: Network, device: str) -> int:
    """The most clients that train side by side. `auto` depends on the model and the device's kind and memory, never on a
    timing.

    Raises UsageError (E109) for a setting that is neither `auto` nor a whole number above 0.
    """
    if settings.lanes != "auto":
        if not LANES.fullmatch(settings.lanes):
            text = f"lanes should be auto or a whole number from 1 to 99999, got {excerpt(settings.lanes)}."
            raise UsageError("E109", text)
        return int(settings.lanes)
    if device == "cpu":
        pays = small.is_small(net, settings.batch) if net.folds is None else net.folds
        return MOST_LANES if pays else 1
    gpus = (torch.device(device), *other_gpus(device))
    memory = min(torch.cuda.get_device_properties(gpu).total_memory for gpu in gpus)
    try:
        return room.lanes_in(memory, net, settings.batch, MOST_LANES_ON_GPU)
    except RuntimeError:  # layers that cannot run side by side: the trial of the model says which
        return MOST_LANES


def other_gpus(device: str) -> list[torch.device]:
    """The GPUs that train beside the first one: all others where the device is `cuda`, without a number."""
    return [torch.device("cuda", number) for number in range(1, torch.cuda.device_count())] if device == "cuda" else []


def tried(
    fed: Fed, federation: Federation, device: str, lanes: int, apart: Part | None = None, auto: bool = False
) -> tuple[int, tuple[tuple[str, str], ...]]:
    """(lanes, remarks) for a user's own model, after it has taken a training step.

    apart: the Part that sees the gradient of each sample, for which samples train side by side. auto: whether nobody asked
    for several lanes, so that nobody need be told that there is one.
    Raises UsageError: E123 for a model that cannot be trained, E108 for one that cannot train with `apart`.
    """
    samples = torch.as_tensor(np.asarray(federation.x[: trial.SAMPLES]), dtype=torch.float32).to(device)
    trial_ = trial.Trial.of(fed.net, fed.task, samples, fed.classes)
    # as training will compute: with factors rounded to TF32, as torch has convolutions by default, lanes differ too much
    with torch.random.fork_rng([] if device == "cpu" else [samples.device]), computing(samples.device):
        fed.net.draws = trial_.alone()
        reason = trial_.side_by_side() if lanes > 1 or apart else ""
        remarks = (("E129", SOFTMAX),) if trial_.says_probabilities() else ()
    if not reason:
        return lanes, remarks
    if apart:
        text = f"every sample needs a gradient of its own, and this model cannot train several side by side: {reason}"
        raise UsageError("E108", f"'{apart.name}' cannot run here: {text}; take a model without that layer.")
    if auto and device == "cpu":
        return 1, remarks
    return 1, (
        *remarks,
        ("E128", f"this model cannot train several clients side by side, so lanes=1 is used: {reason}."),
    )


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def at_once(device: str = "auto") -> int:
    """How many runs to train at a time: one on each core, or one where they would share a GPU, on which they take turns."""
    return 1 if device != "cpu" and torch.cuda.is_available() else cores()
