"""The differential privacy of noisy releases, for printing and for files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

WEAK_EPSILON = 10.0
"""An epsilon above this promises next to nothing."""


@dataclass(frozen=True)
class Account:
    """The differential privacy of a release, for the client and class that it protects least.

    release: its settings and delta, in words. epsilons: (epsilon, the definition under which it holds), the
    published one first. each: for every value released, (client, class, number of samples m, published
    epsilon, epsilon when one record is added). delta: of all these epsilons; a site adds it up over its runs.
    """

    release: str
    epsilons: tuple[tuple[float, str], ...] = ()
    each: tuple[tuple[int, int, int, float, float], ...] = ()
    delta: float = 0.0

    def with_source(self, source: str) -> Account:
        """The account with its delta and the source of its noise in every reading with a finite epsilon,
        which is then complete by itself: unit, reader, delta and source.

        source: of the noise, in words.
        """
        ending = f"; delta {self.delta:.2g}; {source}"
        readings = ((e, text if math.isinf(e) else text + ending) for e, text in self.epsilons)
        return replace(self, epsilons=tuple(readings))

    def lines(self) -> list[str]:
        """The lines that are printed before round 1."""
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
    """An epsilon with four digits; `infinite` for inf and for None, which stands for it in files."""
    return "infinite" if epsilon is None or math.isinf(epsilon) else f"{epsilon:.4g}"


def guarantee_text(reading: Mapping[str, Any]) -> str:
    """An entry of `epsilons` in privacy.json as a phrase."""
    return f"epsilon {epsilon_text(reading['epsilon'])}, {reading['reading']}"


def epsilon_caution(epsilon: float) -> str:
    """A warning to append to the text of a large epsilon; "" for others."""
    return f"; above {WEAK_EPSILON:g} this promises little" if epsilon > WEAK_EPSILON else ""
