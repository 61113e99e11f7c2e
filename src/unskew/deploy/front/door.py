"""Takes connections, and lets TLS decide which of them become a `Connection`.

Whoever has not proven a key yet holds little memory, for a few seconds, in a few places.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import Counter

from unskew.deploy.addresses import origin
from unskew.deploy.front.connection import Connection, Connections
from unskew.deploy.front.pace import Pace

HANDSHAKE_S = 4.0
"""How long somebody may take to prove a key."""
GOODBYE_S = 2.0
"""How long a connection that is closed may take to take what was sent to it."""
MOST_UNPROVEN, MOST_UNPROVEN_EACH = 32, 8
"""Connections that have not proven a key yet: of all addresses and of one. Each takes 300 KB, most of it TLS buffers."""
RATE, BURST = 10.0, 40.0
"""New connections of one address: a second, and at once."""
_REASONS = (
    ("PEER_DID_NOT_RETURN_A_CERTIFICATE", "offers no certificate"),
    ("CERTIFICATE_VERIFY_FAILED", "its certificate is not of an admitted key"),
    ("HTTP_REQUEST", "does not speak TLS"),
    ("WRONG_VERSION_NUMBER", "does not speak TLS"),
    ("UNSUPPORTED_PROTOCOL", "speaks an old version of TLS"),
    ("ALERT_UNKNOWN_CA", "does not trust this server's certificate"),
    ("handshake is taking longer", f"proved no key within {HANDSHAKE_S:.0f} s"),
)


class Door:
    """Connections to one listening socket, which must not block."""

    def __init__(self, listener: socket.socket, shared: Connections):
        self.listener, self.shared = listener, shared
        self.pace = Pace(RATE, BURST)
        self._unproven: Counter[str] = Counter()
        self._known: set[str] = set()
        """Addresses from which a key was proven: strangers take no places from them."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def keep_open(self) -> None:
        """Take connections until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                line, address = await loop.sock_accept(self.listener)
            except OSError:  # no file descriptors are left, or the other side is gone already
                await asyncio.sleep(0.1)
                continue
            host = origin(address[0])
            if reason := self._reason(host):
                self.shared.refusals.note(host, reason)
                line.close()
                continue
            self._unproven[host] += 1
            task = loop.create_task(self._greet(line, host))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _reason(self, host: str) -> str:
        """Why a connection is not even looked at; "" if it is."""
        full = self._unproven.total() >= MOST_UNPROVEN and host not in self._known
        if full or self._unproven[host] >= MOST_UNPROVEN_EACH:
            return "too many connections at once that have proven no key"
        return "" if self.pace.may(host) else "connects too often"

    def _new(self) -> Connection:
        return Connection(self.shared)

    async def _greet(self, line: socket.socket, host: str) -> None:
        loop, context = asyncio.get_running_loop(), self.shared.members.context
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else a small answer waits 40 ms for the next
        times = {"ssl_handshake_timeout": HANDSHAKE_S, "ssl_shutdown_timeout": GOODBYE_S} if context else {}
        try:
            _, connection = await loop.connect_accepted_socket(self._new, line, ssl=context, **times)
            if connection.site:
                self._known.add(host)
        except OSError as error:  # TLS's own errors are of this kind, too
            self.shared.refusals.note(host, reason_of(error))
            with contextlib.suppress(OSError):
                line.close()
        finally:
            self._unproven[host] -= 1
            if not self._unproven[host]:
                del self._unproven[host]


def reason_of(error: OSError) -> str:
    """Why TLS has failed, in words."""
    text = str(error)
    known = next((reason for sign, reason in _REASONS if sign in text), None)
    return known or ("broke TLS's rules" if isinstance(error, ssl.SSLError) else "left before it had proven a key")
