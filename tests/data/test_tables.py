"""Tables as people keep them: every column is read right, or refused in a sentence that names the column and
the line."""

from __future__ import annotations

import gzip
import unicodedata

import numpy as np
import pytest

import unskew
from tests.cli.calling import call
from tests.data.test_folders import notes
from unskew import config, data
from unskew.data import data_overview, prediction_inputs
from unskew.data.samples.dataset import Dataset
from unskew.errors import DataError

N = 40
STATES = ("good", "bad")


def rows(**columns) -> dict[str, list[str]]:
    """A table of N customers; columns: further ones, or others in place of these, each a function of the
    row."""
    table = {
        "bank": lambda i: f"bank {i % 4}",
        "income": lambda i: f"{1000 + 37.25 * (i * i % 101)}",
        "age": lambda i: str(20 + i * 7 % 45),
        **columns,
    }
    if "status" not in columns:
        table["status"] = lambda i: STATES[i % 3 == 0]
    return {name: [value(i) for i in range(N)] for name, value in table.items() if value}


def lines_of(columns, delimiter=",") -> str:
    return "\n".join(delimiter.join(row) for row in [list(columns), *zip(*columns.values())]) + "\n"


def at(row: int, word: str, otherwise):
    """A column with one other cell."""
    return lambda i: word if i == row else otherwise(i)


@pytest.fixture
def read(tmp_path):
    def of(delimiter=",", label="", site="", text=None, decimal="", thousands="", **columns) -> Dataset:
        path = tmp_path / "t.csv"
        path.write_text(lines_of(rows(**columns), delimiter) if text is None else text)
        options = {"label": label, "site": site, "decimal": decimal, "thousands": thousands}
        return data.read(path, **{k: v for k, v in options.items() if v})

    return of


def number(i: int) -> str:
    return f"{100 + i * i % 37}.5"


@pytest.mark.parametrize("cell", ["unknown", "1,234.50", "45.1%", "€ 300"])
def test_one_odd_cell_among_numbers_is_refused_with_its_line(read, cell):
    """A column of numbers with one cell of another kind was left out as a column of words, and nothing said
    so."""
    with pytest.raises(
        DataError, match=r"E405 t.csv: column 'x' holds numbers but .* at line 17 \(1 such cell\)"
    ):
        read(delimiter="\t", x=at(15, cell, number))


def test_columns_of_words_stay_left_out(read):
    """Dates, names and codes are no numbers."""
    d = read(
        opened=lambda i: f"2021-{1 + i % 12:02d}-{1 + i % 28:02d}",
        born=lambda i: f"{1 + i % 28}.{1 + i % 12}.2001",
        code=lambda i: f"ABC{i}",
        few=lambda i: "three" if i % 3 else "3",
    )
    for left in ("'opened' (", "'born' (", "'code' (40 different words)"):
        assert left in notes(d)
    assert "'few' (2 kinds)" in notes(d)


def test_decimal_commas_are_numbers_in_files_with_semicolons(read):
    """A German export lost all columns with decimals: `0,25` counted as a word."""
    commas = {
        "x": lambda i: f"{i * i / 8}".replace(".", ","),
        "y2": lambda i: f"{i + 1}.000,5",
        "z": lambda i: f"{i}.25",
    }
    points = {"x": lambda i: f"{i * i / 8}", "y2": lambda i: f"{i + 1}000.5", "z": lambda i: f"{i}.25"}
    german, english = read(";", **commas), read(",", **points)
    np.testing.assert_array_equal(german.x, english.x)
    assert "commas were read as decimal points" in notes(german)
    assert "commas were read" not in notes(english)


def thousand(i: int) -> str:
    """500, 1.500, 2.500 ... as a German program writes thousands."""
    return f"{i}.500" if i else "500"


ALONE = dict.fromkeys(("bank", "income", "age"))
"""Leaves out the other columns."""
AMBIGUOUS = [
    (";", {"x": lambda i: f"{i},5", "z": lambda i: f"{2 + i % 3}.100"}, 2.1, "2100"),
    (";", {"z": lambda i: f"{2 + i % 3}.100"}, 2.1, "2100"),
    (";", {"z": thousand}, 1.5, "1500"),
    (",", {"z": thousand}, 1.5, "1500"),
    ("\t", {"z": lambda i: thousand(i) if i % 2 else "500"}, 1.5, "1500"),
]


