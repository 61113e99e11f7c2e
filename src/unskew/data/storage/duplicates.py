"""Duplicate samples, byte for byte: compared by checksum first, then those that share a checksum by a digest.

Only checksums are kept of all samples, so these may be larger than memory.
Letters: N samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

import numpy as np

from unskew.data.storage.sample_rows import READ_BLOCK, Rows, checksums


def first_duplicates(x: np.ndarray) -> np.ndarray:
    """For each sample the first one that equals it, itself if none does: int64 [N]."""
    first, crc = np.arange(len(x)), _all_checksums(x)
    _, group, count = np.unique(crc, return_inverse=True, return_counts=True)
    first_rows: dict[bytes, int] = {}
    for row, print_ in _row_digests(x, np.flatnonzero(count[group] > 1)):
        first[row] = first_rows.setdefault(print_, row)
    return first


def are_among(x: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Which of these samples occur in `among`, which has samples of equal shape: bool [N]."""
    crc, among_crc = _all_checksums(x), _all_checksums(among)
    present = np.zeros(len(x), dtype=bool)
    rows = np.flatnonzero(np.isin(crc, among_crc))
    digests = {print_ for _, print_ in _row_digests(among, np.flatnonzero(np.isin(among_crc, crc[rows])))}
    for row, print_ in _row_digests(x, rows):
        present[row] = print_ in digests
    return present


def _all_checksums(x: np.ndarray) -> np.ndarray:
    """The checksum of each sample's bytes, uint32 [N]; samples with equal ones may still differ."""
    if isinstance(x, Rows):
        return x.survey.crc
    return np.concatenate([checksums(x[rows]) for rows in _read_blocks(x, None)] or [np.zeros(0, np.uint32)])


def _row_digests(x: np.ndarray, rows: np.ndarray) -> Iterator[tuple[int, bytes]]:
    """(number, digest) of these samples, in their order."""
    for block in _read_blocks(x, rows):
        for row, sample in zip(block.tolist(), x[block]):
            yield row, blake2b(np.ascontiguousarray(sample).data, digest_size=16).digest()


def _read_blocks(x: np.ndarray, rows: np.ndarray | None) -> Iterator[np.ndarray]:
    """These rows, by default all, in blocks."""
    rows = np.arange(len(x)) if rows is None else rows
    step = max(1, READ_BLOCK // max(1, int(np.prod(x.shape[1:]))))
    return (rows[i : i + step] for i in range(0, len(rows), step))
