"""The pages of reproduced tables, also of shortened runs, from kept results that may be somebody else's."""

from __future__ import annotations

import copy
import json
import re
import sys
from types import SimpleNamespace

import pytest

import unskew
from unskew.errors import DataError, UsageError
from unskew.experiments import pages
from unskew.experiments.result import TableResult

WHOLE: TableResult = {
    **{
        "experiment": "t",
        "title": "T",
        "paper": "P",
        "measure": "best",
        "unit": "percent",
        "metric": "accuracy",
    },
    **{"scope": "global", "finding": "", "page": "t", "command": "c", "seeds": 2, "scale": 1.0},
    **{
        "seconds_now": 1.0,
        "unskew": "0",
        "made_by": {},
        "date": "d",
        "machine": "m",
        "hours": 0.1,
        "claims": [],
    },
    "rows": {"r": {"note": ""}},
    "entries": [
        {
            **{
                "row": "r",
                "method": "FLea",
                "paper": 48.43,
                "gap": -8.1,
                "megabytes": 1.0,
                "ahead": None,
                "p": None,
            },
            **{
                s: {"mean": 40.3, "std": 1.0, "n": 2} for s in ("ours", "last", "best", "mean10", "stability")
            },
        }
    ],
    **{"open": [], "privacy": {}},
    "curves": {"r": {"FLea": [[[t, 10.0 + t] for t in range(2, 13)], [[t, 12.0 + t] for t in range(2, 13)]]}},
}  # type: ignore[typeddict-item]
CLAIM = {"text": "it helps", "verdict": "reproduced", "margins": {"r": 2.0}, "paper": {"r": 1.5}}


def result(**changes):
    return {**copy.deepcopy(WHOLE), **changes}


def entry(method="FLea", row="r", **changes):
    return {**copy.deepcopy(WHOLE["entries"][0]), "method": method, "row": row, **changes}


def test_a_bar_in_a_name_does_not_end_the_cell_of_a_markdown_table():
    held = result(
        rows={"a|b": {"note": ""}},
        entries=[entry("m|n", "a|b")],
        curves={},
        claims=[{**CLAIM, "text": "one | line\nand another", "margins": {"a|b": 1.0}}],
    )
    page = pages.markdown_page(held)
    tables = [line for line in page.splitlines() if line.startswith("|")]
    counts = [len(re.findall(r"(?<!\\)\|", line)) for line in tables]
    assert counts == [counts[0]] * 3 + [4] * 3
    assert "a\\|b | m\\|n" in page
    assert "| one \\| line and another | reproduced |" in page


def test_a_markdown_page_has_what_was_run_and_found():
    held = result(
        claims=[CLAIM, {**CLAIM, "verdict": "not run", "margins": {}}],
        finding="It does.",
        open=["the rate"],
        rows={"r": {"note": "with 20 clients"}},
    )
    page = pages.markdown_page(held)
    assert page.startswith(
        "# T\n\nP.\n\n```sh\nc\n```\n\nMade with unskew 0 on d: m; 0.10 hours of training in all runs."
    )
    assert "| claim | here | margin in points by row or step (95 % interval) [the paper's] |" in page
    assert "| it helps | reproduced | r +2.0 [+1.5] |\n\nNot run: it helps." in page
    assert "## Notes\n\n- `r`: with 20 clients." in page
    assert "## Open questions, and our choice\n\n- the rate" in page
    assert page.endswith("## What we found\n\nIt does.\n")
    own = pages.markdown_page({**held, "paper": "", "unit": "number"})
    assert "| claim | here | margin by row or step (95 % interval)" in own
    assert "\n\n\n" not in own


