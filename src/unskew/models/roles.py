"""What part each tensor of a model plays: trained by clients, averaged beside what they train, or constant."""

# pyright: reportPrivateUsage=false
# torch names the common class of its batch normalisations, and a module's own dicts, with an underscore.

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

_NORMS = (nn.modules.batchnorm._BatchNorm,)


@dataclass(frozen=True)
class Roles:
    """The names of a module's tensors by what becomes of them; a tensor in several places has the first place's name.

    trainable: parameters that clients train. buffers: floating-point buffers that passes may update, and that are
    averaged. constants: parameters with `requires_grad=False`, the statistics of batch normalisation that has only such,
    and the buffers of layers that say `buffers_stay`, because they compute them from their settings; constants are neither
    trained nor sent. norms: everything that belongs to batch normalisation by the batch's own statistics. fixed: the layers
    of batch normalisation that always use their running statistics.
    name_of: the name of the tensor at every place of the module.
    """

    trainable: tuple[str, ...]
    buffers: tuple[str, ...]
    constants: frozenset[str]
    norms: frozenset[str]
    fixed: tuple[str, ...]
    name_of: dict[str, str]


def roles_of(module: nn.Module) -> Roles:
    """The roles of all parameters and floating-point buffers."""
    fixed = tuple(n for n, layer in batch_norms(module) if _is_fixed(module, n, layer))
    constants = {n for n, p in module.named_parameters() if not p.requires_grad}
    constants |= {f"{m}.{n}" if m else n for m in fixed for n, _ in tensors(module.get_submodule(m))}
    for m, layer in module.named_modules():
        if getattr(layer, "buffers_stay", False):
            constants |= {f"{m}.{n}" if m else n for n, b in layer.named_buffers() if b.is_floating_point()}
    norms = {
        f"{m}.{n}" if m else n
        for m, layer in batch_norms(module)
        if m not in fixed
        for n, _ in [*layer.named_parameters(), *layer.named_buffers()]
    }
    return Roles(
        tuple(n for n, _ in module.named_parameters() if n not in constants),
        tuple(n for n, b in module.named_buffers() if b.is_floating_point() and n not in constants),
        frozenset(constants),
        frozenset(norms - constants),
        fixed,
        _names(module),
    )


def batch_norms(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Every layer of batch normalisation, by name."""
    return ((n, layer) for n, layer in module.named_modules() if isinstance(layer, _NORMS))


def tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters, then floating-point buffers, by name; each once."""
    yield from module.named_parameters()
    yield from ((n, b) for n, b in module.named_buffers() if b.is_floating_point())


def slots(module: nn.Module) -> Iterator[tuple[dict[str, Any], str, str]]:
    """Where a module holds tensors: (a layer's dict, the key there, the place's name)."""
    for m, layer in module.named_modules():
        for store in (layer._parameters, layer._buffers):
            yield from ((store, key, f"{m}.{key}" if m else key) for key in store)


def _names(module: nn.Module) -> dict[str, str]:
    first = {id(t): n for n, t in tensors(module)}
    return {place: first[id(store[key])] for store, key, place in slots(module) if id(store[key]) in first}


def _is_fixed(module: nn.Module, name: str, layer: nn.Module) -> bool:
    """Whether all parameters of the layer are frozen; of one that has none, those of the module that it is in."""
    parameters = list(layer.parameters()) or list(module.get_submodule(name.rpartition(".")[0]).parameters())
    return bool(parameters) and not any(p.requires_grad for p in parameters)
