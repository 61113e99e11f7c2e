"""One digest of all that a run reads of its data, by which a resumed run notices other data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from unskew.data.federation import Federation
from unskew.data.rows import Rows

WHOLE = 2 << 30
"""Bytes of an array that is read as a whole; of a larger one, blocks of so many bytes together."""
BLOCK = 1 << 20


def fingerprint(federation: Federation, whole: int = WHOLE) -> str:
    """SHA-256 of the samples, labels and classes, for training and for the test, and of who holds which.

    Of an array above `whole` bytes it reads blocks, evenly spread, so a change may go unnoticed there. Samples that are read
    when they are wanted have checksums instead.
    """
    facts = (federation.classes, federation.names, federation.mean, federation.std)
    further = tuple(fact for fact in (federation.target, federation.layout) if fact)
    sha = hashlib.sha256(repr(facts + further).encode())
    indices = [
        index for part in (federation.train, federation.val, federation.test) for index in (part.rows, part.offsets)
    ]
    samples = (federation.x, federation.y, federation.x_test, federation.y_test)
    for array in (*samples, *indices, federation.reserved):
        sha.update(f"\n{array.dtype} {array.shape}\n".encode())
        for block in _blocks(array.survey.crc if isinstance(array, Rows) else array, whole):
            sha.update(block)
        if isinstance(array, Rows) and array.changes:
            sha.update(repr(federation.applied).encode())
    return sha.hexdigest()


def _blocks(array: Any, whole: int) -> Iterator[memoryview]:
    """Bytes of an array, row by row; of one above `whole` bytes only of blocks of rows."""
    if not len(array):
        return
    row_bytes = max(1, int(np.prod(array.shape[1:], dtype=np.int64)) * array.dtype.itemsize)
    rows = max(1, BLOCK // row_bytes)
    starts = np.arange(0, len(array), rows)
    if len(array) * row_bytes > whole:
        starts = np.unique(np.linspace(0, len(array) - rows, max(1, whole // (rows * row_bytes))).astype(np.int64))
    for start in starts.tolist():
        block = np.ascontiguousarray(np.asarray(array[start : start + rows]))
        yield block.reshape(-1).view(np.uint8).data
