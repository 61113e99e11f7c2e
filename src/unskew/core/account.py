"""What a noisy release amounts to as differential privacy, as it is printed and written down."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Account:
    """What a release amounts to as differential privacy, for the client and class it protects least.

    release: its settings and delta, in words. epsilons: (epsilon, the reading under which it holds), the published one first.
    each: (client, class, samples m, published epsilon, epsilon of one record added) of everything released.
    """

    release: str
    epsilons: tuple[tuple[float, str], ...] = ()
    each: tuple[tuple[int, int, int, float, float], ...] = ()

    def lines(self) -> list[str]:
        """As told before round 1."""
        return [
            self.release,
            *(f"  epsilon {number(epsilon):>9}  {reading}" for epsilon, reading in self.epsilons),
        ]

    def as_json(self) -> dict[str, Any]:
        """What privacy.json holds; null stands for an infinite epsilon."""
        return {
            "release": self.release,
            "epsilons": [
                {"epsilon": None if math.isinf(epsilon) else epsilon, "reading": reading}
                for epsilon, reading in self.epsilons
            ],
            "each": [dict(zip(("client", "class", "m", "published", "added"), row)) for row in self.each],
        }


def number(epsilon: float | None) -> str:
    """An epsilon with four digits, or `infinite` (None in a file)."""
    return "infinite" if epsilon is None or math.isinf(epsilon) else f"{epsilon:.4g}"
