"""Tables with cells without a value, and the choice of columns: at reading, training, predicting and at a
site."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import unskew
from unskew import data
from unskew.data import prediction_inputs
from unskew.errors import DataError

LINES = """hospital,age,bp,sex,remark,sick
a,60,120,m,r1,1
a,,130,f,r2,0
b,80,,,r3,1
b,40,110,m,r4,0
a,70,NA,m,r5,1
b,50,90,f,r6,0
"""


@pytest.fixture
def table(tmp_path):
    file = tmp_path / "t.csv"
    file.write_text(LINES)
    return file


def rows_of(file, **options):
    """The rows of a table in natural units, by column."""
    read = data.read(file, label="sick", site="hospital", **options)
    names = [
        name if len(kinds) < 3 else f"{name}={kind}"
        for name, kinds in read.intake.form["columns"]
        for kind in (kinds if len(kinds) > 2 else [""])
    ]
    return dict(zip(names, np.concatenate([read.x, read.x_test]).T.tolist()))


def test_all_columns_with_missing_values_are_listed_with_the_remedy(table):
    with pytest.raises(DataError) as refused:
        data.read(table, label="sick")
    text = refused.value.text
    assert refused.value.code == "E405"
    for part in (
        "3 columns",
        "'age' has no value at line 3 (1 are missing)",
        "'bp' has no value at line 4 (2 are missing)",
        "'sex' has no value at line 4 (1 are missing)",
        "missing=median",
        "drop='age,bp,sex'",
    ):
        assert part in text


def test_the_remedy_that_leaves_columns_out_works_as_it_stands(tmp_path):
    """For one column, for more than the error lists, and for names with commas and quotes."""
    for names in (["a b"], [f"c{i}" for i in range(12)], ["dose, mg", "it's"]):
        head = ",".join(f'"{name}"' for name in [*names, "v", "sick"])
        lines = [
            ",".join([*([""] if i == 0 else ["1.5"]) * len(names), f"{i}.5", str(i % 2)]) for i in range(9)
        ]
        (tmp_path / "t.csv").write_text("\n".join([head, *lines]) + "\n")
        with pytest.raises(DataError) as refused:
            data.read(tmp_path / "t.csv")
        remedy = refused.value.text.partition(" FILE(drop")[2].partition(" leave")[0]
        read = data.read(f"{tmp_path}/t.csv(drop{remedy}")
        assert [name for name, _ in read.intake.form["columns"]] == ["v"]


MISTAKES = """age,bp,weight,note,visit,sick
60,120,"70,5",,2021-01-02,1
,130,"81,0",r2,,0
80,45%,"66,5",r3,2021-02-02,1
40,110,"90,0",r4,2021-03-02,0
"""


@pytest.mark.parametrize("missing", ["refuse", "median"])
def test_holes_and_mistakes_of_all_columns_stand_in_one_error(tmp_path, missing):
    """Filling mends the holes; the two columns with mistakes stay."""
    (tmp_path / "t.csv").write_text(MISTAKES)
    with pytest.raises(DataError) as refused:
        data.read(tmp_path / "t.csv", missing=missing)
    text = refused.value.text
    for part in ("'bp' holds numbers but '45%' at line 4", "'weight' holds numbers but '70,5' at line 2"):
        assert part in text
    assert ("'age' has no value at line 3" in text) is (missing == "refuse")
    assert "decimal=','" in text


def test_a_column_that_is_left_out_may_have_holes(tmp_path):
    """Remarks of their own in every row are no feature."""
    lines = [f"{i},{'' if i == 3 else f'remark {i}'},{int(i) % 2}" for i in (*range(30), 30.5)]
    (tmp_path / "t.csv").write_text("\n".join(["v,remark,sick", *lines]) + "\n")
    assert [c for c, _ in data.read(tmp_path / "t.csv").intake.form["columns"]] == ["v"]


def test_numbers_take_the_median_of_their_site_and_words_a_kind_of_their_own(table):
    """By hand: ages 60 and 70 at a, so 65; pressures 110 and 90 at b, so 100, and 120 and 130 at a, so 125."""
    rows = rows_of(table, missing="median", drop="remark")
    assert sorted(rows["age"]) == [40, 50, 60, 65, 70, 80]
    assert sorted(rows["bp"]) == [90, 100, 110, 120, 125, 130]
    assert sum(rows["sex=missing"]) == 1


def test_an_indicator_marks_the_missing_numbers_of_each_column(table):
    rows = rows_of(table, missing="indicator", x=["age", "bp"])
    assert list(rows) == ["age", "age is missing", "bp", "bp is missing"]
    assert [sum(rows[f"{name} is missing"]) for name in ("age", "bp")] == [1, 2]
    assert [rows["age"][i] for i, gone in enumerate(rows["age is missing"]) if gone] == [65]


@pytest.mark.parametrize(
    ("options", "columns"),
    [
        ({"x": "age,bp"}, ["age", "bp"]),
        ({"x": ["bp"]}, ["bp"]),
        ({"drop": "remark, sex"}, ["age", "bp"]),
    ],
)
def test_columns_are_chosen_or_left_out_by_name(table, options, columns):
    read = data.read(table, label="sick", missing="median", **options)
    assert [name for name, _ in read.intake.form["columns"]] == columns


def test_a_dropped_column_has_no_role(table):
    """The column of hospitals was the sites although it was left out."""
    read = data.read(table, label="sick", missing="median", drop="hospital")
    assert "hospital" not in read.columns


@pytest.mark.parametrize("options", [{"x": "agee"}, {"drop": "agee"}])
def test_a_column_that_does_not_exist_is_refused_with_the_nearest(table, options):
    with pytest.raises(DataError, match=r"E403 t.csv has no column 'agee'.*age"):
        data.read(table, label="sick", missing="median", **options)


def test_rows_of_the_test_part_do_not_enter_the_medians(tmp_path):
    (tmp_path / "train.csv").write_text("v,w,y\n1,5,0\n3,6,1\n,7,0\n5,8,1\n")
    (tmp_path / "test.csv").write_text("v,w,y\n100,5,0\n,6,1\n")
    read = data.read(tmp_path, label="y", missing="median")
    assert read.x_test[:, 0].tolist() == [100, 3]
    assert read.intake.form["missing"]["v"] == 3


def test_parquet_tables_are_filled_and_dropped_from_as_csv(table, tmp_path):
    pq, csv = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow.csv")
    options = csv.ConvertOptions(strings_can_be_null=True, null_values=["", "NA"])
    pq.write_table(csv.read_csv(table, convert_options=options), tmp_path / "t.parquet")
    for missing in ("median", "indicator"):
        kept = {"missing": missing, "drop": "remark"}
        assert rows_of(tmp_path / "t.parquet", **kept) == rows_of(table, **kept)
    read = data.read(tmp_path / "t.parquet", label="sick", site="hospital", **kept)
    pq.write_table(csv.read_csv(table, convert_options=options).slice(1, 1), tmp_path / "new.parquet")
    new = prediction_inputs.read_inputs(tmp_path / "new.parquet", read.intake.form)[1]
    assert new[0, 0] == read.intake.form["missing"]["age"] == 60
    with pytest.raises(DataError, match=r"'bp' has no value at row 2 .*FILE\(missing=median\)"):
        data.read(tmp_path / "t.parquet", label="sick", drop="remark,age,sex")
    chosen = {"missing": "median", "x": "bp, age", "drop": ["remark"]}
    assert rows_of(tmp_path / "t.parquet", **chosen) == rows_of(table, **chosen)
    assert list(rows_of(tmp_path / "t.parquet", **chosen)) == ["bp", "age"]
    with pytest.raises(DataError, match=r"E403 t.parquet has no column 'agee'.*age"):
        data.read(f"{tmp_path}/t.parquet(label=sick, x='bp,agee')")


def patients(rng, file, rows=200):
    """A table with holes in which sick people are older."""
    y = rng.integers(0, 2, rows)
    age = (50 + 30 * y + rng.normal(0, 8, rows)).round(1).astype(str)
    age[rng.random(rows) < 0.2] = ""
    sex = rng.choice(["m", "f", ""], rows)
    lines = [f"{a},{s},{'ab'[i % 2]},{label}" for i, (a, s, label) in enumerate(zip(age, sex, y))]
    file.write_text("age,sex,site,sick\n" + "\n".join(lines) + "\n")


@pytest.mark.parametrize("how", ["median", "indicator"])
def test_a_run_predicts_tables_with_holes_by_the_medians_of_its_training(tmp_path, how):
    """The prediction for an empty cell is that for the median of all training rows; with an indicator another
    one."""
    patients(np.random.default_rng(0), tmp_path / "t.csv")
    run = unskew.run(
        "fedavg",
        f"{tmp_path}/t.csv(label=sick,site=site,missing={how})",
        rounds=5,
        skew="column:site",
        model="mlp",
        lr=0.1,
        progress=False,
    )
    assert run.scores()["last"] > 0.8
    median = run.federation.intake.form["missing"]["age"]
    assert 55 < median < 75
    (tmp_path / "new.csv").write_text(f"sex,age\nm,\nm,{median}\n,90\nf,40\n")
    with pytest.warns(UserWarning, match=r"empty cells were filled.*: 'age' \(1 of 4\), 'sex' \(1 of 4\)"):
        rows = prediction_inputs.read_inputs(tmp_path / "new.csv", run.federation.intake.form)[1]
    empty, known, old, young = run.predict_proba(rows)
    assert np.array_equal(empty, known) == (how == "median")
    assert rows[0, 0] == pytest.approx(median)
    assert [float(p[1]) > 0.5 for p in (old, young)] == [True, False]
    run.export(tmp_path / "e")
    takes = json.loads((tmp_path / "e" / "model.json").read_text())["inputs"]
    assert takes["form"]["missing"]["age"] == median
    assert "NaN in a column of numbers is filled" in takes["missing"]
    graph = torch.export.load(tmp_path / "e" / "model.pt2").module()
    holes = rows.copy()
    holes[0, : 1 + (how == "indicator")] = np.nan
    assert graph(torch.tensor(holes)).softmax(1).detach().numpy() == pytest.approx(
        run.predict_proba(rows), abs=1e-5
    )


def test_a_site_fills_its_own_cells_and_its_medians_do_not_leave_it(tmp_path):
    """What a site says of its table is the same for other medians; its rows are those of a simulation in
    which it is a client."""
    from unskew.federation.protocol.hello import form_of

    rng = np.random.default_rng(1)
    patients(rng, tmp_path / "all.csv")
    lines = (tmp_path / "all.csv").read_text().splitlines()
    both = data.read(tmp_path / "all.csv", label="sick", site="site", missing="indicator")
    forms, alone = [], []
    for name in "ab":
        own = tmp_path / f"{name}.csv"
        own.write_text("\n".join([lines[0], *(line for line in lines[1:] if line.split(",")[2] == name)]))
        one = data.read(own, label="sick", missing="indicator", drop="site")
        forms.append(form_of(one))
        alone.append(one.intake.form["missing"]["age"])
    assert forms[0] == forms[1] == form_of(both)
    assert alone[0] != alone[1]


def test_clients_tables_are_predicted_with_the_median_of_their_medians(tmp_path):
    """The medians of the first client filled the empty cells of a new table."""
    for name, far in (("a", 0), ("b", 100), ("c", 110)):
        rows = [f"{'' if i % 5 == 0 else far + i % 5},{'xy'[i % 2]}" for i in range(40)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["age,label", *rows]))
    joined = unskew.data.take({n: f"{tmp_path / n}.csv(missing=median)" for n in "abc"})
    assert joined.intake.form["missing"] == {"age": 102.5}
    assert joined.intake.gaps == {"age": {"a": 8, "b": 8, "c": 8}}