@pytest.mark.parametrize(("separator", "columns", "low", "high"), AMBIGUOUS)
def test_points_that_may_divide_thousands_are_refused(read, separator, columns, low, high):
    """In a file with decimal commas, `1.234` was read as a little more than one."""
    with pytest.raises(DataError, match=rf"E405 .*column 'z' holds .*, which may be {low} or {high}; name"):
        read(separator, **ALONE, **columns)


@pytest.mark.parametrize("separator", [";", ",", "\t"])
def test_points_are_decimals_where_another_cell_shows_it(read, separator):
    for columns in (
        {"z": thousand, "w": lambda i: f"{i}.25"},
        {"z": lambda i: f"{i}.500"},
        {"z": lambda i: f"{1 + i}.5" if i else "500"},
        {"z": lambda i: f"{1 + i}.512" if i else "5"} if separator != ";" else {"z": lambda i: f"0.{i}"},
    ):
        values = np.concatenate([(d := read(separator, **ALONE, **columns)).x[:, 0], d.x_test[:, 0]])
        assert sorted(values) == sorted(np.float32([columns["z"](i) for i in range(len(values))]))


def test_the_format_of_numbers_can_be_named_and_holds_for_predictions(read, tmp_path):
    german = {"z": thousand, "w": lambda i: f"{i}.000,5", "v": lambda i: f"{i % 7}"}
    (tmp_path / "new.csv").write_text("z;w;v\n1.500;0,25;2000\n")
    for options in ({"thousands": "."}, {"decimal": ",", "thousands": "."}):
        d = read(";", **ALONE, **german, **options)
        largest = np.max(np.concatenate([d.x, d.x_test]), axis=0).tolist()
        assert largest == [39500, 39000.5, 6]
        assert d.intake
        x = prediction_inputs.read_inputs(tmp_path / "new.csv", d.intake.form)[1]
        assert x.tolist() == [[1500, 0.25, 2000]]
    swiss = read(",", z=lambda i: f"{i}'000.5" if i else "0.5", thousands="'", **ALONE)
    assert max(swiss.x.max(), swiss.x_test.max()) == 39000.5
    assert read(";", z=thousand, decimal=".", **ALONE).x.max() < 501
    with pytest.raises(DataError, match=r"E405 .*holds numbers but '0.25'"):
        read(";", z=lambda i: f"{i}.25", decimal=",", **ALONE)
    with pytest.raises(DataError, match=r"E403 .*are one sign"):
        read(";", z=thousand, decimal=".", thousands=".")


def test_one_hot_labels_are_refused(read):
    """Of three columns is_a, is_b, is_c the last became the labels, and the other two told the answer."""
    kinds = {f"is_{c}": lambda i, k=k: str(int(i % 3 == k)) for k, c in enumerate("abc")}
    for label in ("", "is_b"):
        with pytest.raises(DataError, match=r"E404 .* in the columns is_a, is_b, is_c"):
            read(label=label, status=None, **kinds)
    assert read(status=lambda i: str(int(i % 3 == 0)), vip=lambda i: str(i % 2), label="status").shape == (7,)


@pytest.mark.parametrize("cell", ["NA", "null", "?", " "])
def test_missing_labels_and_sites_are_refused(read, cell):
    """`NA` and `?` became a class, or a site, of their own."""
    with pytest.raises(
        DataError, match=r"E404 .*column 'status' has no label at line 11.* \(1 are missing\)"
    ):
        read(status=at(9, cell, lambda i: STATES[i % 2]))
    with pytest.raises(DataError, match=r"E403 .*column 'bank' has no site at line 11 \(1 are missing\)"):
        read(bank=at(9, cell, lambda i: f"bank {i % 2}"), site="bank")
    x, y, site = (
        np.random.default_rng(0).normal(size=(20, 2)),
        np.array(["a", "b"] * 10, dtype="U9"),
        np.array(["p"] * 20, "U9"),
    )
    y[3], site[4] = cell, cell
    with pytest.raises(DataError, match=r"E404 .*sample 3 has no label"):
        data.arrays(x, y)
    for form in (site, site.astype("S9"), site.astype(object)):
        with pytest.raises(DataError, match=r"E403 .*column 'site' has no value for sample 4"):
            data.arrays(x, ["a", "b"] * 10, columns={"site": form})
    assert data.arrays(x, ["a", "b"] * 10, columns={"site": np.array([b"p", b"q"] * 10)}).labels["site"] == (
        "p",
        "q",
    )


