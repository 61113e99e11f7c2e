"""Which clients have received something of which others."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from unskew.core.part import Part, Trip
from unskew.engine.probes.probe import Lens, Probe, Seen
from unskew.measures.exposure import Exposure


class Exposed(Probe):
    """The share of exposed pairs, followed through the record: whose shares came up, and who was sent them on."""

    MOST, SHOWN = 2000, 200

    def __init__(self, lens: Lens):
        super().__init__(lens)
        self.found = Exposure(self.fed.clients if self.fed.clients <= self.MOST else 0)
        self.read = {"ledger": 0, "events": 0}
        self.exchanges = self._exchanges()
        self.senders: dict[tuple[str, int], set[int]] = defaultdict(set)

    def refuse(self) -> str | None:
        if self.fed.clients > self.MOST:
            return f"a matrix of {self.fed.clients:,} clients is too large; at most {self.MOST:,}"
        return None if self.exchanges else "no client is sent what another one shared; FLea, FedMix or FedData do that"

    def _exchanges(self) -> list[tuple[Part, Trip]]:
        """Trips that bring what somebody reads singly, and that a later round can send on."""
        T = self.fed.rounds
        return [
            (part, trip)
            for part in self.of.method.parts
            for trip in part.trips
            if any(s.reads == "each" for s in trip.shares(self.fed).values())
            and any(trip.when(t, T) for t in range(T))
            and (set(part.server_init(self.fed.net.weights(), self.fed)) - set(part.keeps_at_server))
        ]

    def values(self, seen: Seen) -> dict[str, float]:
        for row in self._new("ledger"):
            if row["way"] == "up" and row["reads"] == "each" and "/" in row["share"]:
                self.senders[row["share"].split("/")[0], row["t"]].update(row["clients"])
        for event in self._new("events"):
            if event["code"] == "round":
                for part, trip in self.exchanges:
                    self.found.sent(event["t"], self._owners(part, trip, event["t"]), event["asked"])
        return {"exposure": self.found.share}

    def _owners(self, part: Part, trip: Trip, t: int) -> list[int]:
        """Whose shares are broadcast in round t: those of the last exchange before it."""
        at = next((u for u in range(t - 1, -1, -1) if trip.when(u, self.fed.rounds)), None)
        return sorted(self.senders[part.name, at]) if at is not None else []

    def _new(self, kind: str) -> list[dict[str, Any]]:
        rows = self.lens.record.rows[kind]
        begin, self.read[kind] = self.read[kind], len(rows)
        return rows[begin:]

    def picture(self, seen: Seen) -> dict[str, Any]:
        shown = self.found.since_KK[: self.SHOWN, : self.SHOWN]
        return {
            "share": round(self.found.share, 6),
            "since": shown.tolist(),
            "names": list(self.lens.names[: self.SHOWN]),
        }
