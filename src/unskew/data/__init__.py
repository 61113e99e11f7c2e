"""Data sets, how they are dealt out to clients, and who is available."""

from __future__ import annotations

from unskew.data.build import build
from unskew.data.dataset import Dataset
from unskew.data.federation import Federation
from unskew.data.from_arrays import arrays
from unskew.data.from_folder import folder
from unskew.data.from_npz import npz
from unskew.data.index import Index
from unskew.data.intake.take import take
from unskew.data.registry import at_hand, check_text, describe, names, read
from unskew.data.skew import partition

__all__ = [
    "Dataset",
    "Federation",
    "Index",
    "arrays",
    "at_hand",
    "build",
    "check_text",
    "describe",
    "folder",
    "names",
    "npz",
    "partition",
    "read",
    "take",
]
