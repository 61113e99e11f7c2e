"""The journal of requests and answers, and a run that has lost the files by which its sites know it."""

from __future__ import annotations

import json

import pytest

from tests.federation import fake
from tests.federation.test_site_exchange import sites_of
from unskew.config import Settings
from unskew.errors import StateError
from unskew.federation import journal
from unskew.federation.journal import JOURNAL_FILE, Journal, verify
from unskew.federation.protocol.study_rules import with_clipping
from unskew.methods import registry
from unskew.records.checkpoints import digest

KEY = fake.COORDINATOR.public


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def written(tmp_path):
    made = Journal(tmp_path / JOURNAL_FILE, fake.COORDINATOR)
    for t in range(4):
        made.note("asked", site="a", t=t)
    made.close()
    return tmp_path / JOURNAL_FILE


def test_every_request_answer_and_refusal_of_a_run_is_noted(tmp_path):
    def lose(site, asked, honest):
        head = json.loads(asked.text)
        return None if (site, head["kind"], head["t"]) == ("s2", "train", 2) else honest

    channel = fake.Direct(fake.sites(tmp_path / "sites", fake.federation()), lose)
    _, state, _ = fake.run(tmp_path / "run", channel, fake.small("flea"))
    found = lines_of(tmp_path / "run" / JOURNAL_FILE)
    assert verify(tmp_path / "run" / JOURNAL_FILE, KEY).lines == len(found)
    assert [found[0]["what"], found[-1]["what"]] == ["begun", "done"]
    assert found[-1]["model"] == digest(state.weights)
    asked = [(e["site"], e["kind"], e["t"]) for e in found if e["what"] == "asked"]
    assert sorted(asked) == sorted(a for a in channel.asked if a[1] != "hello")
    refused = [e for e in found if e["what"] == "refused"]
    assert {(e["site"], e["code"], e["t"]) for e in refused} == {("s2", "E311", 2)}
    assert len([e for e in found if e["what"] == "answered"]) == len(asked) - len(refused)
    assert not journal.changed_files(tmp_path / "run" / JOURNAL_FILE, tmp_path / "run")
    (tmp_path / "run/ledger.jsonl").write_text("")
    assert journal.changed_files(tmp_path / "run" / JOURNAL_FILE, tmp_path / "run") == ["ledger.jsonl"]


def test_a_second_start_of_a_run_that_is_going_on_leaves_no_trace(tmp_path):
    """Somebody resumes it while it runs: refused, and the journal is still whole."""
    fed, refused = fake.federation(), []

    def shown(state, told):
        with pytest.raises(StateError, match="E110") as error:
            fake.run(tmp_path / "run", fake.Direct(fake.sites(tmp_path / "other", fed)), fake.small("fedavg"))
        refused.append(error)

    fake.run(
        tmp_path / "run", fake.Direct(fake.sites(tmp_path / "sites", fed)), fake.small("fedavg"), shown=shown
    )
    assert len(refused) == 3
    assert not verify(tmp_path / "run" / JOURNAL_FILE, KEY).wrong
    assert "stopped" not in [e["what"] for e in lines_of(tmp_path / "run" / JOURNAL_FILE)]


def change(lines):
    lines[1] = lines[1].replace(b'"t":1', b'"t":7')


def take_out(lines):
    del lines[1]


def put_in(lines):
    lines.insert(1, lines[1])


def swap(lines):
    lines[1], lines[2] = lines[2], lines[1]


def blanks(lines):
    lines[-1] = lines[-1].replace(b'"t":3', b'"t": 3')


def nonsense(lines):
    lines[1] = b"[1]\n"


def cut(lines):
    lines[-1] = lines[-1][:-9]


@pytest.mark.parametrize(
    ("alter", "line"),
    [(change, 1), (take_out, 1), (put_in, 2), (swap, 1), (blanks, 3), (nonsense, 1), (cut, 3)],
)
def test_an_altered_line_is_found(written, alter, line):
    assert verify(written, KEY) == journal.Verdict(4, verify(written, KEY).head)
    lines = written.read_bytes().splitlines(keepends=True)
    alter(lines)
    written.write_bytes(b"".join(lines))
    found = verify(written, KEY)
    assert found.lines == line
    assert found.wrong


def test_a_line_of_another_key_is_found(written):
    other = Journal(written, fake.KEYS["s0"])
    other.note("asked", site="b", t=9)
    other.close()
    assert verify(written, KEY).lines == 4


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "local", "dp", "median", "fednova", "flea"])
def test_updates_are_clipped_by_default_where_merging_is_left_alone(name):
    """What comes out can be built; methods that merge or clip in their own way stay as they are."""
    once = with_clipping(Settings(method=name))
    made = registry.parse(once.method)
    merging = [p.name for p in registry.parse(name).parts if p.merges]
    assert [p.name for p in made.parts if p.merges] == (
        merging or ([] if name in ("local", "dp") else ["clip_median"])
    )
    assert with_clipping(once) == once
    summed = Settings(method=name, secure_aggregation="on")
    assert with_clipping(summed) == summed


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


def empty(path):
    path.write_bytes(b"")


def other(path):
    path.write_text(json.dumps({"run": "../r", "sites": []}))


@pytest.mark.parametrize(
    ("name", "damage", "code"),
    [
        ("sites.json", lose, "E201 .* do not say which run this is"),
        ("sites.json", other, "E201 .* do not say which run this is"),
        ("audit.jsonl", empty, "E201 .* do not say which run this is"),
    ],
)
def test_a_run_that_has_lost_what_its_sites_know_it_by_is_not_resumed(tmp_path, name, damage, code):
    sites, settings = begun(tmp_path)
    whole = (tmp_path / "run" / name).read_bytes()
    damage(tmp_path / "run" / name)
    for _ in range(2):  # the refusal itself must not make the folder look whole
        channel = fake.Direct(sites)
        with pytest.raises(StateError, match=code + ".*; put them back as they were, or start again"):
            fake.run(tmp_path / "run", channel, settings)
        assert not channel.asked
    spent = json.loads((tmp_path / "sites/s2/spent.json").read_text())
    assert len(spent) == 1
    if name == "sites.json":  # the journal has gone on, if it was there
        (tmp_path / "run" / name).write_bytes(whole)
        _, state, _ = fake.run(tmp_path / "run", fake.Direct(sites), settings)
        assert state.t == 3
        assert json.loads((tmp_path / "sites/s2/spent.json").read_text()).keys() == spent.keys()
