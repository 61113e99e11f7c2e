"""Which clients take part in a round, named by one text: `kind:value,option:value`.

A kind decides which clients are asked and which of them answer; options add drops, deadlines, quorums and new
draws. All methods see equal absences, and time is virtual.
Letters: K clients, t the round.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge, Gt, Le, MinLen

from unskew.errors import DataError, UsageError, excerpt
from unskew.formats import arguments, specs

Rng = Callable[[int], np.random.Generator]
"""rng(t) is a new generator for round t, always seeded alike."""


@dataclass(frozen=True)
class PresenceDraw:
    """The clients asked in a round, ascending. answers: bool, whether each answers. seconds: the time until
    each answer, or None."""

    asked: np.ndarray
    answers: np.ndarray
    seconds: np.ndarray | None = None


class Presence:
    """A kind of availability; subclasses are frozen dataclasses of their settings, see
    unskew.formats.specs."""

    name: ClassVar[str] = ""
    value: ClassVar[tuple[str, ...]] = ()
    example: ClassVar[str] = ""

    @property
    def independent(self) -> float | None:
        """The probability of being asked, independent of all other clients and rounds; None if clients are
        not independent."""
        return None

    def chances(self, K: int) -> float | np.ndarray:
        """The probability with which each of K clients answers, or [K]."""
        return 1.0

    def draw(self, t: int, K: int, generator: np.random.Generator, rng: Rng) -> PresenceDraw:
        """The clients of round t, of K; by default all are asked, and answer by `chances`. generator: round
        t's generator, from which later draws continue."""
        return PresenceDraw(np.arange(K), generator.random(K) < self.chances(K))

    def check(self, K: int, rounds: int) -> None:
        """Raises DataError (E124) if the settings name clients or rounds that a run of K clients and
        `rounds` rounds lacks."""


@dataclass(frozen=True)
class Full(Presence):
    """all clients"""

    name = "full"
    example = "full"

    @property
    def independent(self) -> float:
        return 1.0

    def draw(self, t: int, K: int, generator: np.random.Generator, rng: Rng) -> PresenceDraw:
        return PresenceDraw(np.arange(K), np.ones(K, dtype=bool))


@dataclass(frozen=True)
class Sample(Presence):
    """a random part of the clients, drawn afresh in every round"""

    size: Annotated[
        float, Gt(0), "below 1: a share of the clients, at least one; from 1: how many, rounded down"
    ]
    name = "sample"
    value = ("size",)
    example = "sample:0.1"

    def draw(self, t: int, K: int, generator: np.random.Generator, rng: Rng) -> PresenceDraw:
        size = min(K, int(self.size) if self.size >= 1 else max(1, round(self.size * K)))
        return PresenceDraw(draw_distinct(K, size, generator), np.ones(size, dtype=bool))


@dataclass(frozen=True)
class Poisson(Presence):
    """each client is asked with one probability, independently: what differential privacy accounts for"""

    probability: Annotated[float, Gt(0), Le(1), "of each client, in each round"]
    name = "poisson"
    value = ("probability",)
    example = "poisson:0.1"

    @property
    def independent(self) -> float:
        return self.probability

    def draw(self, t: int, K: int, generator: np.random.Generator, rng: Rng) -> PresenceDraw:
        asked = np.flatnonzero(generator.random(K) < self.probability)
        return PresenceDraw(asked, np.ones(len(asked), dtype=bool))


@dataclass(frozen=True)
class Bernoulli(Presence):
    """all clients are asked, and each answers with one probability"""

    probability: Annotated[float, Ge(0), Le(1), "of each client, in each round"]
    name = "bernoulli"
    value = ("probability",)
    example = "bernoulli:0.2"

    def chances(self, K: int) -> float:
        return self.probability