X, Y = np.random.default_rng(0).normal(size=(N, 3)).astype(np.float32), np.arange(N) % 2


def test_a_site_in_the_text_deals_by_it(tmp_path):
    """`--data "t.csv(site=bank)"` without --skew dealt at random, and Python's site= did not."""
    path = tmp_path / "t.csv"
    path.write_text(lines_of(rows()))
    text = f"{path}(label=status, site=bank)"
    assert config.build({"data": text}).skew == "column:bank"
    assert config.build({"data": text, "skew": "iid"}).skew == "iid"
    assert config.build({"data": str(path)}).skew == config.Settings().skew
    (tmp_path / "base.yaml").write_text("rounds: 1\nepochs: 1\n")  # which says nothing of a skew
    for words in (["run", "fedavg"], ["compare", "fedavg", "fedprox", "--seeds", "1"]):
        base, folder = str(tmp_path / "base.yaml"), str(tmp_path)
        assert "bank 3" in call(*words, "--config", base, "--data", text, "--dry-run", "--folder", folder).out
    result = unskew.run("fedavg", f"{path}(label=status)", site="bank", rounds=1, epochs=1)
    assert result.settings.data == text
    assert result.federation.clients == 4


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", lambda i: str(700 + i)),
        ("customer_id", lambda i: str(i * 7919 % 10007)),
        ("Index", lambda i: f"{i * 3}"),
    ],
)
def test_row_numbers_are_left_out(read, name, value):
    """A column that counts the rows was a feature like any other, unless it was called `id`."""
    d = read(**{name: value})
    assert f"columns '{name}' (numbers of rows)" in notes(d)
    assert "numbers of rows" not in notes(read(paid=lambda i: str(i * 3), few=lambda i: str(i % 20)))


@pytest.mark.parametrize(
    "header", ["9,2.5,7,good", "0,1,yes,good", "2021-01-01,2021-01-02,2021-01-03,2021-01-04", ",,,9"]
)
def test_a_missing_header_is_refused(read, header):
    """The first row of a table without a header was taken for names, and lost."""
    with pytest.raises(DataError, match=r"E401 .*first line looks like data"):
        read(text=header + "\n" + lines_of(rows()))


def test_the_last_column_is_told_or_refused(read):
    """Whatever stood last became the labels, also dates and numbers of rows."""
    assert "from the column 'status', the last; label=NAME chooses another" in notes(read())
    assert "from the column 'class'" in notes(read(**{"class": lambda i: "ab"[i % 2]}))
    table = {**rows(), "opened": [f"2021-01-{1 + i % 5:02d}" for i in range(N)]}
    with pytest.raises(
        DataError, match=r"E404 .*the last, 'opened', holds dates; .*out of bank, income, age, status, opened"
    ):
        read(text=lines_of(table))
    table["opened"] = [f"customer {i}" for i in range(N)]
    with pytest.raises(DataError, match=r"E404 .*the last, 'opened', has 40 different values in 40 rows"):
        read(text=lines_of(table))
    copied = read(text=lines_of({**rows(), "label": list("ab" * 20), "class": list("cd" * 20)}))
    assert "column 'class' has a value of its own for each class" in data_overview.table(copied)
    assert "'label'; 'class' counts as a feature, label=class chooses it" in notes(copied)


