"""A site's question for messages waits here until there may be one: nobody has to ask often, and none is found late."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from unskew.deploy.bell import Bell

HOLD_S = 2.0
"""How long a question waits at most. A machine that loses its power while it waits loses a message that comes by then, which
is sent again when it is back."""
LOOK_S = 0.025
"""How often the bell is listened to."""


@dataclass
class Heard:
    """Which ring of the bell the last question over a connection has heard."""

    ring: int = -1


class News:
    """bell: rung when the coordinator has sent messages to sites."""

    def __init__(self, bell: Bell):
        self._bell, self._ring, self._next = bell, 0, asyncio.Event()

    async def listen(self) -> None:
        """Pass the bell on until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            if self._bell.rang():
                self._ring += 1
                self._next.set()
                self._next = asyncio.Event()

    async def wait(self, heard: Heard, left: Callable[[], Awaitable[Any]]) -> bool:
        """Wait for a ring that this connection has not heard yet, at most HOLD_S. left: returns when the site has left.

        Returns False if it has: what is fetched for a site that is not there is lost.
        """
        if heard.ring == self._ring:
            waiting = [asyncio.ensure_future(self._next.wait()), asyncio.ensure_future(left())]
            try:
                done, _ = await asyncio.wait(waiting, timeout=HOLD_S, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in waiting:
                    task.cancel()
            if waiting[1] in done:
                return False
        heard.ring = self._ring
        return True