def test_the_privacy_of_what_is_shared_has_a_row_for_each_reading():
    readings = [{"epsilon": 3.0, "reading": "as published"}, {"epsilon": None, "reading": "with the sizes"}]
    held = result(privacy={"r": {"FLea": {"p": {"release": "prototypes", "epsilons": readings}}}})
    page = pages.markdown_page(held)
    lines = page.partition("## Differential privacy")[2].splitlines()
    rows = [line for line in lines if line.startswith("| r |")]
    assert [row.split(" | ")[3:] for row in rows] == [
        ["3", "as published |"],
        ["infinite", "with the sizes |"],
    ]


@pytest.mark.parametrize("page", ["../elsewhere", "a/b", "/tmp/x", "", ".hidden", None, "javascript:a(1)//"])
def test_a_result_that_would_be_written_elsewhere_is_refused(tmp_path, page):
    (tmp_path / "a.json").write_text(json.dumps(result(page=page)))
    with pytest.raises(DataError, match=r"^E401 .*a\.json names its page "):
        pages.results_in(tmp_path)


def test_a_result_is_kept_read_again_and_its_pages_made(tmp_path):
    held = result()
    page = pages.write_result(tmp_path, held)
    assert page == tmp_path / "t.md"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["README.md", "t.json", "t.md"]
    assert pages.results_in(tmp_path) == [held]
    assert '   "FLea": [[[2,12.0],' in (tmp_path / "t.json").read_text()  # a curve is one line


def test_a_kept_table_is_loaded_with_every_number(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=list))
    kept = result(
        claims=[CLAIM], entries=[entry()], curves={"r": {"FLea": [[[1, 3.0], [2, 5.0]], [[2, 6.0]]]}}
    )
    file = tmp_path / "t.json"
    file.write_text(json.dumps(kept))
    table = unskew.load(file)
    assert table.result == kept
    assert table.verdicts() == {"it helps": "reproduced"}
    assert "FLea" in table.table()
    (scores,) = table.to_frame()
    assert (scores["method"], scores["ours.mean"]) == ("FLea", kept["entries"][0]["ours"]["mean"])
    points = [(row["seed"], row["t"], row["value"]) for row in table.to_frame("rounds")]
    assert points == [(0, 1, 3.0), (0, 2, 5.0), (1, 2, 6.0)]
    (margin,) = table.to_frame("claims")
    assert (margin["row"], margin["margin"], margin["paper"]) == ("r", 2.0, 1.5)
    file.write_text("{}")
    with pytest.raises(DataError, match=r"E401 .*is not a result of"):
        unskew.load(file)
    with pytest.raises(UsageError, match=r"E109 .*holds a table; leave out model"):
        unskew.load(file, best=True)


def short(**changes) -> TableResult:
    return copy.deepcopy(WHOLE) | {"scale": 0.25, "schedules": ["lr_decay 0.98 becomes 0.92"]} | changes  # type: ignore[return-value]


def test_the_papers_number_is_set_apart_and_without_a_gap():
    assert "| FLea | 48.43 | 40.3 ± 1.0 | -8.1 |" in pages.markdown_page(WHOLE)
    page = pages.markdown_page(short())
    assert "| FLea | (48.43) | 40.3 ± 1.0 | 40.3" in page
    assert "gap" not in page
    assert "-8.1" not in pages.plain(short())
    assert "in brackets, are of whole runs and no target" in page
    assert "Schedules end where the whole run's end: lr_decay 0.98 becomes 0.92." in page


def test_a_lead_stands_with_its_p_value_if_it_has_one():
    led = short(scale=1.0)
    led["entries"][0] |= {"ahead": 2.3, "p": None}
    assert "| +2.3 |" in pages.markdown_page(led)
    assert "; 2 seeds cannot be tested, which needs 5." in pages.markdown_page(led)
    led["entries"][0] |= {"p": 0.012, "ours": {"mean": 40.3, "std": 1.0, "n": 5}}
    assert "| +2.3, p = .012 |" in pages.markdown_page(led)
    assert ", with a paired t-test over seeds, Holm-corrected." in pages.markdown_page(led)
