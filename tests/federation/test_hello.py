"""What a site says of itself: the form of its samples and the versions of its code."""

from __future__ import annotations

import json
import re
import wave

import numpy as np
import pytest

from tests.federation import fake
from tests.federation.test_requests import answer
from unskew.errors import UsageError
from unskew.federation import site_data
from unskew.federation.protocol import hello as protocol_hello
from unskew.federation.protocol import study_rules
from unskew.federation.protocol.hello import (
    Hello,
    data_difference,
    version_conflict,
    versions,
)
from unskew.federation.site import site
from unskew.methods import catalogue

ROWS = [(60 + i % 7, 120 + i % 11, "mf"[i % 2], "no" if i % 3 else "yes") for i in range(40)]


def table(path, names=("age", "bp", "sex", "label"), words=None, rows=ROWS):
    """A CSV of a site; words: what it writes instead of m and f."""
    order = [
        ("age", "bp", "sex", "label").index(name) for name in names if name in ("age", "bp", "sex", "label")
    ]
    known = words or {"m": "m", "f": "f"}
    lines = [",".join(names)] + [",".join(str(known.get(row[i], row[i])) for i in order) for row in rows]
    path.write_text("\n".join(lines) + "\n")
    return site_data.load(str(path), ["no", "yes"])


def hello(site, data):
    """What the coordinator reads of what this site says."""
    return Hello.read(json.loads(json.dumps(Hello.of(site, data, {}).as_json())))


OTHERS = [
    (("bp", "age", "sex", "label"), None, "columns are in another order: 'age' stands at a where b has 'bp'"),
    (("age", "bp", "sex", "label"), {"m": "male", "f": "female"}, "columns: 'sex' is 2 words"),
    (
        ("age", "bp", "sex", "label"),
        {"m": "f", "f": "f"},
        r"columns: 'sex' is 2 words \(\w+\) at a and 1 word",
    ),
    (("age", "bp", "sex", "label"), {"m": 0, "f": 1}, r"columns: 'sex' is 2 words \(\w+\) at a and numbers"),
]


@pytest.mark.parametrize(("names", "words", "why"), OTHERS)
def test_tables_of_one_shape_that_mean_different_things_are_refused(tmp_path, names, words, why):
    one, other = table(tmp_path / "a.csv"), table(tmp_path / "b.csv", names, words)
    assert one.shape == other.shape
    said = data_difference(hello("a", one), hello("b", other))
    assert re.match(f"sites hold different data: {why}", said), said
    assert not data_difference(hello("a", one), hello("b", table(tmp_path / "c.csv")))


def test_no_word_of_the_data_leaves_and_very_many_columns_are_one_digest(tmp_path):
    said = json.dumps(
        Hello.of("a", table(tmp_path / "a.csv", words={"m": "hiv+", "f": "hiv-"}), {}).as_json()
    )
    assert "hiv" not in said
    assert '["sex", "2 words (' in said
    wide = tmp_path / "wide.csv"
    names = [f"gene{i}" for i in range(protocol_hello.MOST_COLUMNS + 1)]
    rows = [
        ",".join([*(str(i * j % 97 / 7) for j in range(len(names))), "no" if i % 2 else "yes"])
        for i in range(12)
    ]
    wide.write_text("\n".join([",".join([*names, "label"]), *rows]))
    ((what, digest),) = hello("a", site_data.load(str(wide), ["no", "yes"])).form
    assert what == f"{len(names):,} columns"
    wide.write_text("\n".join([",".join([*names[::-1], "label"]), *rows]))
    assert hello("a", site_data.load(str(wide), ["no", "yes"])).form[0][1] != digest


def test_sounds_of_another_rate_are_refused_although_their_spectrograms_have_one_shape(tmp_path):
    sets = []
    for name, rate in (("a", 8_000), ("b", 16_000)):
        for label in ("no", "yes"):
            (tmp_path / name / label).mkdir(parents=True)
            for i in range(5):
                with wave.open(str(tmp_path / name / label / f"{i}.wav"), "wb") as file:
                    file.setnchannels(1), file.setsampwidth(2), file.setframerate(rate)
                    t = np.arange(rate) / rate
                    file.writeframes((9000 * np.sin(6.283 * (300 + 40 * i) * t)).astype("<i2").tobytes())
        sets.append(site_data.load(str(tmp_path / name)))
    assert sets[0].shape == sets[1].shape
    said = data_difference(hello("a", sets[0]), hello("b", sets[1]))
    assert re.search(r"sounds .*: 'rate' is 8000 samples a second at a and 16000", said), said


@pytest.mark.parametrize("claimed", [7, [["a"]], [["a", "b", "c"]], ["ab", 3], [["a", "b"]] * 3000])
def test_what_a_site_makes_up_of_its_columns_is_no_form(tmp_path, claimed):
    facts = Hello.of("a", table(tmp_path / "a.csv"), {}).as_json() | {"form": claimed}
    with pytest.raises((TypeError, ValueError)):
        Hello.read(facts)


@pytest.mark.parametrize(
    ("ours", "theirs", "who"),
    [
        ("0.1.0", "0.1.9", ""),
        ("0.1.0", "0.1.0.dev3", ""),
        ("0.1.9", "0.2.0", "a must upgrade to unskew 0.2, as at b"),
        ("0.10.0", "0.9.4", "b must upgrade to unskew 0.10, as at a"),
        ("1.0", "0.9.4", "b must upgrade to unskew 1.0, as at a"),
        ("0.1.0", "new", "b must upgrade to unskew 0.1, as at a"),
        ("0.1.0", "", ""),
    ],
)
def test_the_first_two_numbers_decide_who_must_upgrade(ours, theirs, who):
    text = version_conflict("a", {"unskew": ours}, "b", {"unskew": theirs} if theirs else {})
    assert text.endswith(who)
    assert bool(text) == bool(who)


def test_a_site_refuses_a_coordinator_of_another_minor(tmp_path, monkeypatch):
    monkeypatch.setattr(site, "versions", lambda: {**versions(), "unskew": "7.3.0"})
    with pytest.raises(
        UsageError,
        match=r"E504 .* refuses: s\d runs unskew 7\.3\.0 and the coordinator .* must upgrade to unskew 7\.3",
    ):
        fake.run(
            tmp_path / "new", fake.Direct(fake.sites(tmp_path / "newer", fake.federation())),
            fake.small("fedavg", rounds=1),
        )  # fmt: skip


@pytest.mark.parametrize(
    "nasty", ["0.1", {"unskew": 1}, {"a" * 101: "1"}, {"unskew": "\x1b[2J"}, {str(i): "1" for i in range(11)}]
)
def test_versions_that_are_none_are_refused(nasty):
    """A stolen key could write to the operator's terminal by them."""
    with pytest.raises(UsageError, match="E310 the request's 'versions' is"):
        site.check_header({"kind": "hello", "t": 0, "versions": nasty}, {})


def test_a_site_without_the_package_of_a_method_says_what_to_install(tmp_path, monkeypatch):
    entries = catalogue.entries()
    without = {name: entry for name, entry in entries.items() if name != "fedprox"}
    sites = fake.sites(tmp_path / "sites", fake.federation())
    settings = fake.small("fedprox", rounds=1)
    monkeypatch.setattr(catalogue, "entries", lambda: without)
    with pytest.raises(UsageError) as caught:
        study_rules.site_method(settings.method)
    text = "there is no method 'fedprox' at this site; if a package brings 'fedprox', install it here, too"
    assert caught.value.text.startswith(text)
    said = answer(sites[1000], "hello", settings=settings.as_dict())
    assert said == ("E102", caught.value.text)
