"""Ranges of settings that many methods and attacks share, for use in their annotations."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Gt, Le, Lt

NonNegative = Annotated[float, Ge(0), Le(1_000_000)]
"""The weight of a term, a penalty, or a strength."""
Positive = Annotated[float, Gt(0), Le(1_000_000)]
Rate = Annotated[float, Gt(0), Le(1000)]
"""A learning rate or a temperature."""
Fraction = Annotated[float, Ge(0), Le(1)]
PositiveFraction = Annotated[float, Gt(0), Le(1)]
BelowOne = Annotated[float, Ge(0), Lt(1)]
"""A momentum."""
Count = Annotated[int, Ge(1), Le(1_000_000)]
"""A number of samples or steps."""
