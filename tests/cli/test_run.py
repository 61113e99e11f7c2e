"""`unskew run`: which of several values of a setting counts, and what is printed."""

from __future__ import annotations

import pytest

from tests.cli.calling import call
from unskew.cli import run
from unskew.cli.options import set_over
from unskew.cli.run import Arguments
from unskew.errors import UsageError

FAST = ["--rounds", "1", "--epochs", "1", "--clients", "3", "--model", "mlp", "--workers", "1"]


def settings(given, *, sites=False, **own):
    return run._settings(Arguments(**own), given, sites)


@pytest.fixture
def config(tmp_path):
    def of(text):
        (tmp_path / "c.yaml").write_text(text)
        return tmp_path / "c.yaml"

    return of


def test_an_option_counts_before_the_file_and_the_file_before_defaults(config):
    path = config("method: fedprox\nlr: 0.5\nrounds: 7\nset: {fedprox: {mu: 0.25}}\n")
    from_file = settings({}, config=path)
    assert (from_file.method, from_file.lr, from_file.rounds) == ("fedprox(mu=0.25)", 0.5, 7)
    both = settings({"lr": 0.125}, config=path, method="fedprox+fedrdn", set=("fedprox.mu=0.75",))
    assert (both.method, both.lr, both.rounds) == ("fedprox(mu=0.75)+fedrdn", 0.125, 7)
    assert settings({"rounds": 3}, method=str(path)).rounds == 3


@pytest.mark.parametrize("command", ["run", "compare"])
def test_what_the_file_sets_beside_an_option_stays(config, command, tmp_path):
    """`--set` of one argument dropped the file's others of that Part, and in a comparison of all Parts,
    without a word."""
    path = config("set: {flea: {lambda1: 0.25, alpha: 0.75}, fedprox: {mu: 0.5}}\n")
    words = ["flea+fedprox"] if command == "run" else ["flea+fedprox", "fedavg", "--seeds", "1"]
    one = ["--config", str(path), "--set", "flea.alpha=0.5", "--name", "r"]
    done = call(command, *words, *one, *FAST, "--json", cwd=tmp_path)
    assert done.code == 0, done.err
    folder = (
        next((tmp_path / "runs/r").rglob("config.yaml"))
        if command == "run"
        else tmp_path / "runs/r/compare.yaml"
    )
    text = folder.read_text()
    for value in ("lambda1", "0.25", "0.5"):
        assert value in text
    assert "0.75" not in text
    if command == "run":
        assert "method: flea(alpha=0.5, lambda1=0.25)+fedprox(mu=0.5)" in text


def test_on_real_sites_no_site_outweighs_all_others_unless_it_is_said(config):
    """`cap` is 0.5 there, and what a file or an option says counts before that."""
    assert settings({}).cap != 0.5
    assert settings({}, sites=True).cap == 0.5
    assert settings({}, sites=True, config=config("cap: 0.75\n")).cap == 0.75
    assert settings({"cap": 1.0}, sites=True, config=config("cap: 0.75\n")).cap == 1.0


def test_values_that_are_nothing_are_values(config, tmp_path):
    """A momentum of 0 and a switch that is off are what the user gave, not what they left out."""
    path = config("momentum: 0.5\nlr: 0.25\n")
    words = ["--config", str(path), "--set", "momentum=0", "--name", "r", "--json"]
    done = call("run", "fedavg", *words, *FAST, cwd=tmp_path)
    assert done.code == 0, done.err
    text = (tmp_path / "runs/r/config.yaml").read_text()
    assert "momentum: 0" in text
    assert "momentum: 0.5" not in text
    assert "lr: 0.25" in text


def test_settings_that_sites_decide_are_named_where_somebody_wrote_them_down(monkeypatch, tmp_path):
    """`--data mnist --skew dirichlet:0.1 --on lung` trained on what the sites hold, without a word."""
    pytest.importorskip("cryptography", reason="a deployment needs the extra: pip install 'unskew[flower]'")
    monkeypatch.setattr("unskew.cli.remote_run.run_on", lambda *given: None)
    (tmp_path / "study.yaml").write_text("clients: 5\nrounds: 2\n")
    asked = ["run", "study.yaml", "--on", "lung", "--skew", "iid", "--lr", "0.1"]
    assert call(*asked, cwd=tmp_path).out.startswith(
        "ignored skew, clients: every site trains on its own samples"
    )
    assert call(*asked, "--json", cwd=tmp_path).out == ""
    assert call("run", "fedavg", "--lr", "0.1", "--on", "lung", cwd=tmp_path).out == ""


def test_arguments_of_parts():
    assert set_over({}, ["FLea.alpha=0.1", "flea.top = 3", "dp.clip=2"]) == {
        "flea": {"alpha": 0.1, "top": 3},
        "dp": {"clip": 2},
    }
    for wrong in ("alpha=1", "flea.alpha", ".alpha=1", "flea.=1", "=1", "."):
        with pytest.raises(UsageError, match=r"E102 --set takes part\.argument=value"):
            set_over({}, [wrong])
