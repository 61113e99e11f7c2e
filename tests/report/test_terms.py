"""After how many rounds the runs of a table ended, and on which samples they were scored, is said beside
their scores."""

from __future__ import annotations

from dataclasses import replace

from tests.report.test_summary import run
from unskew.report.analysis import results_table
from unskew.report.analysis.summary import summary_table
from unskew.report.page import page
from unskew.report.sections import context_of, definitions, partition

FEDERATION = {
    "name": "digits",
    "skew": "iid",
    "clients": 1,
    "names": ["a"],
    "classes": ["0"],
    "labels": [[9]],
    "test": 8,
    "sizes": {"train": [9], "test": [8]},
}


def ended(method, seed, last, asked=40, code="E323", **config):
    """A run that was asked for so many rounds and ended after `last` of them."""
    plain = run(method, seed, [0.5] * last)
    events = [{"t": last - 1, "code": code, "text": "why", "last": last}]
    return replace(plain, config={**plain.config, "rounds": asked, **config}, events=events)


def whole(method, seed, asked=40, **config):
    plain = run(method, seed, [0.4] * asked)
    return replace(plain, config={**plain.config, **config})


def test_runs_that_patience_ended_are_named_with_their_rounds():
    """A method that patience ended in round 8 stood beside one of 28 rounds as if both had trained as
    long."""
    runs = [
        ended("a", 0, 28, patience=3),
        ended("a", 1, 22, patience=3),
        ended("b", 0, 8, patience=3),
        whole("b", 1, patience=3),
    ]
    text = results_table.note(summary_table(runs))
    line = "Ended before their last round: a after 22 to 28 of 40, b after 8 to 40 of 40."
    assert f"{line} Patience judged by the scores of this table." in text
    assert f"% {line}" in results_table.latex(summary_table(runs))
    assert line in page(runs, "x")


def test_runs_that_are_not_finished_are_named():
    """Half a run stood in the table of an interrupted comparison, and in its LaTeX, as if it were whole."""
    half = run("a", 1, [0.5] * 12)
    half = replace(half, config={**half.config, "rounds": 40})
    text = results_table.note(summary_table([whole("a", 0), half, whole("b", 0), whole("b", 1)]))
    assert "Not finished, and scored by the rounds that there are: a seed 1 (round 12 of 40)." in text
    assert "Ended before" not in text
    many = [replace(half, config={**half.config, "seed": seed}) for seed in range(6)]
    text = results_table.note(summary_table(many))
    assert "a seed 3 (round 12 of 40), …." in text
    assert "seed 4" not in text


def test_scores_of_held_out_samples_do_not_pass_for_the_test_sets():
    held = replace(whole("a", 0, 2, validation=0.2), federation=FEDERATION)
    line = "Scored on 20% of the training samples, which were held out, and not on the test set."
    assert line in results_table.note(summary_table([held]))
    assert "The held-out part has 8 samples." in partition.sentence(held)
    plain = replace(whole("a", 0, 2), federation=FEDERATION)
    assert "The test set has 8 samples." in partition.sentence(plain)
    said = [str(definitions.build(context_of([r], "x")).html) for r in (held, plain)]
    assert ["those samples are meant" in text for text in said] == [True, False]


def scored(method, seed, own, common=20, **changes):
    """A run whose clients 0, 1, ... were scored: so many with their own models, and so many with the common
    one."""
    federation = {**FEDERATION, "clients": 21, "sizes": {"train": [9] * 21, "test": [8] * 20 + [0]}}
    clients = {
        (scope, "accuracy"): dict.fromkeys(range(n), 0.5)
        for scope, n in (("personal@client", own), ("global@client", common))
        if n
    }
    return replace(whole(method, seed), federation=federation, clients=clients, **changes)


def test_means_over_fewer_clients_than_others_have_are_named():
    """Those of a method whose clients keep weights were means over clients that had taken part, beside means
    over all."""
    runs = [scored("a", 0, 20), scored("kept", 0, 12, 12), scored("kept", 1, 14, 14), scored("own", 0, 13)]
    line = (
        "Scored at fewer clients than have test samples, as the others never took part, or did not answer: "
        "kept at 12 to 14 of 20, own (personal) at 13 of 20."
    )
    assert line in results_table.note(summary_table(runs))
    assert line in page(runs, "x")
    text = results_table.note(summary_table([scored("a", 0, 20), scored("a", 1, 0), scored("b", 0, 0, 0)]))
    assert "Scored at fewer" not in text
    assert "alone at 9 of 20." in results_table.note(summary_table([scored("alone", 0, 9, 0)]))
    half = scored("half", 0, 12, 12)
    half = replace(half, config={**half.config, "rounds": 90})
    assert "Scored at fewer" not in results_table.note(summary_table([half])), (
        "the first rows of clients need not be the last"
    )
    some = {**FEDERATION, "clients": 5000, "sizes": {"train": [9] * 20, "test": [8] * 20}}
    assert "Scored at fewer" not in results_table.note(
        summary_table([replace(scored("a", 0, 12), federation=some)])
    )
