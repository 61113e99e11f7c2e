"""Sections by site: whether federating is worth it there, and which class is taken for which."""

from __future__ import annotations

import json

import pytest

from tests.report.fake_runs import fake_comparison, fake_run
from tests.report.test_page import EVIL, Tags
from unskew.report.analysis.runs import read_runs
from unskew.report.figures.matrices import confusion
from unskew.report.page import write_report
from unskew.report.sections import context_of, site_benefit

MEASURED = {
    "confusion": {"all": [[3, 1], [0, 6]], "names": [EVIL], "sites": [[[0, 0], [0, 6]]]},
}


@pytest.mark.parametrize(
    ("n", "federated", "alone", "verdict"),
    [
        (1000, 0.80, 0.70, "yes"),
        (1000, 0.70, 0.80, "no"),
        (20, 0.80, 0.70, "unclear"),
        (3, 1.0, 0.0, "yes"),
        (2, 1.0, 0.0, "unclear"),
        (1000, 0.80, 0.80, "unclear"),
    ],
)
def test_a_gain_is_clear_only_beyond_what_the_samples_of_the_site_can_say(n, federated, alone, verdict):
    assert site_benefit.Site("a", n, federated, alone).verdict == verdict


def test_a_comparison_with_training_alone_says_at_which_sites_federating_is_worth_it(tmp_path):
    """The counts of the sentence are those of its rows, and the gain is the difference of the two columns
    beside it."""
    at = fake_comparison(tmp_path / "c", ["fedavg", "rebafl", "local"], seeds=1, rounds=6)
    context = context_of(read_runs([at]), "c")
    section = site_benefit.build(context)
    assert section is not None
    method = section.lead.split()[1].rstrip(",")
    assert method == max(
        ("fedavg", "rebafl"), key=lambda m: next(s for s in context.summaries if s.method == m).at_clients[0]
    )
    sites = site_benefit.sites_of(context.methods[method][0], context.methods["local"][0])
    count = [sum(s.verdict == v for s in sites) for v in site_benefit.VERDICTS]
    assert sum(count) == len(sites) == 20
    assert (
        f"better than training alone at {count[0]} of 20 sites and clearly worse at {count[1]}"
        in section.lead
    )
    one = sites[3]
    assert (
        f"<td>{100 * one.alone:.1f}</td><td>{100 * one.federated:.1f}</td><td>{100 * (one.federated - one.alone):+.1f}</td><td>{one.verdict}</td>"
        in section.html
    )
    without = fake_comparison(tmp_path / "d", ["fedavg", "rebafl"], seeds=1, rounds=6)
    assert site_benefit.build(context_of(read_runs([without]), "d")) is None


def test_what_was_measured_by_site_is_shown_and_names_stay_text(tmp_path):
    at = fake_run(tmp_path / "r", "fedavg", rounds=6, classes=2)
    federation = json.loads((at / "federation.json").read_text())
    (at / "federation.json").write_text(json.dumps({**federation, "classes": [EVIL, "b"]}))
    (at / "measures.json").write_text(json.dumps(MEASURED))
    text = write_report(at, tmp_path / "page.html").read_text()
    tags = Tags(text)
    assert not tags.open
    assert not tags.wrong
    assert "<script>alert" not in text
    assert "Which class is taken for which, all test samples: 9 of 10 samples right" in text


def test_pictures_of_nothing_are_empty_and_cells_are_shares_of_the_true_class():
    assert confusion([[0, 0], [0, 0]], ["a", "b"], "x") == ""
    drawn = confusion(MEASURED["confusion"]["all"], ["a", "b"], "x")
    assert [f">{v}<" in drawn for v in (75, 25, 100)] == [True] * 3
