"""From where a site's key is used: a number that is the same for every process of one folder on one machine.

Two processes with one key share neither its private state nor its record of what has left, and each would answer some of
the requests. In one folder a lock keeps the second out; a copied folder, or a cloned machine, only the server can see.
"""

from __future__ import annotations

import hashlib
import socket
import uuid
from pathlib import Path

BITS = 150
"""Of the number, which is a certificate's serial number: at most 159."""
_RANDOM = 1 << 40
"""The bit that says that Python has found no network card and made up its number."""


def place_of(folder: Path) -> int:
    """The number of this folder here. It tells neither the machine nor the folder, and copies have others."""
    stat, card = folder.stat(), uuid.getnode()
    facts = socket.gethostname(), 0 if card & _RANDOM else card, stat.st_dev, stat.st_ino
    secret = (folder / "site.key").read_bytes()
    digest = hashlib.sha256(repr(facts).encode() + secret).digest()
    return 1 + (int.from_bytes(digest, "big") >> (256 - BITS))
