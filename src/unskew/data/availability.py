"""Who takes part in a round: one string, the same absences for every method, and no clock but a virtual one.

full                everybody
sample:F            a share F of the clients (F >= 1: that many), drawn afresh
bernoulli:P         everybody is asked and answers with probability P
persistent:PxT      the same, drawn every T rounds
clustered:P-P-P     the same, with a probability per cluster of consecutive clients
trace:FILE.csv      columns round,client[,seconds]: who answers, and after how long
Options, after commas: drop:P (each asked client fails), redraw (draw again until somebody answers),
deadline:S (seconds; clients' times are lognormal with median 1, or the trace's), quorum:N (fewer: nobody counts).
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from unskew.errors import DataError, UsageError, suggestion

KINDS = ("full", "sample", "bernoulli", "persistent", "clustered", "trace")
OPTIONS = ("drop", "redraw", "deadline", "quorum")
Rng = Callable[[int], np.random.Generator]


@dataclass(frozen=True)
class Attendance:
    """Client ids, ascending: who was asked, who answered in time, who answered late."""

    asked: np.ndarray
    answered: np.ndarray
    late: np.ndarray


@dataclass(frozen=True)
class Availability:
    kind: str
    value: str = ""
    drop: float = 0.0
    redraw: bool = False
    deadline_s: float | None = None
    quorum: int = 1
    trace: dict[int, dict[int, float]] = field(default_factory=dict)

    @staticmethod
    def parse(text: str) -> Availability:
        """Raises UsageError (E124) for what cannot be read."""
        head, *rest = [piece.strip() for piece in text.split(",")]
        kind, _, value = head.partition(":")
        if kind in OPTIONS:
            kind, value, rest = "full", "", [head, *rest]
        if kind not in KINDS:
            raise UsageError(
                "E124", f"unknown availability '{text}'.{suggestion(kind, KINDS)} Known: {', '.join(KINDS)}."
            )
        options = dict(piece.partition(":")[::2] for piece in rest)
        for option in options:
            if option not in OPTIONS:
                raise UsageError("E124", f"availability has no option '{option}'.{suggestion(option, OPTIONS)}")
        made = Availability(
            kind,
            value,
            _number(options.get("drop", "0"), "drop", 0, 1),
            "redraw" in options,
            _number(options["deadline"], "deadline", 0) if "deadline" in options else None,
            int(_number(options.get("quorum", "1"), "quorum", 0)),
            _read_trace(Path(value)) if kind == "trace" else {},
        )
        made._check()
        return made

    def _check(self) -> None:
        if self.kind in ("bernoulli", "persistent", "clustered"):
            self._chances(10)
        elif self.kind == "sample" and _number(self.value, "sample", 0) == 0:
            raise UsageError("E124", "sample:0 asks nobody; give a share like 0.1 or a number of clients like 10.")

    def who(self, t: int, K: int, rng: Rng) -> Attendance:
        """Who takes part in round t of K clients. rng(t) is round t's generator. O(cohort) for full and sample:N."""
        for attempt in range(1000 if self.redraw else 1):
            found = self._once(
                t,
                K,
                rng if not attempt else lambda r, a=attempt: np.random.default_rng([int(rng(r).integers(2**62)), a]),
            )
            if len(found.answered) or not self.redraw:
                return found
        return found

    def _once(self, t: int, K: int, rng: Rng) -> Attendance:
        draw = rng(t)
        if self.kind == "trace":
            times = {k: s for k, s in self.trace.get(t, {}).items() if k < K}
            asked = np.array(sorted(times), dtype=np.int64)
            seconds = np.array([times[k] for k in asked.tolist()])
            here = np.ones(len(asked), dtype=bool)
        else:
            asked, here = self._drawn(t, K, draw, rng)
            seconds = draw.lognormal(0.0, 0.5, len(asked)) if self.deadline_s is not None else np.zeros(len(asked))
        if self.drop:
            here = here & (draw.random(len(asked)) >= self.drop)
        in_time = here & (seconds <= self.deadline_s) if self.deadline_s is not None else here
        answered = asked[in_time]
        if len(answered) < self.quorum:
            answered = answered[:0]
        return Attendance(asked, answered, asked[here & ~in_time])

    def _drawn(self, t: int, K: int, draw: np.random.Generator, rng: Rng) -> tuple[np.ndarray, np.ndarray]:
        """(asked, whether each is there)."""
        if self.kind == "full":
            return np.arange(K), np.ones(K, dtype=bool)
        if self.kind == "sample":
            share = float(self.value)
            size = min(K, int(share) if share >= 1 else max(1, round(share * K)))
            asked = _distinct(K, size, draw)
            return asked, np.ones(size, dtype=bool)
        if self.kind == "persistent":
            period = int(self.value.partition("x")[2])
            draw = rng((t - 1) // period * period + 1)
        return np.arange(K), draw.random(K) < self._chances(K)

    def _chances(self, K: int) -> np.ndarray:
        try:
            if self.kind == "clustered":
                chances = [float(v) for v in self.value.split("-")]
                found = np.concatenate(
                    [np.full(len(part), p) for p, part in zip(chances, np.array_split(np.arange(K), len(chances)))]
                )
            else:
                head, times, period = self.value.partition("x")
                if self.kind == "persistent" and (not times or int(period) < 1):
                    raise ValueError
                found = np.full(K, float(head))
            if found.min() < 0 or found.max() > 1:
                raise ValueError
            return found
        except ValueError:
            example = {
                "bernoulli": "bernoulli:0.2",
                "persistent": "persistent:0.2x10",
                "clustered": "clustered:0.5-0.3-0.2",
            }[self.kind]
            raise UsageError(
                "E124", f"availability '{self.kind}' needs probabilities, like {example}; got '{self.value}'."
            ) from None


def _distinct(K: int, size: int, draw: np.random.Generator) -> np.ndarray:
    """`size` distinct numbers below K, ascending, without touching all K."""
    if size * 4 > K:
        return np.sort(draw.permutation(K)[:size])
    found = np.unique(draw.integers(K, size=size))
    while len(found) < size:
        found = np.unique(np.concatenate([found, draw.integers(K, size=size - len(found))]))
    return found


def _number(text: str, name: str, low: float, high: float = np.inf) -> float:
    try:
        found = float(text)
        if not low <= found <= high:
            raise ValueError
    except ValueError:
        raise UsageError(
            "E124",
            f"availability '{name}' needs a number of at least {low:g}{f' and at most {high:g}' if high < np.inf else ''}, got '{text}'.",
        ) from None
    return found


def _read_trace(path: Path) -> dict[int, dict[int, float]]:
    try:
        with open(path, newline="") as file:
            found: dict[int, dict[int, float]] = {}
            for row in csv.DictReader(file):
                found.setdefault(int(row["round"]), {})[int(row["client"])] = float(row.get("seconds") or 0)
            return found
    except FileNotFoundError:
        raise UsageError(
            "E111", f"there is no file {path}; a trace is a CSV with columns round,client[,seconds]."
        ) from None
    except (KeyError, ValueError, TypeError) as error:
        raise DataError(
            "E408", f"{path} is no trace: it needs columns round,client[,seconds] of numbers ({error})."
        ) from None
