"""Weights that a user's model also holds where no pass can put others: in lists, in functions, in what is not a layer's own slot."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from unskew.errors import UsageError

_OF_ANY_MODULE = frozenset(vars(nn.Module()))
_OF_RECURRENT = "_flat_weights"
"""Where torch's recurrent layers list their weights, and keep the list up to date."""


def check(module: nn.Module) -> None:
    """Raises UsageError (E123) for a weight that an attribute holds beside its layer's own slot.

    A pass puts weights into the layers' slots. What a list or a function still holds would be read as it was at first: trained by
    a usual loop, and not here. Functions are searched for what they close over: tensors, and layers with weights.
    """
    names = {id(p): name for name, p in module.named_parameters()}
    places = {p.untyped_storage().data_ptr(): name for name, p in module.named_parameters() if p.numel()}
    inside = {id(layer) for layer in module.modules()}
    for path, layer in module.named_modules():
        for key, value in vars(layer).items():
            if key in _OF_ANY_MODULE or key == _OF_RECURRENT:
                continue
            for held in _tensors(value, inside):
                name = names.get(id(held)) or places.get(_place(held))
                if name:
                    place = f"{path}.{key}".lstrip(".")
                    text = f"the model holds its weight '{name}' in '{place}', too, where it stays as it is while clients train"
                    raise UsageError("E123", f"{text} others; read it from its layer, or list layers (nn.ModuleList).")


def _place(t: Tensor) -> int:
    try:
        return t.untyped_storage().data_ptr() or -1
    except RuntimeError:  # a tensor without storage, such as one on the device meta
        return -1


def _tensors(value: Any, inside: set[int], depth: int = 0) -> Iterator[Tensor]:
    """The tensors in an attribute: itself, in lists and dictionaries, and in what functions close over. inside: the model's own
    layers, by identity; an attribute that is a list of them is no matter, a function that closes over one is."""
    if depth > 4:
        return
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _tensors(each, inside, depth + 1)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for each in value:
            yield from _tensors(each, inside, depth + 1)
    elif isinstance(value, functools.partial):
        for each in (value.func, *value.args, *value.keywords.values()):
            yield from _of_function(each, inside, depth)
    elif inspect.isfunction(value):
        yield from _of_function(value, inside, depth)


def _of_function(value: Any, inside: set[int], depth: int) -> Iterator[Tensor]:
    """What a function closes over, or what it is given beforehand."""
    if not inspect.isfunction(value):
        yield from (
            value.parameters()
            if isinstance(value, nn.Module) and id(value) in inside
            else _tensors(value, inside, depth + 1)
        )
        return
    for cell in value.__closure__ or ():
        try:
            held = cell.cell_contents
        except ValueError:  # not filled yet
            continue
        if isinstance(held, nn.Module) and id(held) in inside:
            yield from held.parameters()
        else:
            yield from _tensors(held, inside, depth + 1)
