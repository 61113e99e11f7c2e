"""Sites whose samples have one shape and mean different things: columns in another order, other words,
another rate."""

from __future__ import annotations

import json
import re
import wave
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from tests.federation import fake
from unskew.data.samples.intake import Intake
from unskew.errors import UsageError
from unskew.federation import site_data
from unskew.federation.protocol import hello as protocol_hello
from unskew.federation.protocol.hello import Hello, check_compatible, data_change, largest_group
from unskew.federation.protocol.identity import PrivateKey
from unskew.federation.site.policy import Policy
from unskew.federation.site.site import Site, SiteIdentity

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
    (
        ("age", "bp", "sex", "label"),
        {"m": "male", "f": "female"},
        "column 'sex' holds other words at a than at b",
    ),
    (("age", "bp", "sex", "label"), {"m": "f", "f": "f"}, "column 'sex' holds 2 words at a and 1 word at b"),
    (("age", "bp", "sex", "label"), {"m": 0, "f": 1}, "column 'sex' holds 2 words at a and numbers at b"),
]


@pytest.mark.parametrize(("names", "words", "why"), OTHERS)
def test_tables_of_one_shape_that_mean_different_things_are_refused(tmp_path, names, words, why):
    one, other = table(tmp_path / "a.csv"), table(tmp_path / "b.csv", names, words)
    assert one.shape == other.shape
    with pytest.raises(UsageError, match=f"E504 sites hold different data: {why}"):
        check_compatible([hello("a", one), hello("b", other)])
    check_compatible([hello("a", one), hello("b", table(tmp_path / "c.csv"))])


def test_other_columns_are_named(tmp_path):
    one, other = table(tmp_path / "a.csv"), hello("b", table(tmp_path / "b.csv"))
    renamed = tuple(("weight" if name == "bp" else name, became) for name, became in other.form)
    with pytest.raises(UsageError, match="column 'bp' is only at a; column 'weight' is only at b"):
        check_compatible([hello("a", one), Hello(**{**vars(other), "form": renamed})])


@pytest.mark.parametrize(
    ("names", "sexes", "why"),
    [
        (("age", "sex", "label"), "mf", f"column 'bp' is only at a; {protocol_hello.COLUMN_REMEDY}."),
        (
            ("age", "bp", "sex", "label"),
            "md",
            f"other words at a than at b; {protocol_hello.SPELLING_REMEDY}.",
        ),
        (
            ("age", "bp", "sex", "label"),
            "mfd",
            f"2 words at a and 3 words at b; {protocol_hello.SPELLING_REMEDY}.",
        ),
    ],
)
def test_columns_are_named_before_shapes_with_what_mends_them(tmp_path, names, sexes, why):
    """Of a table with a column less, or a word more, only the numbers of its columns were said: shape are [4]
    and [3]."""
    rows = [(*row[:2], sexes[i % len(sexes)], row[3]) for i, row in enumerate(ROWS)]
    one, other = table(tmp_path / "a.csv"), table(tmp_path / "b.csv", names, None, rows)
    with pytest.raises(UsageError, match=f"E504 sites hold different data: .*{re.escape(why)}$"):
        check_compatible([hello("a", one), hello("b", other)])


def test_the_site_of_another_order_is_left_out_whoever_else_names_no_columns(tmp_path):
    a, other = table(tmp_path / "a.csv"), table(tmp_path / "b.csv", ("bp", "age", "sex", "label"))
    np.savez(tmp_path / "n.npz", x=np.asarray(a.x), y=a.y, classes=["no", "yes"])
    nameless = hello("n", site_data.load(str(tmp_path / "n.npz")))
    assert nameless.form == ()
    there, apart = largest_group([nameless, hello("a", a), hello("b", other), hello("c", a)])
    assert [h.site for h in there] == ["n", "a", "c"]
    assert "another order: 'age' stands at a where b has 'bp'" in apart["b"]
    with pytest.raises(UsageError, match="another order"):
        check_compatible([nameless, hello("a", a), hello("b", other)])


def test_a_site_that_comes_back_with_its_columns_in_another_order_is_another(tmp_path):
    before = hello("a", table(tmp_path / "a.csv"))
    after = hello("a", table(tmp_path / "a.csv", ("bp", "age", "sex", "label")))
    assert data_change(before, after) == "a has other data than when the run began"
    assert not data_change(before, hello("a", table(tmp_path / "a.csv")))
    assert not data_change(Hello(**{**vars(before), "form": ()}), after)  # the run began before sites said so


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
    for site, rate in (("a", 8_000), ("b", 16_000)):
        for label in ("no", "yes"):
            (tmp_path / site / label).mkdir(parents=True)
            for i in range(5):
                with wave.open(str(tmp_path / site / label / f"{i}.wav"), "wb") as file:
                    file.setnchannels(1), file.setsampwidth(2), file.setframerate(rate)
                    t = np.arange(rate) / rate
                    file.writeframes((9000 * np.sin(6.283 * (300 + 40 * i) * t)).astype("<i2").tobytes())
        sets.append(site_data.load(str(tmp_path / site)))
    assert sets[0].shape == sets[1].shape
    with pytest.raises(UsageError, match="sounds are read with 8000 samples a second at a and 16000"):
        check_compatible([hello("a", sets[0]), hello("b", sets[1])])


