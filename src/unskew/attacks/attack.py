"""An attack (its settings, the adversary that it plays, the runs that it fits, one attempt), and the scores
that it returns.

Each score has the floor and the ceiling that bound it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Ge, Le

from unskew.attacks.scene import Scene
from unskew.core.module_inputs import TableExposure
from unskew.formats import arguments


@dataclass(frozen=True)
class Score:
    """One number that says how well an attack does.

    payload: what is attacked, as the ledger calls it ("w", "flea/features"). of: whose, and by which
    attacker. metric:
    what is counted. value: mean over seeds. low, high: its 95 % interval, over samples with one seed, over
    seeds with
    more. floor: the same without the payload. ceiling: the same where the payload is the raw input. n: how
    many samples
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
        """Why the attack itself must be wrong: it beats its ceiling or loses to its floor beyond chance; ""
        if neither."""
        up = 1 if self.ceiling >= self.floor else -1
        reach = 2 * max(
            self.high - self.value, self.value - self.low, 0.0
        )  # twice the interval: hardly ever by chance
        if up * self.value - reach > up * self.ceiling + 1e-9:
            return f"{self.of}: {self.metric} beats its ceiling, which raw inputs give"
        if up * self.value + reach < up * self.floor - 1e-9:
            return f"{self.of}: {self.metric} is worse than its floor, which no payload at all gives"
        return ""

    def as_json(self) -> dict[str, Any]:
        """Its fields; null where a number is not finite."""
        return {name: None if _is_not_finite(value) else value for name, value in asdict(self).items()}


@dataclass(frozen=True)
class Outcome:
    """What one attempt of an attack, with one seed, comes to.

    auxiliary: the attacker's own samples, in words. pictures: what the report draws, by kind, as JSON takes
    it. remarks: sentences, without full stop, on what must be wrong, with the run or with the attack.
    """

    scores: tuple[Score, ...]
    auxiliary: str
    pictures: dict[str, Any] = field(default_factory=dict[str, Any])
    remarks: tuple[str, ...] = ()


def pool(attempts: Sequence[Outcome]) -> tuple[Score, ...]:
    """The scores of attempts with different seeds as one list: means, and with several seeds intervals over
    these."""
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
    """(mean, low, high) of one value per sample: Student's 95 % interval of the mean, for there may be
    few."""
    n, mean = len(values), float(values.mean())
    half = _student(n - 1) * float(values.std(ddof=1)) / math.sqrt(n) if n > 1 else math.nan
    return mean, mean - half, mean + half


def _student(freedom: int) -> float:
    """How many deviations a 95 % interval reaches with so many degrees of freedom."""
    from scipy.stats import t  # which takes a second to import

    return float(t.ppf(0.975, freedom))


def share_of(hits: float, n: int) -> tuple[float, float, float]:
    """(share, low, high) of hits among n tries, of which one that nothing decides is half of one: Wilson's 95
    % interval."""
    z, p = 1.96, hits / n
    middle, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return p, max(0.0, (middle - half) / (1 + z * z / n)), min(1.0, (middle + half) / (1 + z * z / n))


def _is_not_finite(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


@dataclass(frozen=True)
class Attack:
    """One way to learn about clients' samples from what they sent.

    A subclass is a frozen dataclass in a file of `attacks/kinds` whose name is the attack's. Its fields are
    its settings, each `Annotated` with range and meaning.
    """

    samples: Annotated[int, Ge(1), Le(1_000_000), "the most samples that are attacked"] = 500
    name: ClassVar[str] = ""
    adversary: ClassVar[str] = ""
    """Whom the attack plays, in words: what this adversary reads and knows."""
    asks: ClassVar[str] = ""
    """What it asks of a payload, as a question for readers who know no attacks."""
    alone: ClassVar[str] = ""
    """Why it is made only if it is named, as the end of a sentence; "" for an attack that is made with all
    others."""
    on_merged: ClassVar[bool] = False
    """Whether it can do with the merged model, where no round can be computed again."""
    quick: ClassVar[Mapping[str, object]] = {}
    """Settings with which it ends in seconds, for comparisons of many runs; it attacks what was sent, and
    nothing else."""

    one_input: ClassVar[bool] = True
    """Whether a sample must have one input, because the attack recovers it as a whole, or compares it."""
    lookups: ClassVar[Collection[TableExposure]] = ("", "kept", "sent")
    """With which models it can do, by whether they look whole numbers up and send the table."""

    def refuse(self, scene: Scene) -> str | None:
        """Why it does not fit this run, as the end of a sentence; None if it does. Asked before anything is
        computed."""
        raise NotImplementedError

    def attempt(self, scene: Scene, seed: int) -> Outcome:
        """The attack with one seed, which decides what the attacker draws; the run itself has the seed it
        had."""
        raise NotImplementedError

    def __post_init__(self) -> None:
        """Checks and converts every setting. Raises UsageError (E150)."""
        settings = {f.name: getattr(self, f.name) for f in fields(self)}
        for name, value in arguments.check(type(self), settings, f"attack '{self.name}'", "E150").items():
            object.__setattr__(self, name, value)

    def changed(self) -> dict[str, object]:
        """The settings that are not the defaults."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
