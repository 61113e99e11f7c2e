"""The tensors of a large message that has arrived, which stay in its file until somebody reads one.

A shelf looks like the tree that a small message is. Each tensor is mapped into memory anew whenever it is asked for, so
that only those in use take any, and goes as soon as nobody holds it. Whoever changes one changes a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

from unskew.core.trees import Weights, aligned, nested, size_in_bytes
from unskew.deploy.bulk import SMALL, Stored
from unskew.engine.disk.layout import layout

Orders = Mapping[str, list[int]]
"""By name of a tensor, the order of its axes in memory."""


class Shelf(Mapping[str, Any]):
    """Tensors, or further shelves, by name."""

    def __init__(self, stored: Stored, places: Mapping[str, Any], orders: Orders):
        """places: the tensor's path in the file by name, or such a mapping again. orders: of those not as their shape."""
        self._stored, self._places, self._orders = stored, places, orders

    def __getitem__(self, name: str) -> Any:
        place = self._places[name]
        if isinstance(place, Mapping):
            return Shelf(self._stored, place, self._orders)
        with safe_open(self._stored.path, "pt") as file:
            return in_shape(aligned(file.get_tensor(place)), self._orders.get(place))

    def in_order(self, names: Iterable[str]) -> Weights:
        """Those of these names, in this order."""
        return Shelf(self._stored, {n: self._places[n] for n in names}, self._orders)  # type: ignore[return-value]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def names(stored: Stored) -> list[str]:
    """The paths of all tensors of a file. Raises SafetensorError if it is not of this format."""
    with safe_open(stored.path, "pt") as file:
        return list(file.keys())


def shelved(stored: Stored, paths: list[str], orders: Orders) -> dict[str, Any]:
    """The tree with these tensors. Raises an error that says little where an order does not fit its tensor."""
    with safe_open(stored.path, "pt") as file:
        for path, order in orders.items():
            in_shape(file.get_tensor(path), order)
    places: dict[str, Any] = nested({path: path for path in paths})  # type: ignore[arg-type]
    return {name: Shelf(stored, places, orders)[name] for name in places}


def put_away(w: Weights, folder: Path) -> Weights:
    """These weights, in a file if they are many: then each is in memory only while somebody reads it."""
    if size_in_bytes(w) <= SMALL:
        return w
    stored = Stored(folder)
    for view in layout({n: t.detach().cpu().contiguous() for n, t in w.items()}):
        stored.add(view)
    return Shelf(stored, {n: n for n in w}, {})  # type: ignore[return-value]


def in_shape(tensor: Tensor, order: list[int] | None) -> Tensor:
    """A tensor that lies in memory in this order of axes, with its axes in their own order."""
    return tensor if order is None else tensor.permute([order.index(i) for i in range(tensor.dim())])
