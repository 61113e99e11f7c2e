"""Whoever wrecks the model is named, and never the honest sites that could not train on it afterwards."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.federation import fake
from tests.federation.test_bad import BAD, WIDE, again, meddling, opened, silence
from unskew.core.replies import Reply
from unskew.core.trees import tree_map
from unskew.errors import UsageError
from unskew.federation.coordinator import outliers
from unskew.federation.coordinator.outliers import Change, NormOutliers, OutlierFilter
from unskew.federation.protocol.wire_format import seal, unseal
from unskew.records.checkpoints import digest
from unskew.round.clients import Broadcast


def times(factor: float, branch: str = "w"):
    """What BAD sends, multiplied."""

    def change(asked, honest):
        packet = opened(honest)
        packet.tree[branch] = tree_map(
            lambda t: t * factor if t.is_floating_point() else t, packet.tree[branch]
        )
        return again(packet)

    return change


def events(path) -> list[tuple[str, str]]:
    lines = (path / "events.jsonl").read_text().splitlines()
    return [(e["code"], e["text"]) for e in map(json.loads, lines) if e["code"] != "round"]


def run(tmp_path, meddle, settings, nodes=None):
    sites = fake.sites(tmp_path / "sites", fake.federation())
    channel = fake.Direct({n: s for n, s in sites.items() if nodes is None or n in nodes}, meddle)
    return fake.run(tmp_path / "run", channel, settings)


@pytest.mark.parametrize("name", ["fedavg", "fednova", "fedbn", "scaffold", "fedavgm", "flea"])
def test_weights_of_1e12_are_dropped_and_only_their_sender_is_named(tmp_path, name):
    """N7: with --no-clip they wrecked the model, and then all honest sites were named."""
    _, state, _ = run(tmp_path, meddling(times(1e12)), fake.small(name))
    ((code, text),) = events(tmp_path / "run")
    assert code == "E318"
    assert text.startswith("s2 round 2: it changes the model's weights by ")
    away = fake.Direct(fake.sites(tmp_path / "away", fake.federation()), meddling(silence))
    assert digest(state.weights) == digest(fake.run(tmp_path / "run2", away, fake.small(name))[1].weights)


def test_what_a_part_shares_is_compared_as_well(tmp_path):
    """N7: control variates of 1e12, which no aggregation rule touches."""
    run(tmp_path, meddling(times(1e12, "shares")), fake.small("scaffold+clip_median"))
    ((code, text),) = events(tmp_path / "run")
    assert (code, text[:40]) == ("E318", "s2 round 2: it changes what 'scaffold' s")


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_whoever_spoilt_the_model_unnoticed_is_named_once_training_fails(tmp_path, name, monkeypatch):
    """N7: however it slipped through, honest sites are not named E301 for what they were sent."""
    real = NormOutliers._changes
    monkeypatch.setattr(
        NormOutliers,
        "_changes",
        lambda *args: [
            c.__class__(c.client, c.ratio, False, c.text) for c in real(*args)
        ],  # it slips through
    )
    with pytest.raises(
        UsageError, match=r"E318 round 3: training fails at . of 5 sites.*Most likely s2 spoilt it in"
    ):
        run(tmp_path, meddling(times(1e30)), fake.small(name))
    assert "E301" not in {code for code, _ in events(tmp_path / "run")}


def test_two_sites_cannot_blame_the_honest_one(tmp_path):
    """N7: of two, the one that jumps is refused, and not the one that trains beside somebody who stands
    still."""

    def still(site, asked, honest):
        told = json.loads(asked.text)
        if (site, told["kind"], told["t"]) != (BAD, "train", 2):
            return honest
        packet, received = opened(honest), unseal(asked, fake.COORDINATOR.public, WIDE).tree["w"]
        packet.tree["w"] |= {n: w for n, w in received.items() if n in packet.tree["w"]}
        return again(packet)

    run(tmp_path, still, fake.small("fedavg", clients=3), nodes={1000, 998})
    assert not [e for e in events(tmp_path / "run") if e[0] == "E318"]


def test_two_sites_and_one_that_jumps(tmp_path):
    run(tmp_path, meddling(times(1e12)), fake.small("fedavg", clients=3), nodes={1000, 998})
    assert [text[:11] for code, text in events(tmp_path / "run") if code == "E318"] == ["s2 round 2:"]


def test_where_training_diverges_everywhere_nobody_is_singled_out(tmp_path):
    run(tmp_path, None, fake.small("fedavg", lr=1e30))
    codes = {code for code, _ in events(tmp_path / "run")}
    assert "E301" in codes
    assert not codes & {"E318"}


def replies(*moves: float, shares: dict[int, float] | None = None) -> list[Reply]:
    """Clients whose one weight, which began at 1, moved so far."""
    return [
        Reply(
            k, 1.0, {"w": torch.tensor([1.0 + d])}, {"p": {"s": torch.tensor([(shares or {}).get(k, 1.0)])}}
        )
        for k, d in enumerate(moves)
    ]


START = {"w": torch.tensor([1.0])}


@pytest.mark.parametrize(
    ("moves", "steps", "refused"),
    [
        ((0.1, 0.2, 0.3), (1, 1, 1), []),
        ((0.1, 0.1, 5.0), (1, 1, 1), [2]),  # 50 times the others' median and above |w| = 1
        ((0.01, 0.01, 0.9), (1, 1, 1), []),  # 90 times, but less than the model's size
        ((0.1, 0.1, 5.0), (1, 1, 100), []),  # a hundred times as many steps: 0.05 a step
        ((0.1, 0.1, 5e9), (1, 1, 1 << 39), [2]),  # which says it has taken a thousand million steps
        ((5.0, 5.0, 0.0), (1, 1, 1), []),
        ((5.0, 0.0), (1, 1), []),  # of two, either may be the odd one out
        ((500.0, 0.1), (1, 1), [0]),
        ((1e9,), (1,), []),
    ],
)
def test_worked_by_hand(moves, steps, refused):
    checked = NormOutliers(("w",), dict(enumerate(steps))).check(1, START, replies(*moves))
    assert [c.client for c in checked] == refused


def test_shared_values_worked_by_hand():
    proportions = NormOutliers(("w",), {0: 1, 1: 1, 2: 1})
    assert not proportions.check(1, START, replies(0, 0, 0, shares={2: 1e5}))  # sums grow with the samples
    (change,) = proportions.check(2, START, replies(0, 0, 0, shares={2: 1e7}))
    assert (change.client, change.text) == (
        2,
        "it changes what 'p' shares by 1e+07, the other sites by 1 (median of norms)",
    )


def test_what_two_sites_share_is_not_compared():
    """Either may be the odd one out."""
    assert not NormOutliers(("w",), {0: 1, 1: 1}).check(1, START, replies(0, 0, shares={1: 1e9}))


def test_a_client_has_changed_what_it_was_sent():
    """Where each is sent a model of its own, none of them begins at the model of all."""
    own = {k: {"w": torch.tensor([w])} for k, w in enumerate((1.0, 1.0, 100.0))}
    moved = [replace(r, weights={"w": own[k]["w"] + 0.1}) for k, r in enumerate(replies(0, 0, 0))]
    proportions = NormOutliers(("w",), {0: 1, 1: 1, 2: 1})
    assert proportions.check(1, START, moved)
    assert not proportions.check(1, START, moved, own.__getitem__)


def test_a_reply_that_was_refused_has_spoilt_nothing():
    proportions = NormOutliers(("w",), {0: 1, 1: 1, 2: 1})
    assert [c.client for c in proportions.check(1, START, replies(0.1, 0.1, 5.0))] == [2]
    assert proportions.suspect() is None


def test_the_suspect_is_the_one_furthest_out_of_proportion_in_the_last_rounds():
    proportions = NormOutliers(("w",), {0: 1, 1: 1, 2: 1})
    proportions.check(1, START, replies(0.1, 0.1, 0.2))
    assert proportions.suspect() is None
    proportions.check(2, START, replies(0.01, 0.9, 0.01))
    t, change = proportions.suspect()
    assert (t, change.client) == (2, 1)
    for t in range(3, 8):
        proportions.check(t, START, replies(0.1, 0.1, 0.2))
    assert proportions.suspect() is None


def test_statistics_of_batch_normalisation_are_compared_by_themselves():
    """They are a thousand times as large as the weights here, so beside them no weight's move would count."""
    start = START | {"running_var": torch.tensor([1000.0])}
    proportions = NormOutliers(("w",), {0: 1, 1: 1, 2: 1})

    def refused(moves, varied):
        made = [
            replace(r, weights=r.weights | {"running_var": torch.tensor([1000.0 + v])})
            for r, v in zip(replies(*moves), varied)
        ]
        return [(c.client, c.text.partition(" by ")[0]) for c in proportions.check(1, start, made)]

    assert refused((0.1, 0.1, 5.0), (1.0, 1.0, 1.0)) == [(2, "it changes the model's weights")]
    assert refused((0.1, 0.1, 0.1), (1.0, 1.0, 5e4)) == [
        (2, "it changes the statistics of batch normalisation")
    ]
    assert not refused((0.1, 0.1, 0.1), (1.0, 1.0, 900.0))


