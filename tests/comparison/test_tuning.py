"""A comparison that tunes first: as many trials each, never on test samples, the same after a kill."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

import unskew
from unskew import cli, config
from unskew.comparison import tuning as comparison_tuning
from unskew.comparison.plan import Plan, read_plan
from unskew.errors import UnskewError

SMALL = {"clients": 3, "samples": 60, "rounds": 2, "epochs": 1}
WORDS = ["--clients", "3", "--samples", "60", "--rounds", "2", "--epochs", "1", "--no-references"]


def command(where, *more: str, methods=("fedavg", "fedprox")):
    return CliRunner().invoke(
        cli.app(), ["compare", *methods, *WORDS, "--folder", str(where), "--name", "c", *more]
    )


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A comparison that was tuned, with what its command printed."""
    with pytest.MonkeyPatch.context() as patch:
        from tests import forked
        from unskew.comparison import workers

        patch.setattr(workers, "WorkerProcess", forked.Worker)
        where = tmp_path_factory.mktemp("tuned")
        done = command(where, "--seeds", "1", "--tune", "2")
        assert done.exit_code == 0, done.output
    return where, done.output


@pytest.fixture
def copy(original, tmp_path):
    shutil.copytree(original[0] / "c", tmp_path / "c")
    return tmp_path


def test_every_method_has_as_many_trials_none_of_which_sees_a_test_sample(original):
    where, said = original
    facts = json.loads((where / "c" / "tuning.json").read_text())
    assert {m: len(entry["trials"]) for m, entry in facts["methods"].items()} == {"fedavg": 2, "fedprox": 2}
    trials = [config.load(path) for path in (where / "c" / "tuning").rglob("config.yaml")]
    assert {(s.validation, s.seed) for s in trials} == {(0.2, comparison_tuning.SEED)}
    assert len(trials) == 4
    for method, entry in facts["methods"].items():
        assert entry["trials"][0]["point"]["lr"] == 0.05
        assert entry["best"] == max(entry["trials"], key=lambda t: t["score"])["point"]
        final = config.load(where / "c" / f"{method}--s0" / "config.yaml")
        assert (final.validation, final.seed, final.lr) == (0.0, 0, entry["best"]["lr"])
        assert method == "fedavg" or f"mu={entry['best']['fedprox.mu']}" in final.method
    assert "tune   2 trials for each of 2 methods x 2 rounds" in said
    assert "fedprox: lr 0.005 to 0.5; fedprox.mu 0.0001 to 0.01" in said
    assert read_plan(where / "c").tune == 2
    assert unskew.Comparison(where / "c").tuned() == {
        m: entry["best"] for m, entry in facts["methods"].items()
    }
    rows = json.loads((where / "c" / "compare.json").read_text())
    assert rows[0]["tuned"] == facts["methods"]["fedavg"]["best"]


def test_a_kill_anywhere_changes_nothing(copy):
    folder = copy / "c"
    before = (folder / "tuning.json").read_text()
    (folder / "tuning.json").unlink()
    for lost in ("tuning/fedavg/trial-002", "tuning/fedprox/trial-001", "fedavg--s0", "fedprox--s0"):
        shutil.rmtree(folder / lost)
    done = CliRunner().invoke(cli.app(), ["resume", str(folder)])
    assert done.exit_code == 0, done.output
    assert (folder / "tuning.json").read_text() == before
    assert (
        config.load(folder / "fedavg--s0" / "config.yaml").lr
        == json.loads(before)["methods"]["fedavg"]["best"]["lr"]
    )


def test_more_seeds_and_methods_tune_only_what_is_new(copy, monkeypatch):
    folder, tuned_now = copy / "c", []

    def refused(cells, *_):
        tuned_now.append([cell.method for cell in cells])
        raise RuntimeError

    monkeypatch.setattr(comparison_tuning, "train_all", refused)
    before = (folder / "tuning.json").read_text()
    assert command(copy, "--seeds", "2", "--tune", "2").exit_code == 0
    assert (folder / "fedprox--s1" / "model.safetensors").exists()
    assert (folder / "tuning.json").read_text() == before
    command(copy, "--seeds", "2", "--tune", "2", methods=("fedavg", "fedprox", "bsm"))
    assert tuned_now == [["tuning bsm"]]


