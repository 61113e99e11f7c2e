"""What a noisy release amounts to as differential privacy, for printing and for files."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

WEAK_EPSILON = 10.0
"""Above this an epsilon promises next to nothing."""


@dataclass(frozen=True)
class Account:
    """What a release amounts to as differential privacy, for the client and class that it protects least.

    release: its settings and delta, in words. epsilons: (epsilon, the reading under which it holds), the
    published one
    first. each: of everything released, (client, class, number of samples m, published epsilon, epsilon when
    one record is added). delta: at which all of these hold, and which a site adds up over its runs.
    """

    release: str
    epsilons: tuple[tuple[float, str], ...] = ()
    each: tuple[tuple[int, int, int, float, float], ...] = ()
    delta: float = 0.0

    def lines(self) -> list[str]:
        """What is printed before round 1."""
        return [
            self.release,
            *(f"  epsilon {epsilon_text(epsilon):>9}  {reading}" for epsilon, reading in self.epsilons),
        ]

    def as_json(self) -> dict[str, Any]:
        """The content of privacy.json; null stands for an infinite epsilon."""
        return {
            "release": self.release,
            "epsilons": [
                {"epsilon": None if math.isinf(epsilon) else epsilon, "reading": reading}
                for epsilon, reading in self.epsilons
            ],
            "each": [dict(zip(("client", "class", "m", "published", "added"), row)) for row in self.each],
        }


def epsilon_text(epsilon: float | None) -> str:
    """An epsilon with four digits; `infinite` for inf, and for the None that a file has in its place."""
    return "infinite" if epsilon is None or math.isinf(epsilon) else f"{epsilon:.4g}"


def epsilon_caution(epsilon: float) -> str:
    """What to add to the reading of an epsilon that promises little; else ""."""
    return f"; above {WEAK_EPSILON:g} this promises little" if epsilon > WEAK_EPSILON else ""
