"""A compact form of long lists of clients in the rows of a run's record.

A row lists up to 1,000 clients: `"clients": [0, 3, 4]`, `"bytes": [1200, 900, 900]`. For more clients it
holds a text, the bits of a set (client k is bit k, from the lowest bit of the first byte; compressed by zlib,
in base64), and of bytes that differ by
client their sum and the largest: `{"sum": 3000, "most": 1200}`.

A record may be untrusted, and a text of some kilobytes may encode millions of clients. A reader therefore
passes the number of clients of the run, and the text is decompressed no further than that number needs.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from unskew.errors import StateError

MOST_LISTED_CLIENTS = 1000
"""The most clients that a row lists one by one."""
MOST_CLIENTS = 1 << 27
"""More clients than any run has, for readers that do not know their number."""
MOST_BYTES = 1 << 50
"""More bytes than all clients of a run send in a round; sums over a run's rounds fit 64 bits."""


def encode_clients(clients: Sequence[int]) -> list[int] | str:
    """The form in a row of an ascending list of clients."""
    if len(clients) <= MOST_LISTED_CLIENTS:
        return list(clients)
    present = np.zeros(max(clients) + 1, dtype=bool)
    present[np.asarray(clients)] = True
    return base64.b64encode(zlib.compress(np.packbits(present, bitorder="little").tobytes())).decode()


def clients_in(value: Sequence[int] | str, clients: int = MOST_CLIENTS) -> list[int]:
    """The ascending list of clients in a row; the inverse of `encode_clients`. clients: their number in the
    run. Raises StateError (E111) for an invalid value, or a client that the run does not have."""
    if isinstance(value, str):
        return np.unpackbits(_unpack_bits(value, clients), bitorder="little").nonzero()[0].tolist()
    if not (isinstance(value, list) and all(type(k) is int and 0 <= k < clients for k in value)):
        raise _damaged(clients)
    return list(value)


def count(value: Sequence[int] | str, clients: int = MOST_CLIENTS) -> int:
    """The number of clients in a row. clients: their number in the run. Raises as `clients_in`."""
    if isinstance(value, str):
        return int(_ONES[_unpack_bits(value, clients)].sum(dtype=np.int64))
    return len(clients_in(value, clients))


def encode_bytes(sizes: Sequence[int]) -> int | list[int] | dict[str, int]:
    """The form in a row of the bytes of every client's payload; one number if all are equal."""
    if len(set(sizes)) == 1:
        return sizes[0]
    return list(sizes) if len(sizes) <= MOST_LISTED_CLIENTS else {"sum": sum(sizes), "most": max(sizes)}


def total_bytes(row: Mapping[str, Any], clients: int = MOST_CLIENTS) -> int:
    """The bytes of all clients in a row of the ledger. Raises StateError (E111) as `count`, and for more than
    MOST_BYTES."""
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
    """The largest number of bytes of a client in a row of the ledger."""
    match row["bytes"]:
        case int(each):
            return each
        case {"most": most}:
            return most
        case sizes:
            return max(sizes, default=0)


_ONES = np.array([byte.bit_count() for byte in range(256)], np.uint8)
"""The number of clients in each byte."""


def _unpack_bits(text: str, clients: int) -> np.ndarray:
    """The bits of a set as uint8, eight clients in each, decompressed no further than `clients` needs."""
    most = -(-clients // 8)
    inflating = zlib.decompressobj()
    try:  # a limit of 0 would mean without limit
        content = inflating.decompress(base64.b64decode(text, validate=True), most + 1)
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
