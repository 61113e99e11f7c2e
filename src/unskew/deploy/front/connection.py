"""One connection of a site. uvicorn and h11 speak HTTP; this says who is there, and how long a request may take to begin.

TLS has already proven a key when a connection is made. If it is not admitted at this moment, the connection is closed
before a byte of its request is read.
"""

# pyright: reportMissingImports=false, reportUntypedBaseClass=false
# Flower, which brings uvicorn, lives in an environment of its own, and types are checked in the one without it.

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from unskew.deploy import proof
from unskew.deploy.front.members import Members
from unskew.deploy.front.news import Heard
from unskew.deploy.front.refusals import Refusals

HEAD_S = 10.0
"""How long a connection may take to send the headers of its first request, or to finish those of a later one."""
IDLE_S = 75.0
"""How long a connection is kept between two requests."""
HEAD_BYTES = 16 << 10
"""The most bytes of a request's headers."""
MOST_OPEN = 32
"""Connections of one site."""
NOBODY = "(anybody: TLS is disabled)"
"""Stands for the site where no connection can prove one."""


@dataclass
class Connections:
    """What all connections share. app: answers their requests."""

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

    def of(self, site: str) -> int:
        """How many connections a site has."""
        return Counter(c.site for c in self.open)[site]

    def expel(self) -> None:
        """Close the connections of keys that are no longer admitted."""
        for connection in [c for c in self.open if not c.is_admitted()]:
            self.refusals.note(connection.site, "its key is no longer admitted; its connection was closed")
            connection.transport.abort()


class Connection(H11Protocol):
    """A connection that lasts only while its key is admitted, and only if its requests arrive in time."""

    def __init__(self, shared: Connections):
        super().__init__(shared.config, shared.state, {})
        self.shared, self.key, self.site = shared, "", ""
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Take the connection if its key is admitted."""
        super().connection_made(transport)
        tls = transport.get_extra_info("ssl_object")
        certificate = tls.getpeercert(binary_form=True) if tls else None
        self.key = proof.proven(certificate) if tls else NOBODY
        self.site = self.shared.members.site(self.key) if tls else NOBODY
        if reason := self._reason():
            self.shared.refusals.note(self.site or self.client[0], reason)
            transport.abort()
            return
        self.shared.open.add(self)
        self.app_state |= {"key": self.key, "site": self.site, "heard": Heard()}
        self.app_state["place"] = proof.place_in(certificate) if certificate else 0
        self._wait()

    def is_admitted(self) -> bool:
        """Whether the key of this connection still is."""
        return self.key == NOBODY or self.shared.members.site(self.key) == self.site

    def _reason(self) -> str:
        """Why this connection is not taken; "" if it is."""
        if not self.site:
            return "its certificate is not of an admitted key"
        return f"more than {MOST_OPEN} connections" if self.shared.of(self.site) >= MOST_OPEN else ""

    def data_received(self, data: bytes) -> None:
        """Give headers that have begun to arrive a time by which they must be complete."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._arrived()
        elif self._late is None:
            self._wait()

    def on_response_complete(self) -> None:
        """Start no second timer: from here on uvicorn's own one runs, until the next byte arrives."""
        self._arrived()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._arrived()
        self.shared.open.discard(self)
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Note what was not HTTP, or had headers that are too long."""
        self.shared.refusals.note(self.site, f"no HTTP request with at most {HEAD_BYTES >> 10} KB of headers")
        super().send_400_response(msg)

    def _wait(self) -> None:
        self._late = self.loop.call_later(HEAD_S, self._expired)

    def _arrived(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _expired(self) -> None:
        self.shared.refusals.note(self.site, f"no complete request within {HEAD_S:.0f} s")
        self.transport.abort()
