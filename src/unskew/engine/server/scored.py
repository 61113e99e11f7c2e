"""At how many of the clients that have test samples a run's last scores were taken.

A client that never took part has none of the weights that stay at clients, and a site that did not answer sent no score; means
over the others stand beside other methods' means over all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

WHY = "the others never took part, or did not answer"


class Scored(NamedTuple):
    """there: clients with a score. of: those with test samples. own: whether only the clients' own models lack scores."""

    there: int
    of: int
    own: bool


def fewer(by_scope: Mapping[str, int], tested: int) -> Scored | None:
    """None where every client with test samples has scores, or none has.

    by_scope: by scope of clients, how many have a score in the last round. tested: how many clients have test samples.
    """
    own = by_scope.get("personal@client", 0)
    common = by_scope.get("global@client", own)
    there = min(own, common) if own else common
    return Scored(there, tested, own=common >= tested) if 0 < there < tested else None
