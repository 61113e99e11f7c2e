"""How far the clients' trained weights lie apart."""

from __future__ import annotations

from typing import ClassVar

from unskew.engine.probes.probe import Measurement, Probe, RoundEnd
from unskew.measures.diversity import weight_diversity


class Diversity(Probe):
    """One number: ReBaFL's Eq. 24 over the round's replies."""

    name: ClassVar[str] = "diversity"
    summary: ClassVar[str] = "how far the clients' trained weights lie apart (ReBaFL, Eq. 24)"

    def refuse(self) -> str | None:
        return None if self.fed.shared else "its clients share no trained weight"

    def measure(self, end: RoundEnd) -> Measurement:
        return Measurement({"diversity": weight_diversity([r.weights for r in end.replies], self.fed.shared)})