def sound(failing: int, sites: int = 4) -> OutlierFilter:
    """Of a run whose model site 1 has spoilt, in a round in which so many sites fail to train on it."""
    hellos = [SimpleNamespace(site=f"s{k}") for k in range(sites)]
    fed = SimpleNamespace(batch=8, sizes=np.array([20, 16, 1, 0]), shared=("w",))
    soundness = OutlierFilter(
        SimpleNamespace(local=SimpleNamespace(fed=fed), hellos=hellos, tell=lambda *event: None)
    )  # type: ignore[arg-type]
    spoilt = Change(1, 50.0, False, "it changes the model's weights by 5")
    soundness.proportions.suspect = lambda: (2, spoilt)  # type: ignore[method-assign]
    lost = [SimpleNamespace(code="E301", client=k) for k in range(failing)]
    soundness._gate = lambda given, spec: ([r for r in given if r.client >= failing], lost)  # type: ignore[method-assign]
    return soundness


def test_half_of_the_sites_failing_is_enough_to_name_who_spoilt_the_model():
    start, spec = Broadcast(3, 0.1, START, {}), SimpleNamespace(encoded=False, shares={})
    assert len(sound(1).without_outliers(start, replies(0.1, 0.1, 0.1, 0.1), spec, [])) == 4  # type: ignore[arg-type]
    says = r"E318 round 3: training fails at 2 of 4 sites.*Most likely s1 spoilt it in round 2"
    with pytest.raises(UsageError, match=says):
        sound(2).without_outliers(start, replies(0.1, 0.1, 0.1, 0.1), spec, [])  # type: ignore[arg-type]
    with pytest.raises(
        UsageError, match=says
    ):  # one whose reply came, and one that said itself that it failed
        sound(1).without_outliers(start, replies(0.1, 0.1, 0.1), spec, [(3, "E301", "s3 could not train")])  # type: ignore[arg-type]


