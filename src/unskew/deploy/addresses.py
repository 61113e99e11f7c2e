"""Addresses to listen at."""

from __future__ import annotations

import errno
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
        text = f"the server cannot listen at {bind}:{port}: {reason}. {_remedy(error, bind, port)}"
        raise UsageError("E507", text) from error


def _remedy(error: OSError, bind: str, port: int) -> str:
    """What helps against an address at which nobody can listen."""
    if error.errno == errno.EADDRINUSE:
        return "Does it run already?"
    if error.errno == errno.EACCES:
        return f"Ports below 1024 are for root; a port above needs a federation with --host HOST:PORT, not {port}."
    what = "is no address of this machine" if is_address(bind) or ":" in bind else "is no name of this machine"
    return f"{bind} {what}: give --bind one that `ip address` lists, or 0.0.0.0 for all of them."


def free_port() -> int:
    """A port of loopback that nobody listens at."""
    with socket.create_server((LOOPBACK, 0)) as door:
        return door.getsockname()[1]
