"""What a trip says that it reads of its Part's slice: no other leaf is sent for it, or found at a client.

Likely mistakes: a leaf that `client` reads and the trip does not name, or names that are no tuple, whose
letters were leaves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch

from unskew.core import Part, Share, Trip
from unskew.core.method import Method
from unskew.errors import UsageError
from unskew.runs import conformance

LEAVES = ("big", "kept", "seen")


@dataclass(frozen=True)
class Looks(Part):
    """A client answers which leaves of the slice it finds; the server keeps the answers of all."""

    name: ClassVar[str] = "looks"
    keeps_at_server: ClassVar[tuple[str, ...]] = ("kept",)
    reads: ClassVar[Any] = None
    early: ClassVar[bool] = False

    @property
    def trips(self):
        share = {"found": Share((len(LEAVES),), kind="statistics", samples="client")}
        every = lambda t, T: 0 < t < T  # noqa: E731
        return (Trip(every, self.look, self.keep, lambda fed: share, early=self.early, reads=self.reads),)

    def server_init(self, w, fed):
        return {"big": torch.zeros(1000), "seen": torch.zeros(1, 3), "kept": torch.zeros(2)}

    def server(self, s, ups, fed):
        return {**s, "big": s["big"] + 1, "seen": s["seen"] + 1}

    def look(self, w, c):
        return {"found": torch.tensor([float(leaf in c.down) for leaf in LEAVES])}

    def keep(self, w, s, ups, fed):
        return w, {**s, "seen": ups["found"]}


def looking(reads: Any, **body: Any) -> Part:
    kind = type("Reading", (Looks,), {"reads": reads, "__module__": __name__, **body})
    return dataclass(frozen=True)(kind)()


def found(part: Part) -> tuple[set[str], list[tuple[str, int]]]:
    """The leaves that clients found, and what went down for the trip after round 1."""
    trained = conformance.train_run(Method(part), rounds=2)
    seen_K3 = trained.slices["looks"]["seen"]
    assert len(seen_K3) > 1
    assert (seen_K3 == seen_K3[0]).all()
    rows = trained.loop.record.rows["ledger"]
    (answered,) = (i for i, r in enumerate(rows) if r["t"] == 1 and r["share"] == "looks/found")
    first = next(i for i, r in enumerate(rows) if r["way"] == "up")
    down = [(r["share"], r["bytes"]) for r in rows[first:answered] if r["way"] == "down"]
    return {leaf for leaf, there in zip(LEAVES, seen_K3[0].tolist()) if there}, down


@pytest.mark.parametrize(
    ("reads", "there", "sent"),
    [
        (None, {"big", "seen"}, [("looks", 4 * 1000 + 12)]),
        ((), set(), []),
        (("seen",), {"seen"}, [("looks", 12)]),
        (("seen", "kept"), {"seen"}, [("looks", 12)]),
    ],
)
def test_what_a_trip_does_not_read_is_not_sent(reads, there, sent):
    leaves, down = found(looking(reads))
    assert leaves == there
    assert down[0][0] == "w"
    assert down[1:] == sent


def test_a_trip_cannot_read_a_leaf_that_it_does_not_name():
    def look(self, w, c):
        return {"found": c.down["seen"][0] * 0}

    assert conformance.train_run(Method(looking(None, look=look)), rounds=2)
    with pytest.raises(UsageError) as error:
        conformance.train_run(Method(looking(("big",), look=look)), rounds=2)
    assert "KeyError: 'seen'" in str(error.value)
