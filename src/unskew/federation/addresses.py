"""Addresses to listen on, in IPv4 and in IPv6, which is written in brackets before a port."""

from __future__ import annotations

import errno
import functools
import ipaddress
import os
import re
import socket
import sys
from pathlib import Path

from unskew.errors import UsageError

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?")
_PLACE = re.compile(r"(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[^\[\]:]+))(?::(?P<port>[0-9]{1,5}))?")


def is_address(host: str) -> bool:
    """True for an IPv4 or IPv6 address, not for a name or an address of one interface (fe80::1%eth0)."""
    try:
        return bool(ipaddress.ip_address(host)) and "%" not in host
    except ValueError:
        return False


def is_host(host: str) -> bool:
    """True for an address or a valid host name."""
    return is_address(host) or _NAME.fullmatch(host) is not None


def host_port(host: str, port: int) -> str:
    """HOST:PORT in the usual form: fl.example.org:8000, [::1]:8000."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_address(text: str, port: int) -> tuple[str, int]:
    """The host and port in HOST, HOST:PORT, [IPv6] or [IPv6]:PORT; a bare IPv6 address is a host. port: the
    default.

    Raises UsageError (E503).
    """
    match = None if is_address(text) else _PLACE.fullmatch(text)
    host = (match["address"] or match["name"]) if match else text
    port_number = int(match["port"] or port) if match else port
    if not is_host(host) or (match and match["address"] and ":" not in host) or not 0 < port_number < 65536:
        form = "HOST or HOST:PORT, with an IPv6 address in brackets"
        raise UsageError("E503", f"--host takes {form}; got '{text}'.")
    return host, port_number


def default_bind(host: str) -> str:
    """The host of a federation if it is an address of this machine, else all IPv4 addresses."""
    return host if host == "localhost" or is_address(host) else "0.0.0.0"


def family(bind: str) -> socket.AddressFamily:
    """The family of an address; IPv4 for a name."""
    return socket.AF_INET6 if ":" in bind else socket.AF_INET


def listen(bind: str, port: int) -> socket.socket:
    """A listening socket; at `::` it also accepts IPv4 connections. Raises OSError."""
    both = bind == "::" and socket.has_dualstack_ipv6()
    return socket.create_server((bind, port), family=family(bind), backlog=128, dualstack_ipv6=both)


def origin(address: str) -> str:
    """The unit of counting connections: an IPv4 address, or the network of an IPv6 address."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    # first: whether a mapped address is a loopback depends on Python
    ip = (ip.version == 6 and ip.ipv4_mapped) or ip
    if ip.version == 4 or ip.is_loopback:
        return str(ip)
    return str(ipaddress.ip_network((ip, 64), strict=False))  # usually one party's


def check_free(bind: str, port: int) -> None:
    """Raises UsageError (E507) if the address and port are not available for listening."""
    try:
        listen(bind, port).close()
    except OSError as error:
        remedy = "Give --bind an address that `ip address` lists, or 0.0.0.0 for all of them (:: with IPv6)."
        if error.errno == errno.EADDRINUSE:
            remedy = "Does it run already?"
        if error.errno == errno.EACCES:
            remedy = "Ports below 1024 are for root; give the federation another --host HOST:PORT."
        reason = error.strerror or error
        text = f"the server cannot listen at {host_port(bind, port)}: {reason}. {remedy}"
        raise UsageError("E507", text) from error


MOST_SOCKET_PATH = 103
"""The longest path of a unix socket, in bytes, on every system."""


def socket_address(path: Path) -> str:
    """The address under which programs bind or reach the unix socket at this path.

    On Linux a path that is too long for a socket is addressed through an open descriptor of its folder.
    Raises UsageError (E507) elsewhere.
    """
    if len(os.fsencode(path)) <= MOST_SOCKET_PATH:
        return str(path)
    if not sys.platform.startswith("linux"):
        raise UsageError("E507", f"the path {path} is too long for a socket; move the federation.")
    return f"/proc/self/fd/{_descriptor(path.parent)}/{path.name}"


@functools.cache
def _descriptor(folder: Path) -> int:
    """A descriptor of a folder, which stays open."""
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
