"""Long lists of clients in the rows of a run's record, written in short.

Up to 1,000 clients a row lists them: `"clients": [0, 3, 4]`, `"bytes": [1200, 900, 900]`. Of more it holds a text, the
bits of a set (client k is bit k, from the lowest bit of the first byte; compressed by zlib, in base64), and of bytes
that differ by client their sum and the largest: `{"sum": 3000, "most": 1200}`.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

MOST_LISTED = 1000
"""Clients that a row lists one by one, at most."""


def written(clients: Sequence[int]) -> list[int] | str:
    """A set of clients, ascending, as a row holds it."""
    if len(clients) <= MOST_LISTED:
        return list(clients)
    present = np.zeros(max(clients) + 1, dtype=bool)
    present[np.asarray(clients)] = True
    return base64.b64encode(zlib.compress(np.packbits(present, bitorder="little").tobytes())).decode()


def clients_in(value: Sequence[int] | str) -> list[int]:
    """The clients that a row holds, ascending; the inverse of `written`."""
    return _bits(value).nonzero()[0].tolist() if isinstance(value, str) else list(value)


def count(value: Sequence[int] | str) -> int:
    """How many clients a row holds."""
    return int(_bits(value).sum()) if isinstance(value, str) else len(value)


def written_bytes(sizes: Sequence[int]) -> int | list[int] | dict[str, int]:
    """The bytes of every client's payload, as a row holds them; one number if all are equal."""
    if len(set(sizes)) == 1:
        return sizes[0]
    return list(sizes) if len(sizes) <= MOST_LISTED else {"sum": sum(sizes), "most": max(sizes)}


def total_bytes(row: Mapping[str, Any]) -> int:
    """Bytes of all clients in a row of the ledger."""
    match row["bytes"]:
        case int(each):
            return each * count(row["clients"])
        case {"sum": total}:
            return total
        case sizes:
            return sum(sizes)


def most_bytes(row: Mapping[str, Any]) -> int:
    """Bytes of the client with the most, in a row of the ledger."""
    match row["bytes"]:
        case int(each):
            return each
        case {"most": most}:
            return most
        case sizes:
            return max(sizes, default=0)


def _bits(text: str) -> np.ndarray:
    return np.unpackbits(np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8), bitorder="little")
