"""What an attack returns: scores, each with the floor and the ceiling that bound it, and pictures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Score:
    """One number that says how well an attack does.

    payload: what is attacked, as the ledger calls it ("w", "flea/features"). of: whose, and by which attacker. metric:
    what is counted. value: mean over seeds. low, high: its 95 % interval, over samples with one seed, over seeds with
    more. floor: the same without the payload. ceiling: the same where the payload is the raw input. n: how many samples
    are behind it, per seed. main: whether it stands for the attack in tables that have room for one number.
    """

    payload: str
    of: str
    metric: str
    value: float
    low: float
    high: float
    floor: float
    ceiling: float
    n: int
    main: bool = False

    @property
    def doubt(self) -> str:
        """Why the attack itself must be wrong: it beats its ceiling or loses to its floor beyond chance; "" if neither."""
        up = 1 if self.ceiling >= self.floor else -1
        reach = 2 * max(self.high - self.value, self.value - self.low, 0.0)  # twice the interval: hardly ever by chance
        if up * self.value - reach > up * self.ceiling + 1e-9:
            return f"{self.of}: {self.metric} beats its ceiling, which raw inputs give"
        if up * self.value + reach < up * self.floor - 1e-9:
            return f"{self.of}: {self.metric} is worse than its floor, which no payload at all gives"
        return ""

    def as_json(self) -> dict[str, Any]:
        """Its fields; null where a number is not finite."""
        return {name: None if _odd(value) else value for name, value in asdict(self).items()}


@dataclass(frozen=True)
class Outcome:
    """What one attempt of an attack, with one seed, comes to.

    auxiliary: the attacker's own samples, in words. pictures: what the report draws, by kind, as JSON takes it. remarks:
    sentences, without full stop, on what must be wrong, with the run or with the attack.
    """

    scores: tuple[Score, ...]
    auxiliary: str
    pictures: dict[str, Any] = field(default_factory=dict[str, Any])
    remarks: tuple[str, ...] = ()


def pooled(attempts: Sequence[Outcome]) -> tuple[Score, ...]:
    """The scores of attempts with different seeds as one list: means, and with several seeds intervals over these."""
    by_name: dict[tuple[str, str, str], list[Score]] = {}
    for attempt in attempts:
        for score in attempt.scores:
            by_name.setdefault((score.payload, score.of, score.metric), []).append(score)
    return tuple(_together(scores) for scores in by_name.values())


def _together(scores: Sequence[Score]) -> Score:
    first, k = scores[0], len(scores)
    if k == 1:
        return first
    values = np.array([s.value for s in scores])
    mean = float(values.mean())
    half = _student(k - 1) * float(values.std(ddof=1)) / math.sqrt(k)
    floor, ceiling = (float(np.mean([getattr(s, name) for s in scores])) for name in ("floor", "ceiling"))
    return replace(first, value=mean, low=mean - half, high=mean + half, floor=floor, ceiling=ceiling)


def mean_of(values: np.ndarray) -> tuple[float, float, float]:
    """(mean, low, high) of one value per sample: Student's 95 % interval of the mean, for there may be few."""
    n, mean = len(values), float(values.mean())
    half = _student(n - 1) * float(values.std(ddof=1)) / math.sqrt(n) if n > 1 else math.nan
    return mean, mean - half, mean + half


def _student(freedom: int) -> float:
    """How many deviations a 95 % interval reaches with so many degrees of freedom."""
    from scipy.stats import t  # which takes a second to import

    return float(t.ppf(0.975, freedom))


def share_of(hits: float, n: int) -> tuple[float, float, float]:
    """(share, low, high) of hits among n tries, of which one that nothing decides is half of one: Wilson's 95 % interval."""
    z, p = 1.96, hits / n
    middle, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return p, max(0.0, (middle - half) / (1 + z * z / n)), min(1.0, (middle + half) / (1 + z * z / n))


def _odd(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
