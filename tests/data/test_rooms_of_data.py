"""Sets, partitions, feature skews and availabilities are found in their files, and say what their settings
mean."""

from __future__ import annotations

import numpy as np
import pytest

from unskew import data
from unskew.data import registry, skew
from unskew.data.clients import availability
from unskew.data.clients.availability import Availability, Options
from unskew.data.skew import Skew
from unskew.errors import DataError, UsageError
from unskew.formats import arguments

KINDS = {
    **{f"set {name}": registry.reader_of(name) for name in data.names()},
    **{f"partition {name}": kind for name, kind in skew.partitions().items()},
    **{f"shift {name}": kind for name, kind in skew.SHIFTS.items()},
    **{f"availability {name}": kind for name, kind in availability.PRESENCE_KINDS.items()},
    "availability options": Options,
    "folder": data.folder,
}


@pytest.mark.parametrize("name", KINDS)
def test_every_argument_has_a_meaning_and_a_default_in_its_range(name):
    for argument in arguments.of(KINDS[name]):
        assert argument.meaning, argument.name
        if argument.default is not arguments.REQUIRED:
            assert argument.convert(argument.default) == argument.default


def test_every_example_is_read_as_its_kind(tmp_path):
    trace = tmp_path / "FILE.csv"
    trace.write_text("round,client\n1,0\n")
    for kind in skew.partitions().values():
        assert type(Skew.parse(kind.example).partition) is kind
    for kind in skew.SHIFTS.values():
        assert type(Skew.parse(f"iid{kind.example}").shifts[0]) is kind
    for kind in availability.PRESENCE_KINDS.values():
        text = kind.example.replace("FILE.csv", str(trace))
        assert type(Availability.parse(text).presence) is kind


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "dirichlet:-1",
            "E103 skew 'dirichlet': alpha must be a number, above 0; got -1. Write it like dirichlet:0.1.",
        ),
        ("dirichlet:0.1,min=2,min=3", "E103 skew 'dirichlet:0.1,min=2,min=3' gives 'min' twice."),
        ("domain:site", "E103 skew 'domain' takes no value; got 'site'."),
        ("column", "E103 skew 'column' needs column, like column:site."),
    ],
)
def test_skews_out_of_range_are_refused(text, message):
    with pytest.raises(UsageError) as refused:
        Skew.parse(text)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "bernoulli:nan",
            "E124 availability 'bernoulli': probability must be a finite number, at least 0, at most 1",
        ),
        ("persistent:0.2", "E124 availability 'persistent' needs rounds, like persistent:0.2x10."),
        ("trace:/", "E111 cannot read / (Is a directory); a trace is a CSV"),
    ],
)
def test_availabilities_out_of_range_are_refused(text, message):
    with pytest.raises(UsageError) as refused:
        Availability.parse(text)
    assert str(refused.value).startswith(message)


def test_one_function_reads_every_text_that_names_data(tmp_path):
    x, y = np.random.default_rng(0).random((20, 3)).astype(np.float32), np.arange(20) % 2
    np.savez(tmp_path / "own.npz", x=x, y=y)
    assert data.read(str(tmp_path / "own.npz")).name == "own"
    assert data.read("digits").name == "digits"
    for text in (str(tmp_path / "own.npz"), "digits"):
        registry.check_text(text)
        assert registry.at_hand(text)
    with pytest.raises(DataError, match=r"E402 there is no nowhere\.npz"):
        registry.check_text("nowhere.npz")
    with pytest.raises(UsageError, match=r"E125 unknown data 'digit'.*Did you mean 'digits'"):
        data.read("digit")
    with pytest.raises(UsageError, match=r"E125 there is no data set 'mnist' here.*unskew data get mnist \("):
        data.read("mnist")
    with pytest.raises(UsageError, match="E125 data set 'digits' has no argument 'size'; it takes none"):
        data.read("digits", size=3)
    with pytest.raises(
        UsageError, match=r"E125 folder .*: size must be a whole number, above 0, at most 4096; got 0"
    ):
        data.read(str(tmp_path), size=0)
    with pytest.raises(
        UsageError, match="E125 data set 'uci_har': signals must be a whole number, at least 1, at most 9"
    ):
        registry.check_text("uci_har(signals=10)")
