"""What sections show of invented runs: measures by site, rounds, clients by name, and what privacy costs."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from tests.report.fake_runs import fake_comparison, fake_run
from tests.report.test_sentences import changed
from tests.report.test_summary import run
from unskew.report.analysis.runs import read_run, read_runs
from unskew.report.sections import clients, context_of, disclosure, measures, rounds


def pictures(html):
    """Titles, and the description of the picture below each."""
    return re.findall(r'<h3>([^<]*)</h3><figure><svg [^>]*aria-label="([^"]*)"', html)


def table(html):
    """The last table: its head, and its rows."""
    head, body = re.findall(r"<thead>(.*?)</thead>.*?<tbody>(.*?)</tbody>", html, re.DOTALL)[-1]
    return re.findall(r"<th[^>]*>([^<]*)<", head), [
        re.findall(r"<t[dh][^>]*>([^<]*)<", row) for row in body.split("<tr>")[1:]
    ]


def measured(tmp_path, **by_method):
    made = []
    for method, held in by_method.items():
        at = fake_run(tmp_path / method, method, rounds=3, clients=4)
        (at / "measures.json").write_text(json.dumps(held))
        made.append(read_run(at))
    return context_of(made, "x")


def test_confusion_has_a_matrix_of_all_samples_and_one_of_each_client_that_has_some(tmp_path):
    of = [[2] * 10] * 10
    held = {"confusion": {"all": of, "names": ["a", "b"], "sites": [of, [[0] * 10] * 10]}}
    html = measures.build(measured(tmp_path, fedavg=held, flea=held)).html
    assert [words.partition(", ")[2] for _, words in pictures(html)] == [
        f"{where}: 20 of 200 samples right" for where in ("all test samples", "a")
    ] * 2


def test_rounds_have_a_tab_for_each_scope_that_was_trained(tmp_path):
    scored = {"global_accuracy": [0.25, 0.5], "client_mean": [0.5, 0.75]}
    section = rounds.build(context_of([run("a", 0, first=0, **scored), run("a", 1, first=0, **scored)], "x"))
    assert re.findall(r"<strong>([^<]*)</strong> ([^<]*)<", section.html) == [
        ("Global.", "The global model on the global test set."),
        ("Global at clients.", "The global model on each client&#39;s own test rows; mean over clients."),
    ]
    assert "accuracy, % (mean over clients) against round. a ends at 75.0 %" in section.html
    assert "accuracy, % against round. a ends at 50.0 %" in section.html
    assert section.note == "Lines are means over 2 seeds, bands one standard deviation."
    assert rounds.build(context_of([run("a", 0, first=0, **scored)], "x")).note == "One seed."
    uneven = [
        changed(run("a", s, [0.25, 0.5, 0.75][: 2 + s]), config={"method": "a", "seed": s, "rounds": 3})
        for s in (0, 1)
    ]
    assert "its line ends with the first of them" in rounds.build(context_of(uneven, "x")).note


def named(method, scores, sizes=(10, 20, 30), **more):
    facts = {
        "clients": 3,
        "names": ["anna", "ben", "carl"],
        "sizes": {"train": [1] * 3, "test": list(sizes)},
        **more,
    }
    return changed(run(method, 5), federation=facts, clients={("global@client", "accuracy"): scores})


def test_each_client_has_a_row_with_its_test_samples_and_every_methods_score():
    one, other = named("a", {0: 0.25, 2: 0.75}), named("b", {0: 0.5, 1: 0.625})
    section = clients.build(context_of([one, other], "x"))
    head, rows = table(section.html)
    assert head == ["client", "test samples", "a", "b"]
    assert rows == [["anna", "10", "25.0", "50.0"], ["ben", "20", "–", "62.5"], ["carl", "30", "75.0", "–"]]
    assert "Accuracy in % on the client's own test samples after the last round" in section.note
    assert "80 % may as well be 64 or 96 %" in section.note
    assert "no test samples" not in section.note


def test_a_method_on_other_clients_has_no_column():
    section = clients.build(context_of([named("a", {0: 0.5}), named("b", {0: 0.5}, (10, 20, 31))], "x"))
    assert table(section.html)[0] == ["client", "test samples", "a"]


def attacked(at, value, low, high, name="context", payload="w"):
    score = {
        "payload": payload,
        "of": "update",
        "metric": "AUC",
        "value": value,
        "low": low,
        "high": high,
        "floor": 0.5,
        "ceiling": 1.0,
        "n": 10,
        "main": True,
    }
    path = at / "privacy.json"
    held = json.loads(path.read_text()) if path.exists() else {"attacks": {}}
    held["attacks"][name] = {
        "command": "unskew attack",
        "scores": [score],
        "adversary": "a",
        "auxiliary": "b",
        "seeds": 1,
        "doubts": [],
    }
    path.write_text(json.dumps(held))


def test_what_privacy_costs_is_told_of_two_methods_of_which_one_was_attacked(tmp_path):
    at = fake_comparison(tmp_path / "c", ["fedavg", "flea", "local"], 1, rounds=3)
    context = context_of(read_runs([at]), "x")
    assert "What privacy costs" not in disclosure.build(context).html  # nobody attacked
    attacked(at / "fedavg--s0", 0.75, 0.625, 0.875)
    html = disclosure.build(context_of(read_runs([at]), "x")).html.partition("What privacy costs")[2]
    body = html.split("<tbody>")[1]
    rows = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in body.split("<tr>")[1:]]
    assert rows[0][0] == "fedavg"
    assert rows[0][2:] == [
        "infinite",
        "weights",
        "context",
        "AUC 0.75 [0.625, 0.875]",
        "0.5",
        "50 % [25, 75]",
    ]
    assert "local" not in html


def test_epsilon_stands_beside_the_score_with_what_it_covers(tmp_path):
    at = fake_comparison(tmp_path / "c", ["fedavg", "rebafl"], 1, rounds=3)
    rows = [json.loads(line) for line in (at / "rebafl--s0/ledger.jsonl").read_text().splitlines()]
    noisy = [{**row, "guarantee": "dp"} if row["share"] == "w" else row for row in rows]
    (at / "rebafl--s0/ledger.jsonl").write_text("".join(json.dumps(row) + "\n" for row in noisy))
    (at / "rebafl--s0/privacy.json").write_text(
        json.dumps({"dp": {"release": "r", "epsilons": [{"epsilon": 4.0, "reading": "of a client"}]}})
    )
    html = disclosure.build(context_of(read_runs([at]), "x")).html
    assert ">4, of a client<" in re.sub(r"\s+", " ", html.partition("What privacy costs")[2])


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
    assert clients.verdict(n, federated, alone) == verdict


def test_a_comparison_with_training_alone_says_at_which_sites_federating_is_worth_it(tmp_path):
    """The counts of the sentence are those of its rows, and the gain is the difference of the two columns."""
    at = fake_comparison(tmp_path / "c", ["fedavg", "rebafl", "local"], seeds=1, rounds=6)
    section = clients.build(context_of(read_runs([at]), "c"))
    method = section.lead.split()[1].rstrip(",")
    head, rows = table(section.html)
    assert head == ["client", "test samples", "fedavg", "rebafl", "local", f"{method} over local", "worth it"]
    counts = [sum(row[-1] == v for row in rows) for v in ("yes", "no", "unclear")]
    assert sum(counts) == len(rows) == 20
    assert (
        f"better than training alone at {counts[0]} of 20 clients and clearly worse at {counts[1]}"
        in section.lead
    )
    for row in rows:
        federated, alone = float(row[head.index(method)]), float(row[head.index("local")])
        assert float(row[-2]) == pytest.approx(federated - alone, abs=0.11)
    without = fake_comparison(tmp_path / "d", ["fedavg", "rebafl"], seeds=1, rounds=6)
    assert "worth it" not in clients.build(context_of(read_runs([without]), "d")).html


def test_an_attack_that_reads_one_input_is_named_as_not_made_where_samples_have_several(tmp_path):
    one = read_run(fake_run(tmp_path / "r", "fedavg", rounds=3))
    several = replace(one, federation={**one.federation, "layout": [["scan", "float32", [3]]]})
    (weights,) = (p for p in disclosure.items(several) if p.learned)
    (text, command) = weights.learned[-1]
    assert "not measured by gradient" in text
    assert "gradient" not in command
    assert "membership" in command