def test_a_round_takes_a_short_batch_as_a_step_of_its_own():
    assert sound(0).proportions.steps == {0: 3, 1: 2, 2: 1, 3: 0}


def earlier(factor: float):
    """Features that BAD sends with its training of round 1, so many times as large."""

    def meddle(site, asked, honest):
        told = json.loads(asked.text)
        return (
            times(factor, "early")(asked, honest)
            if (site, told["kind"], told["t"]) == (BAD, "train", 1)
            else honest
        )

    return meddle


@pytest.mark.parametrize("factor", [1e30, 1e5, 2e3])
def test_features_that_come_with_the_training_are_compared_as_well(tmp_path, factor):
    """Of a trip that travels with the training nothing was compared: one site's features wrecked the model of
    all, and honest sites were named for what became of them."""
    run(tmp_path, earlier(factor), fake.small("flea(fused=True)", rounds=3))
    ((code, text),) = events(tmp_path / "run")
    assert (code, text[:44]) == ("E318", "s2 round 1: it changes what 'flea' shares by")
    ledger = [json.loads(line) for line in (tmp_path / "run/ledger.jsonl").read_text().splitlines()]
    lost = [row for row in ledger if row.get("dropped")]
    assert {(row["t"], *row["clients"]) for row in lost} == {(1, 2)}
    assert {row["share"] for row in lost} == {row["share"] for row in ledger if row["share"][:5] == "flea/"}


