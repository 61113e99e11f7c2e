"""Whether it pays on a CPU to train clients side by side: it does where the steps of one client are small.

Calling kernels then takes as long as what they compute. Where steps are large, the activations of several clients leave the
caches, and one client alone keeps the kernels busy. The answer follows from the model and the size of a batch, never from a
timing, so that equal settings give equal bits. `benchmarks/own_models.py` measures both sides.
Letters: B batch.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from unskew.core.network import Network
from unskew.core.trees import size_in_bytes
from unskew.engine.client.kernels import Kernels, within
from unskew.engine.client.trial import buffers_kept

ROWS = 2
"""Of the batch that is sent through the model; batch normalisation needs two."""
MOST_BYTES, MOST_PRODUCTS = 16_000_000, 60_000_000
"""What a step of one client may keep in memory and multiply on its way forwards."""
COPIES = 8
"""So many tensors of the size of the weights take part in a step: weights, gradients, the optimiser, and what is merged."""


def is_small(net: Network, batch: int) -> bool:
    """Whether a step of one client is small. False for a model that cannot run on zeros; the trial of it says why."""
    weighs = COPIES * size_in_bytes(dict(net.initial))
    if weighs > MOST_BYTES:  # nothing of a large model is copied
        return False
    net, kept, products = net.copy(), dict[int, int](), Products()
    w = net.weights()
    own = {t.untyped_storage().data_ptr() for t in w.values()}
    w |= {n: w[n].requires_grad_() for n in net.trainable}

    def note(t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return t

    saved = torch.autograd.graph.saved_tensors_hooks(note, lambda t: t)
    plain = within(net, Kernels(folded=False))
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad(), buffers_kept(net.module), saved, plain, products:
            _answers = net.run(w, torch.zeros((ROWS, *net.shape)), train=True)  # it holds what is kept
    except Exception:
        return False
    share = batch / ROWS
    return share * sum(kept.values()) + weighs <= MOST_BYTES and share * products.count <= MOST_PRODUCTS


class Products(TorchFunctionMode):
    """Counts the multiplications of the convolutions and dense layers called within it; torch's counter takes seconds to load."""

    count = 0

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        y = func(*args, **(kwargs or {}))
        if func in WEIGHED and len(args) > 1:
            self.count += y.numel() * args[1][0].numel()
        return y


WEIGHED = {torch.conv1d, torch.conv2d, torch.conv3d, F.linear}
"""Layers each of whose outputs takes as many products as a row of its weights, the second argument, has numbers."""
