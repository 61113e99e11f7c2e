"""Metrics by name: numbers by hand, the three scopes, a network, users' functions, and what is undefined."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
import torch

import unskew
from tests.federation import fake
from unskew import config, scores
from unskew.errors import StateError, UsageError
from unskew.federation.protocol import study_rules
from unskew.federation.protocol.wire_format import Limits, seal, unseal
from unskew.tasks.metric_functions import (
    auroc,
    average_precision,
    balanced_accuracy,
    brier,
    class_auroc,
    class_average_precision,
    class_macro_f1,
    class_perplexity,
    ece,
    median_error,
    r2,
)
from unskew.tasks.metrics import METRICS_OF_TASK, as_text, checked_function, metrics_of

ALL = "auroc,map,macro_f1,balanced_accuracy,ece,brier"
RNG = np.random.default_rng(5)
X = RNG.normal(size=(90, 3)).astype(np.float32)
Y = (X @ RNG.normal(size=(3, 3))).argmax(1)
SMALL = {"model": "mlp(hidden=[])", "rounds": 2, "epochs": 1, "lr": 0.1, "clients": 3, "workers": 1}
Y4, P4 = np.array([0, 1, 1, 0]), np.array([0.1, 0.4, 0.4, 0.4])


def error(y, p):
    """The share of wrong answers, and it spoils what it was given."""
    wrong = float((p.argmax(1) != y).mean())
    p[:], y[:] = 0, 0
    return wrong


error.lower_is_better = True


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> unskew.Result:
    """The first client's test rows are of one class, the second's of two, the third's of all."""
    split = [(X[:30], Y[:30]), (X[30:60], Y[30:60]), (X[60:], Y[60:])]
    tests = [np.flatnonzero(Y == 0)[:4], np.flatnonzero(Y < 2)[:9], np.arange(20)]
    clients = {
        f"c{k}": {"train": one, "test": (X[rows], Y[rows])} for k, (one, rows) in enumerate(zip(split, tests))
    }
    given = {"metrics": [error, *ALL.split(",")], "name": "m", "folder": tmp_path_factory.mktemp("runs")}
    return unskew.run("fedavg", clients, **{n: v for n, v in SMALL.items() if n != "clients"}, **given)


def test_ranking_by_hand():
    """Of four pairs of a positive and a negative two are in order and two tie; ties at 0.4 come at once."""
    assert auroc(Y4 == 1, P4) == 0.75
    assert average_precision(Y4 == 1, P4) == pytest.approx(2 / 3)
    assert average_precision(Y4 == 1, np.array([0.9, 0.8, 0.1, 0.2])) == pytest.approx((1 / 2 + 2 / 4) / 2)
    assert auroc(Y4 == 9, P4) is auroc(Y4 < 9, P4) is average_precision(Y4 == 9, P4) is None


def test_scores_of_classes_by_hand():
    y, p = (
        np.array([0, 0, 1, 2]),
        np.array([[0.8, 0.1, 0.1], [0.3, 0.6, 0.1], [0.2, 0.7, 0.1], [0.5, 0.3, 0.2]]),
    )
    assert balanced_accuracy(y, p.argmax(1)) == pytest.approx((1 / 2 + 1 + 0) / 3)
    assert class_macro_f1(y, p.argmax(1)) == pytest.approx((2 / 4 + 2 / 3 + 0) / 3)
    # class 2 is absent
    assert class_macro_f1(np.array([0, 0, 1]), np.array([0, 2, 1])) == pytest.approx((2 / 3 + 1) / 2)
    assert brier(y, p) == pytest.approx((0.06 + 0.86 + 0.14 + 0.98) / 4)
    assert class_perplexity(y, p) == pytest.approx((0.8 * 0.3 * 0.7 * 0.2) ** (-1 / 4))
    assert class_perplexity(np.zeros(9, int), np.full((9, 5), 0.2)) == pytest.approx(5)
    assert 1e37 < class_perplexity(np.array([1]), np.array([[1.0, 0.0]])) < np.inf
    assert ece(y, p) == pytest.approx((abs(1 - 0.8) + abs(0 - 0.6) + abs(1 - 0.7) + abs(0 - 0.5)) / 4)
    assert class_auroc(y, p) == pytest.approx((3 / 4 + 3 / 3 + 3 / 3) / 3)
    assert class_auroc(y[:2], p[:2]) is None
    two = np.stack([1 - P4, P4], 1)
    assert class_auroc(Y4, two) == 0.75
    assert class_average_precision(Y4, two) == pytest.approx(2 / 3)


def test_scores_of_numbers_by_hand():
    y = np.array([1.0, 2.0, 6.0])
    assert r2(y, np.array([1.0, 4.0, 6.0])) == pytest.approx(1 - 4 / 14)
    assert r2(np.ones(3), y) is None
    assert median_error(y, np.array([1.0, 4.0, 60.0])) == 2


