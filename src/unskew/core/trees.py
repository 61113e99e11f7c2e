"""State as a tree of named tensors; its flat form maps paths such as `part/leaf` to tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, NoReturn, TypeAlias

import torch
from torch import Tensor

from unskew.errors import UsageError

Tree: TypeAlias = dict[str, Any]
"""Tensors or subtrees by name. With a stricter type every hook would have to cast what it reads."""
Weights: TypeAlias = dict[str, Tensor]
"""A model's weights by name."""


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every (path, tensor) in the order of names, so that digests and sums do not depend on insertion
    order."""
    for name in sorted(tree):
        value = tree[name]
        path = f"{prefix}{name}"
        if not isinstance(value, Tensor) and isinstance(value, Mapping):  # the second question is slow
            yield from leaves(value, f"{path}/")
        else:
            yield path, value


def flat_tree(tree: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of a tree by path."""
    return dict(leaves(tree))


def nested_tree(paths: Mapping[str, Tensor]) -> Tree:
    """The tree with these tensors at these paths, in the order of names; the inverse of `flat_tree`."""
    tree: Tree = {}
    for path, tensor in paths.items():
        *folders, name = path.split("/")
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
        node[name] = tensor
    return sorted_tree(tree)


def sorted_tree(tree: Mapping[str, Any]) -> Tree:
    """The tree in the order of names, which trees from files and messages have.

    The last bits of a hook's sum over leaves depend on their order, so trees in memory need the same one.
    Weights keep their model's order instead. The tensors are not read.
    """
    return {n: sorted_tree(v) if isinstance(v := tree[n], dict) else v for n in sorted(tree)}


def under(tree: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """The tensors named `<name>.<rest>`, by `<rest>`."""
    return {path.removeprefix(f"{name}."): t for path, t in tree.items() if path.startswith(f"{name}.")}


def tree_map(function: Callable[[Tensor], Tensor], tree: Mapping[str, Any]) -> Tree:
    """The tree with `function` applied to every tensor."""
    return {n: tree_map(function, v) if isinstance(v, Mapping) else function(v) for n, v in tree.items()}


def align(t: Tensor) -> Tensor:
    """The tensor at an address that is a multiple of 64 bytes, as torch allocates it; else a copy.

    Kernels split a sum differently for other addresses, so a tensor in the middle of a file or message would
    give other last bits than equal numbers that were computed here. Strides do not change.
    """
    return t if t.data_ptr() % 64 == 0 else t.clone()


def restride(t: Tensor) -> Tensor:
    """The tensor with the strides that it has when it is read from a file.

    An axis of length 1 may have any stride, and kernels are chosen by it: without this, a convolution of grey
    images gave other last bits with weights in memory than with equal weights from a file.
    """
    plain, size = list[int](), 1
    for length in reversed(t.shape):
        plain.insert(0, size)
        size *= max(length, 1)
    return t if t.stride() == tuple(plain) else t.clone(memory_format=torch.contiguous_format)


def align_tree(tree: Mapping[str, Any]) -> Tree:
    """The tree with every tensor aligned as by `align`; a slice of a stack of clients often is not."""
    return tree_map(align, tree)


def size_in_bytes(tree: Mapping[str, Any]) -> int:
    """The bytes of all tensors of a tree, without names or padding."""
    return sum(t.nbytes for _, t in leaves(tree))


@cache
def hidden_tensor(text: str) -> Tensor:
    """A tensor that raises UsageError (E108) with this text at any use."""

    class HiddenTensor(Tensor):
        @classmethod
        def __torch_function__(cls, *_: Any, **__: Any) -> NoReturn:
            raise UsageError("E108", text)

    return Tensor._make_subclass(HiddenTensor, torch.zeros(0))  # pyright: ignore[reportPrivateUsage]


def row_at(table: Tensor, index: Tensor) -> Tensor:
    """The row of a table at an index tensor of one element; `table[index]` would make the host wait for a
    GPU."""
    return table.index_select(0, index.reshape(1)).squeeze(0)


def bytes_text(bytes_: float) -> str:
    """A number of bytes with three significant digits and its unit: `512 B`, `1.23 MB`."""
    for unit in ("B", "KB", "MB"):
        if bytes_ < 1000:
            return f"{bytes_:.3g} {unit}"
        bytes_ /= 1000
    return f"{bytes_:.3g} GB"
