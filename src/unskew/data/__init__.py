"""Data sets, how they are dealt out to clients, and who is available."""

from __future__ import annotations

from unskew.data.clients.federation import Federation
from unskew.data.clients.partition import Index
from unskew.data.python_objects import take
from unskew.data.readers.from_arrays import arrays
from unskew.data.readers.from_folder import folder
from unskew.data.readers.from_npz import npz
from unskew.data.registry import describe, names, read
from unskew.data.samples.dataset import Dataset
from unskew.data.skew import build, partition

__all__ = [
    "Dataset",
    "Federation",
    "Index",
    "arrays",
    "build",
    "describe",
    "folder",
    "names",
    "npz",
    "partition",
    "read",
    "take",
]


def __dir__() -> list[str]:
    return list(__all__)
