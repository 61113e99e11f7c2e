"""Sets, partitions and who is available."""

from __future__ import annotations

from unskew.data.build import build
from unskew.data.federation import Dataset, Federation, Index
from unskew.data.folders import folder
from unskew.data.own import arrays, npz
from unskew.data.partitions import partition
from unskew.data.sets import check, describe, load, names, parse

__all__ = [
    "Dataset",
    "Federation",
    "Index",
    "arrays",
    "build",
    "check",
    "describe",
    "folder",
    "load",
    "names",
    "npz",
    "parse",
    "partition",
]
