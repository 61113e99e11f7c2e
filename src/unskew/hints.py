"""Annotated types, `Annotated[float, Ge(0), "meaning"]`: what stands in them, and values converted to them."""

from __future__ import annotations

import math
import numbers
import types
import typing
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

import annotated_types as ranges

SIMPLE = (int, float, bool, str, type(None))
SPELT: dict[Any, dict[str, Any]] = {
    bool: {"true": True, "false": False},
    type(None): {"none": None, "null": None},
}
"""Bare words that YAML and other languages write for Python's constants."""


@dataclass(frozen=True)
class MayBeInfinite:
    """Stands in an annotation whose number may be infinite; without it infinity is refused. NaN always is."""


@dataclass(frozen=True)
class With:
    """Stands in the annotation of a setting that counts only while another one has this value, or is not 0 or False."""

    setting: str
    value: object = True

    def holds(self, values: typing.Mapping[str, object]) -> bool:
        """Whether the setting counts beside these values."""
        other = values[self.setting]
        return bool(other) if self.value is True else other == self.value


class Unfit(Exception):
    """The value does not fit the type or lies outside its range."""


def split(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """(the type under Annotated, the constraints beside it)."""
    if get_origin(hint) is not Annotated:
        return hint, ()
    inner, *beside = get_args(hint)
    constraints: list[Any] = []
    for item in beside:  # whether it is several is asked last: of a protocol that takes long
        alone = isinstance(item, str | ranges.BaseMetadata | MayBeInfinite | With)
        constraints += [item] if alone or not isinstance(item, ranges.GroupedMetadata) else item
    return inner, tuple(constraints)


def meaning(hint: Any) -> str:
    """The text that stands in the annotation, on one line; "" if there is none."""
    return " ".join(" ".join(item.split()) for item in split(hint)[1] if isinstance(item, str))


def alternatives(hint: Any) -> tuple[Any, ...]:
    """The types of a union; () for another type."""
    return get_args(hint) if get_origin(hint) in (typing.Union, types.UnionType) else ()


def choices(hint: Any) -> tuple[Any, ...]:
    """The values of a `Literal`, also of one in a union; () for another type."""
    inner = split(hint)[0]
    if get_origin(inner) is Literal:
        return get_args(inner)
    return tuple(choice for one in alternatives(inner) for choice in choices(one))


def convert(hint: Any, value: object) -> Any:
    """The value in this type: whole numbers as floats, lists as tuples. Raises Unfit where it does not fit."""
    inner, constraints = split(hint)
    fitting = _of_type(inner, value)
    infinite = any(isinstance(constraint, MayBeInfinite) for constraint in constraints)
    if isinstance(fitting, float) and (math.isnan(fitting) or (math.isinf(fitting) and not infinite)):
        raise Unfit
    for constraint in constraints:
        if fitting is not None and not _holds(constraint, fitting):
            raise Unfit
    return fitting


def _of_type(inner: Any, value: object) -> Any:
    """The value as one of this type. Raises Unfit."""
    if options := alternatives(inner):
        return _first_that_fits(options, value)
    origin = get_origin(inner)
    if origin is Literal:
        for choice in get_args(inner):
            if choice == value and type(choice) is type(value):
                return choice
        raise Unfit
    if origin is tuple or inner is tuple:
        return _tuple(get_args(inner), value)
    if inner in SIMPLE:
        return _simple(inner, value)
    return value  # a type of the author's own, which their class checks


def _simple(inner: Any, value: object) -> Any:
    """A number, text, True, False or None. NumPy's numbers become Python's; True is no number."""
    if isinstance(value, str) and value.lower() in SPELT.get(inner, {}):
        return SPELT[inner][value.lower()]
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        try:
            value = int(value) if inner is int and isinstance(value, numbers.Integral) else value
            value = float(value) if inner is float else value
        except OverflowError:
            raise Unfit from None
    if not isinstance(value, inner) or (isinstance(value, bool) and inner is not bool):
        raise Unfit
    return value


def _first_that_fits(options: tuple[Any, ...], value: object) -> Any:
    """By the type that the value has already, or else the first that it converts to."""
    exact = [one for one in options if split(one)[0] is type(value)]
    for one in [*exact, *options]:
        try:
            return convert(one, value)
        except Unfit:
            continue
    raise Unfit


def _tuple(items: tuple[Any, ...], value: object) -> tuple[Any, ...]:
    if not isinstance(value, tuple | list):
        raise Unfit
    if not items:
        return tuple(value)
    if len(items) == 2 and items[1] is Ellipsis:
        return tuple(convert(items[0], one) for one in value)
    if len(items) != len(value):
        raise Unfit
    return tuple(convert(hint, one) for hint, one in zip(items, value))


def _holds(constraint: Any, value: Any) -> bool:
    match constraint:
        case ranges.Ge(ge=bound):
            return value >= bound
        case ranges.Gt(gt=bound):
            return value > bound
        case ranges.Le(le=bound):
            return value <= bound
        case ranges.Lt(lt=bound):
            return value < bound
        case ranges.MultipleOf(multiple_of=step):
            return value % step == 0
        case ranges.MinLen(min_length=least):
            return len(value) >= least
        case ranges.MaxLen(max_length=most):
            return len(value) <= most
    return True
