"""How a GPU computes: with the same bits each time, and in float32 unless less was asked for.

torch lets cuDNN round the inputs of float32 convolutions to TF32, which keeps 10 of their 23 bits, and choose kernels whose
sums come in another order each time. Neither is silent here. Attention is computed from its plain products: the fused kernels
differ from time to time in their gradients, and refuse some layouts of clients side by side.
"""

# pyright: reportAttributeAccessIssue=false
# torch's switches are attributes of modules that replace themselves.

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

FLOAT32, TF32, BF16 = "float32", "tf32", "bf16"
"""tf32 is of GPUs. bf16 is of CPUs: the convolutions of training steps, see `Kernels`; everything else is float32."""


def has_bf16() -> bool:
    """Whether this processor computes with bfloat16; others would imitate it, and slowly."""
    try:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    except (AttributeError, RuntimeError):  # torch was built without oneDNN, as for some processors
        return False


@contextmanager
def computing(device: torch.device, precision: str = FLOAT32) -> Iterator[None]:
    """Within it this process's GPUs compute so. A CPU needs no telling."""
    if device.type != "cuda":
        yield
        return
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark
    matmul.allow_tf32 = cudnn.allow_tf32 = precision == TF32
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        with sdpa_kernel(SDPBackend.MATH), _same_each_time():
            yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark = before


@contextmanager
def _same_each_time() -> Iterator[None]:
    """Within it operations take their deterministic form; what has none is left alone, for a test to find."""
    mode, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    fills = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # else every new tensor would be written twice
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*deterministic.*")
            yield
    finally:
        torch.use_deterministic_algorithms(mode, warn_only=warns)
        torch.utils.deterministic.fill_uninitialized_memory = fills
