"""One digest of all that a run reads of its data, by which a resumed run notices other data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any
from zlib import crc32

import numpy as np

from unskew.data.federation import Federation
from unskew.data.rows import Rows, checksums

WHOLE = 2 << 30
"""Bytes of an array above which its blocks are told by their checksums, which take less time."""
BLOCK = 1 << 20


def fingerprint(federation: Federation, whole: int = WHOLE, by_sample: bool = False) -> str:
    """SHA-256 of the samples, labels and classes, for training and for the test, and of who holds which.

    Of an array above `whole` bytes the checksums of its blocks count; of samples that are read when they are wanted, those of
    each sample. by_sample: also of samples in memory, so that it does not depend on how much memory a machine has.
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
        each = array.survey.crc if isinstance(array, Rows) else array
        if by_sample and (array is federation.x or array is federation.x_test) and not isinstance(array, Rows):
            each = checksums(array)
        for block in _blocks(each, whole):
            sha.update(block)
        if isinstance(array, Rows) and array.changes:
            sha.update(repr(federation.applied).encode())
    return sha.hexdigest()


def _blocks(array: Any, whole: int) -> Iterator[memoryview | bytes]:
    """Bytes of an array, some rows at a time; of one above `whole` bytes the checksums of such blocks."""
    row_bytes = max(1, int(np.prod(array.shape[1:], dtype=np.int64)) * array.dtype.itemsize)
    rows = max(1, BLOCK // row_bytes)
    for start in range(0, len(array), rows):
        block = np.ascontiguousarray(np.asarray(array[start : start + rows])).reshape(-1).view(np.uint8).data
        yield crc32(block).to_bytes(4, "little") if len(array) * row_bytes > whole else block