def test_inputs_and_features_are_compared_by_their_values_whatever_the_number_of_steps():
    proportions = NormOutliers(("w",), {0: 1, 1: 1, 2: 500})
    long = replies(0, 0, 0)
    long[2].shares["p"]["s"] = torch.full(
        (10**6,), 900.0
    )  # a million numbers, none of them a thousand times the others'
    assert not proportions.check(1, START, long, of_samples={"p"})
    (change,) = proportions.check(2, START, replies(0, 0, 0, shares={2: 1100.0}), of_samples={"p"})
    assert (
        change.text
        == "it changes what 'p' shares by 1.1e+03, the other sites by 1 (median of root mean squares)"
    )
    assert not proportions.check(3, START, replies(0, 0, 0, shares={2: 1100.0}), of_samples={"q"})


def test_losses_that_are_no_numbers_count_as_training_that_fails(tmp_path, monkeypatch):
    """Where features had spoilt the model, honest sites were named one by one for their losses."""
    monkeypatch.setattr(outliers, "MOST_VALUES", 1e12)  # it slips through
    with pytest.raises(
        UsageError, match=r"E318 round 2: training fails at . of 5 sites.*Most likely s2 spoilt it in round 1"
    ):
        run(tmp_path, earlier(1e10), fake.small("flea(fused=True)", rounds=3))


FORGED = "x\nE318 s1 round 1: it changes the model's weights by 9.\x1b[31m"


@pytest.mark.parametrize("branch", ["score", "w"])
def test_a_name_that_a_site_makes_up_writes_no_line_of_its_own(tmp_path, branch):
    """A line of the coordinator's log, and of its terminal, that named an honest site."""

    def rename(asked, honest):
        packet = opened(honest)
        names = dict(packet.tree.get(branch, {}))
        packet.tree[branch] = {FORGED: names.pop(next(iter(names)))} | names
        return again(packet)

    _, _, said = run(tmp_path, meddling(rename), fake.small("fedavg", eval_every=1))
    told = [text for text in said if "x\\nE318 s1" in text]
    assert [text[:5] for text in told] == ["E303 "]
    assert not [text for text in said if "\nE318" in text or "\x1b" in text]
    assert not [text for _, text in events(tmp_path / "run") if "\n" in text]


def test_no_score_is_so_large_that_a_mean_of_scores_is_none(tmp_path):
    """Two sites that said 1.7e308 made the mean infinite, which no file of a run can hold."""

    def huge(site, asked, honest):
        packet = opened(honest, site)
        scores = packet.tree.get("score", packet.tree)
        if site not in ("s2", "s3") or "global.brier" not in scores:
            return honest
        scores["global.brier"] = torch.tensor([1.7e308], dtype=torch.float64)
        facts = {n: v for n, v in packet.header.items() if n not in ("sha256", "axes")}
        return seal(facts, packet.tree, fake.KEYS[site])

    run(tmp_path, huge, fake.small("fedavg", rounds=2, metrics="brier"))
    metrics = (tmp_path / "run/metrics.jsonl").read_text()
    assert "Infinity" not in metrics
    assert "NaN" not in metrics
    assert {(code, text[:2]) for code, text in events(tmp_path / "run")} == {("E303", "s2"), ("E303", "s3")}
