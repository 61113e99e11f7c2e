"""The arguments that a method, model, data set or availability takes, read from its annotations.

A dataclass field or a function's parameter is written once, with its range and meaning:

    mu: Annotated[float, Ge(0), "strength of the pull towards the global weights"] = 0.001

`of` lists the arguments of a class or function for help and docs; `check` converts and checks values.
Ranges come from the package annotated_types: Ge, Gt, Le, Lt, MultipleOf, MinLen, MaxLen. `Literal`
gives choices.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import numbers
import operator
import types
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal, get_args, get_origin

import annotated_types as ranges

from unskew.errors import UsageError, excerpt, suggestion

SIMPLE_TYPES = (int, float, bool, str, type(None))
CONSTANT_WORDS: dict[Any, dict[str, Any]] = {
    bool: {"true": True, "false": False},
    type(None): {"none": None, "null": None},
}
"""Other spellings of Python's constants, as in YAML."""


@dataclass(frozen=True)
class With:
    """In the annotation of a setting: it has an effect only if another setting has this value; with True, if
    that setting is neither 0 nor False."""

    setting: str
    value: object = True

    def holds(self, values: typing.Mapping[str, object]) -> bool:
        """Whether the setting has an effect with these values."""
        other = values[self.setting]
        return bool(other) if self.value is True else other == self.value


class DoesNotFit(Exception):
    """The value does not fit the type or lies outside its range."""