def test_names_in_two_unicode_forms_are_one(read):
    """A site whose name came from two systems became two sites, which look the same."""
    forms = [unicodedata.normalize(form, "Köln") for form in ("NFC", "NFD")]
    d = read(
        bank=lambda i: forms[i % 2] if i % 3 else "Bonn",
        status=lambda i: forms[i // 2 % 2] if i % 5 else "Bonn",
        site="bank",
    )
    assert d.labels["bank"] == ("Bonn", forms[0])
    assert d.classes == ("Bonn", forms[0])


def part(begin: int, end: int, order=(0, 1, 2, 3), delimiter=",", **columns) -> str:
    table = list(rows(**columns).items())
    return lines_of({table[k][0]: table[k][1][begin:end] for k in order}, delimiter)


def test_a_folder_holds_train_and_test_tables(tmp_path):
    """train.csv and test.csv beside each other were a folder without images."""
    (tmp_path / "train.csv").write_text(part(0, 30))
    (tmp_path / "test.csv").write_text(part(30, 40, (3, 1, 0, 2)))
    (tmp_path / "val.csv").write_text(part(0, 5))
    d = data.read(tmp_path)
    assert (len(d.y), len(d.y_test), d.classes) == (30, 10, ("bad", "good"))
    (tmp_path / "whole.csv").write_text(part(0, 40))
    whole = data.read(tmp_path / "whole.csv")
    assert d.shape == whole.shape
    assert "left out: val.csv" in notes(d)
    income = [float(v) for v in rows()["income"]]
    np.testing.assert_allclose(np.sort(d.x_test[:, 4]), np.sort(np.float32(income[30:])))
    (tmp_path / "test.csv").write_text(part(30, 40, (0, 1, 3)))
    with pytest.raises(DataError, match=r"E403 test.csv has no column 'age', which train.csv has"):
        data.read(tmp_path)
    (tmp_path / "test.csv").write_text(part(30, 40, age=at(31, "old", number)))
    with pytest.raises(DataError, match=r"E405 .*column 'age' holds numbers but 'old' at line 3 of test.csv"):
        data.read(tmp_path)
    (tmp_path / "training.csv").write_text(part(0, 5))
    with pytest.raises(DataError, match=r"E403 .* has both train.csv and training.csv"):
        data.read(tmp_path)
    (tmp_path / "training.csv").unlink()
    (tmp_path / "test.csv").write_text(part(30, 40, status=lambda i: "fraud" if i == 31 else "good"))
    assert "no training sample of class fraud" in notes(data.read(tmp_path))


def test_points_of_one_part_are_not_thousands_because_the_other_has_commas(tmp_path):
    """Beside a train.csv with decimal commas, `1.368` in test.csv with points was read as 1368."""
    (tmp_path / "train.csv").write_text(
        "w;kind\n" + "".join(f"1,{25 + i};{'ab'[i % 2]}\n" for i in range(20))
    )
    (tmp_path / "test.csv").write_text("w,kind\n1.25,a\n1.368,b\n")
    with pytest.raises(
        DataError, match=r"E405 test.csv: .*'w' holds 1.368 at line 3, and train.csv has decimal commas"
    ):
        data.read(tmp_path)
    (tmp_path / "test.csv").write_text("w,kind\n1.25,a\n1.36,b\n")
    x, x_test = data.read(tmp_path).x, data.read(tmp_path).x_test
    np.testing.assert_allclose(x_test[:, 0], np.float32([1.25, 1.36]))
    assert 1.2 < x.min() < x.max() < 1.5


def test_packed_tables_are_read(tmp_path):
    """`.csv.gz` was refused, though Python unpacks it."""
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(lines_of(rows()).encode()))
    d = data.read(tmp_path / "t.csv.gz")
    assert (d.name, len(d.y) + len(d.y_test)) == ("t", N)
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(lines_of(rows()).encode())[:60])
    with pytest.raises(DataError, match=r"E401 .*cannot be read as a table"):
        data.read(tmp_path / "t.csv.gz")


@pytest.mark.parametrize("column", ["split", "subset", "Partition"])
def test_a_column_of_parts_divides_the_rows_and_leaves_validation_out(tmp_path, column):
    """Rows called val were trained on without a word, and so were all under a name that is not `split`."""
    (tmp_path / "t.csv").write_text(
        lines_of(rows(**{column: lambda i: ("Train", "test", "train", "val")[i % 4]}))
    )
    d = data.read(tmp_path / "t.csv")
    assert (len(d.y), len(d.y_test)) == (20, 10)
    assert ("left out", "10 rows for validation: choose settings with validation=0.1") in d.intake.notes
    ages = {float(20 + i * 7 % 45) for i in range(N) if i % 4 in (0, 2)}
    assert any(set(d.x[:, c].tolist()) == ages for c in range(d.shape[0]))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ("train", "test", "holdout"),
            r"E403 t\.csv: column 'split' divides the rows, and holds 'holdout' beside train and",
        ),
        (("test", "val"), r"E403 t\.csv: column 'split' says of no row that it is for training"),
    ],
)
def test_a_column_of_parts_that_leaves_rows_unclear_is_refused(tmp_path, words, says):
    (tmp_path / "t.csv").write_text(lines_of(rows(split=lambda i: words[i % len(words)])))
    with pytest.raises(DataError, match=says):
        data.read(tmp_path / "t.csv")


