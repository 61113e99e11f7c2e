"""Sets, partitions, feature skews and availabilities are found in their files, and say what their settings
mean; texts name them, and archives hold them."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from tests.data.test_folders import pictures
from unskew import data
from unskew.data import registry, skew
from unskew.data.clients import availability
from unskew.data.clients.availability import Availability, Options
from unskew.data.files.archives import Archive
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


def test_the_column_by_which_a_text_divides(tmp_path):
    """That of a table by its name; where a table lists files, the column becomes `site`."""
    pictures(tmp_path / "scans", "a", "b")
    (tmp_path / "t.csv").write_text("x,bank\n1,a\n")
    assert registry.divided_by(f"{tmp_path}/t.csv(site=bank)") == "bank"
    assert registry.divided_by(f"{tmp_path}/scans(site=hospital)") == "site"
    for text in (f"{tmp_path}/t.csv", f"{tmp_path}/t.csv(label=x)", "digits"):
        assert registry.divided_by(text) == ""


def test_sets_that_are_not_on_this_machine_are_said_to_be_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("UNSKEW_DATA", str(tmp_path))
    (tmp_path / "fashion_mnist.npz").write_bytes(b"")
    assert [registry.at_hand(name) for name in ("digits", "cifar10", "fashion_mnist")] == [True, False, True]
    missing = {name for name, line in registry.describe().items() if "not found: set UNSKEW_DATA" in line}
    assert missing == set(registry.names()) - {*registry.BUILT_IN, "fashion_mnist"}


def strips(*shades):
    """Strips of two pictures of 4 x 4 each, of these shades, one below the other, as bytes and where each
    begins."""
    encoded = []
    for one, other in zip(shades[::2], shades[1::2]):
        buffer, strip = io.BytesIO(), np.zeros((8, 4, 3), np.uint8)
        strip[:4], strip[4:] = one, other
        Image.fromarray(strip).save(buffer, "PNG")
        encoded.append(buffer.getvalue())
    offsets = np.cumsum([0, *map(len, encoded)])
    return np.frombuffer(b"".join(encoded), np.uint8), offsets


def test_pictures_in_strips_keep_their_order(tmp_path):
    """Each has its label by its place."""
    shades = (10, 60, 110, 160, 210, 250)
    buffer, offsets = strips(*shades)
    np.savez(tmp_path / "a.npz", train_webp=buffer, train_off=offsets)
    archive = Archive(tmp_path / "a.npz")
    assert archive.pictures("train_webp", 4)[:, 0, 0, 0].tolist() == list(shades)
    with pytest.raises(DataError, match=r"E401 .*a\.npz lacks the array 'y'; it holds train_webp, train_off"):
        archive.labels("y")
    np.savez(tmp_path / "a.npz", train_webp=buffer, train_off=offsets + 3)
    with pytest.raises(DataError, match=r"E401 .*a\.npz: 'train_webp' cannot be read as pictures"):
        Archive(tmp_path / "a.npz").pictures("train_webp", 4)
