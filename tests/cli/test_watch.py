"""`unskew watch`: what is shown of a run's files, once each."""

from __future__ import annotations

import json

import pytest

from tests.cli.calling import call
from unskew.cli import watch
from unskew.comparison import plan
from unskew.system.disk import slug


def score(t, value, metric="accuracy", scope="global", client=None):
    return {"t": t, "scope": scope, "client": client, "metric": metric, "value": value}


SECONDS = {"scope": "train", "client": None, "metric": "seconds", "value": 0.1}


@pytest.fixture
def run(tmp_path):
    """A function that adds rows to a run's files."""
    (tmp_path / "r").mkdir()

    def add(metrics=(), events=(), **files):
        for name, rows in (("metrics", metrics), ("events", events)):
            with open(tmp_path / "r" / f"{name}.jsonl", "a") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)
        for name, content in files.items():
            (tmp_path / "r" / f"{name}.json").write_text(json.dumps(content))
        return tmp_path / "r"

    return add


def round_of(t, asked, answered):
    return {"t": t, "code": "round", "asked": asked, "answered": answered, "received": len(answered)}


def shown(path):
    history = watch._History(path)
    said = list(history.read())
    return said, {t: history.line(t, 9) for t in sorted(history.complete)}


def test_a_round_is_shown_once_all_of_it_is_written(run):
    path = run([score(0, 0.1), score(1, 0.5)], [round_of(1, [0, 1], [0, 1])])
    assert set(shown(path)[1]) == {0}
    run([{"t": 1, **SECONDS}])
    assert set(shown(path)[1]) == {0, 1}


def test_what_a_site_keeps_of_a_run_is_told_from_no_run(tmp_path):
    (tmp_path / "setup.safetensors").touch()
    ended = call("watch", str(tmp_path))
    assert ended.code == 2
    assert "E117" in ended.text
    assert "unskew site watch" in ended.text


def test_those_who_did_not_answer_are_named(run):
    """By the names that sites gave, by their numbers in a simulation; a few, and how many more."""
    end = {"t": 1, **SECONDS}
    path = run(
        [end],
        [round_of(1, [0, 1, 2], [1])],
        sites={"sites": [{"site": s} for s in ("oslo", "lyon", "porto")]},
    )
    assert shown(path)[1][1].endswith("1/3 answered  without oslo, porto")
    (path / "sites.json").unlink()
    run([{**end, "t": 2}], [round_of(2, list(range(10)), [4])])
    assert shown(path)[1][2].endswith("1/10 answered  without 0, 1, 2, 3, 5, 6 and 3 more")
    run([{**end, "t": 3}], [round_of(3, [0, 1], [0, 1])])
    assert shown(path)[1][3].endswith("  2/2 answered")


@pytest.mark.parametrize(
    ("ending", "says"),
    [
        ({"state": "stopped", "code": 75, "text": "E203 disk full."}, "E203 disk full."),
        ({"state": "done", "code": 0, "text": ""}, ""),
    ],
)
def test_how_a_run_over_a_network_ended_is_said(run, ending, says):
    path = run([score(0, 0.1), score(1, 0.5), {"t": 1, **SECONDS}], ending=ending, deploy={})
    lines = call("watch", "r", cwd=path.parent).out.splitlines()
    assert [line.split()[1] for line in lines[:2]] == ["0/0", "1/0"]
    assert lines[2:] == ([says] if says else [])


def test_no_round_is_shown_twice(run, monkeypatch):
    """While more of them come."""
    path = run([score(0, 0.1)], deploy={})
    waits = []

    def wait(seconds):
        waits.append(seconds)
        run([score(len(waits), 0.5), {"t": len(waits), **SECONDS}])
        if len(waits) == 3:
            run(ending={"state": "done", "code": 0, "text": ""})

    monkeypatch.setattr(watch.time, "sleep", wait)
    lines = call("watch", "r", cwd=path.parent).out.splitlines()
    assert [line.split()[1] for line in lines] == [f"{t}/0" for t in range(4)]


def test_a_comparison_of_an_own_method_is_followed_from_another_folder(tmp_path, monkeypatch):
    """`watch` asked for the file of the method, which only training needs."""
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    (here / "my.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(here)
    plan.write_plan(here / "c", plan.Plan(("my.py", "fedavg"), (0, 1), {"rounds": 7}))
    run = here / "c" / f"{slug('my.py')}--s1"
    run.mkdir()
    (run / "metrics.jsonl").write_text(json.dumps(score(3, 0.5)) + "\n")
    called = call("watch", "../here/c", "--once", cwd=there)
    assert called.code == 0, called.text
    assert "my.py" in called.out
    assert "3/7" in called.out
    assert "0/7" in called.out
    called = call("resume", "../here/c", cwd=there)
    assert called.code == 2
    assert called.err.startswith(f"E111 there is no file my.py in {there}, where this was started."), (
        called.text
    )
