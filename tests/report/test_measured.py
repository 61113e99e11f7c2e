"""Measures in the report: their table, series in their own unit, matrices and planes; names stay text."""

from __future__ import annotations

import json

import pytest

from tests.report.fake_runs import fake_run
from tests.report.test_page import EVIL, Tags
from unskew.report.page import write_report

PICTURES = {
    "cross_site": {
        "names": ["amazon", "caltech", EVIL],
        "score": [[0.9, 0.2, 0.31], [None, None, None], [0.4, 0.5, 1.0]],
        "metric": "accuracy",
    },
    "exposure": {"share": 0.5, "since": [[0, 1], [40, 0]], "names": ["a", "b"]},
    "histograms": {"buffer": [0.5, 0.5], "local": [[1, 0]], "mixed": [[0.7, 0.3]], "names": ["site-x"]},
    "received": {"classes": [0, 7], "columns": 2, "png": "iVBORw0KGgo="},
    "tsne": {
        "names": [EVIL, "b"],
        **{
            k: {"client": [0, 0, 1], "label": [0, 1, 1], "xy": [[0, 1], [2.5, 3], [-4, 0]]}
            for k in ("local", "global")
        },
    },
}


@pytest.fixture
def run(tmp_path):
    at = fake_run(tmp_path / "flea-0001", "flea", rounds=6)
    with open(at / "metrics.jsonl", "a") as file:
        for t in range(1, 7):
            for metric, value in (("diversity", 12.5 / t), ("exposure", 0.1 * t)):
                file.write(
                    json.dumps({"t": t, "scope": "measure", "client": None, "metric": metric, "value": value})
                    + "\n"
                )
        file.write(
            json.dumps({"t": 6, "scope": "measure", "client": None, "metric": "cross_site", "value": 0.345})
            + "\n"
        )
    (at / "measures.json").write_text(json.dumps(PICTURES))
    return at


def test_the_page_shows_what_was_measured_and_stays_whole(run, tmp_path):
    text = write_report(run, tmp_path / "page.html").read_text()
    tags = Tags(text)
    assert not tags.open
    assert not tags.wrong
    assert len(set(tags.ids)) == len(tags.ids)
    for words in (
        "Weight diversity",
        "2.08",
        "0.345",
        "Weight diversity, over rounds",
        "who receives",
        "the global model",
        "Inputs that clients receive from others",
        'href="data:image/png;base64,iVBORw0KGgo="',
        "mix, site-x",
    ):
        assert words in text, words
    assert "onerror='alert" not in text.replace("&#39;", "'").replace("&quot;", '"').split("<svg")[0]
    assert "<img src=x" not in text
