"""The structure of a torch module: children, head, layers that mix inputs, and the roles of its tensors; and
copies with further layers before the head.

Clients train some tensors, the server also averages buffers, and constants do not change.
"""

# pyright: reportPrivateUsage=false
# torch has no public list of a module's children that holds a child twice.
# torch names the common class of its batch normalisations, and a module's own dicts, with an underscore.

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from unskew.errors import UsageError


def children(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """The direct children by name, in order, with repetitions.

    `named_children` lists a layer once, but a Sequential may use one activation several times.
    """
    return [(name, child) for name, child in module._modules.items() if child is not None]


@contextmanager
def evaluation_mode(module: nn.Module) -> Generator[None]:
    """A context in which a module is in evaluation mode; afterwards every layer has its former mode."""
    modes = [(layer, layer.training) for layer in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for layer, mode in modes:
            layer.training = mode


def without_inplace(module: nn.Module) -> nn.Module:
    """The module itself, with in-place layers such as `nn.ReLU(inplace=True)` switched to copies."""
    for layer in module.modules():
        if getattr(layer, "inplace", False) is True:
            layer.inplace = False  # type: ignore[assignment]
    return module


HEAD_ATTRIBUTE = "_unskew_head"
"""The attribute of a module that names its head, if it is not the last layer."""
_HEAD_TYPES = (nn.Linear, nn.modules.conv._ConvNd)  # pyright: ignore[reportPrivateUsage]


def head_of(module: nn.Module) -> str:
    """The name of the head: the marked one, else the last dense layer, else the last convolution. Raises
    UsageError (E104) if there is none."""
    if named := getattr(module, HEAD_ATTRIBUTE, ""):
        return named
    weighed = [(n, m) for n, m in module.named_modules() if isinstance(m, _HEAD_TYPES)]
    dense = [n for n, m in weighed if isinstance(m, nn.Linear)]
    if not weighed:
        raise UsageError("E104", "the model has no nn.Linear to be its head; end it with one.")
    return dense[-1] if dense else weighed[-1][0]


def ends_with_head(module: nn.Module) -> bool:
    """Whether a module is a Sequential whose last block is its head: the block has a weight matrix, unlike
    normalisation of the outputs, or no other layer can be the head."""
    if not isinstance(module, nn.Sequential):
        return False
    blocks = [block for _, block in children(module)]
    if len({*map(id, blocks)}) < len(blocks) or not any(
        isinstance(layer, _HEAD_TYPES) for layer in module.modules()
    ):
        return True
    return any(p.dim() > 1 for p in blocks[-1].parameters())


def mark_head(module: nn.Module, name: str) -> None:
    """Set the attribute that names the head."""
    setattr(module, HEAD_ATTRIBUTE, name)


def find_head(module: nn.Module, x: Tensor, classes: int) -> None:
    """Mark the head, unless `head_of` finds it without a mark.

    It is the last layer called whose outputs for samples x are the logits; if the model processes them
    further (softmax, a mean over pixels), the last one called with one output per class.
    """
    calls: list[tuple[str, Any]] = []
    handles: list[Any] = []
    for name, layer in module.named_modules():
        if isinstance(layer, _HEAD_TYPES):
            handles.append(
                layer.register_forward_hook(lambda _l, _x, out, name=name: calls.append((name, out)))
            )
    try:
        with torch.no_grad(), evaluation_mode(module):
            z = module(x)
    finally:
        for handle in handles:
            handle.remove()
    layers = dict(module.named_modules())
    fit = [n for n, _ in calls if _output_size(layers[n]) == classes]
    exact = [n for n, out in calls if out.shape == z.shape and torch.equal(out, z)]
    among = exact or fit
    if among and head_of(module) not in among:
        mark_head(module, among[-1])


def _output_size(layer: Any) -> int:
    return layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels


def mixing_children(module: nn.Module, all_inputs: bool) -> frozenset[str]:
    """The names of the direct children that mix the numbers of an input. all_inputs: only children that no
    skip connection bypasses."""
    return frozenset(
        name for name, child in children(module) if (_mixes_all if all_inputs else _mixes)(child)
    )


def _mixes(module: nn.Module) -> bool:
    """Whether any layer of the module mixes the numbers of its input."""
    return any(
        p.dim() > 1
        for layer in module.modules()
        if not isinstance(layer, (nn.LayerNorm, nn.Embedding, nn.EmbeddingBag))
        for p in layer.parameters(recurse=False)
    )


def _mixes_all(module: nn.Module) -> bool:
    """Whether the module is a layer of torch that mixes, or a Sequential with such a layer.

    A user's own module may bypass its layers, so it does not count.
    """
    if isinstance(module, nn.Sequential):
        return any(_mixes_all(layer) for layer in module)
    is_layer = next(module.children(), None) is None and type(module).__module__.startswith("torch.nn.")
    return is_layer and _mixes(module)


_NORM_TYPES = (nn.modules.batchnorm._BatchNorm,)


@dataclass(frozen=True)
class TensorRoles:
    """The names of a module's tensors by role; a tensor in several places has the name of the first.

    trainable: parameters that clients train. buffers: floating-point buffers that passes may update, and that
    are averaged. constants: neither trained nor sent: parameters with `requires_grad=False`, the statistics
    of batch normalisation with only such parameters, and the buffers of layers with `buffers_stay`, which are
    computed from their settings. norms: all tensors of batch normalisation that uses batch statistics.
    fixed: the layers of batch normalisation that always use running statistics. name_of: from every place of
    the module to the name of its tensor.
    """

    trainable: tuple[str, ...]
    buffers: tuple[str, ...]
    constants: frozenset[str]
    norms: frozenset[str]
    fixed: tuple[str, ...]
    name_of: dict[str, str]


def tensor_roles(module: nn.Module) -> TensorRoles:
    """The roles of all parameters and floating-point buffers."""
    fixed = tuple(n for n, layer in batch_norms(module) if _is_fixed_norm(module, n, layer))
    constants = {n for n, p in module.named_parameters() if not p.requires_grad}
    constants |= {f"{m}.{n}" if m else n for m in fixed for n, _ in named_tensors(module.get_submodule(m))}
    for m, layer in module.named_modules():
        if getattr(layer, "buffers_stay", False):
            constants |= {f"{m}.{n}" if m else n for n, b in layer.named_buffers() if b.is_floating_point()}
    norms = {
        f"{m}.{n}" if m else n
        for m, layer in batch_norms(module)
        if m not in fixed
        for n, _ in [*layer.named_parameters(), *layer.named_buffers()]
    }
    return TensorRoles(
        tuple(n for n, _ in module.named_parameters() if n not in constants),
        tuple(n for n, b in module.named_buffers() if b.is_floating_point() and n not in constants),
        frozenset(constants),
        frozenset(norms - constants),
        fixed,
        _names_by_slot(module),
    )


def batch_norms(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Every layer of batch normalisation, by name."""
    return ((n, layer) for n, layer in module.named_modules() if isinstance(layer, _NORM_TYPES))


def named_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters, then floating-point buffers, by name; each once."""
    yield from module.named_parameters()
    yield from ((n, b) for n, b in module.named_buffers() if b.is_floating_point())


def tensor_slots(module: nn.Module) -> Iterator[tuple[dict[str, Any], str, str]]:
    """The places of a module's tensors: (a layer's dict, the key in it, the name of the place)."""
    for m, layer in module.named_modules():
        for store in (layer._parameters, layer._buffers):
            yield from ((store, key, f"{m}.{key}" if m else key) for key in store)


def _names_by_slot(module: nn.Module) -> dict[str, str]:
    first = {id(t): n for n, t in named_tensors(module)}
    return {
        place: first[id(store[key])] for store, key, place in tensor_slots(module) if id(store[key]) in first
    }


def _is_fixed_norm(module: nn.Module, name: str, layer: nn.Module) -> bool:
    """Whether all parameters of the layer, or if it has none those of its parent module, are frozen."""
    parameters = list(layer.parameters()) or list(module.get_submodule(name.rpartition(".")[0]).parameters())
    return bool(parameters) and not any(p.requires_grad for p in parameters)


def with_latent(module: nn.Module, width: int) -> nn.Module:
    """A copy with the blocks `base` (flatten) and `latent` = sigmoid(Linear(D, width)) before the head.

    A model with these two blocks is returned itself. Raises UsageError (E104) unless the model is an
    nn.Sequential that ends with an nn.Linear.
    """
    names = [n for n, _ in children(module)]
    if "latent" in names and "base" in names:
        return module
    if not isinstance(module, nn.Sequential) or not isinstance(module[-1], nn.Linear):
        text = "a latent layer needs an nn.Sequential of named blocks that ends with one nn.Linear."
        raise UsageError("E104", text)
    module = copy.deepcopy(module)
    head = module._modules.pop(names[-1])
    assert isinstance(head, nn.Linear)
    module.add_module("base", nn.Flatten())
    module.add_module("latent", nn.Sequential(nn.Linear(head.in_features, width), nn.Sigmoid()))
    module.add_module(names[-1], nn.Linear(width, head.out_features))
    return module


def with_projection(module: nn.Module, width: int) -> nn.Module:
    """A copy with Linear(D, D)-ReLU-Linear(D, width) before the head, which then reads `width` features.

    Raises UsageError (E104) if the head is not a single nn.Linear.
    """

    def layers(D: int) -> nn.Sequential:
        return nn.Sequential(nn.Linear(D, D), nn.ReLU(), nn.Linear(D, width))

    return with_head(
        module,
        layers,
        lambda old: nn.Linear(width, old.out_features, bias="bias" in dict(old.named_parameters())),
    )


def with_head(
    module: nn.Module, layers: Callable[[int], nn.Sequential], head_like: Callable[[nn.Linear], nn.Linear]
) -> nn.Module:
    """A copy with `layers(D)` between body and head, and the head `head_like(old head)`. D: the number of
    features. Raises UsageError (E104) if the head is not a single nn.Linear."""
    module = copy.deepcopy(module)
    plain = ends_with_head(module)
    name = [n for n, _ in children(module)][-1] if plain else head_of(module)
    head = module.get_submodule(name)
    if not isinstance(head, nn.Linear):
        text = f"the model's head '{name}' is not one nn.Linear, so nothing can be put before it."
        raise UsageError("E104", text)
    projection, new = layers(head.in_features), head_like(head)
    if plain:
        module._modules.pop(name)
        module.add_module("projection", projection)
        module.add_module(name, new)
    else:
        parent, _, child = name.rpartition(".")
        setattr(module.get_submodule(parent), child, nn.Sequential(*projection, new))
        mark_head(module, f"{name}.{len(projection)}")
    return module
