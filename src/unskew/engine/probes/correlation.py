"""How much shared features tell of inputs: distance correlation."""

from __future__ import annotations

from unskew.core.part import Part
from unskew.core.replies import Reply
from unskew.engine.probes.probe import Probe, Seen, mean
from unskew.measures.correlation import distance_correlation


class Correlation(Probe):
    """R and R^2 of a batch of each client's inputs and what the cut gives of them, under the model that extracts."""

    def refuse(self) -> str | None:
        return None if self._shared() else "it shares no features; FLea does"

    def _shared(self) -> tuple[Part, str] | None:
        for part in self.of.method.parts:
            if part.taps and any("features" in trip.shares(self.fed) for trip in part.trips):
                return part, self.fed.net.check_cut(part.taps[0])
        return None

    def values(self, seen: Seen) -> dict[str, float]:
        found = self._shared()
        assert found is not None
        part, cut = found

        def of_client(reply: Reply) -> tuple[float, float]:
            k, w = reply.client, self.lens.received(reply, seen.now)
            client = self.of.client(k, seen.now, part.name, w, reply.private)
            b = client.sample(min(int(self.fed.sizes[k]), self.fed.batch), "measure")
            return distance_correlation(b.x, client.run(w, b.x, until=cut))

        pairs = self.lens.each(of_client, seen.some)
        return {"correlation": mean([a for a, _ in pairs]), "correlation_squared": mean([b for _, b in pairs])}
