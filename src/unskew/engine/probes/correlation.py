"""How much shared features tell about inputs: distance correlation."""

from __future__ import annotations

from typing import ClassVar

from unskew.core.inputs import each_input
from unskew.core.part import Part
from unskew.core.replies import Reply
from unskew.engine.probes.probe import Measurement, Probe, RoundEnd, mean
from unskew.measures.correlation import distance_correlation


class Correlation(Probe):
    """R and R^2 of a batch of each client's inputs and the activations shared of them, under the model that gives them.

    Of samples with several inputs the mean over the inputs, as FLea's loss has it.
    """

    name: ClassVar[str] = "correlation"
    summary: ClassVar[str] = "distance correlation of inputs and shared features, R and R squared (FLea, Fig. 9b)"

    def refuse(self) -> str | None:
        return None if self._sharing() else "it shares no features; FLea does"

    def _sharing(self) -> tuple[Part, str] | None:
        """The Part that shares features, and the cut of the model at which it takes them."""
        for part in self.trainer.method.parts:
            if part.taps and any("features" in trip.shares(self.fed) for trip in part.trips):
                return part, self.fed.net.check_cut(part.taps[0])
        return None

    def measure(self, end: RoundEnd) -> Measurement:
        sharing = self._sharing()
        assert sharing is not None
        part, cut = sharing

        def of_client(reply: Reply) -> tuple[float, float]:
            k, w = reply.client, self.lens.held_weights(reply, end.after)
            client = self.trainer.client(k, end.after, part.name, w, reply.private)
            b = client.sample(min(int(self.fed.sizes[k]), self.fed.batch), "measure")
            f = client.run(w, b.x, until=cut)
            by_input = [distance_correlation(x, f, kinds) for x, kinds in each_input(self.fed.net, b.x)]
            return mean([r for r, _ in by_input]), mean([r2 for _, r2 in by_input])

        pairs = self.lens.each(of_client, end.some_replies)
        values = {"correlation": mean([r for r, _ in pairs]), "correlation_squared": mean([r2 for _, r2 in pairs])}
        return Measurement(values)
