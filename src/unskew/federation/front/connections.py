"""Connections of sites: the listener accepts them, TLS decides which are kept, and requests for messages wait
here.

uvicorn and h11 speak HTTP; this file identifies sites. TLS has proven a key before a connection is made. If
the key is not admitted at this moment, the connection is closed before a byte of its request is read. A
connection without a proven key takes little memory, for a few seconds, and their number is limited.

Because requests for messages wait here, sites need not poll often, and messages are found without delay.
"""

# pyright: reportMissingImports=false, reportUntypedBaseClass=false
# Flower, which brings uvicorn, lives in an environment of its own, and types are checked in the one without
# it.

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from unskew.federation import certificates
from unskew.federation.addresses import origin
from unskew.federation.front.access import Members, Refusals
from unskew.federation.signals import Bell

HOLD_S = 2.0
"""Longest wait of a request in seconds. A machine that loses its power meanwhile loses a message that comes
by then, which is sent again when it is back."""
LOOK_S = 0.025


class MessageWait:
    """Wakes requests for messages. bell: rung when the coordinator has sent messages to sites."""

    def __init__(self, bell: Bell):
        self._bell, self._ring, self._next = bell, 0, asyncio.Event()

    async def listen(self) -> None:
        """Wake the waiting requests at every ring of the bell, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            if self._bell.rang():
                self._ring += 1
                self._next.set()
                self._next = asyncio.Event()

    async def wait(self, heard: dict[str, int], left: Callable[[], Awaitable[Any]]) -> bool:
        """Wait at most HOLD_S for a ring that is new to this connection. heard: what the connection keeps of
        the last one. left: returns when the site has left.

        False if the site has left, because a message fetched for it would be lost.
        """
        if heard.get("ring") == self._ring:
            waiting = [asyncio.ensure_future(self._next.wait()), asyncio.ensure_future(left())]
            try:
                done, _ = await asyncio.wait(waiting, timeout=HOLD_S, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in waiting:
                    task.cancel()
            if waiting[1] in done:
                return False
        heard["ring"] = self._ring
        return True


IDLE_S = 75.0
HEAD_BYTES = 16 << 10
MOST_OPEN = 32


@dataclass
class Connections:
    """The state that all connections share. app: answers their requests."""

    members: Members
    refusals: Refusals
    app: Any
    open: set[Connection] = field(default_factory=set)
    state: ServerState = field(default_factory=ServerState)

    def __post_init__(self) -> None:
        self.config = Config(
            self.app,
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=int(IDLE_S),
            h11_max_incomplete_event_size=HEAD_BYTES,
        )
        self.config.load()

    def expel(self) -> None:
        """Close the connections with keys that are no longer admitted."""
        for connection in [c for c in self.open if not c.is_admitted()]:
            self.refusals.note(connection.site, "its key is no longer admitted; its connection was closed")
            connection.transport.abort()


class Connection(H11Protocol):
    """A connection that lasts only while its key is admitted."""

    def __init__(self, shared: Connections):
        super().__init__(shared.config, shared.state, {})
        self.shared, self.key, self.site = shared, "", ""

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        tls = transport.get_extra_info("ssl_object")
        certificate = tls.getpeercert(binary_form=True) if tls else None
        self.key = certificates.certified_fingerprint(certificate)
        self.site = self.shared.members.site(self.key)
        if reason := self._reason():
            self.shared.refusals.note(self.site or self.client[0], reason)
            transport.abort()
            return
        self.shared.open.add(self)
        self.app_state |= {"key": self.key, "site": self.site, "heard": dict[str, int]()}
        self.app_state["place"] = certificates.place_in(certificate) if certificate else 0

    def is_admitted(self) -> bool:
        return self.shared.members.site(self.key) == self.site

    def _reason(self) -> str:
        """The reason to refuse this connection; "" if it is accepted."""
        if not self.site:
            return "its certificate is not of an admitted key"
        is_full = sum(other.site == self.site for other in self.shared.open) >= MOST_OPEN
        return f"more than {MOST_OPEN} connections" if is_full else ""

    def data_received(self, data: bytes) -> None:
        """Ignore what a refused connection has sent already."""
        if not self.transport.is_closing():
            super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.shared.open.discard(self)
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Record a request that was not HTTP, or had headers that are too long."""
        self.shared.refusals.note(self.site, f"no HTTP request with at most {HEAD_BYTES >> 10} KB of headers")
        super().send_400_response(msg)


HANDSHAKE_S = 4.0
GOODBYE_S = 2.0
"""Seconds in which a closed connection must accept its remaining data."""
MOST_UNPROVEN, MOST_UNPROVEN_EACH = 32, 8
"""Connections that have not proven a key yet: of all addresses and of one. Each takes 300 KB, most of it TLS
buffers."""
_REASONS = (
    ("PEER_DID_NOT_RETURN_A_CERTIFICATE", "offers no certificate"),
    ("CERTIFICATE_VERIFY_FAILED", "its certificate is not of an admitted key"),
    ("HTTP_REQUEST", "does not speak TLS"),
    ("WRONG_VERSION_NUMBER", "does not speak TLS"),
    ("UNSUPPORTED_PROTOCOL", "speaks an old version of TLS"),
    ("ALERT_UNKNOWN_CA", "does not trust this server's certificate"),
    ("handshake is taking longer", f"proved no key within {HANDSHAKE_S:.0f} s"),
)


class Listener:
    """Accepts connections from a non-blocking listening socket."""

    def __init__(self, listener: socket.socket, shared: Connections):
        self.listener, self.shared = listener, shared
        self._unproven: Counter[str] = Counter()
        self._known: set[str] = set()
        """Addresses that have proven a key, to which the limit on unproven connections does not apply."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def keep_open(self) -> None:
        """Accept connections until cancelled."""
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
        """The reason to close a connection at once; "" to accept it."""
        full = self._unproven.total() >= MOST_UNPROVEN and host not in self._known
        if full or self._unproven[host] >= MOST_UNPROVEN_EACH:
            return "too many connections at once that have proven no key"
        return ""

    async def _greet(self, line: socket.socket, host: str) -> None:
        loop, context = asyncio.get_running_loop(), self.shared.members.context
        # else a small answer waits 40 ms for the next
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        times = {"ssl_handshake_timeout": HANDSHAKE_S, "ssl_shutdown_timeout": GOODBYE_S} if context else {}
        try:
            made = loop.connect_accepted_socket(lambda: Connection(self.shared), line, ssl=context, **times)
            _, connection = await made
            if connection.site:
                self._known.add(host)
        except OSError as error:  # TLS's own errors are of this kind, too
            self.shared.refusals.note(host, failure_reason(error))
            with contextlib.suppress(OSError):
                line.close()
        finally:
            self._unproven[host] -= 1
            self._unproven += Counter()  # which drops those without any


def failure_reason(error: OSError) -> str:
    """Why a TLS handshake failed, as the end of a sentence."""
    text = str(error)
    is_tls = isinstance(error, ssl.SSLError)
    other = "broke TLS's rules" if is_tls else "left before it had proven a key"
    return next((reason for sign, reason in _REASONS if sign in text), other)
