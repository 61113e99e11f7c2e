"""The pieces of a message, which are fetched while its sender still sends them."""

# pyright: reportMissingImports=false
# Flower lives in an environment of its own, and types are checked in the one without it.

from __future__ import annotations

import time
from collections.abc import Callable

from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectUnavailableError

BACK_OFF_S, MOST_BACK_OFF_S = 0.05, 0.5
"""How soon a piece that was not there yet is asked for again: at first, and at last."""
STALLED_S = 15.0
"""A message of which no further piece has come for so long is given up."""


def unless_stalled(pull: Callable[[str], bytes]) -> Callable[[str], bytes]:
    """This way to pull a piece, which gives up when the sender has added none for STALLED_S: it may have been killed."""
    last = time.monotonic()

    def patient(object_id: str) -> bytes:
        nonlocal last
        try:
            content = pull(object_id)
        except ObjectUnavailableError:
            if time.monotonic() - last > STALLED_S:
                raise ObjectPullError(object_id, "its sender has stopped sending it") from None
            raise
        last = time.monotonic()
        return content

    return patient
