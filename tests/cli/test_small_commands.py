"""What small commands hand to the rooms below, refuse and print; the rooms themselves are stand-ins here."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.cli.calling import call
from tests.report.fake_runs import fake_comparison, fake_run
from unskew.cli import attack, explain
from unskew.experiments import reproduce
from unskew.runs import conformance


def settings(**given):
    return attack._settings(attack.Arguments(run=Path("r"), **given))


def test_the_settings_of_an_attack_are_values_and_samples_is_one_of_them():
    read = settings(
        attack="membership", set=("shadows=32", " steps =1e-3", "own=[1, 2]", "unit=client"), samples=7
    )
    assert read == {"shadows": 32, "steps": 1e-3, "own": [1, 2], "unit": "client", "samples": 7}
    assert settings(samples=3) == {"samples": 3}
    assert settings() == {}


@pytest.fixture
def attacked(monkeypatch):
    """What `perform` was asked, in place of an attack; it finds an infinite score."""
    asked = []

    def stand_in(opened, name, given, seeds, say):
        asked.append((name, given, seeds))
        say("attacking")
        return {"match": {"value": math.inf, "low": math.nan, "n": 3}}

    monkeypatch.setattr("unskew.attacks.attack.perform", stand_in)
    return asked


def test_what_an_attack_found_is_json_and_nothing_else(tmp_path, attacked):
    at = fake_run(tmp_path / "r", rounds=2)
    done = call("attack", str(at), "match", "--seeds", "2", "--json")
    assert json.loads(done.out, parse_constant=pytest.fail) == {"match": {"value": None, "low": None, "n": 3}}
    assert attacked == [("match", {}, 2)]
    assert (at / "report.html").is_file()
    told = call("attack", str(at))
    assert told.out == f"attacking\nreport  {at / 'report.html'}\n"
    assert attacked[1] == (None, {}, 1)


def checks(monkeypatch, *outcomes):
    found = [SimpleNamespace(name=name, ok=not detail, detail=detail) for name, detail in outcomes]
    monkeypatch.setattr(conformance, "check_method", lambda part: found)


def test_checks_are_told_one_by_one_and_one_that_fails_is_the_exit_code(monkeypatch):
    checks(monkeypatch, ("finite", ""), ("resumes", "it does not"), ("shares", ""))
    done = call("check", "fedprox")
    assert done.code == 1
    assert done.out.splitlines() == [
        "ok    finite",
        "FAIL  resumes: it does not",
        "ok    shares",
        "",
        "2 of 3 checks passed",
    ]
    held = call("check", "fedprox", "--json")
    assert (held.code, json.loads(held.out)[1]) == (
        1,
        {"check": "resumes", "ok": False, "detail": "it does not"},
    )
    checks(monkeypatch, ("finite", ""))
    assert call("check", "fedprox").code == 0


def test_a_report_of_one_or_several_folders(tmp_path):
    at = fake_comparison(tmp_path / "c", ["fedavg"], 1, rounds=2)
    assert call("report", str(at)).out == f"{at / 'report.html'}\n"
    both = call("report", str(at), str(fake_run(tmp_path / "r", rounds=2)), "--out", str(tmp_path / "p.html"))
    assert both.out == f"{tmp_path / 'p.html'}\n"
    assert "<title>c and r: " in (tmp_path / "p.html").read_text()
    assert "· 2 runs</p>" in (tmp_path / "p.html").read_text()


def test_an_interrupted_reproduction_says_how_it_goes_on(monkeypatch):
    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(reproduce, "carry_out", stopped)
    done = call("reproduce", "flea-fig9c")
    assert (done.code, done.out) == (
        130,
        "\nInterrupted; every run is saved. The same command continues them.\n",
    )
    assert call("reproduce", "flea-fig9c", "--json").out == ""


def test_options_of_a_network_are_refused_where_there_is_none(tmp_path):
    at = fake_run(tmp_path / "r", rounds=2)
    for options, told in (
        (["--without", "a"], "--without names sites"),
        (["--wait", "1h"], "--wait waits for sites"),
    ):
        done = call("resume", str(at), *options)
        assert (done.code, done.err) == (2, f"E109 {told} of a run over a network, and {at} is none.\n")


def test_nothing_but_json_stands_on_the_output_of_an_interrupted_comparison(tmp_path, monkeypatch):
    from unskew.comparison import training

    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "train_all", stopped)
    options = ("compare", "fedavg", "--seeds", "1", "--rounds", "1", "--clients", "3", "--no-references")
    quiet = call(*options, "--name", "q", "--json", cwd=tmp_path)
    assert (quiet.code, quiet.out) == (130, "")
    assert re.search(r"Continue with: unskew resume runs/q\n", quiet.err)
    aloud = call(*options, "--name", "p", cwd=tmp_path)
    assert "Continue with: unskew resume runs/p" in aloud.out


def test_explain_counts_for_the_data_and_the_model_that_were_asked_for(tmp_path):
    """For others only where neither was named and the method cannot work with the defaults."""
    assert "With digits and mlp, 10 clients, in all:" in call("explain", "fedprox", "--model", "mlp").out
    small, large = (
        re.search(
            r"leaves each client  weights (\S+ \S+) a", call("explain", "fedprox", "--model", model).out
        )[1]
        for model in ("mlp", "mlp(hidden=(512,))")
    )
    assert small != large
    other = call("explain", "fedbn").out
    assert "With colour images of 8x8 and cnn_small(batch_norm=True), 8 clients, in all:" in other
    rows = [f"{'abc'[i % 3]},{i / 40},{'no' if i < 20 else 'yes'}" for i in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["hospital,pressure,diagnosis", *rows]))
    for options in (("--model", "mlp"), ("--model", "cnn_small"), ("--data", "t.csv(site=hospital)")):
        done = call("explain", "fedbn", *options, cwd=tmp_path)
        assert (done.code, done.out, done.err[:4]) == (2, "", "E108"), options


def test_explain_says_what_the_mean_is_what_leaves_and_what_that_tells():
    plain = call("explain", "fedavg").out
    assert "With digits and its default model, 10 clients, in all:" in plain
    assert "McMahan" in plain.split("With digits")[0]
    assert re.search(r"leaves each client  weights .* a round \(read: sum\)", plain)
    assert "secure aggregation  with --secure-aggregation on, all of it is read only in the sum of 3" in plain
    assert "unskew attack" in plain.split("secure aggregation")[1]
    both = call("explain", "scaffold+fedprox+clip_gradients").out
    assert "Order matters: of the gradient, scaffold before clip_gradients." in both
    assert "Order matters" not in plain
    assert both.count("Differs from the paper") == 3
    assert "scaffold/delta" in both


@pytest.mark.parametrize("method", ["dp(delta=1.2e-5)", "dpsgd(noise_multiplier=1.7)"])
def test_a_private_method_is_explained_without_its_accountant(method, monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting.pld", None)
    page = explain.text(method)  # with settings of which no epsilon is in memory
    assert page.startswith("# dp")
    assert "E133 the account of differential privacy needs dp-accounting: pip install 'unskew[dp]'" in page
