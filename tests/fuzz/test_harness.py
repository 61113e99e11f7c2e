"""A part of `make fuzz`, and texts that hypothesis invents."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cli.calling import Called
from tests.fuzz.harness import NAMES, STRANGERS, Fuzz, verdict
from unskew import config
from unskew.data.clients.availability import Availability
from unskew.data.skew import Skew
from unskew.errors import UnskewError
from unskew.formats import calls, documents, specs
from unskew.methods import registry

TEXTS = st.text(max_size=60) | st.from_regex(
    r"[a-z]{1,9}(\([a-z]+=[-0-9.e'\[\]{}, ]{0,12}\)){0,2}", fullmatch=True
)
READERS = {
    "method": registry.parse,
    "value": lambda text: calls.parse_value(text, "x", "E102"),
    "skew": Skew.parse,
    "availability": Availability.parse,
    "spec": lambda text: specs.parse(text, "skew", "E103"),
    "yaml": lambda text: (
        config.build(values) if isinstance(values := documents.load(text, "f", "E111"), dict) else None
    ),
}


@pytest.mark.parametrize("part", range(3))
def test_inputs_of_every_kind(tmp_path, part):
    """Of 168 inputs none ends in a traceback, none hangs, no wrong one is taken, no right one
    refused."""
    fuzz = Fuzz(tmp_path)
    numbers = [n for n in range(60 * part, 60 * part + 60) if NAMES[n % len(NAMES)] != STRANGERS]
    assert not [problem for number in numbers if (problem := fuzz.problem(number))]


def test_values_in_the_folders_of_strangers(tmp_path):
    """Of 1,110 altered values and rows 164 ended in E143, nearly all in `report`."""
    fuzz, first = Fuzz(tmp_path), NAMES.index(STRANGERS)
    numbers = range(first, first + 20 * len(NAMES), len(NAMES))
    assert not [problem for number in numbers if (problem := fuzz.problem(number))]


@pytest.mark.parametrize("reader", READERS)
def test_any_text_is_read_or_refused_in_one_sentence(reader):
    """3,000 minus signs, brackets without end and keys that are no text were tracebacks."""

    @settings(max_examples=60, deadline=None, derandomize=True, database=None)
    @given(TEXTS)
    def check(text: str) -> None:
        with contextlib.suppress(UnskewError):
            READERS[reader](text)

    check()


@pytest.mark.parametrize(
    ("called", "wrong", "problem"),
    [
        (Called(0, "", ""), False, ""),
        (Called(0, "", ""), True, "taken though it is wrong"),
        (Called(2, "", "E109 lr must be above 0.\n"), True, ""),
        (Called(2, "", "E109 lr must be above 0.\n"), None, ""),
        (Called(2, "", "E109 lr must be above 0.\n"), False, "refused though it is right"),
        (Called(2, "", "lr?\n"), None, "no sentence"),
        (Called(1, "", "E143 an unexpected error: x.\n"), None, "an unexpected error"),
        (Called(1, "", "Traceback (most recent call last):\nE1\n"), None, "a traceback"),
        (Called(2, "", "E109 unknown key '\x1b'.\n"), None, "an escape sequence"),
    ],
)
def test_the_harness_judges(called, wrong, problem):
    assert verdict(called, wrong).startswith(problem)
    assert bool(verdict(called, wrong)) == bool(problem)
