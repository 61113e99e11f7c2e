"""The HTML and Markdown pages of reproduced tables, from kept results that may be somebody else's."""

from __future__ import annotations

import copy
import json
import re
import sys
import xml.etree.ElementTree as ET
from types import SimpleNamespace

import pytest

import unskew
from tests.experiments.test_short_pages import WHOLE
from tests.report.test_page import Tags
from unskew.errors import DataError, UsageError
from unskew.experiments import pages

EVIL = "<script>alert(1)</script>"
CLAIM = {"text": "it helps", "verdict": "reproduced", "margins": {"r": 2.0}, "paper": {"r": 1.5}}


def result(**changes):
    return {**copy.deepcopy(WHOLE), **changes}


def entry(method="FLea", row="r", **changes):
    return {**copy.deepcopy(WHOLE["entries"][0]), "method": method, "row": row, **changes}


def test_no_text_of_a_result_becomes_markup():
    texts = {
        "title": EVIL,
        "paper": EVIL,
        "finding": EVIL,
        "command": EVIL,
        "machine": EVIL,
        "date": EVIL,
        "open": [EVIL],
    }
    rows = {EVIL: {"note": EVIL, "x": 1.0, "panel": EVIL}}
    privacy = {EVIL: {EVIL: {"part": {"release": EVIL, "epsilons": [{"epsilon": 1.0, "reading": EVIL}]}}}}
    claims = [{**CLAIM, "text": EVIL, "verdict": EVIL, "margins": {EVIL: 1.0}}]
    curves = {EVIL: {EVIL: WHOLE["curves"]["r"]["FLea"]}}
    held = result(
        **texts,
        rows=rows,
        entries=[entry(EVIL, EVIL)],
        privacy=privacy,
        claims=claims,
        curves=curves,
        axis=EVIL,
        logs={EVIL: {EVIL: WHOLE["logs"]["r"]["FLea"]}},
    )
    for page in (pages.html_page(held), pages.html_index([held])):
        assert EVIL not in page
        tags = Tags(page)
        assert not tags.wrong
        assert not tags.open
    for picture in re.findall(r"<svg.*?</svg>", pages.html_page(held), re.DOTALL):
        ET.fromstring(picture)


def test_a_bar_in_a_name_does_not_end_the_cell_of_a_markdown_table():
    held = result(
        rows={"a|b": {"note": "", "x": None, "panel": ""}},
        entries=[entry("m|n", "a|b")],
        logs={},
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
        rows={"r": {"note": "with 20 clients", "x": None, "panel": ""}},
    )
    page = pages.markdown_page(held)
    assert page.startswith(
        "# T\n\nP.\n\n```sh\nc\n```\n\nMade with unskew 0 on d: m; 0.10 hours of training in all runs."
    )
    assert (
        "## Claims\n\n| the paper says | here | margin in points by row or step (95 % interval) [the paper's] |"
        in page
    )
    assert "| it helps | reproduced | r +2.0 [+1.5] |\n\nNot run: it helps." in page
    assert "## What differs\n\n- `r`: with 20 clients." in page
    assert "## What the paper leaves open, and our choice\n\n- the rate" in page
    assert page.endswith("## What we found\n\nIt does.\n")
    own = pages.markdown_page({**held, "paper": "", "unit": "number"})
    assert "| claim | here | margin by row or step (95 % interval) |" in own
    assert "## Notes\n\n" in own
    assert "## Choices\n\n- the rate" in own
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
    assert 'rowspan="2"' in pages.html_page(held).split('id="privacy"')[1]


def test_an_index_links_to_every_page_and_says_how_claims_fared():
    held = [
        result(claims=[CLAIM]),
        result(page="u", claims=[{**CLAIM, "verdict": "not reproduced"}]),
        result(page="v", claims=[CLAIM, {**CLAIM, "verdict": "not reproduced"}]),
        result(page="w"),
    ]
    page = pages.html_index(held)
    assert re.findall(r'href="([^"]*)">([^<]*)<', page) == [(f"{p}.html", f"T ({p})") for p in "tuvw"]
    assert re.findall(r'class="pill ([^"]*)"', page) == ["dp", "none", "empirical", ""]
    text = pages.markdown_index(held, "docs/results", {"own.md": "Mine"})
    assert "Read first: [Mine](own.md)." in text
    assert "| [T (u)](u.md) | r | 2 | 12 | not reproduced: 1 | d, 0 |" in text
    assert "`unskew report docs/results` makes" in text
    assert "Read first" not in pages.markdown_index(held, "x", {})


@pytest.mark.parametrize(
    "page", ["../elsewhere", "a/b", "/tmp/x", "", ".hidden", None, "javascript:alert(1)//"]
)
def test_a_result_that_would_be_written_elsewhere_is_refused(tmp_path, page):
    """`unskew report FOLDER` on results that came from somebody wrote wherever they said."""
    (tmp_path / "a.json").write_text(json.dumps(result(page=page)))
    with pytest.raises(DataError, match=r"^E401 .*a\.json names its page "):
        pages.results_in(tmp_path)


def test_a_result_is_kept_read_again_and_its_pages_made(tmp_path):
    held = result()
    page = pages.write_result(tmp_path, held)
    assert page == tmp_path / "t.html"
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "index.html",
        "t.csv",
        "t.html",
        "t.json",
        "t.md",
        "t.tex",
    ]
    assert pages.results_in(tmp_path) == [held]
    assert '   "FLea": [[[2,12.0],' in (tmp_path / "t.json").read_text()  # a curve is one line


def test_curves_and_logs_are_drawn_in_the_tables_unit():
    page = pages.html_page(result())
    assert "FLea ends at 23.0 %; FLea, log ends at 40.0 %" in page
    number = pages.html_page(result(unit="number"))
    assert "FLea ends at 23; FLea, log ends at 40" in number


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
