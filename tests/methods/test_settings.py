"""Every setting of every Part has a range and a meaning, and what lies outside is refused in one sentence."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import annotated_types as ranges
import pytest

import unskew
from unskew.core.part import Part
from unskew.errors import UsageError
from unskew.formats import arguments, calls
from unskew.methods import catalogue, registry


def refusal(text: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        registry.parse(text)
    return caught.value


def test_a_refusal_names_the_method_the_setting_its_range_and_the_value():
    assert (
        str(refusal("fedprox(mu=-1)"))
        == "E102 method 'fedprox': mu must be a number, at least 0, at most 1000000; got -1."
    )
    assert (
        str(refusal("fedprox(mu=1e999)"))
        == "E102 method 'fedprox': mu must be a finite number, at least 0, at most 1000000; got inf."
    )


def test_settings_are_converted_in_python_as_on_the_command_line():
    assert unskew.FedProx(mu=1) == registry.parse("fedprox(mu=1)").parts[0]
    assert str(unskew.FedProx(mu=1)) == "fedprox(mu=1.0)"
    assert unskew.FedBR(widths=[8, 4]).widths == (8, 4)


@dataclass(frozen=True)
class Pair(Part):
    """A stranger's Part that checks how its settings go together."""

    low: float = 0.0
    high: float = 1.0
    name = "pair"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low > self.high:
            raise ValueError("low must not exceed high")


def test_a_strangers_part_is_checked_by_its_annotations_and_its_own_relations():
    assert Pair(low=0, high=2).high == 2.0
    with pytest.raises(UsageError, match="E102 Pair: low must be a number; got 'x'"):
        Pair(low="x")
    with pytest.raises(UsageError, match="E102 method 'pair': low must not exceed high"):
        registry.part_of(Pair, "pair", {"low": 2, "high": 1})


OTHER_TYPES = (
    None,
    True,
    False,
    0,
    1,
    -1,
    0.5,
    2.5,
    "word",
    "",
    b"x",
    (),
    (1,),
    ("a", "b"),
    [],
    {},
    {"a": 1},
    object(),
)
"""Values of all types; those of another type than a setting's are wrong for it."""
NO_NUMBERS = (math.nan, math.inf, -math.inf)
HUGE = {int: 10**18, float: 1e30}
PAIRS = (
    "naivemix(per_batch=True, a=-1)",
    "naivemix(a=5)",
    "naivemix(per_batch=True, lam=0.3)",
    "naivemix(per_batch=True, lam=0)",
    "ccvr(share=0.5)",
    "ccvr(mode=features, each=7)",
    "fedbabu(lr=0.1)",
    "rebafl(mu=0, keep_stale=True)",
    "rbsm(aug_grad=True)",
    "feddpms(spread=1.0)",
    "norm(mean=(0.5,))",
    "norm(mean=(0, 0), std=(1, 1, 1))",
)
"""Settings that fit one by one and make no sense together."""


def wrong_values(hint: Any) -> Iterator[object]:
    """Values that a setting of this annotated type must refuse."""
    inner, constraints = arguments.split_hint(hint)
    yield from (v for v in OTHER_TYPES if not of_type(inner, v))
    if inner in HUGE:
        yield from NO_NUMBERS
        yield from (HUGE[inner], -HUGE[inner])
        yield from (outside for c in constraints for outside in beyond(c, inner))
    if arguments.get_origin(inner) is tuple:
        item = arguments.get_args(inner)[0]
        good = {int: 3, float: 0.5, str: "block1"}[arguments.split_hint(item)[0]]
        yield from ((good, wrong) for wrong in wrong_values(item))
        yield ()


def beyond(constraint: Any, inner: type) -> Iterator[float]:
    """The nearest values on the wrong side of a bound."""
    step = 1 if inner is int else 1e-9
    match constraint:
        case ranges.Ge(ge=bound):
            yield inner(bound) - max(step, abs(bound) * 1e-9)
        case ranges.Le(le=bound):
            yield inner(bound) + max(step, abs(bound) * 1e-9) if inner is float else bound + 1
        case ranges.Gt(gt=bound):
            yield inner(bound)
        case ranges.Lt(lt=bound):
            yield inner(bound)
        case _:
            pass


def of_type(inner: Any, value: object) -> bool:
    """Whether a value is of the type at all; its range aside."""
    if choices := arguments.literal_choices(inner):
        return value in choices
    if inner is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if inner is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if arguments.get_origin(inner) is tuple:
        item = arguments.split_hint(arguments.get_args(inner)[0])[0]
        return isinstance(value, tuple | list) and len(value) > 0 and all(of_type(item, v) for v in value)
    return type(value) is inner


def assert_refused(kind: type, arguments_: dict[str, object]) -> str:
    with pytest.raises(UsageError) as caught:
        kind(**arguments_)
    error = caught.value
    assert error.code == "E102"
    assert error.text.startswith(f"{kind.__name__}: ")
    assert "\n" not in error.text
    assert len(error.text) < 300
    assert error.text[-1] in ".?"
    return error.text


@pytest.mark.parametrize("name", catalogue.entries())
def test_every_wrong_value_is_refused_at_construction(name):
    """Of 21 wrong arguments 15 trained without a word and 5 crashed with torch's words."""
    kind = type(registry.parse(name).parts[0])
    for argument in arguments.of(kind):
        wrong = list(wrong_values(argument.hint))
        assert len(wrong) >= 10
        for value in wrong:
            assert f"{argument.name} must be " in assert_refused(kind, {argument.name: value}), value


@pytest.mark.parametrize("text", PAIRS)
def test_wrong_texts_and_pairs_are_refused(text):
    """`naivemix(per_batch=True, a=-1)` trained; a setting that does not count was ignored without a word."""
    with pytest.raises(UsageError, match="E102 ") as caught:
        registry.parse(text)
    assert "\n" not in caught.value.text
    call = calls.parse(text, "method", "E102")
    if call.name in catalogue.entries():
        assert_refused(type(registry.parse(call.name).parts[0]), call.arguments)


def test_a_setting_that_does_not_count_is_refused_with_the_reason():
    with pytest.raises(UsageError, match="CCVR: share counts only with mode=features"):
        registry.parse("ccvr(share=0.5)")
    with pytest.raises(UsageError, match="NaiveMix: a counts only with per_batch set"):
        registry.parse("naivemix(a=5)")
    assert registry.parse(
        "ccvr(mode=features, share=0.5)+naivemix(per_batch=True, a=5)+fedbabu(finetune_epochs=1, lr=0.1)"
    )
