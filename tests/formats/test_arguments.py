"""Arguments read from annotations: types, ranges and meanings in words, and values checked."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pytest
from annotated_types import Ge, Gt, Interval, Le, Len, Lt, MultipleOf

from unskew.errors import UsageError
from unskew.formats import arguments


@dataclass(frozen=True)
class Card:
    """A class as a method's file writes it."""

    mu: Annotated[float, Ge(0), Le(1), "strength of the pull"] = 0.1
    rows: Annotated[int, Gt(0), Lt(10), "how many rows"] = 3
    sizes: Annotated[tuple[Annotated[int, Gt(0)], ...], Len(1), "widths"] = (4,)
    kind: Annotated[Literal["paper", "official"], "which of two"] = "paper"
    least: Annotated[int | None, Ge(1), "None: all there are"] = None
    both: Annotated[float | Literal["auto"], "a number or auto"] = "auto"
    flag: bool = False
    text: str = "a"
    free: float = 0.0
    plain = 7
    name: ClassVar[str] = "card"
    seen: list = field(default_factory=list, init=False)


def function(shape, classes: int, width: Annotated[int, MultipleOf(8), "units"] = 8, stem="auto") -> None: ...


def check(**values):
    return arguments.check(Card, values, "method 'card'", "E102")


def test_a_class_lists_its_fields():
    words = [(a.name, a.type, a.range, a.default, a.meaning) for a in arguments.of(Card)]
    assert words == [
        ("mu", "number", "at least 0, at most 1", 0.1, "strength of the pull"),
        ("rows", "whole number", "above 0, below 10", 3, "how many rows"),
        ("sizes", "list of whole numbers", "not empty, each above 0", (4,), "widths"),
        ("kind", "'paper' or 'official'", "", "paper", "which of two"),
        ("least", "whole number or None", "at least 1", None, "None: all there are"),
        ("both", "number or 'auto'", "", "auto", "a number or auto"),
        ("flag", "True or False", "", False, ""),
        ("text", "text", "", "a", ""),
        ("free", "number", "", 0.0, ""),
    ]
    assert [a.choices for a in arguments.of(Card)][3:6] == [("paper", "official"), (), ("auto",)]


def test_a_function_lists_what_may_be_left_out():
    width, stem = arguments.of(function)
    assert (width.name, width.range, width.default, width.meaning) == ("width", "a multiple of 8", 8, "units")
    assert (stem.name, stem.type) == ("stem", "text")


@pytest.mark.parametrize(
    ("values", "converted"),
    [
        ({"mu": 1}, {"mu": 1.0}),
        ({"mu": np.float64(0.5), "rows": np.int64(2)}, {"mu": 0.5, "rows": 2}),
        ({"sizes": [1, 2]}, {"sizes": (1, 2)}),
        ({"least": None}, {"least": None}),
        ({"least": "none"}, {"least": None}),
        ({"both": 1}, {"both": 1.0}),
        ({"both": "auto"}, {"both": "auto"}),
        ({"flag": "true"}, {"flag": True}),
        ({"text": "true"}, {"text": "true"}),
    ],
)
def test_values_take_the_types_of_their_arguments(values, converted):
    found = check(**values)
    assert found == converted
    assert [type(v) for v in found.values()] == [type(v) for v in converted.values()]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"mu": -0.1}, "mu must be a number, at least 0, at most 1; got -0.1."),
        ({"mu": math.nan}, "mu must be a finite number, at least 0, at most 1; got nan."),
        ({"mu": "0.5"}, "mu must be a number, at least 0, at most 1; got '0.5'."),
        ({"mu": 10**400}, "mu must be a number, at least 0, at most 1; got 1000"),
        ({"rows": 2.0}, "rows must be a whole number, above 0, below 10; got 2.0."),
        ({"rows": True}, "rows must be a whole number, above 0, below 10; got True."),
        ({"sizes": ()}, "sizes must be a list of whole numbers, not empty, each above 0; got ()."),
        ({"kind": "oficial"}, "kind must be 'paper' or 'official'; got 'oficial'. Did you mean 'official'?"),
        ({"least": 0}, "least must be a whole number or None, at least 1; got 0."),
        ({"both": math.inf}, "both must be a number or 'auto'; got inf."),
        ({"text": b"\x1b" * 200}, "text must be text; got b'\\\\x1b\\\\x1b"),
    ],
)
def test_values_that_do_not_fit_are_refused_in_one_sentence(values, message):
    with pytest.raises(UsageError) as refused:
        check(**values)
    sentence = str(refused.value)
    assert sentence.startswith(f"E102 method 'card': {message}".replace("\\\\", "\\"))
    assert len(sentence) < 250
    assert sentence.isprintable()


def test_names_that_do_not_exist_are_refused():
    with pytest.raises(
        UsageError, match=r"E102 .*'card' has no argument 'row'; it takes mu, .*Did you mean 'rows'"
    ):
        check(row=1)
    with pytest.raises(UsageError, match="no argument 'plain'; it takes mu"):
        check(plain=1)
    with pytest.raises(UsageError, match="no argument 'seen'"):
        check(seen=[])

    def nothing(): ...

    with pytest.raises(UsageError, match=r"E104 model 'n' has no argument 'a'; it takes none\."):
        arguments.check(nothing, {"a": 1}, "model 'n'", "E104")


def test_grouped_constraints_and_types_of_the_authors_own():
    @dataclass
    class Own:
        share: Annotated[float, Interval(gt=0, le=1), "a share"] = 1.0
        pair: tuple[int, float] = (1, 2.0)
        anything: Any = None

    share, pair, _ = arguments.of(Own)
    assert (share.range, pair.type) == ("above 0, at most 1", "list of whole number and number")
    assert arguments.check(Own, {"pair": (1, 2), "anything": {1}}, "o", "E102") == {
        "pair": (1, 2.0),
        "anything": {1},
    }
    for wrong in ({"share": 0.0}, {"pair": (1, 2, 3)}):
        with pytest.raises(UsageError):
            arguments.check(Own, wrong, "o", "E102")
