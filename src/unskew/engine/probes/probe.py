"""What a measure is made of: the round it looks at, the probe that looks, and what it returns.

Probes look and never touch: a measured run ends with the bits of one that is not measured. Everything they return follows
from the replies, the state and the record, so a resumed run measures the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from unskew.core.replies import Reply
from unskew.engine.client.values import Start
from unskew.engine.probes.lens import Lens

MOST_CLIENTS = 50
"""Of a larger cohort only the first so many clients are looked at, by id; diversity and exposure look at all."""


@dataclass(frozen=True)
class RoundEnd:
    """What a probe may look at after round t.

    last: this is the run's last round. sent: what the round's clients were sent. after: the state after the round, as it
    would be sent. replies: those that passed the gate.
    """

    t: int
    last: bool
    sent: Start
    after: Start
    replies: Sequence[Reply]

    @property
    def some_replies(self) -> Sequence[Reply]:
        """At most MOST_CLIENTS of the replies."""
        return self.replies[:MOST_CLIENTS]


@dataclass(frozen=True)
class Measurement:
    """What a probe returns of a round.

    values: numbers by the names of their metrics; those that are not finite are left out of the record.
    picture: what measures.json keeps of the last round, as JSON takes it; empty for nothing, and in all other rounds.
    """

    values: dict[str, float] = field(default_factory=dict[str, float])
    picture: dict[str, Any] = field(default_factory=dict[str, Any])


class Probe:
    """One measure of one run. `summary` describes it in `--help`."""

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""

    def __init__(self, lens: Lens):
        self.lens, self.trainer, self.fed = lens, lens.trainer, lens.trainer.fed

    def refuse(self) -> str | None:
        """Why this run cannot be measured so, as the end of a sentence; None if it can. Asked before anything runs."""
        return None

    def measure(self, end: RoundEnd) -> Measurement:
        """The numbers of this round, and after the last round the picture."""
        raise NotImplementedError


def mean(values: Sequence[float]) -> float:
    """Mean of the finite values; NaN if there are none."""
    finite = [v for v in values if math.isfinite(v)]
    return sum(finite) / len(finite) if finite else math.nan
