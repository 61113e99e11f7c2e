"""Addresses to listen at."""

from __future__ import annotations

import socket

from unskew.errors import UsageError

LOOPBACK = "127.0.0.1"


def is_address(host: str) -> bool:
    """Whether a host is an IPv4 address, not a name."""
    return host.replace(".", "").isdigit()


def is_local(host: str) -> bool:
    """Whether only programs of this machine reach this host."""
    return host in ("localhost", "::1") or (is_address(host) and host.startswith("127."))


def family(bind: str) -> socket.AddressFamily:
    """Of an address, or of a name, for which it is IPv4."""
    return socket.AF_INET6 if ":" in bind else socket.AF_INET


def check_free(bind: str, port: int) -> None:
    """Raises UsageError (E507) if nobody can listen there, for example because somebody does already."""
    try:
        socket.create_server((bind, port), family=family(bind)).close()
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(
            "E507", f"the server cannot listen at {bind}:{port}: {reason}. Does it run already?"
        ) from error


def free_port() -> int:
    """A port of loopback that nobody listens at."""
    with socket.create_server((LOOPBACK, 0)) as door:
        return door.getsockname()[1]
