"""A coordinator whose folder of a run has lost a file asks no site for anything."""

from __future__ import annotations

import json

import pytest

from tests.federation import fake
from tests.federation.test_absent import sites_of
from unskew.errors import StateError


class Stopped(Exception):
    """The coordinator was stopped after a round."""


def begun(tmp_path):
    """The sites of a run of which one of three rounds is over, and its settings."""
    sites, settings = sites_of(tmp_path, count=3), fake.small("scaffold", rounds=3, clients=3)

    def stop(state, done):
        raise Stopped

    with pytest.raises(Stopped):
        fake.run(tmp_path / "run", fake.Direct(sites), settings, shown=stop)
    return sites, settings


def lose(path):
    path.unlink()


def cut(path):
    path.write_bytes(path.read_bytes()[:100])


def empty(path):
    path.write_bytes(b"")


def other(path):
    path.write_text(json.dumps({"run": "../r", "sites": []}))


@pytest.mark.parametrize(
    ("name", "damage", "code"),
    [
        ("sites.json", lose, "E201 .* is gone, which holds the number by which sites know the run"),
        ("sites.json", cut, "E201 .* does not say which run this is"),
        ("sites.json", other, "E201 .* does not say which run this is"),
        ("audit.jsonl", lose, "E201 .* is gone, from which requests are numbered"),
        ("audit.jsonl", empty, "E201 .* is gone, from which requests are numbered"),
    ],
)
def test_a_run_that_has_lost_what_its_sites_know_it_by_is_not_resumed(tmp_path, name, damage, code):
    """Without sites.json it was another run to its sites, and was trained again out of their budgets."""
    sites, settings = begun(tmp_path)
    whole = (tmp_path / "run" / name).read_bytes()
    damage(tmp_path / "run" / name)
    for _ in range(2):  # the refusal itself must not make the folder look whole
        channel = fake.Direct(sites)
        with pytest.raises(StateError, match=code + ".*; put the file back as it was, or start again"):
            fake.run(tmp_path / "run", channel, settings)
        assert not channel.asked
    spent = json.loads((tmp_path / "sites/s2/spent.json").read_text())
    assert len(spent) == 1
    if name == "sites.json":  # the journal has gone on, if it was there
        (tmp_path / "run" / name).write_bytes(whole)
        _, state, _ = fake.run(tmp_path / "run", fake.Direct(sites), settings)
        assert state.t == 3
        assert json.loads((tmp_path / "sites/s2/spent.json").read_text()).keys() == spent.keys()
