"""One kind of state: a tree of named tensors, and its flat form `path/to/leaf`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from torch import Tensor

Tree: TypeAlias = dict[str, Any]
"""Names to tensors or to further trees. Not typed more closely: every hook would have to cast what it reads."""
Weights: TypeAlias = dict[str, Tensor]
"""A flat tree: a model's weights by name."""


def leaves(tree: Mapping, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every (path, tensor), in sorted order of names so that digests and sums have one order."""
    for name in sorted(tree):
        value = tree[name]
        path = f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from leaves(value, f"{path}/")
        else:
            yield path, value


def flat(tree: Mapping) -> dict[str, Tensor]:
    return dict(leaves(tree))


def nested(paths: Mapping[str, Tensor]) -> Tree:
    """The inverse of `flat`."""
    tree: Tree = {}
    for path, tensor in paths.items():
        *folders, name = path.split("/")
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
        node[name] = tensor
    return tree


def under(tree: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """What a flat tree holds as `name.<...>`, without that prefix."""
    return {path.removeprefix(f"{name}."): t for path, t in tree.items() if path.startswith(f"{name}.")}


def tree_map(function: Callable[[Tensor], Tensor], tree: Mapping) -> Tree:
    return {n: tree_map(function, v) if isinstance(v, Mapping) else function(v) for n, v in tree.items()}


def size_in_bytes(tree: Mapping) -> int:
    """Bytes on the wire: elements times item size, without names or padding."""
    return sum(t.numel() * t.element_size() for _, t in leaves(tree))
