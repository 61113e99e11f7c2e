"""How a process computes: deterministically, in float32 unless less was requested, and with freed memory
retained.

By default torch lets cuDNN round the inputs of float32 convolutions to TF32, which keeps 10 of their 23 bits,
and choose kernels with a varying order of sums. This module disables both. Attention is computed from plain
products, because the gradients of fused kernels vary between runs, and these kernels refuse some layouts of
clients side by side.
"""

# pyright: reportAttributeAccessIssue=false
# torch's switches are attributes of modules that replace themselves.

from __future__ import annotations

import ctypes
import os
import platform
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import lru_cache

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from unskew.errors import StateError
from unskew.system.python_files import one_line

FLOAT32, TF32 = "float32", "tf32"


@contextmanager
def torch_defaults() -> Iterator[None]:
    """A context, or decorator, with the defaults of torch: float32, the CPU, and computed gradients.

    Afterwards those of the caller's process are as before, and so are the global generators of torch, NumPy
    and Python. Every function of the Python interface that computes enters here.
    """
    dtype = torch.get_default_dtype()
    numpy_state, python_state = np.random.get_state(), random.getstate()
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    cpu = torch.device("cpu")  # a context of its own makes every operation slower
    torch.set_default_dtype(torch.float32)
    try:
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.random.fork_rng(gpus),
            nullcontext() if torch.get_default_device() == cpu else cpu,
        ):
            yield
    finally:
        np.random.set_state(numpy_state)
        random.setstate(python_state)
        torch.set_default_dtype(dtype)


@contextmanager
def device_mode(device: torch.device, precision: str = FLOAT32) -> Iterator[None]:
    """A context that sets the precision of this process's GPUs and makes `device` the thread's current GPU.
    It does nothing on a CPU."""
    if device.type != "cuda":
        yield
        return
    # cuBLAS may choose another order of sums for every size of its workspace; it reads this once, before its
    # first product
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        with (
            torch.cuda.device(-1 if device.index is None else device.index),  # -1: the current GPU
            _tf32_mode(precision == TF32),
            sdpa_kernel(SDPBackend.MATH),
            _deterministic_mode(),
        ):
            yield
    finally:
        cudnn.deterministic, cudnn.benchmark = before


@contextmanager
def _tf32_mode(tf32: bool) -> Iterator[None]:
    """A context in which products and convolutions round their factors to TF32, or do not.

    torch has two sets of switches for this. It refuses to read the older set after a program has used the
    newer one, and what the older set disables follows the newer set's default. Therefore the older set is
    changed where it can be read, and the newer one always.
    """
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    newer = matmul, cudnn.conv, cudnn.rnn
    kept = [switch.fp32_precision for switch in newer]
    try:
        before = matmul.allow_tf32, cudnn.allow_tf32
        matmul.allow_tf32 = cudnn.allow_tf32 = tf32
    except RuntimeError:
        before = None
    for switch in newer:
        switch.fp32_precision = "tf32" if tf32 else "ieee"
    try:
        yield
    finally:
        if before:
            matmul.allow_tf32, cudnn.allow_tf32 = before
        for switch, value in zip(newer, kept):
            switch.fp32_precision = value


def is_tf32() -> bool:
    """Whether products of float32 matrices on a GPU are computed in TF32 now."""
    return torch.backends.cuda.matmul.fp32_precision == "tf32"


@contextmanager
def _deterministic_mode() -> Iterator[None]:
    """A context in which operations use their deterministic form. Operations without one are not refused;
    tests find them."""
    mode, warns = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    fills = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = (
        False  # otherwise every new tensor would be written twice
    )
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*deterministic.*")
            yield
    finally:
        torch.use_deterministic_algorithms(mode, warn_only=warns)
        torch.utils.deterministic.fill_uninitialized_memory = fills


@contextmanager
def memory_errors(t: int, lanes: int) -> Iterator[None]:
    """A context that raises StateError (E142) in place of torch's error if the GPU's memory is full.
    t: the round. lanes: the clients that train side by side."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        text = f"round {t}: the GPU has not enough memory ({one_line(error)}). The last checkpoint is safe:"
        fewer = f", or start another run with lanes={lanes // 2}" if lanes > 1 else ""
        remedy = f"end other programs on the GPU and resume the run{fewer}."
        raise StateError("E142", f"{text} {remedy}") from error


def prepare_thread(device: torch.device) -> None:
    """Initialise a thread that trains: it uses one core, and this GPU, on whose stream steps are recorded."""
    torch.set_num_threads(1)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    keep_freed()


# glibc's mallopt: M_MMAP_MAX, M_TRIM_THRESHOLD, M_TOP_PAD, M_ARENA_MAX
_MALLOC_OPTIONS = ((-4, 0), (-1, 2**31 - 1), (-2, 64 << 20), (-8, 1))


@lru_cache
def keep_freed() -> bool:
    """Have glibc keep freed memory instead of returning it to the system; does nothing elsewhere. Returns
    whether it does.

    Training requests equal large blocks at every step, and page faults would cost a tenth of its time.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        return all(mallopt(option, value) for option, value in _MALLOC_OPTIONS)
    return False
