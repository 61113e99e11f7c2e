"""A run at the SuperLink, from outside: submit it, ask for its state, end it."""

from __future__ import annotations

import contextlib
import time

from unskew.errors import UsageError
from unskew.federation.coordinator import orders
from unskew.federation.coordinator.orders import Order
from unskew.federation.coordinator.superlink import Refused, SuperLink, Unavailable, address
from unskew.federation.tickets import Coordinator

STARTING_S = 20.0
"""How long a run is offered to a SuperLink that does not answer: it may have been started a moment ago."""


def submit(home: Coordinator, order: Order) -> int:
    """Start a run at the SuperLink. Returns its number. Raises UsageError (E507) if it is not accepted."""
    link, name, until = SuperLink(home), orders.hand_in(order), time.monotonic() + STARTING_S
    while True:
        try:
            return link.start(name)
        except Refused as error:
            raise UsageError("E507", f"the SuperLink did not accept the run: {error}") from error
        except Unavailable as error:
            if time.monotonic() >= until:
                text = f"nothing answers at {address(home)}; is `unskew serve` running?"
                raise UsageError("E507", text) from error
        time.sleep(0.5)


def status(home: Coordinator, number: int) -> str:
    """Flower's word for the state of a run: "pending", "running", "finished"; "" if it does not say."""
    try:
        return SuperLink(home).status(number)
    except (Refused, Unavailable):
        return ""


def stop(home: Coordinator, number: int) -> None:
    """End a run, if the SuperLink is there to be asked."""
    with contextlib.suppress(Refused, Unavailable):
        SuperLink(home).stop(number)