def test_every_name_is_computed_for_some_task_and_has_a_kind():
    computed = set(itertools.chain(*(group for pair in METRICS_OF_TASK.values() for group in pair)))
    assert computed == set(scores.METRICS)
    assert all(name in scores.KINDS for name in scores.METRICS)
    assert (scores.kind("ece").lower, scores.kind("brier").share) == (True, False)
    assert scores.kind("own-lower:cost") == scores.Kind("cost", lower=True, share=False)
    assert not scores.kind("own:gain").lower


def test_each_scope_is_computed_from_all_its_rows(kept):
    """The global AUROC is that of all rows, not the mean of the clients'; without a class there is none."""
    of = kept.federation
    p, y = (
        kept.predict_proba(np.asarray(of.x_test)) if of.applied is None else answers(kept),
        np.asarray(of.y_test),
    )
    assert kept.scores("global", "auroc")["last"] == pytest.approx(class_auroc(y, p), abs=1e-6)
    each = [class_auroc(y[rows], p[rows]) for rows in (of.test[k] for k in range(3))]
    assert each[0] is None
    assert kept.scores("global@client", "auroc")["last"] == pytest.approx(np.mean(each[1:]), abs=1e-6)
    assert kept.scores("global@client", "ece")["last"] == pytest.approx(
        np.mean([ece(y[rows], p[rows]) for rows in (of.test[k] for k in range(3))]), abs=1e-6
    )
    wrong = (p.argmax(1) != y).mean()
    assert kept.scores("global", "own-lower:error")["last"] == pytest.approx(wrong, abs=1e-6)
    assert (
        kept.scores("global", "own-lower:error")["best"] <= kept.scores("global", "own-lower:error")["last"]
    )
    rows = [r for r in kept.record.rows["metrics"] if r["metric"] == "auroc" and r["client"] is not None]
    assert {r["client"] for r in rows} == {1, 2}
    assert all(math.isfinite(r["value"]) for r in kept.record.rows["metrics"])


def answers(result) -> np.ndarray:
    with torch.no_grad():
        return result.model(torch.as_tensor(np.asarray(result.federation.x_test))).softmax(1).numpy()


def test_whoever_asks_for_nothing_gets_the_same_rows_and_no_probabilities(kept, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "softmax", None)
    plain = unskew.run("fedavg", (X, Y, X[:20], Y[:20]), **SMALL)
    monkeypatch.undo()
    more = unskew.run("fedavg", (X, Y, X[:20], Y[:20]), metrics=ALL, **SMALL)
    named = set(ALL.split(",")) - {"macro_f1"}
    rows = [r for r in more.record.rows["metrics"] if r["metric"] not in named and r["metric"] != "seconds"]
    rows = [r for r in rows if r["metric"] != "macro_f1" or r["scope"] == "global"]
    assert rows == [r for r in plain.record.rows["metrics"] if r["metric"] != "seconds"]
    assert more.digest == plain.digest
    assert more.settings.fingerprint() != plain.settings.fingerprint()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("aurok", "E126 unknown metric 'aurok'. Did you mean 'auroc'.*your own is written file.py:function"),
        ("cost.py", "E126 unknown metric 'cost.py'"),
        ("auroc,none.py:cost", "E111 there is no file none.py"),
        ("r2", "E126 the metric 'r2' does not fit classification; of the metrics there are, auroc, map, ece"),
        ("(given):cost", "E126 'cost' was a function given in Python"),
        (lambda y, p: 1, "E126 metrics are names and functions written with def; .* has no name"),
        ([3], "E126 metrics are names and functions .* 3 is no function"),
    ],
)
def test_what_cannot_be_asked_for_is_one_sentence(text, says):
    with pytest.raises(UsageError, match=says):
        unskew.run("fedavg", (X, Y), metrics=text, **SMALL)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda y, p: torch.ones(3), "'f' returned 3 numbers; it must return one number"),
        (lambda y, p: "good", "'f' returned 'good'"),
        (lambda y, p: {}, "'f' returned {}"),
        (lambda y, p: 1 / 0, r"'f' failed with ZeroDivisionError: .*; it is given y \[4\] and answers"),
        (lambda y: 1, "'f' failed with TypeError.*return None where it is undefined"),
    ],
)
def test_what_an_own_function_may_not(function, says):
    with pytest.raises(UsageError, match=f"E126 the metric {says}"):
        checked_function("f", function)(Y4, P4)


