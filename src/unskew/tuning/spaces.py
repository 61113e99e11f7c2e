"""Which settings of a method are searched, and in which range: by rule, from what the method's Parts declare.

The learning rate of every method and reference is searched, from a tenth of what the comparison says, or its lr_min if that
is more, to ten times of what it says.
So is every number of a Part, but for

    what the user wrote, in brackets or with --set      it is theirs to choose; so is what a preset's name stands for
    whole numbers, words, True or False                 they mostly say what is computed, sent or paid for
    numbers that are 0                                  0 mostly switches something off, and has no order of magnitude
    numbers that count only with another setting        where that is not set
    what no score can choose                            privacy, robustness, fairness, and what a Part names in `untuned`

A share (declared within 0 and 1) of at least 0.1 is searched evenly over all that is declared; any other number by order
of magnitude, from a tenth to ten times of what it is, within what is declared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import annotated_types as ranges

from unskew import arguments, hints
from unskew.arguments import Argument
from unskew.config import Settings
from unskew.core.part import Part
from unskew.engine import resolve
from unskew.methods import registry
from unskew.tuning.samplers import Point, Range

LR = "lr"
AROUND = 10.0
"""How many times smaller and larger than it is a number may become."""
SMALL = 0.1
"""A share below this is searched by order of magnitude."""
INSIDE = 0.01
"""How far from a bound that is not allowed itself the search stays, as a part of the whole range."""
FAMILIES = {
    "privacy": "it decides what can be learned of clients",
    "robust": "no trial has clients that lie",
    "fairness": "the mean score knows nothing of fairness",
}
"""Families whose settings no score can choose, and why."""
GIVEN = "it is given"


@dataclass(frozen=True)
class Searched:
    """What is searched of a method. space: ranges by name, `lr` and `part.argument`; first: what these are now. left_out: the
    other numbers, and why each stays as it is."""

    space: dict[str, Range]
    first: Point
    left_out: dict[str, str]

    def lines(self) -> list[str]:
        """`lr  0.005 to 0.5, log scale`, one for each setting."""
        return [f"{name} {axis}" for name, axis in self.space.items()]


def searched(text: str, settings: Settings, chosen: Mapping[str, Mapping[str, Any]]) -> Searched:
    """text: the method as the user writes it; settings: of its runs; chosen: arguments by Part that --set gives."""
    low = max(settings.lr / AROUND, settings.lr_min)
    space, left_out = {LR: Range(low, settings.lr * AROUND, log=True)}, dict[str, str]()
    first: Point = {LR: settings.lr}
    theirs = set[str]() if resolve.pools(settings) else registry.named_arguments(text, chosen)
    for part in resolve.parts_of(settings.method, settings.set).parts:
        values = {argument.name: getattr(part, argument.name) for argument in arguments.of(type(part))}
        for argument in arguments.of(type(part)):
            name, value = f"{part.name}.{argument.name}", values[argument.name]
            if hints.split(argument.hint)[0] is not float:
                continue
            if why := _why_not(part, argument, values, theirs):
                left_out[name] = why
            else:
                space[name], first[name] = range_of(argument, value), value
    return Searched(space, first, left_out)


def _why_not(part: Part, argument: Argument, values: Mapping[str, Any], theirs: set[str]) -> str:
    """Why a number is not searched; "" if it is."""
    if f"{part.name}.{argument.name}" in theirs:
        return GIVEN
    if why := part.untuned.get(argument.name) or FAMILIES.get(part.family):
        return why
    needed = [item for item in hints.split(argument.hint)[1] if isinstance(item, hints.With)]
    if any(not item.holds(values) for item in needed):
        return f"it does not count with {needed[0].setting}={values[needed[0].setting]}"
    return "" if values[argument.name] > 0 else "it is 0"


def range_of(argument: Argument, value: float) -> Range:
    """Where a number of a Part that is `value` now is searched."""
    low, high, open_low, open_high = _bounds(argument)
    if value >= SMALL and low >= 0 and high <= 1:
        margin = INSIDE * (high - low)
        low, high = low + margin * open_low, high - margin * open_high
        return Range(min(low, value), max(high, value), log=False)
    low = low + INSIDE * (value - low) if open_low else low
    high = high - INSIDE * (high - value) if open_high else high
    return Range(max(value / AROUND, low), min(value * AROUND, high), log=True)


def _bounds(argument: Argument) -> tuple[float, float, bool, bool]:
    """(lowest, highest, whether the lowest is not allowed itself, whether the highest is not)."""
    low, high, open_low, open_high = float("-inf"), float("inf"), False, False
    for item in hints.split(argument.hint)[1]:
        match item:
            case ranges.Ge(ge=bound):
                low = bound
            case ranges.Gt(gt=bound):
                low, open_low = bound, True
            case ranges.Le(le=bound):
                high = bound
            case ranges.Lt(lt=bound):
                high, open_high = bound, True
    return float(low), float(high), open_low, open_high  # type: ignore[arg-type]
