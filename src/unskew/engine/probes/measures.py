"""The measures of a run: what the setting `measure` names, taken at evaluated rounds from the round's own replies.

Numbers become rows of the scope "measure" in metrics.jsonl; matrices and pictures of the last round go into measures.json.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from unskew.core.replies import Reply
from unskew.cores import one_core
from unskew.engine.client.values import Start
from unskew.engine.disk.lines import Row, score
from unskew.engine.probes.probe import Probe, RoundEnd

SCOPE = "measure"


class Measures:
    """All probes of a run. The loop lets it `remember` each round's replies, and has it `measure` where it evaluates."""

    def __init__(self, probes: Mapping[str, Probe]):
        self.probes = probes
        self._round: tuple[Start, Sequence[Reply]] | None = None

    def remember(self, sent: Start, replies: Sequence[Reply]) -> None:
        """Keep what the round's clients were sent and replied, until the next round."""
        self._round = sent, replies

    def measure(self, t: int, after: Start, last: bool) -> tuple[list[Row], dict[str, Any]]:
        """(rows for metrics.jsonl, pictures by measure: none before the last round) of the round last remembered."""
        assert self._round is not None, "a round is remembered before it is measured"
        end = RoundEnd(t, last, self._round[0], after, self._round[1])
        with one_core():
            measured = {name: probe.measure(end) for name, probe in self.probes.items()}
        rows = [row for m in measured.values() for row in _rows(t, m.values)]
        return rows, {name: m.picture for name, m in measured.items() if m.picture}


def _rows(t: int, values: Mapping[str, float]) -> list[Row]:
    return [score(t, SCOPE, name, float(f"{value:.7g}")) for name, value in values.items() if math.isfinite(value)]
