"""What robust rules promise with few replies, about statistics of batch normalisation, and in words."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from unskew.core.replies import Reply, Ups
from unskew.methods import registry
from unskew.runs import conformance
from unskew.runs.disclosure import disclosure_lines

RULES = ("clip_median", "median", "trimmed_mean", "multi_krum")
FED = SimpleNamespace(shared=("w",), clients=8)


def merged(rule: str, weights: list[float], variances: list[float]) -> dict[str, torch.Tensor]:
    """From w = 0 and running_var = 1."""
    values = zip(weights, variances)
    replies = [
        Reply(k, 1.0, {"w": torch.tensor([a]), "running_var": torch.tensor([b])})
        for k, (a, b) in enumerate(values)
    ]
    part = registry.parse(rule).parts[0]
    start = {"w": torch.zeros(1), "running_var": torch.ones(1)}
    return part.merge(start, {}, Ups.of(replies, 1, part.weighting or "size"), FED)[0]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("replies", [3, 9])
def test_one_wild_client_cannot_wreck_the_weights(rule, replies):
    """Trimmed_mean was the mean below ten answering clients, multi_krum below five."""
    honest = [1.0 + k / 100 for k in range(replies - 1)]
    w = merged(rule, [*honest, 1e9], [1.0] * replies)["w"].item()
    assert abs(w) <= 1.1


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("replies", [3, 9])
def test_one_wild_statistic_cannot_wreck_the_model(rule, replies):
    """One running_var of 1e30 beside weights like the others' passed clip_median and multi_krum."""
    alike, honest = [1.0] * replies, [2.0 + k / 100 for k in range(replies - 1)]
    variance = merged(rule, alike, [1e30, *honest])["running_var"].item()
    assert 1 < variance < 2.1


@pytest.mark.parametrize(
    ("rule", "replies", "caution"),
    [
        *[(rule, n, f"with {n} of the three replies it takes") for rule in RULES for n in (1, 2)],
        *[(rule, 3, None) for rule in RULES[:3]],
        *[(rule, 7, None) for rule in RULES],
        ("multi_krum", 4, "of 4 replies 1 is left out, and its proof holds for 0"),
        ("multi_krum", 5, None),
        ("multi_krum(share=0.4)", 5, "of 5 replies 1 is left out, and its proof holds for 1"),
        ("multi_krum(share=0)", 2, None),
        ("trimmed_mean(share=0)", 2, None),
    ],
)
def test_a_rule_says_where_it_does_not_do_what_it_is_for(rule, replies, caution):
    said = registry.parse(rule).parts[0].caution(replies)
    assert said == caution if caution is None else said.startswith(caution)


def test_a_run_says_so_at_the_start_and_in_the_events_of_the_round():
    """Nothing was said of a merge that was the mean."""
    loop = conformance.loop_for(
        registry.parse("trimmed_mean"), clients=6, rounds=2, availability="sample:0.3"
    )
    caution = (
        "trimmed_mean: with 1 of the three replies it takes, it is the mean."  # the other has no samples
    )
    assert disclosure_lines(loop)[-1] == f"E108 {caution}"
    loop.round(loop.begin(), 1)
    said = [e["text"] for e in loop.record.rows["events"] if e["code"] == "E108"]
    assert said == [caution.replace(":", " round 1:")]
