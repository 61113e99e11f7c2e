"""Who takes part in a round, as one text: `kind:value,option:value`; the kinds are in unskew.data.presence.

The same absences for every method, and no clock but a virtual one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from annotated_types import Ge, Le

from unskew import arguments, specs
from unskew.data.presence import KINDS, Full, Presence, Rng, Trace

REDRAWS = 1000
"""Draws of a round at most, with `redraw`."""


@dataclass(frozen=True)
class Attendance:
    """Client ids, ascending, int64: who was asked, who answered in time, who answered too late."""

    asked: np.ndarray
    answered: np.ndarray
    late: np.ndarray


@dataclass(frozen=True)
class Options:
    """What may follow every kind, after commas."""

    drop: Annotated[float, Ge(0), Le(1), "probability that a client that was asked fails"] = 0.0
    redraw: Annotated[bool, "draw again until somebody answers"] = False
    deadline: Annotated[
        float | None,
        Ge(0),
        "seconds after which an answer is late; a client takes a lognormal time with median 1, or the trace's",
    ] = None
    quorum: Annotated[int, Ge(0), "with fewer answers, none counts"] = 1


@dataclass(frozen=True)
class Availability:
    """A kind of availability and its options."""

    presence: Presence
    options: Options = field(default_factory=Options)

    @staticmethod
    def parse(text: str) -> Availability:
        """The availability that a text names; a text of options alone is `full` with these options.

        Raises UsageError: E124 for what does not exist or does not fit, E111 for a trace that is not there; DataError
        (E408) for a file that is no trace.
        """
        spec = specs.parse(text, "availability", "E124")
        if spec.kind in {argument.name for argument in arguments.of(Options)}:
            spec = specs.parse(f"{Full.name},{text}", "availability", "E124")
        kind = specs.kind_of(spec, KINDS, "availability", "E124")
        options = Options(**arguments.check(Options, spec.options, "availability", "E124"))
        return Availability(specs.make(kind, specs.Spec(spec.kind, spec.value, {}), "availability", "E124"), options)

    @property
    def independent(self) -> float | None:
        """The probability with which a client is asked, whatever others do; None where whether it counts depends on others.

        Clients that fail or come too late do so by themselves, so that it is an upper bound for them.
        """
        tied = self.options.redraw or self.options.quorum > 1
        return None if tied else self.presence.independent

    def who(self, t: int, K: int, rng: Rng) -> Attendance:
        """Who takes part in round t of K clients. O(answers) for `sample`."""
        attendance = self._once(t, K, rng)
        for attempt in range(1, REDRAWS if self.options.redraw else 1):
            if len(attendance.answered):
                break
            attendance = self._once(t, K, _again(rng, attempt))
        return attendance

    def _once(self, t: int, K: int, rng: Rng) -> Attendance:
        generator, options = rng(t), self.options
        present = self.presence.draw(t, K, generator, rng)
        asked, there = present.asked, present.there
        seconds = present.seconds
        if seconds is None:
            none = options.deadline is None
            seconds = np.zeros(len(asked)) if none else generator.lognormal(0.0, 0.5, len(asked))
        if options.drop:
            there = there & (generator.random(len(asked)) >= options.drop)
        in_time = there if options.deadline is None else there & (seconds <= options.deadline)
        answered = asked[in_time]
        if len(answered) < options.quorum:
            answered = answered[:0]
        return Attendance(asked, answered, asked[there & ~in_time])


def without_trace(text: str) -> str:
    """The text, or that of `full` in place of a trace: of a file that somebody else has named, and that nobody here may open.

    Raises UsageError (E124) for a text that cannot be taken apart.
    """
    return Full.name if specs.parse(text, "availability", "E124").kind == Trace.name else text


def _again(rng: Rng, attempt: int) -> Rng:
    """Other generators for another draw of the same rounds."""
    return lambda t: np.random.default_rng([int(rng(t).integers(2**62)), attempt])
