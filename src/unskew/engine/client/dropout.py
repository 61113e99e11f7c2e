"""Dropout masks that belong to a client: drawn from its own key, whoever trains beside it.

Letters: B batch, G lanes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from unskew.core.keys import key
from unskew.core.network import Network
from unskew.engine.client.kernels import Kernels, within
from unskew.engine.client.schedule import Chunk, Step

_DRAWING = threading.Lock()
"""Held by the one client that draws from torch's own generator, which all threads have in common."""


@contextmanager
def own_draws(net: Network, device: torch.device, *purpose: object) -> Iterator[None]:
    """Within it a model that draws random numbers by itself (attention with dropout) draws them for this purpose.

    Such a model trains one client at a time; for any other model nothing happens.
    """
    if not net.draws:
        yield
        return
    with _DRAWING, torch.random.fork_rng(devices=[] if device.type == "cpu" else [device]):
        torch.manual_seed(key(*purpose).initial_seed())
        yield


def mask_shapes(net: Network, until: str | None = None) -> tuple[tuple[int, ...] | None, ...]:
    """The shape of one sample's mask in every dropout layer, in the order in which a forward pass reaches them.

    None where the first axis of what a layer is given is not the batch (a layer of a recurrent model, or of weights): it
    then draws from torch's own generator. until: of the layers up to this cut.
    """
    two, three = (_masks(net, until, B) for B in (2, 3))
    return tuple(a[1:] if a[:1] == (2,) and b[:1] == (3,) else None for a, b in zip(two, three))


def _masks(net: Network, until: str | None, B: int) -> list[tuple[int, ...]]:
    """The shape of every dropout layer's mask in a batch of B."""
    kernels = Kernels(folded=False)
    kernels.mask_shapes = []
    with torch.no_grad(), torch.random.fork_rng(devices=[]), within(net, kernels):
        net.run(net.weights(), torch.zeros((B, *net.shape)), until=until, train=True)
    return kernels.mask_shapes


class DropoutMasks:
    """The uniform numbers that decide what dropout leaves out, one tensor a layer and step.

    generators: one for each client of the chunk.
    """

    def __init__(self, shapes: Sequence[tuple[int, ...] | None], chunk: Chunk, generators: Sequence[torch.Generator]):
        self.shapes, self.chunk, self.generators = shapes, chunk, generators

    def at(self, step: Step) -> list[Tensor]:
        """[G, B, *shape] for each layer, [G, 0] where it draws by itself. A client draws for its samples only, whatever its
        batch is padded to."""
        layers = []
        for shape in self.shapes:
            if shape is None:
                layers.append(torch.zeros((step.width, 0)))
                continue
            numbers = torch.zeros((step.width, step.size, *shape))
            for g, work in enumerate(self.chunk.work[: step.active]):
                samples = work.short if step.short else step.size
                samples = samples if step.drawn_G is None else int(step.drawn_G[g])
                numbers[g, :samples] = torch.rand((samples, *shape), generator=self.generators[g])
            layers.append(numbers)
        return layers
