"""How far the clients' trained weights lie apart."""

from __future__ import annotations

from unskew.engine.probes.probe import Probe, Seen
from unskew.measures.diversity import weight_diversity


class Diversity(Probe):
    """One number: Eq. 24 over the round's replies."""

    def refuse(self) -> str | None:
        return None if self.fed.shared else "its clients share no trained weight"

    def values(self, seen: Seen) -> dict[str, float]:
        return {"diversity": weight_diversity([r.weights for r in seen.replies], self.fed.shared)}
