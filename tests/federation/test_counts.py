"""What the folder and the page of a run over a network say of sites' samples: what they told, and that they
told no more."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import numpy as np
import pytest

import unskew
from tests.federation import fake  # skips where cryptography is missing
from unskew.report.analysis.runs import read_run
from unskew.report.page import write_report
from unskew.report.sections.buffer import histograms_of

TESTED = [len(rows) for rows in fake.federation().test]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("counted")
    channel = fake.Direct(fake.sites(folder / "sites", fake.federation()))
    fake.run(folder / "run", channel, fake.small("flea", rounds=2))
    return folder / "run"


def page(path: Path) -> str:
    """Its words, without markup."""
    return html.unescape(re.sub(r"<[^>]+>", " ", write_report([path], path.parent / "page.html").read_text()))


def test_the_folder_says_on_how_many_samples_each_site_scores_itself(run):
    """It said 0 for each, so that the page named every site as one without test samples, beside its
    scores."""
    facts = json.loads((run / "federation.json").read_text())
    assert facts["sizes"] == {"train": list(fake.SIZES), "val": [], "test": TESTED}
    assert facts["test"] == 0, "none is at the server"
    assert [row["test"] for row in unskew.load(run).clients()] == TESTED
    card = (run / "model.md").read_text()
    assert f"{sum(fake.SIZES)} for training, {sum(TESTED)} for the scores below" in card
    assert "Of the last evaluated round, on the clients' own test samples." in card


def test_the_page_names_every_site_beside_its_test_samples(run):
    words = page(run)
    assert "have no test samples" not in words
    for k, tested in enumerate(TESTED):
        assert re.search(rf"s{k}\s+{tested}\s+\d", words), k
    assert "the global model on all clients' own test rows together, on which nobody trains" in words
    assert "global test set" not in words


def test_the_page_does_not_count_labels_that_no_site_told(run):
    """It said that each site holds 0.0 of the classes, and drew bars of no length for their samples."""
    words = page(run)
    assert "each with 1 to 40 training samples (median 17). They do not tell of which classes." in words
    assert "classes on average" not in words
    assert "samples of a class" not in words
    assert histograms_of(read_run(run)) == {}


def test_a_test_set_at_the_server_is_named_as_before(tmp_path):
    given, place = fake.federation(), tmp_path / "test.npz"
    held = {name: getattr(given, name) for name in ("x", "y", "x_test", "y_test")}
    np.savez(place, x_train=held.pop("x"), y_train=held.pop("y"), **held, classes=given.classes)
    channel = fake.Direct(fake.sites(tmp_path / "sites", given))
    fake.run(tmp_path / "run", channel, fake.small("fedavg", rounds=1), test=str(place))
    assert "Of the last evaluated round, on the test set." in (tmp_path / "run" / "model.md").read_text()
    assert "the global model on the global test set" in page(tmp_path / "run")
