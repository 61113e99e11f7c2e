"""Calibration of the global model, on the global test set and at each client.

Letters: B bins, K clients.
"""

from __future__ import annotations

from typing import ClassVar

from unskew.round.probes import MOST_CLIENTS, Measurement, Probe, RoundEnd
from unskew.tasks.metric_functions import Reliability, reliability


class Calibration(Probe):
    """Expected calibration error and overconfidence of the global model; after the last round also by bin and
    by client."""

    name: ClassVar[str] = "calibration"
    summary: ClassVar[str] = (
        "whether the global model is right as often as it is sure: expected calibration error"
    )

    def refuse(self) -> str | None:
        return self.lens.no_global_answers()

    def measure(self, end: RoundEnd) -> Measurement:
        y, after = self.lens.scoring.y, end.after

        def at(k: int) -> Reliability:
            rows = self.lens.rows_of(k)
            return reliability(self.lens.test_outputs(rows, k, after), self.lens.test_labels(rows))

        if not len(y):
            return Measurement()
        whole = self.lens.each(at, [-1])[0]
        values = {"calibration_ece": whole.ece, "calibration_overconfidence": whole.overconfidence}
        if not end.last:
            return Measurement(values)
        clients = self.lens.scoring.clients[:MOST_CLIENTS]
        bins = {
            "count": whole.count.long().tolist(),
            "confidence": [round(v, 6) for v in (whole.confidence / whole.count.clamp(min=1)).tolist()],
            "accuracy": [round(v, 6) for v in (whole.right / whole.count.clamp(min=1)).tolist()],
        }
        sites = []
        for k, own in zip(clients, self.lens.each(at, clients)):
            score = {"ece": round(own.ece, 6), "overconfidence": round(own.overconfidence, 6)}
            sites.append({"name": self.lens.client_names[k], "n": int(own.count.sum()), **score})
        return Measurement(values, {"bins": bins, "ece": round(whole.ece, 6), "sites": sites})
