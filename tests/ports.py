"""A free port of this machine, for tests that start servers."""

from __future__ import annotations

import contextlib
import secrets
import socket

UNASSIGNED_PORTS = range(20_000, 30_000)
"""Ports that Linux (from 32768), macOS and Windows (from 49152) give to no connection, so that a free one
stays free until used."""


def free_port() -> int:
    """A free port of loopback."""
    while True:
        port = secrets.choice(UNASSIGNED_PORTS)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
