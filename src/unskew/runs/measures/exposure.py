"""Exposure (FLea, Xia et al., KDD 2024, Fig. 9a): which clients have received shares of which other clients.

xi_ij(t) = 1 once client j was sent something that client i shared, in any round up to t
eps(t)   = sum_ij xi_ij(t) / K^2                directed pairs, the diagonal included
If each client takes part with probability p, independently in every round, and a round's shares reach only
the clients of the next round, then E eps(t) = 1 - (1 - p^2)^(t - 1).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from unskew.core.part import Part
from unskew.core.trip import Trip
from unskew.records.client_lists import clients_in
from unskew.round.probes import Measurement, Probe, RoundEnd, RunInspector


class Exposure:
    """The pairs of clients (owner, receiver) so far.

    since_KK[i, j]: the round in which client j first received a share of client i; 0 means never.
    """

    def __init__(self, clients: int):
        self.since_KK = np.zeros((clients, clients), dtype=np.int64)

    def sent(self, t: int, owners: Sequence[int], receivers: Sequence[int]) -> None:
        """Record that the receivers were sent the owners' shares in round t."""
        if len(owners) and len(receivers):
            pairs = np.ix_(np.asarray(owners), np.asarray(receivers))
            self.since_KK[pairs] = np.where(self.since_KK[pairs] == 0, t, self.since_KK[pairs])

    @property
    def share(self) -> float:
        """eps(t) for the rounds so far, in [0, 1]."""
        return float((self.since_KK > 0).mean()) if self.since_KK.size else 0.0


MOST, SHOWN = 2000, 200
"""Maximum number of clients for which the matrix of pairs is recorded, and for which it is shown."""


class Exposed(Probe):
    """The share of exposed pairs, computed from the record: the owners of uploaded shares and their later
    receivers."""

    def __init__(self, lens: RunInspector):
        super().__init__(lens)
        self.exposure = Exposure(self.fed.clients if self.fed.clients <= MOST else 0)
        self.rows_read = {"ledger": 0, "events": 0}
        self.exchanges = self._exchanges()
        self.senders: dict[tuple[str, int], set[int]] = defaultdict(set)

    def refuse(self) -> str | None:
        if self.fed.clients > MOST:
            return f"a matrix of {self.fed.clients:,} clients is too large; at most {MOST:,}"
        return (
            None
            if self.exchanges
            else "no client is sent what another one shared; FLea, FedMix or FedData do that"
        )

    def _exchanges(self) -> list[tuple[Part, Trip]]:
        """Trips with shares that the server reads individually and that a later round can send on."""
        T = self.fed.rounds
        return [
            (part, trip)
            for part in self.trainer.method.parts
            for trip in part.trips
            if any(s.reads == "each" for s in trip.shares(self.fed).values())
            and any(trip.when(t, T) for t in range(T))
            and (set(part.server_init(self.fed.net.weights(), self.fed)) - set(part.keeps_at_server))
        ]

    def measure(self, end: RoundEnd) -> Measurement:
        for row in self._new_rows("ledger"):
            if row["way"] == "up" and row["reads"] == "each" and "/" in row["share"]:
                self.senders[row["share"].split("/")[0], row["t"]].update(clients_in(row["clients"]))
        for event in self._new_rows("events"):
            if event["code"] == "round":
                for part, trip in self.exchanges:
                    self.exposure.sent(
                        event["t"], self._owners(part, trip, event["t"]), clients_in(event["asked"])
                    )
        share = self.exposure.share
        return Measurement({"exposure": share}, self._picture(share) if end.last else {})

    def _owners(self, part: Part, trip: Trip, t: int) -> list[int]:
        """The clients with shares in the broadcast of round t: those of the last exchange before it."""
        exchanged = next((u for u in range(t - 1, -1, -1) if trip.when(u, self.fed.rounds)), None)
        return sorted(self.senders[part.name, exchanged]) if exchanged is not None else []

    def _new_rows(self, kind: str) -> list[dict[str, Any]]:
        rows = self.lens.record.rows_from(kind, self.rows_read[kind])
        self.rows_read[kind] += len(rows)
        return rows

    def _picture(self, share: float) -> dict[str, Any]:
        since_KK = self.exposure.since_KK[:SHOWN, :SHOWN]
        return {
            "share": round(share, 6),
            "since": since_KK.tolist(),
            "names": list(self.lens.client_names[:SHOWN]),
        }