@pytest.mark.parametrize("claimed", [7, [["a"]], [["a", "b", "c"]], ["ab", 3], [["a", "b"]] * 3000])
def test_what_a_site_makes_up_of_its_columns_is_no_form(tmp_path, claimed):
    facts = Hello.of("a", table(tmp_path / "a.csv"), {}).as_json() | {"form": claimed}
    with pytest.raises((TypeError, ValueError)):
        Hello.read(facts)


def test_the_operator_reads_that_names_of_columns_leave(tmp_path):
    data = table(tmp_path / "a.csv")
    Policy().write(tmp_path)
    site = Site(SiteIdentity("s0", tmp_path, PrivateKey.make(), fake.COORDINATOR.public), lambda: data)
    from unskew.federation.site.study_review import forecast_settings

    _, lines = forecast_settings(site.data, fake.Settings(method="fedavg", model="mlp", clients=2))
    told = (
        "shape, names of columns, digests of the words in columns of words, class names, whether samples look"
        " unscaled"
    )
    assert any(told in line for line in lines)


def beside(path, words, order="image,age,sex"):
    """Images that a table lists, two of whose columns are inputs beside them. words: which stand for the
    sexes."""
    path.mkdir()
    for i in range(8):
        Image.new("L", (8, 8), 20 * i).save(path / f"{i}.png")
    lines = [
        "file,age,sex,label",
        *(f"{i}.png,{60 + i % 3},{words[i % 2]},{'ny'[i // 2 % 2]}" for i in range(8)),
    ]
    (path / "list.csv").write_text("\n".join(lines) + "\n")
    return site_data.load(f"{path}(x='{order}', size=8)", ["n", "y"])


def test_columns_beside_images_mean_the_same_at_every_site(tmp_path):
    """Words become 0 and 1 at each site by those that it has; a site with others would have trained on other
    numbers."""
    one = hello("a", beside(tmp_path / "a", "mf"))
    check_compatible([one, hello("b", beside(tmp_path / "b", "mf", "image,sex,age"))])
    with pytest.raises(
        UsageError, match="E504 sites hold different data: column 'sex' holds 2 words at a and 1 word at b"
    ):
        check_compatible([one, hello("b", beside(tmp_path / "c", "ff"))])
    assert (
        protocol_hello.form_disclosure(one.form)
        == "names of columns, digests of the words in columns of words"
    )


def test_sounds_among_several_inputs_are_read_alike():
    """Columns of files in Parquet."""

    def of(rate):
        voice = {"kind": "sounds", "rate": rate, "seconds": 4.0, "window": 512}
        files = {"voice": voice, "photo": {"kind": "images", "size": 8}}
        form = {"kind": "arrays", "layout": "auto", "files": files}
        return protocol_hello.form_of(SimpleNamespace(intake=Intake(form=form)))

    assert protocol_hello.form_disclosure(of(8000)) == "at which rate sounds are read, names of columns"
    why = protocol_hello.form_difference(("a", "b"), (of(8000), of(4000)))
    assert why.startswith("column 'voice' holds sounds of 8000 samples a second")
    assert why.endswith("512 a frame at b; let it hold the same at all sites")
    assert not protocol_hello.form_difference(("a", "b"), (of(8000), of(8000)))


def test_columns_beside_sounds_are_told_with_the_rate():
    sound = (("rate", "8000"), ("seconds", "4"), ("window", "512"))
    form, other = (*sound, ("age", protocol_hello.NUMBERS)), (*sound, ("weight", protocol_hello.NUMBERS))
    assert protocol_hello.form_disclosure(form) == "at which rate sounds are read, names of columns"
    told = f"column 'age' is only at a; column 'weight' is only at b; {protocol_hello.COLUMN_REMEDY}"
    assert protocol_hello.form_difference(("a", "b"), (form, other)) == told
    assert (
        protocol_hello.form_disclosure((("rate", protocol_hello.NUMBERS), ("age", protocol_hello.NUMBERS)))
        == "names of columns"
    )
    slower = (("rate", "4000"), *form[1:])
    assert "sounds are read with 8000 samples a second at a and 4000" in protocol_hello.form_difference(
        ("a", "b"), (form, slower)
    )
