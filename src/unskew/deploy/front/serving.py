"""The front as a whole: a listening socket, the keys that are admitted at this moment, and the way to Flower's server."""

# pyright: reportMissingImports=false
# Flower, which brings httpx, lives in an environment of its own, and types are checked in the one without it.

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable

import httpx

from unskew.deploy.bell import REPLIES, REQUESTS, Bell
from unskew.deploy.front.connection import Connections
from unskew.deploy.front.door import Door
from unskew.deploy.front.fleet_api import calls
from unskew.deploy.front.members import Members
from unskew.deploy.front.news import News
from unskew.deploy.front.passing import Passing, Signs
from unskew.deploy.front.refusals import Refusals
from unskew.deploy.idle import IDLE, Idle
from unskew.deploy.tickets import Coordinator
from unskew.errors import UnskewError

LOOK_S = 0.5
"""How often the admitted keys are looked at. A key that is removed is out after this time at the latest."""
MOST_UNREADABLE = 6
"""How many looks in a row may fail. Then nobody is let in any more: a key that was removed would not be noticed."""
MOST_AT_ONCE = 64
"""Requests that Flower's server works on at a time; others wait."""

KEPT_S = 2.0
"""How long an idle connection to Flower's server is used again. It closes them itself after 5 s, unannounced."""


async def serve(
    home: Coordinator, listener: socket.socket, server: httpx.AsyncClient, say: Callable[[str], None]
) -> None:
    """Serve until cancelled. server: leads to Flower's. say: takes the lines of `Refusals`."""
    refusals, members, flower = Refusals(say), Members(home), home.folder / "flower"
    signs = Signs(News(Bell(flower / REQUESTS)), Bell(flower / REPLIES), Idle(flower / IDLE))
    signs.idle.forget()
    shared = Connections(members, refusals, Passing(server, calls(home.tls), refusals, signs))
    door, unreadable = asyncio.create_task(Door(listener, shared).keep_open()), 0
    listening = asyncio.create_task(signs.news.listen())
    try:
        while not door.done():
            try:
                if members.read():
                    shared.expel()
                unreadable = 0
            except (OSError, UnskewError):  # for a moment the certificate may be renewed, and its key not yet
                unreadable += 1
                if unreadable >= MOST_UNREADABLE:
                    raise
            refusals.flush()
            await asyncio.sleep(LOOK_S)
        await door
    finally:
        door.cancel()
        listening.cancel()
        refusals.flush(everything=True)


def flower(home: Coordinator, port: int) -> httpx.AsyncClient:
    """A client of Flower's server, which listens at this port of loopback with the federation's certificate."""
    scheme, verify = "http", False
    if home.tls:
        scheme, verify = "https", ssl.create_default_context(cafile=str(home.folder / "ca.crt"))
        verify.verify_flags &= ~ssl.VERIFY_X509_STRICT  # which Python sets from 3.13 on
    return httpx.AsyncClient(
        base_url=f"{scheme}://127.0.0.1:{port}",
        verify=verify,
        timeout=60,
        limits=httpx.Limits(max_connections=MOST_AT_ONCE, keepalive_expiry=KEPT_S),
        trust_env=False,  # no proxy stands between two programs of one machine
    )
