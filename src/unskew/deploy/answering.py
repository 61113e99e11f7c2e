"""A site that answers the server's messages, one after the other, and comes back whenever it has lost the server.

Heartbeats come from a thread of their own, and the work is done by another process, so that neither a long request nor
data that take minutes to load make the server count this site as away.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from unskew.deploy.fleet import LIFE_S, FleetError, InUse, TurnedAway, Unkept, Unreachable, Unwanted
from unskew.deploy.flower import unpacked
from unskew.deploy.sealed import Sealed
from unskew.deploy.supervise import Say
from unskew.deploy.telling import CONNECTED
from unskew.errors import Paused

QUICK_S, IDLE_S = 0.2, 2.0
"""How often the server is asked for messages: at least and at most."""
PATIENCE = 50
"""While nothing comes, the pause grows to this part of the silence, so that waiting costs a round two per cent."""
RETRY_S = 5.0
"""How long to wait at most before the server is tried again. It begins with a tenth of it."""
BEAT_S = LIFE_S / 4
NO_ROOM = "E203 disk full: the site cannot keep so large a message"
"""What the coordinator is told, who reads nothing of this site's files."""


class Connection(Protocol):
    """What `Fleet` does."""

    def connect(self) -> None: ...

    def beat(self) -> None: ...

    def receive(self) -> Any: ...

    def reply(self, message: Any, answer: Sealed | str) -> None: ...

    def forget(self) -> None: ...

    def leave(self) -> None: ...


@dataclass
class Answering:
    """answer: the worker's, within so many seconds; raises OSError if there is none. over: set it to end `run`."""

    fleet: Connection
    answer: Callable[[Sealed, float], Sealed]
    say: Say
    site: str
    over: threading.Event = field(default_factory=threading.Event)
    connected: bool = False
    losses: int = 0
    """How often a connection was lost."""
    _failures: int = 0
    _lost: float | None = 0.0
    """Since when there is no connection: 0 before the first one, None while there is one."""
    _ready: tuple[Any, Sealed | str, float] | None = None
    """A message, its answer that has not been sent yet, and until when it is of use."""

    def run(self) -> None:
        """Take part until `over`."""
        threading.Thread(target=self._beat, daemon=True).start()
        while not self.over.is_set():
            try:
                self.fleet.connect()
                self._take_part()
            except FleetError as error:
                self._lose()
                self._explain(error)
                self._failures += 1
                longest = min(RETRY_S, RETRY_S / 10 * 2 ** (self._failures - 1))
                self.over.wait(random.uniform(longest / 2, longest))
            except Exception as error:  # nothing that comes from elsewhere may end the site
                self._lose()
                self.say(f"unexpected: {_brief(error)}. The site connects again.")
                self._ready = None
                self.fleet.forget()
                self.over.wait(RETRY_S)
        self.fleet.leave()

    def _lose(self) -> None:
        self.losses += self.connected
        self.connected, self._lost = False, self._lost or time.monotonic()

    def _beat(self) -> None:
        while not self.over.wait(BEAT_S):
            try:
                self.fleet.beat()
            except Exception:
                continue  # `run` meets the same, and says so

    def _take_part(self) -> None:
        """Ask for messages and answer them. Raises FleetError when the server is lost."""
        last = time.monotonic()
        while not self.over.is_set():
            self._send()
            asked = time.monotonic()
            try:
                message, answer = self._received(), None
            except Unkept as error:
                message, answer = error.message, self._without_room(error.__cause__)
            self._failures = 0
            self._say_connected()
            if message is None:
                silence, waited = time.monotonic() - last, time.monotonic() - asked  # the front waits for us
                self.over.wait(max(0.0, min(IDLE_S, max(QUICK_S, silence / PATIENCE)) - waited))
                continue
            began = time.monotonic()
            self._ready = message, answer or self._answered(message), began + message.metadata.ttl
            last = time.monotonic()

    def _say_connected(self) -> None:
        """Once the server has answered a question for messages: it lets nodes connect whose questions it then refuses."""
        self.connected = True
        if self._lost is not None:
            self.say(CONNECTED + (f" again after {time.monotonic() - self._lost:.0f} s" if self._lost else ""))
            self._lost = None

    def _received(self) -> Any:
        try:
            return self.fleet.receive()
        except Unwanted:
            self.fleet.forget()
            return None

    def _answered(self, message: Any) -> Sealed | str:
        """The worker's answer, or a text that says why there is none."""
        try:
            request = unpacked(message.content)
        except Exception as error:
            self.say("a message that cannot be read was refused; nobody who keeps to the protocol sends one")
            return f"the request cannot be read: {_brief(error)}"
        try:
            return self.answer(request, message.metadata.ttl)
        except Paused as error:
            return self._without_room(error)
        except TimeoutError:
            return "the site's worker did not answer in time"
        except OSError as error:
            return f"the site's worker ended while it worked on this request ({type(error).__name__})"
        except Exception as error:
            return f"the request could not be handed to the site's worker ({type(error).__name__})"

    def _without_room(self, error: BaseException | None) -> str:
        """Tell the operator which disk is full. Returns what the coordinator is told."""
        self.say(str(error))
        return NO_ROOM

    def _send(self) -> None:
        """Send the answer that is ready. If the server is lost meanwhile it stays ready, as long as it is of use."""
        if self._ready is None:
            return
        message, answer, until = self._ready
        if time.monotonic() < until:
            try:
                self.fleet.reply(message, answer)
            except Unwanted:
                self.say("an answer was not wanted any more: its run is over")
        self._ready = None
        self.fleet.forget()

    def _explain(self, error: FleetError) -> None:
        if isinstance(error, TurnedAway):
            question = "" if isinstance(error, InUse) else f" Is {self.site}.pub admitted?"
            text = f"the server does not let this site in: {error}.{question}"
            self.say(f"{text} It is tried again until it does.")
        elif isinstance(error, Unreachable):
            self.say(f"the server is not reached: {error}. It is tried again until it is.")


def _brief(error: Exception) -> str:
    return f"{type(error).__name__} {str(error)[:200]}".strip()
