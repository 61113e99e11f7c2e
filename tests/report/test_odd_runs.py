"""Pages of odd runs: scores that are no numbers, names full of control characters."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from tests.report.fake_runs import fake_comparison, fake_run
from tests.report.test_page import Tags
from unskew.report.analysis.runs import read_run, scores_of
from unskew.report.figures.svg import text, tooltip
from unskew.report.page import write_report
from unskew.report.sections import context_of, reproducibility

NAN, INF = math.nan, math.inf


def altered(at, name, change):
    """Change every row of a .jsonl file, or what a .json file holds."""
    file = at / name
    if file.suffix == ".jsonl":
        rows = [change(json.loads(line)) for line in file.read_text().splitlines()]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        file.write_text(json.dumps(change(json.loads(file.read_text()))))


def as_regression(at, late):
    """A fake run of RMSE, whose scores from round 3 on are `late`."""
    names = {"accuracy": "rmse", "macro_f1": "mae", "worst_class": "r2"}
    target = {"name": "y", "center": 0.0, "scale": 1.0}
    altered(at, "federation.json", lambda facts: {**facts, "task": "regression", "target": target})
    altered(
        at,
        "metrics.jsonl",
        lambda row: {
            **row,
            "metric": names.get(row["metric"], row["metric"]),
            "value": late if row["t"] >= 3 else row["value"],
        },
    )


@pytest.mark.parametrize(("late", "seeds"), [(INF, 1), (-INF, 3), (None, 3)])
def test_scores_of_training_that_diverged_are_a_page_all_the_same(tmp_path, late, seeds, recwarn):
    """They were a traceback: an infinite axis, a minimum of nothing."""
    at = fake_comparison(tmp_path / "c", ["fedavg", "flea"], seeds, rounds=5, clients=4)
    for one_run in at.glob("flea--*"):
        as_regression(one_run, late)
    for one_run in at.glob("fedavg--*"):
        as_regression(one_run, 0.5)
    page = write_report([at], tmp_path / "page.html").read_text()
    tags = Tags(page)
    assert not tags.open
    assert not tags.wrong
    for picture in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ET.fromstring(picture)
        assert not re.search(r'(?:d|points|x|y|cx|cy)="[^"]*(?:nan|inf)', picture)
    for held in re.findall(r"data-(?:plot|dots|grid)='([^']*)'", page):
        json.loads(
            held.replace("&amp;", "&").replace("&lt;", "<").replace("&#39;", "'"), parse_constant=pytest.fail
        )
    assert "± nan" not in page
    assert not [w for w in recwarn if w.category is RuntimeWarning]


def test_numbers_that_are_none_are_no_scores():
    rows = [
        {"scope": "global@client", "metric": "accuracy", "t": t, "client": k, "value": v}
        for t, k, v in ((1, 0, 0.5), (1, 1, 0.5), (2, 0, NAN), (2, 1, 0.25))
    ]
    series, clients = scores_of(
        [*rows, {"scope": "global", "metric": "accuracy", "t": 1, "client": None, "value": NAN}]
    )
    assert clients["global@client", "accuracy"] == {1: 0.25}  # not the first one's of the round before
    assert np.isnan(series["global", "accuracy"][1]).all()


@pytest.mark.parametrize("bad", ["\x00", "\x1b[2J", "\u202e", "\ud800"])
def test_pictures_hold_no_character_that_xml_forbids_or_that_turns_the_line(bad):
    for drawn in (text(0, 0, f"a{bad}b"), tooltip(f"a{bad}b")):
        words = ET.fromstring(drawn).text
        assert words == f"a\ufffd{bad[1:]}b"


def test_a_run_of_sites_is_repeated_on_its_federation_and_one_of_a_program_by_that(tmp_path):
    sites, given = (
        fake_run(tmp_path / "s", rounds=3, data="(sites)"),
        fake_run(tmp_path / "g", rounds=3, data="(given in Python)"),
    )
    (sites / "deploy.json").write_text(json.dumps({"federation": "/srv/federations/heart study"}))
    assert (
        reproducibility.command(context_of([read_run(sites)], "x"))
        == f"unskew run {sites}/config.yaml --on 'heart study'"
    )
    assert (
        reproducibility.command(context_of([read_run(given)], "x"))
        == "# g trained on samples that a program gave it: run that program again"
    )
