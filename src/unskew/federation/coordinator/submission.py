"""Calls about a run at the SuperLink from other processes: submit it, get its state, end it."""

from __future__ import annotations

import contextlib
import time

from unskew.errors import UsageError
from unskew.federation.coordinator import orders
from unskew.federation.coordinator.orders import Order
from unskew.federation.coordinator.superlink import Refused, SuperLink, Unavailable
from unskew.federation.tickets import Coordinator

STARTING_S = 20.0
"""Seconds of attempts to submit a run to a SuperLink that may still be starting."""


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
                text = "the SuperLink does not answer; is `unskew serve` running?"
                raise UsageError("E507", text) from error
        time.sleep(0.5)


def status(home: Coordinator, number: int) -> str:
    """Flower's state of a run: "pending", "running", "finished"; "" without an answer."""
    try:
        return SuperLink(home).status(number)
    except (Refused, Unavailable):
        return ""


def stop(home: Coordinator, number: int) -> None:
    """End a run, if the SuperLink answers."""
    with contextlib.suppress(Refused, Unavailable):
        SuperLink(home).stop(number)
