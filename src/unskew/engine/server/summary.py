"""A round in numbers, as it is shown while a run goes on and as rows of its record."""

from __future__ import annotations

from dataclasses import dataclass

from unskew.engine.disk.lines import Row, score


@dataclass(frozen=True)
class Round:
    """A round in numbers. asked, answered: clients. dropped: replies that the gate refused. loss: mean over replies."""

    t: int
    asked: int
    answered: int
    dropped: int
    seconds: float
    loss: float

    def rows(self) -> list[Row]:
        """For metrics.jsonl: how long the round took and, where clients said anything of it, their loss."""
        took = score(self.t, "train", "seconds", round(self.seconds, 4))
        return [took, score(self.t, "train", "loss", float(f"{self.loss:.7g}"))] if self.loss == self.loss else [took]