@dataclass(frozen=True)
class Persistent(Bernoulli):
    """as bernoulli, but drawn once for several rounds"""

    probability: Annotated[float, Ge(0), Le(1), "of each client, in each period"]
    rounds: Annotated[int, Gt(0), "rounds of a period"]
    name = "persistent"
    value = ("probability", "rounds")
    example = "persistent:0.2x10"

    def draw(self, t: int, K: int, generator: np.random.Generator, rng: Rng) -> PresenceDraw:
        first_of_period = (t - 1) // self.rounds * self.rounds + 1
        # In the period's first round, failures and delays are drawn from this generator afterwards; a second
        # generator of that round would repeat its numbers, and clients that are there would fail.
        period_generator = generator if t == first_of_period else rng(first_of_period)
        return super().draw(t, K, period_generator, rng)


@dataclass(frozen=True)
class ClusteredPresence(Presence):
    """as bernoulli, with one probability for each group of consecutive clients"""

    probabilities: Annotated[
        tuple[Annotated[float, Ge(0), Le(1)], ...],
        MinLen(1),
        "of each client of a group; groups are equally large",
    ]
    name = "clustered"
    value = ("probabilities",)
    example = "clustered:0.5-0.3-0.2"

    def chances(self, K: int) -> np.ndarray:
        groups = np.array_split(np.arange(K), len(self.probabilities))
        return np.repeat(self.probabilities, list(map(len, groups)))


@dataclass(frozen=True)
class Trace(Presence):
    """a CSV file with columns round,client[,seconds] says who answers, and after how long"""

    file: Annotated[str, "the path of the file"]
    seconds: dict[int, dict[int, float]] = field(init=False, repr=False, compare=False)
    """Seconds until the answer, by round and client."""
    name = "trace"
    value = ("file",)
    example = "trace:FILE.csv"

    def __post_init__(self) -> None:
        object.__setattr__(self, "seconds", read_trace(Path(self.file).expanduser()))

    def draw(self, t: int, K: int, generator: np.random.Generator, rng: Rng) -> PresenceDraw:
        seconds = self.seconds.get(t, {})
        asked = np.array(sorted(seconds), dtype=np.int64)
        return PresenceDraw(
            asked, np.ones(len(asked), dtype=bool), np.array([seconds[k] for k in asked.tolist()])
        )

    def check(self, K: int, rounds: int) -> None:
        """Raises DataError (E124) for a trace that does not fit: clients counted from 1 would be shifted
        by one, and rounds after the last line would have no clients."""
        client, t = max((client, t) for t, clients in self.seconds.items() for client in clients)
        if client >= K:
            text = f"{self.file} names client {client} in round {t}, and the run has the clients 0 to {K - 1}"
            raise DataError("E124", f"{text}; count them from 0, or set clients.")
        if (last := max(self.seconds)) < rounds:
            text = f"{self.file} ends with round {last} of {rounds}, so nobody would answer after it"
            raise DataError("E124", f"{text}; set rounds={last}, or say who answers in the other rounds.")


def read_trace(path: Path) -> dict[int, dict[int, float]]:
    """Seconds by client, by round. Raises UsageError (E111) for a missing file, DataError (E124) if it is
    no trace."""
    rounds: dict[int, dict[int, float]] = {}
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file)
            if missing := {"round", "client"} - set(rows.fieldnames or ()):
                raise ValueError(f"it has no column {sorted(missing)[0]}")
            for row in rows:
                t, client, seconds = int(row["round"]), int(row["client"]), float(row.get("seconds") or 0)
                if t < 1 or client < 0 or not 0 <= seconds < np.inf or None in row:
                    raise ValueError(f"line {rows.line_num}: {excerpt(list(row.values()))}")
                if client in rounds.setdefault(t, {}):
                    raise ValueError(f"line {rows.line_num}: client {client} is in round {t} already")
                rounds[t][client] = seconds
        if not rounds:
            raise ValueError("it has no rows")
    except OSError as error:
        reason = f"cannot read {path} ({os.strerror(error.errno or 0)})"
        raise UsageError("E111", f"{reason}; a trace is a CSV with columns round,client[,seconds].") from None
    except (KeyError, ValueError, TypeError, csv.Error) as error:
        raise DataError(
            "E124", f"{path} is no trace: rounds count from 1, clients and seconds from 0 ({error})."
        ) from None
    return rounds


