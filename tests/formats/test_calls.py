"""One grammar for methods, models and data sets, and one sentence for every text that does not follow it."""

from __future__ import annotations

import pytest

from unskew.errors import UsageError
from unskew.formats import calls


def read(text):
    call = calls.parse(text, "model", "E104")
    return call.name, call.arguments


@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        ("mlp", "mlp", {}),
        (" mlp ( ) ", "mlp", {}),
        ("mlp(hidden=(64, 32,), )", "mlp", {"hidden": (64, 32)}),
        (
            "m(a=-1, b=1e-3, c=True, d=None, e=[1, [2]])",
            "m",
            {"a": -1, "b": 1e-3, "c": True, "d": None, "e": [1, [2]]},
        ),
        ("m(a=paper, b='a, (b)+c', c=block1.conv)", "m", {"a": "paper", "b": "a, (b)+c", "c": "block1.conv"}),
        (r"m(a='it\'s')", "m", {"a": "it's"}),
        ("m(a={'k': (1,)})", "m", {"a": {"k": (1,)}}),
        ("m(a=" + "(" * 9 + "1," + ")" * 9 + ")", "m", {"a": (1,)}),
        ("m(a=" + "a." * 99 + "a)", "m", {"a": "a." * 99 + "a"}),
        ("m(a=[x, y])", "m", {"a": ["x", "y"]}),
    ],
)
def test_what_the_grammar_allows(text, name, arguments):
    assert read(text) == (name, arguments)


def test_files_and_what_is_meant_in_them():
    call = calls.parse("it's here/my_method.py:Mine(pull=1)", "method", "E102")
    assert (call.file, call.member, call.arguments) == ("it's here/my_method.py", "Mine", {"pull": 1})
    call = calls.parse("my_method.py", "method", "E102")
    assert (call.file, call.member) == ("my_method.py", "")
    assert calls.parse("digits(size=3)", "data set", "E125").file == ""


def test_a_sum_is_split_outside_brackets_only():
    pieces = calls.parse_sum("a(x='b+c', y=(1+2j, )) + d.py:E+f")
    assert [p.name for p in pieces] == ["a", "d.py:E", "f"]
    assert pieces[0].arguments == {"x": "b+c", "y": (1 + 2j,)}


BAD = [
    ("", "a name is missing"),
    ("(a=1)", "a name is missing"),
    ("m(a=[", r"a closing \] is missing"),
    ("m(a=1", r"a closing \) is missing"),
    ("m(a='1)", "a closing ' is missing"),
    ("m)", r"'\)' at character 2 closes nothing"),
    ("m(a=(1])", r"'\]' at character 7 closes nothing"),
    ("m(1)", "an argument has no name"),
    ("m(**a)", "an argument has no name"),
    ("m(a=1, a=2)", "'a' is given twice"),
    ("m(a=1)(a=5)", r"'\(a=5\)' follows the closing bracket"),
    ("m(a=1)-(2)", r"'-\(2\)' follows the closing bracket"),
    ("m(a=1)m", "'m' follows the closing bracket"),
    ("m(a)", "an argument has no name"),
    ("m(a=)", "is not a list of key=value"),
    ("m(a=lambda: 1)", "a value is neither"),
    ("m(a=f())", "a value is neither"),
    ("m(a=f().b)", "a value is neither"),
    ("m(a=__import__('os').system('true'))", "a value is neither"),
    ("m(a={[]: 1})", "a value is neither"),
    ("m(a=1 + 1)", "a value is neither"),
    ("m(a=\0)", "is not a list of key=value"),
    ("m(a=" + "-" * 3000 + "1)", "m"),
    ("m(a=" + "not " * 2400 + "1)", "m"),
    ("m(a=" + "9" * 9000 + ")", "is not a list of key=value"),
    ("m(a=" + "(" * 11 + "1" + ")" * 11 + ")", "nested more than 10 deep"),
    ("m" * 20_000, "it has 20,000 characters"),
]


@pytest.mark.parametrize(("text", "why"), BAD, ids=range(len(BAD)))
def test_other_texts_are_refused_in_one_short_sentence(text, why):
    with pytest.raises(UsageError, match=why) as refused:
        read(text)
    message = str(refused.value)
    assert message.startswith("E104 cannot read the model ")
    assert message.endswith("; write name(key=value).")
    assert len(message) < 250
    assert message.isprintable()


@pytest.mark.parametrize(
    "arguments", [{}, {"a": "block1.conv", "b": "a b", "c": "None", "d": (1,), "e": None, "f": ""}]
)
def test_what_is_written_is_read_back(arguments):
    call = calls.Call("m", arguments)
    assert calls.parse(str(call), "model", "E104") == call


def test_one_value():
    assert calls.parse_value(" 1e-3 ", "--set fedprox.mu", "E102") == 1e-3
    assert calls.parse_value("paper", "--set flea.variant", "E102") == "paper"
    for text in ("[", "1, 2)", "", "a=b"):
        with pytest.raises(UsageError, match=r"E102 cannot read the value .* of --set fedprox\.mu: "):
            calls.parse_value(text, "--set fedprox.mu", "E102")