@pytest.mark.parametrize("best", [{"model": "evil.py:make"}, {"rounds": 1}, {"lr": "evil.py"}])
def test_a_tuning_of_others_sets_nothing_but_what_a_tuning_chooses(copy, monkeypatch, best):
    """A colleague's tuning.json named a model, and calling `unskew.compare` with its name imported it."""
    monkeypatch.chdir(copy)
    (copy / "evil.py").write_text("open('mark', 'w')\n")
    facts = json.loads((copy / "c" / "tuning.json").read_text())
    facts["methods"]["fedavg"]["best"] |= best
    (copy / "c" / "tuning.json").write_text(json.dumps(facts))
    shutil.rmtree(copy / "c" / "fedavg--s0")
    settings = {**SMALL, "references": False, "seeds": 1, "tune": 2}
    with pytest.raises(UnskewError, match=r"^E111 .*tuning\.json sets"):
        unskew.compare(["fedavg", "fedprox"], name="c", folder=copy, **settings)
    assert not (copy / "mark").exists()


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--tune", "0"], "E109 the command: tune must be a whole number or None, at least 2; got 0"),
        (["--tune", "6"], "E112 .* began with 2 trials, and is asked for with 6 trials"),
        ([], "E112 .* began with 2 trials, and is asked for without tuning"),
        (["--tune", "2", "--lr", "0.1"], "E112 .* tuned fedavg with other settings"),
        (["--tune", "2", "--set", "validation=0.1"], "E109 --tune holds out 20% of the training samples"),
    ],
)
def test_other_wishes_for_a_comparison_that_is_tuned_are_refused(copy, more, says):
    done = command(copy, *more)
    with pytest.raises(UnskewError, match=says):
        raise done.exception or AssertionError(done.output)


def test_what_cannot_be_tuned_is_refused_before_anything_trains(tmp_path, monkeypatch):
    monkeypatch.setattr(comparison_tuning, "train_all", lambda *_: pytest.fail("something trained"))
    for more, says in (
        ({"tune": -1}, "E109 tune must be a whole number, at least 2"),
        ({"tune": True}, "E109 tune must be"),
        ({"tune": 3, "seeds": [comparison_tuning.SEED]}, "E109 seed 10000 is that of the trials"),
        ({"tune": 3, "samples": 400}, "E103 tuning fedavg: 3 clients of 400 samples need 1,200"),
    ):
        with pytest.raises(UnskewError, match=says):
            unskew.compare(["fedavg"], references=False, folder=tmp_path, name="x", **{**SMALL, **more})
    few = np.zeros((4, 1, 8, 8), np.float32), np.array([0, 1, 0, 1])
    with pytest.raises(UnskewError, match=r"E403 tuning fedavg: .* of . training samples leaves one side"):
        unskew.compare(
            ["fedavg"], few, references=False, tune=2, folder=tmp_path, name="d", clients=1, skew="iid"
        )
    assert not list(tmp_path.rglob("trial-*"))
    planned = command(tmp_path, "--tune", "2", "--dry-run")
    assert "tune   2 trials for each of 2 methods" in planned.output
    assert not (tmp_path / "c").exists()


def test_a_tuning_that_was_killed_is_not_continued_with_other_settings(copy):
    (copy / "c" / "tuning.json").unlink()
    plan = Plan(("fedavg",), (0,), {**SMALL, "lr": 0.1}, tune=2)
    with pytest.raises(UnskewError, match=r"E112 .*lr was 0\.05"):
        comparison_tuning.tuning_of(copy / "c", plan)


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(UnskewError, match=r"E133 --tune needs Optuna: pip install 'unskew\[tune\]'"):
        comparison_tuning.tuning_of(tmp_path, Plan(("fedavg",), (0,), SMALL, tune=3))


def test_local_and_personalised_methods_are_chosen_by_clients_own_models(tmp_path):
    plan = Plan(("fedavg", "ditto", "local", "fedper", "centralised"), (0,), SMALL, tune=3)
    tuning = comparison_tuning.Tuning(tmp_path, plan)
    assert [m for m in tuning.cells if tuning._own(m)] == ["ditto", "local", "fedper"]
    assert {m: str(s.space["lr"]) for m, s in tuning.spaces.items()} == dict.fromkeys(
        tuning.cells, "0.005 to 0.5"
    )
