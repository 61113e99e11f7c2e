"""Two sums of the same numbers over different sites would show what one site sent: each is opened over one
set of sites."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("cryptography", reason="pip install 'unskew[flower]'")

from unskew.errors import UsageError
from unskew.federation.site import sum_answers
from unskew.federation.site.sum_answers import SumLog, facts_digest


@pytest.fixture
def opened(tmp_path):
    """What a site remembers in a run of this number."""

    def of(run="7"):
        (tmp_path / "runs" / run).mkdir(parents=True, exist_ok=True)
        return SumLog(tmp_path, run)

    return of


def test_a_round_is_summed_over_one_set_of_sites(opened):
    """Also where other numbers are asked for, and after the site was started again."""
    opened().note(3, ["one"], ["b", "a"])
    opened().check(3, ["one"], ["a", "b"])
    opened().check(3, ["other"], ["a", "b"])
    opened().check(4, ["other"], ["a", "b", "c"])
    for came in (["a", "b", "c"], ["a"], ["a", "c"]):
        with pytest.raises(
            UsageError, match=r"E525 .*round 3 was summed over a, b, and what differs would be one site's"
        ):
            opened().check(3, ["other"], came)


def test_the_same_numbers_are_summed_over_one_set_of_sites_in_every_run(opened):
    """A second study of the same seed asks for the same numbers."""
    opened("7").note(3, ["same"], ["a", "b"])
    opened("8").check(3, ["same"], ["b", "a"])
    opened("8").check(3, ["other"], ["a", "b", "c"])
    for t in (3, 5):
        with pytest.raises(UsageError, match=r"E525 .*summed before, over a, b, .*needs another seed"):
            opened("8").check(t, ["same"], ["a", "b", "c"])


def test_the_latest_are_remembered(opened, monkeypatch):
    """A round that is opened again counts as the latest."""
    monkeypatch.setattr(sum_answers, "MOST_ROUNDS", 3)
    for t in (1, 2, 3, 2, 4, 5):
        opened().note(t, [f"numbers {t}"], ["a", "b"])
    for t in (2, 4, 5):
        with pytest.raises(UsageError, match=f"E525 .*round {t} was summed over"):
            opened().check(t, ["new"], ["a"])
    for t in (1, 3):
        opened().check(t, ["new"], ["a"])
        with pytest.raises(UsageError, match=r"E525 .*summed before"):
            opened().check(t, [f"numbers {t}"], ["a"])


@pytest.mark.parametrize("content", ["", "[", "[1]", '{"3": 1}', '{"3": null}'])
@pytest.mark.parametrize("place", ["opened.json", "runs/7/opened.json"])
def test_a_site_that_cannot_read_what_it_opened_takes_part_in_nothing(content, place, opened, tmp_path):
    opened().note(3, ["one"], ["a", "b"])
    (tmp_path / place).write_text(content)
    with pytest.raises(UsageError, match=rf"E521 .*cannot be read from .*{place}"):
        opened().check(9, ["two"], ["a", "b"])


def test_only_the_sites_own_user_reads_it(opened, tmp_path):
    opened().note(3, ["one"], ["a", "b"])
    for path in (tmp_path / "opened.json", tmp_path / "runs/7/opened.json"):
        assert path.stat().st_mode & 0o077 == 0
        assert list(json.loads(path.read_text()).values()) == [["a", "b"]]


def test_a_digest_is_of_all_that_is_given():
    facts = ("study", 3, 1, {"b": 1, "a": 2})
    assert facts_digest(*facts) == facts_digest("study", 3, 1, {"a": 2, "b": 1})
    others = [("other", *facts[1:]), (*facts[:3], {"a": 2, "b": 2}), ("study", 1, 3, facts[3])]
    assert len({facts_digest(*f) for f in (facts, *others)}) == 4