def draw_distinct(K: int, size: int, generator: np.random.Generator) -> np.ndarray:
    """`size` distinct random numbers below K, ascending; O(size) if size is small compared with K."""
    if size * 4 > K:
        return np.sort(generator.permutation(K)[:size])
    numbers = np.unique(generator.integers(K, size=size))
    while len(numbers) < size:
        numbers = np.unique(np.concatenate([numbers, generator.integers(K, size=size - len(numbers))]))
    return numbers


PRESENCE_KINDS: dict[str, type[Presence]] = {
    kind.name: kind for kind in (Full, Sample, Poisson, Bernoulli, Persistent, ClusteredPresence, Trace)
}
"""The kinds by name."""


REDRAWS = 1000
"""Maximal number of draws of a round, with `redraw`."""


@dataclass(frozen=True)
class Attendance:
    """Client ids, int64, ascending: those asked, those that answered in time, and those that answered too
    late."""

    asked: np.ndarray
    answered: np.ndarray
    late: np.ndarray


@dataclass(frozen=True)
class Options:
    """The options that may follow any kind, after commas."""

    drop: Annotated[float, Ge(0), Le(1), "probability that a client that was asked fails"] = 0.0
    redraw: Annotated[bool, "draw again until a client answers"] = False
    deadline: Annotated[
        float | None,
        Ge(0),
        "seconds after which an answer is late; a client takes a lognormal time with median 1, or the"
        " trace's",
    ] = None
    quorum: Annotated[int, Ge(0), "with fewer answers, none counts"] = 1


@dataclass(frozen=True)
class Availability:
    """A kind of availability and its options."""

    presence: Presence
    options: Options = field(default_factory=Options)

    @staticmethod
    def parse(text: str) -> Availability:
        """The availability that a text names; a text of options alone means `full` with these options.

        Raises UsageError: E124 for an unknown or unfitting kind or option, E111 for a missing trace;
        DataError (E124) for a file that is no trace.
        """
        spec = specs.parse(text, "availability", "E124")
        if spec.kind in {argument.name for argument in arguments.of(Options)}:
            spec = specs.parse(f"{Full.name},{text}", "availability", "E124")
        presence = specs.read(replace(spec, options={}), PRESENCE_KINDS, "availability", "E124")
        options = Options(**arguments.check(Options, spec.options, "availability", "E124"))
        return Availability(presence, options)

    @property
    def independent(self) -> float | None:
        """The probability of being asked, independent of all other clients; None if they depend on each
        other.

        Clients that fail or come too late do so independently, so for them the probability is an upper bound.
        """
        tied = self.options.redraw or self.options.quorum > 1
        return None if tied else self.presence.independent

    def who(self, t: int, K: int, rng: Rng) -> Attendance:
        """The clients that take part in round t, of K. O(answers) for `sample`."""
        attendance = self._once(t, K, rng)
        for attempt in range(1, REDRAWS if self.options.redraw else 1):
            if len(attendance.answered):
                break
            # another generator for another draw
            attendance = self._once(
                t, K, lambda t, a=attempt: np.random.default_rng([int(rng(t).integers(2**62)), a])
            )
        return attendance

    def _once(self, t: int, K: int, rng: Rng) -> Attendance:
        generator, options = rng(t), self.options
        present = self.presence.draw(t, K, generator, rng)
        asked, answers = present.asked, present.answers
        seconds = present.seconds
        if seconds is None:
            none = options.deadline is None
            seconds = np.zeros(len(asked)) if none else generator.lognormal(0.0, 0.5, len(asked))
        if options.drop:
            answers = answers & (generator.random(len(asked)) >= options.drop)
        in_time = answers if options.deadline is None else answers & (seconds <= options.deadline)
        answered = asked[in_time]
        if len(answered) < options.quorum:
            answered = answered[:0]
        return Attendance(asked, answered, asked[answers & ~in_time])


def without_trace(text: str) -> str:
    """The text, with `full` in place of a trace: another machine named the file, and no file may be opened
    for it here.

    Raises UsageError (E124) for a text that cannot be parsed.
    """
    return Full.name if specs.parse(text, "availability", "E124").kind == Trace.name else text
