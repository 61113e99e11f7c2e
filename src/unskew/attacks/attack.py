"""An attack: its settings, its adversary, the runs that it fits, one attempt, and its scores.

Each score has a floor (without the payload) and a ceiling (with the raw input).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Annotated, Any, ClassVar

import numpy as np

from unskew.attacks.scene import Scene
from unskew.core.module_inputs import TableExposure
from unskew.formats import arguments
from unskew.formats.ranges import Count


@dataclass(frozen=True)
class Score:
    """A number that measures the success of an attack.

    payload: the attacked payload by its name in the ledger ("w", "flea/features"). of: its sender, and the
    attacker. metric: the name of the quantity. value: mean over seeds. low, high: the 95 % interval, over
    samples for one seed, else over seeds. floor: the value without the payload. ceiling: the value with the
    raw input as payload. n: samples per seed. main: whether it represents the attack in tables with one
    number per attack.
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
        """A reason to distrust the attack: it exceeds its ceiling or floor by more than chance; else ""."""
        up = 1 if self.ceiling >= self.floor else -1
        # twice the interval is hardly ever exceeded by chance
        reach = 2 * max(self.high - self.value, self.value - self.low, 0.0)
        if up * self.value - reach > up * self.ceiling + 1e-9:
            return f"{self.of}: {self.metric} beats its ceiling, which raw inputs give"
        if up * self.value + reach < up * self.floor - 1e-9:
            return f"{self.of}: {self.metric} is worse than its floor, which no payload at all gives"
        return ""

    def as_json(self) -> dict[str, Any]:
        """The fields as JSON values; null for numbers that are not finite."""
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in asdict(self).items()
        }


@dataclass(frozen=True)
class Outcome:
    """The result of one attempt of an attack with one seed.

    auxiliary: a description of the attacker's own samples. pictures: JSON values for the report, by kind.
    remarks: sentences without full stop on problems of the run or of the attack.
    """

    scores: tuple[Score, ...]
    auxiliary: str
    pictures: dict[str, Any] = field(default_factory=dict[str, Any])
    remarks: tuple[str, ...] = ()


def pool(attempts: Sequence[Outcome]) -> tuple[Score, ...]:
    """The means of scores over attempts; with several seeds, intervals are over these."""
    by_name: dict[tuple[str, str, str], list[Score]] = {}
    for attempt in attempts:
        for score in attempt.scores:
            by_name.setdefault((score.payload, score.of, score.metric), []).append(score)
    return tuple(_pool_scores(scores) for scores in by_name.values())


def _pool_scores(scores: Sequence[Score]) -> Score:
    first, k = scores[0], len(scores)
    if k == 1:
        return first
    values = np.array([s.value for s in scores])
    mean = float(values.mean())
    half = _student(k - 1) * float(values.std(ddof=1)) / math.sqrt(k)
    floor, ceiling = (float(np.mean([getattr(s, name) for s in scores])) for name in ("floor", "ceiling"))
    return replace(first, value=mean, low=mean - half, high=mean + half, floor=floor, ceiling=ceiling)


def mean_of(values: np.ndarray) -> tuple[float, float, float]:
    """(mean, low, high) of one value per sample, with Student's 95 % interval of the mean."""
    n, mean = len(values), float(values.mean())
    half = _student(n - 1) * float(values.std(ddof=1)) / math.sqrt(n) if n > 1 else math.nan
    return mean, mean - half, mean + half


def _student(freedom: int) -> float:
    """The half width of a 95 % interval in standard errors. freedom: degrees of freedom."""
    from scipy.stats import t  # which takes a second to import

    return float(t.ppf(0.975, freedom))


def share_of(hits: float, n: int) -> tuple[float, float, float]:
    """(share, low, high) of hits among n tries, with Wilson's 95 % interval; a tie counts as half a hit."""
    z, p = 1.96, hits / n
    middle, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return p, max(0.0, (middle - half) / (1 + z * z / n)), min(1.0, (middle + half) / (1 + z * z / n))


@dataclass(frozen=True)
class Attack:
    """A way to learn about the samples of clients from their payloads.

    A subclass is a frozen dataclass in a file of `attacks/kinds` with the name of the attack. Its fields are
    settings, each `Annotated` with range and meaning. READS in that file has the attacked payloads, by their
    names in the ledger.
    """

    samples: Annotated[Count, "the most samples that are attacked"] = 500
    name: ClassVar[str] = ""
    adversary: ClassVar[str] = ""
    """A description of the adversary: what it reads and knows."""
    asks: ClassVar[str] = ""
    """The question that the attack answers, for readers without knowledge of attacks."""
    alone: ClassVar[str] = ""
    """Why the attack runs only by name, as the end of a sentence; "" if it runs together with all others."""
    on_merged: ClassVar[bool] = False
    """Whether the merged model is enough, so that no round must be repeated."""
    quick: ClassVar[Mapping[str, object]] = {}
    """Settings for comparisons of many runs: it ends in seconds and attacks only payloads that were sent."""

    one_input: ClassVar[bool] = True
    """Whether samples must have one input, because the attack recovers or compares a sample as a whole."""
    lookups: ClassVar[Collection[TableExposure]] = ("", "kept", "sent")
    """The models that it fits, by whether they look up whole numbers and send the table."""

    def refuse(self, scene: Scene) -> str | None:
        """Why the attack does not fit this run, as the end of a sentence; None if it fits. It is cheap."""
        raise NotImplementedError

    def attempt(self, scene: Scene, seed: int) -> Outcome:
        """Attack the run. seed: of the attacker's random draws, not of the run."""
        raise NotImplementedError

    def __post_init__(self) -> None:
        """Check and convert every setting. Raises UsageError (E126)."""
        settings = {f.name: getattr(self, f.name) for f in fields(self)}
        for name, value in arguments.check(type(self), settings, f"attack '{self.name}'", "E126").items():
            object.__setattr__(self, name, value)

    def changed(self) -> dict[str, object]:
        """The settings that differ from their defaults."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
