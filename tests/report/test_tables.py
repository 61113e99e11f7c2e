"""One table in four formats, and how numbers are written."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import pytest

from tests.report.fake_runs import fake_comparison
from unskew.report.analysis import results_table
from unskew.report.analysis.number_formats import megabytes
from unskew.report.analysis.runs import read_comparison
from unskew.report.analysis.stats import Score
from unskew.report.analysis.summary import summary_table

NAN = float("nan")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    path = tmp_path_factory.mktemp("c") / "c"
    return read_comparison(
        fake_comparison(path, ["fedavg", "flea", "local", "centralised"], 5, clients=8, rounds=30)
    )


@pytest.fixture(scope="module")
def rows(runs):
    return summary_table(runs)


def test_references_neither_lead_nor_are_tested(rows):
    by = {r.method: r for r in rows}
    assert by["centralised"].mean10.mean > by["flea"].mean10.mean
    assert by["flea"].leads
    assert [by[m].gap for m in ("flea", "local", "centralised")] == [None, None, None]
    assert 0 < by["fedavg"].gap.p < 0.05
    assert results_table.cells(by["local"])[1:4] == ["–", "–", "–"]
    assert results_table.cells(by["centralised"])[-3:] == ["–", "–", "reference"]


def test_a_method_that_was_not_trained_has_no_verdict_and_says_why(rows):
    """M3: scores of weights that no client has trained were shown as a method's."""
    lost = replace(rows[0], mean10=Score.of([]), untrained=2, leads=False, reference=False)
    assert results_table.verdict(lost) == "not trained"
    local = replace(lost, untrained=0)  # never has a global score
    assert results_table.verdict(local) == "–"


@pytest.mark.parametrize(("width", "tables_shown"), [(200, 1), (80, 2), (40, 5)])
def test_a_narrow_terminal_shows_every_cell_whole(rows, width, tables_shown):
    above = results_table.plain(rows, width).partition("Accuracy in %")[0].splitlines()
    assert sum(line.startswith("method") for line in above) == tables_shown
    assert max(map(len, above)) <= width
    for row in rows:
        shown = "  ".join(line for line in above if line.startswith(row.method)).split("  ")
        assert [s for s in map(str.strip, shown) if s and s != row.method] == results_table.cells(row)[1:]


def test_json_holds_no_nan(rows):
    found = json.loads(json.dumps(results_table.as_json(rows), allow_nan=False))
    assert [r["method"] for r in found] == ["fedavg", "flea", "local", "centralised"]
    assert found[2]["last"]["mean"] is None


def test_csv_is_not_rounded(rows):
    found = list(csv.DictReader(io.StringIO(results_table.as_csv(rows))))
    assert float(found[1]["mean10.mean"]) == rows[1].mean10.mean
    assert float(found[1]["mean10.std"]) == rows[1].mean10.std
    assert found[2]["last.mean"] == ""
    assert found[0]["leads"] == "False"


def test_latex_escapes_and_ranks(rows):
    text = results_table.latex([replace(rows[1], method="my_method{50%}&#"), *rows[2:]])
    assert r"\textbf{my\_method\{50\%\}\&\#}" in text
    assert text.count(r"\midrule") == 2
    assert text.isascii() or set(text) - set(map(chr, range(128))) == {"±"}  # in the comment alone
    assert "±" not in text[text.index(r"\begin") :]
    body = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert {line.replace(r"\&", "").count("&") for line in body} == {9}


@pytest.mark.parametrize(
    ("value", "written"),
    [(0, "0"), (12_345, "0.0123"), (6_130_000, "6.13"), (61.34e6, "61.3"), (1.2345e9, "1,234"), (NAN, "–")],
)
def test_megabytes_have_three_digits(value, written):
    assert megabytes(value) == written
