"""Long lists of clients in the rows of a run's record, in a short form.

A row lists up to 1,000 clients: `"clients": [0, 3, 4]`, `"bytes": [1200, 900, 900]`. For more clients it
holds a text, the bits of a set (client k is bit k, from the lowest bit of the first byte; compressed by zlib,
in base64), and of bytes that differ by
client their sum and the largest: `{"sum": 3000, "most": 1200}`.

A record may come from a stranger, and a text of some kilobytes may stand for millions of clients. A reader of
a set therefore gives the number of clients of the run, and no more of the text is inflated than that number
needs.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from unskew.errors import StateError

MOST_LISTED_CLIENTS = 1000
"""Clients that a row lists one by one, at most."""
MOST_CLIENTS = 1 << 27
"""More clients than any run has, for readers that do not know how many theirs has."""
MOST_BYTES = 1 << 50
"""More than all clients of a run move in a round; sums over a run's rounds fit 64 bits."""


def encode_clients(clients: Sequence[int]) -> list[int] | str:
    """A set of clients, ascending, as a row holds it."""
    if len(clients) <= MOST_LISTED_CLIENTS:
        return list(clients)
    present = np.zeros(max(clients) + 1, dtype=bool)
    present[np.asarray(clients)] = True
    return base64.b64encode(zlib.compress(np.packbits(present, bitorder="little").tobytes())).decode()


def clients_in(value: Sequence[int] | str, clients: int = MOST_CLIENTS) -> list[int]:
    """The clients that a row holds, ascending; the inverse of `written`. clients: how many there are in the
    run.

    Raises StateError (E111) for what is no such set, or names a client that the run does not have.
    """
    if isinstance(value, str):
        return np.unpackbits(_unpack_bits(value, clients), bitorder="little").nonzero()[0].tolist()
    if not (isinstance(value, list) and all(type(k) is int and 0 <= k < clients for k in value)):
        raise _damaged(clients)
    return list(value)


def count(value: Sequence[int] | str, clients: int = MOST_CLIENTS) -> int:
    """How many clients a row holds. clients: how many there are in the run. Raises StateError (E111) as
    `clients_in` does."""
    if isinstance(value, str):
        return int(_ONES[_unpack_bits(value, clients)].sum(dtype=np.int64))
    return len(clients_in(value, clients))


def encode_bytes(sizes: Sequence[int]) -> int | list[int] | dict[str, int]:
    """The bytes of every client's payload, as a row holds them; one number if all are equal."""
    if len(set(sizes)) == 1:
        return sizes[0]
    return list(sizes) if len(sizes) <= MOST_LISTED_CLIENTS else {"sum": sum(sizes), "most": max(sizes)}


def total_bytes(row: Mapping[str, Any], clients: int = MOST_CLIENTS) -> int:
    """Bytes of all clients in a row of the ledger. clients, and raises: as for `count`, and for more than any
    network moves."""
    match row["bytes"]:
        case int(each):
            total = each * count(row["clients"], clients)
        case {"sum": several}:
            total = several
        case sizes:
            total = sum(sizes)
    if total > MOST_BYTES:
        raise StateError(
            "E111", f"a record of this run has {total} bytes move in one round; copy its folder again."
        )
    return total


def most_bytes(row: Mapping[str, Any]) -> int:
    """Bytes of the client with the most, in a row of the ledger."""
    match row["bytes"]:
        case int(each):
            return each
        case {"most": most}:
            return most
        case sizes:
            return max(sizes, default=0)


_ONES = np.array([byte.bit_count() for byte in range(256)], np.uint8)
"""How many clients a byte names."""


def _unpack_bits(text: str, clients: int) -> np.ndarray:
    """The bits of a set, uint8, eight clients in each; inflated no further than there are clients."""
    most = -(-clients // 8)
    inflating = zlib.decompressobj()
    try:
        content = inflating.decompress(
            base64.b64decode(text, validate=True), most + 1
        )  # 0 would mean without bound
    except (ValueError, zlib.error):
        raise _damaged(clients) from None
    packed = np.frombuffer(content, np.uint8)
    beyond = len(packed) == most and clients % 8 and packed[-1] >> clients % 8
    if len(packed) > most or beyond or not inflating.eof:
        raise _damaged(clients)
    return packed


def _damaged(clients: int) -> StateError:
    whom = f" of the {clients} that it has" if clients < MOST_CLIENTS else ""
    return StateError(
        "E111", f"a record of this run does not say which clients{whom} took part; copy its folder again."
    )