def split_hint(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """(type, constraints) of an annotation."""
    if get_origin(hint) is not Annotated:
        return hint, ()
    inner, *metadata = get_args(hint)
    constraints: list[Any] = []
    for item in metadata:  # the check against a Protocol comes last, because it is slow
        alone = isinstance(item, str | ranges.BaseMetadata | With)
        constraints += [item] if alone or not isinstance(item, ranges.GroupedMetadata) else item
    return inner, tuple(constraints)


def hint_meaning(hint: Any) -> str:
    """The text in an annotation, on one line; "" if there is none."""
    return " ".join(" ".join(item.split()) for item in split_hint(hint)[1] if isinstance(item, str))


def union_types(hint: Any) -> tuple[Any, ...]:
    """The types of a union; () for another type."""
    return get_args(hint) if get_origin(hint) in (typing.Union, types.UnionType) else ()


def literal_choices(hint: Any) -> tuple[Any, ...]:
    """The values of a `Literal`, alone or in a union; () for another type."""
    inner = split_hint(hint)[0]
    if get_origin(inner) is Literal:
        return get_args(inner)
    return tuple(choice for one in union_types(inner) for choice in literal_choices(one))


def convert_value(hint: Any, value: object) -> Any:
    """The value in this type: whole numbers as floats, lists as tuples. Raises DoesNotFit."""
    inner, constraints = split_hint(hint)
    fitting = _of_type(inner, value)
    if isinstance(fitting, float) and not math.isfinite(fitting):
        raise DoesNotFit
    for constraint in constraints:
        if fitting is not None and type(constraint) in RANGES:
            bound, is_within, _ = RANGES[type(constraint)]
            if not is_within(fitting, getattr(constraint, bound)):
                raise DoesNotFit
    return fitting


def _of_type(inner: Any, value: object) -> Any:
    """The value in this type, without its constraints. Raises DoesNotFit."""
    if options := union_types(inner):
        return _first_that_fits(options, value)
    origin = get_origin(inner)
    if origin is Literal:
        for choice in get_args(inner):
            if choice == value and type(choice) is type(value):
                return choice
        raise DoesNotFit
    if origin is tuple or inner is tuple:
        return _to_tuple(get_args(inner), value)
    if inner in SIMPLE_TYPES:
        return _simple(inner, value)
    return value  # a type of the author's own, which their class checks


def _simple(inner: Any, value: object) -> Any:
    """The value as a number, text, bool or None. NumPy's numbers become Python's; True is not a number."""
    if isinstance(value, str) and value.lower() in CONSTANT_WORDS.get(inner, {}):
        return CONSTANT_WORDS[inner][value.lower()]
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        try:
            value = int(value) if inner is int and isinstance(value, numbers.Integral) else value
            value = float(value) if inner is float else value
        except OverflowError:
            raise DoesNotFit from None
    if not isinstance(value, inner) or (isinstance(value, bool) and inner is not bool):
        raise DoesNotFit
    return value


def _first_that_fits(options: tuple[Any, ...], value: object) -> Any:
    """The value in the union's type that it already has, or else in the first that it converts to."""
    for one in sorted(options, key=lambda one: split_hint(one)[0] is not type(value)):
        with suppress(DoesNotFit):
            return convert_value(one, value)
    raise DoesNotFit


def _to_tuple(items: tuple[Any, ...], value: object) -> tuple[Any, ...]:
    if not isinstance(value, tuple | list):
        raise DoesNotFit
    if not items:
        return tuple(value)
    if len(items) == 2 and items[1] is Ellipsis:
        return tuple(convert_value(items[0], one) for one in value)
    if len(items) != len(value):
        raise DoesNotFit
    return tuple(convert_value(hint, one) for hint, one in zip(items, value))


RANGES: dict[type, tuple[str, Callable[[Any, Any], bool], str]] = {
    ranges.Ge: ("ge", operator.ge, "at least {}"),
    ranges.Gt: ("gt", operator.gt, "above {}"),
    ranges.Le: ("le", operator.le, "at most {}"),
    ranges.Lt: ("lt", operator.lt, "below {}"),
    ranges.MultipleOf: ("multiple_of", lambda value, step: value % step == 0, "a multiple of {}"),
    ranges.MinLen: ("min_length", lambda value, least: len(value) >= least, "at least {} long"),
    ranges.MaxLen: ("max_length", lambda value, most: len(value) <= most, "at most {} long"),
}
"""By constraint: the attribute with its bound, whether a value is within a bound, and the range in words."""


REQUIRED: Any = inspect.Parameter.empty
"""The default of a required argument."""


@dataclass(frozen=True)
class Argument:
    """One argument. hint: its annotated type. default: REQUIRED if it has none."""

    name: str
    hint: Any
    default: Any = REQUIRED
    meaning: str = ""

    @property
    def type(self) -> str:
        """The type in words, such as "whole number", "True or False" or "list of whole numbers"."""
        return _type_in_words(self.hint)

    @property
    def range(self) -> str:
        """The range in words, such as "above 0, at most 1"; "" if the type has no bounds."""
        return _range_in_words(self.hint)

    @property
    def choices(self) -> tuple[Any, ...]:
        """The values of a `Literal`; () for other types."""
        return literal_choices(self.hint)

    def convert(self, value: object) -> Any:
        """The value in the argument's type: whole numbers as floats, lists as tuples. Raises ValueError with
        one sentence."""
        try:
            return convert_value(self.hint, value)
        except DoesNotFit:
            infinite = isinstance(value, float) and not math.isfinite(value)
            words = _with_article(f"finite {self.type}" if infinite and self.type == "number" else self.type)
            expected = ", ".join(filter(None, (words, self.range)))
            known = [c for c in self.choices if isinstance(c, str)]
            near = suggestion(value, known) if isinstance(value, str) else ""
            raise ValueError(f"{self.name} must be {expected}; got {excerpt(value)}.{near}") from None


@lru_cache(maxsize=1024)
def of(kind: Callable[..., Any]) -> tuple[Argument, ...]:
    """The arguments of a dataclass (its fields) or a function (its parameters with a default or a meaning),
    in order. An argument without an annotation has the type of its default."""
    try:
        annotations = typing.get_type_hints(kind, include_extras=True)
    except Exception:  # a user's own annotations may name what is not there
        annotations = {}
    if dataclasses.is_dataclass(kind):
        defaults = {f.name: default_of(f) for f in dataclasses.fields(kind) if f.init}
    else:
        defaults = {
            name: parameter.default
            for name, parameter in inspect.signature(kind).parameters.items()
            if parameter.default is not REQUIRED or hint_meaning(annotations.get(name))
        }
    hints = {name: annotations.get(name, _type_of(default)) for name, default in defaults.items()}
    return tuple(
        Argument(name, hints[name], default, hint_meaning(hints[name])) for name, default in defaults.items()
    )


def check(kind: Callable[..., Any], values: Mapping[str, object], owner: str, code: str) -> dict[str, Any]:
    """The values, converted to the types of kind's arguments, without defaults.

    owner: the name for messages, such as "method 'fedprox'". Raises UsageError of this code for an unknown
    name or a value that does not fit.
    """
    known = {argument.name: argument for argument in of(kind)}
    converted = {}
    for name, value in values.items():
        if name not in known:
            text = f"{owner} has no argument {excerpt(name)}; it takes {', '.join(known) or 'none'}"
            raise UsageError(code, f"{text}.{suggestion(str(name), known)}")
        try:
            converted[name] = known[name].convert(value)
        except ValueError as error:
            raise UsageError(code, f"{owner}: {error}") from None
    return converted


def ineffective(kind: Callable[..., Any], values: Mapping[str, object]) -> str | None:
    """A sentence about the first setting that is set but has no effect with these values; None if there is
    none."""
    for argument in of(kind):
        for needed in (item for item in split_hint(argument.hint)[1] if isinstance(item, With)):
            if values[argument.name] != argument.default and not needed.holds(values):
                value = " set" if needed.value is True else f"={needed.value}"
                text = f"{argument.name} counts only with {needed.setting}{value}"
                return f"{text}; set that, or leave {argument.name} out."
    return None


def default_of(field: dataclasses.Field[Any]) -> Any:
    """A dataclass field's default; REQUIRED where it has none."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return REQUIRED if field.default is dataclasses.MISSING else field.default


def _type_of(default: Any) -> Any:
    return Any if default is REQUIRED or default is None else type(default)


_TYPE_WORDS = {
    int: "whole number",
    float: "number",
    bool: "True or False",
    str: "text",
    type(None): "None",
    Any: "value",
}


def _type_in_words(hint: Any) -> str:
    inner = split_hint(hint)[0]
    if options := union_types(inner):
        return " or ".join(dict.fromkeys(map(_type_in_words, options)))
    if get_origin(inner) is Literal:
        return " or ".join(map(repr, get_args(inner)))
    if get_origin(inner) is tuple:
        items = get_args(inner)
        if len(items) == 2 and items[1] is Ellipsis:
            return f"list of {_type_in_words(items[0])}s"
        return f"list of {' and '.join(map(_type_in_words, items))}"
    return _TYPE_WORDS.get(inner, getattr(inner, "__name__", "value"))


def _with_article(words: str) -> str:
    return f"a {words}" if words.split()[0] in ("finite", "list", "number", "value", "whole") else words


def _range_in_words(hint: Any) -> str:
    inner, constraints = split_hint(hint)
    words: list[str] = []
    for constraint in constraints:
        if constraint == ranges.MinLen(1):
            words.append("not empty")
        elif type(constraint) in RANGES:
            bound, _, text = RANGES[type(constraint)]
            words.append(text.format(getattr(constraint, bound)))
    words += [text for one in union_types(inner) if (text := _range_in_words(one))]
    if get_origin(inner) is tuple and (text := _range_in_words(get_args(inner)[0])):
        words.append(f"each {text}")
    return ", ".join(words)