def test_a_table_that_memory_does_not_hold_is_refused_while_it_is_read(tmp_path, monkeypatch):
    """It took sixteen times its size, until the system ended the process; a small packed file may hold as
    much as it likes."""
    text = "a,label\n" + "".join(f"{i}.5,{i % 2}\n" for i in range(300))
    (tmp_path / "t.csv").write_text(text)
    with gzip.open(tmp_path / "t.csv.gz", "wt") as file:
        file.write(text)
    monkeypatch.setattr("unskew.data.files.sheets.usable_memory", lambda: 16 * len(text))
    assert len(data.read(tmp_path / "t.csv").y) + len(data.read(tmp_path / "t.csv").y_test) == 300
    monkeypatch.setattr("unskew.data.files.sheets.usable_memory", lambda: 16 * (len(text) - 1))
    for name in ("t.csv", "t.csv.gz"):
        with pytest.raises(
            DataError, match=r"E142 .*holds more than 2,\d\d\d characters, .*; save it as Parquet"
        ):
            data.read(tmp_path / name)


SITE_TABLE = "age,crp,diagnosis\n" + "".join(f"{30 + i * i},0.{i},{STATES[i % 2]}\n" for i in range(10))


@pytest.fixture
def hospitals(tmp_path):
    for i, name in enumerate(("north", "south")):
        (tmp_path / "hospitals").mkdir(exist_ok=True)
        (tmp_path / "hospitals" / f"{name}.csv").write_text(SITE_TABLE.replace("30", f"4{i}"))
    return tmp_path / "hospitals"


def test_each_csv_file_of_a_folder_or_pattern_is_a_site(hospitals, monkeypatch):
    monkeypatch.chdir(hospitals.parent)
    settings = {"rounds": 1, "model": "mlp", "label": "diagnosis"}
    (hospitals / "README.md").write_text("Two hospitals.")
    one = unskew.run("fedavg", "hospitals", **settings)
    for source in ("hospitals/*.csv", hospitals):
        again = unskew.run("fedavg", source, **settings)
        assert again.digest == one.digest
        assert again.federation.names == ("north", "south")
    assert one.federation.sizes.tolist() == [8, 8]
    text = call("run", "fedavg", "--data", "hospitals/*.csv", "--dry-run").out
    assert "16 training samples of 2 clients" in text
    assert "hospitals" in text


def test_files_of_sites_are_sites_by_name_and_need_no_usual_label(hospitals):
    """`site=site` is the column that they have; of another name the error says what to do."""
    for file in hospitals.iterdir():
        file.write_text(file.read_text().replace("diagnosis", "finding"))
    one, other = data.read(hospitals), data.read(hospitals, site="site")
    assert one.classes == other.classes == ("bad", "good")
    assert (one.columns["site"] == other.columns["site"]).all()
    assert unskew.diagnose(str(hospitals), site="site").split == "column:site"
    with pytest.raises(DataError, match=r"E403 .*have no column 'hospital' in common; leave site out"):
        data.read(hospitals, site="hospital")


def test_columns_that_some_sites_lack_are_left_out_with_a_note(hospitals):
    (hospitals / "west.csv").write_text("crp,bmi,diagnosis,age\n" + "1,20,good,50\n2,21,bad,61\n" * 5)
    d = data.read(hospitals)
    assert d.shape == (2,)
    assert "column 'bmi', only in the tables of west" in notes(d)
    assert np.concatenate([d.x, d.x_test])[:, 0].max() == 111
    (hospitals / "test.csv").write_text(SITE_TABLE)
    with pytest.raises(DataError, match=r"E403 .* a table called test among tables of sites"):
        data.read(hospitals)
    (hospitals / "test.csv").unlink()
    (hospitals / "west.csv").write_text("a,b\n1,2\n3,4\n")
    with pytest.raises(DataError, match=r"E403 .*have no column in common"):
        data.read(hospitals)