def test_a_function_from_a_file(tmp_path):
    file = tmp_path / "cost.py"
    file.write_text("def cost(y, p):\n    return p[:, 0].mean()\n")
    run = unskew.run("fedavg", (X, Y), metrics=f"{file}:cost", **SMALL)
    assert 0 < run.scores("global", "own:cost")["last"] < 1
    before = run.settings.fingerprint()
    file.write_text("def cost(y, p):\n    return 1\n")
    assert run.settings.fingerprint() != before
    with pytest.raises(UsageError, match=r"E126 .*cost.py has no function 'coast'. Did you mean 'cost'"):
        unskew.run("fedavg", (X, Y), metrics=f"{file}:coast", **SMALL)
    with pytest.raises(UsageError, match="E126 two of the metrics are called 'cost'"):
        metrics_of(f"{file}:cost,(given):cost", "regression", {"cost": error})


def test_a_run_with_a_function_given_in_python_is_resumed_from_python(kept):
    assert kept.settings.metrics == f"(given):error,{ALL}"
    assert as_text(error) == ("(given):error", {"error": error})
    with pytest.raises(StateError, match=r"E156 .*its own data, model, loss or metric"):
        unskew.resume(kept.path)


def test_numbers_have_their_own(tmp_path):
    def bias(y, guess):
        return (guess - y).mean()

    run = unskew.run(
        "fedavg", (X, X[:, 0] * 3), target="price", metrics=["r2", "median_error", bias], **SMALL
    )
    assert run.scores("global@client", "r2")["last"] <= 1
    assert run.scores("global", "own:bias")
    with pytest.raises(UsageError, match=r"E126 the metric 'auroc' does not fit regression; .*, r2"):
        unskew.run("fedavg", (X, X[:, 0]), target="price", metrics="auroc", **SMALL)


def small(name):
    return fake.small(name, metrics=ALL, model="mlp(hidden=[4])", rounds=1, epochs=1)


def over_a_network(folder, name, meddle=None):
    channel = fake.Direct(fake.sites(folder / "sites", fake.federation()), meddle)
    return fake.run(folder / "run", channel, small(name))[0].record


@pytest.mark.parametrize("name", ["fedavg", "fedper"])
def test_over_a_network_the_sites_values_are_the_simulators(tmp_path, name):
    """And where nobody has all answers in one place there is no global value that a mean could pass for.

    In the run of FedAvg a site lies in its last scores: what it says is dropped, and it is named.
    """
    record = over_a_network(tmp_path, name, lying if name == "fedavg" else None)
    left = {n: v for n, v in small(name).as_dict().items() if n not in ("method", "data")}
    alone = unskew.run(name, fake.federation(), **left).record
    values, expected = (
        {
            (r["t"], r["scope"], r["metric"], r["client"]): r["value"]
            for r in one.rows["metrics"]
            if r["client"] is not None
        }
        for one in (record, alone)
    )
    said = [e["text"] for e in record.rows["events"] if e["code"] != "round"]
    if name == "fedavg":
        lies = [at for at in expected if at[0] == 1 and at[2] in LIES and at[3] == 2]
        assert len(lies) == 2 * len(LIES)
        assert all(at not in values for at in lies)
        expected = {at: v for at, v in expected.items() if at not in lies}
        assert len(said) == len(LIES) + 1
        assert "s2 round 1: 'score/global.auroc' has 1 non-finite value. Score dropped." in said
        assert "s2 round 1: 'score/global.ece' must lie in [0, 1]; got 7. Score dropped." in said
        assert "s2 round 1: 'score/global.secret' was not asked for. Score dropped." in said
    else:
        assert not said
    # also in round 0 there
    values = {at: v for at, v in values.items() if at in expected or at[1] != "personal@client"}
    assert values == pytest.approx(expected, abs=2e-6)
    assert not record.series("global", "auroc")[0]
    assert bool(alone.series("global", "auroc")[0]) == (name == "fedavg")


LIES = {"auroc": float("nan"), "ece": 7.0, "brier": math.inf}


def lying(site, asked, honest):
    told = json.loads(asked.text)
    if (site, told["kind"], told["t"]) != ("s2", "score", 1):
        return honest
    packet = unseal(honest, fake.KEYS[site].public, Limits(1 << 30, 1 << 20))
    header = {n: v for n, v in packet.header.items() if n not in ("sha256", "axes")}
    wrong = {f"global.{m}": torch.tensor([v], dtype=torch.float64) for m, v in LIES.items()}
    return seal(header, packet.tree | wrong | {"global.secret": torch.zeros(1)}, fake.KEYS[site])


def test_no_site_loads_a_function_that_a_coordinator_names(tmp_path):
    """Before anything looks for the file, which would otherwise run."""
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\ndef f(y, p):\n    return 1\n")
    settings = config.build({"metrics": f"auroc,{tmp_path}/evil.py:f"})
    for judge in (study_rules.study_settings, lambda settings: study_rules.site_settings(settings, None)):
        with pytest.raises(UsageError, match=r"E506 the metric '.*evil.py:f' is a function of your own"):
            judge(settings)
    assert not (tmp_path / "ran").exists()
