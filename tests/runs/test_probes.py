"""What each probe looks at: under which weights, on whose rows, after which round. Features and scores are
written by hand.

A lens here gives points whose Davies-Bouldin index says what it was asked for: {-s, s} and {100 - s, 100 + s}
have 2 s / 100.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from unskew.core.replies import Reply
from unskew.round.clients import Broadcast
from unskew.round.probes import MOST_CLIENTS, Measurement, Measures, Probe, RoundEnd, RunInspector, mean
from unskew.runs.measures import tsne
from unskew.runs.measures.correlation import Correlation, distance_correlation
from unskew.runs.measures.cross_site import CrossSite
from unskew.runs.measures.exposure import Exposed
from unskew.runs.measures.separation import Separation
from unskew.runs.measures.tsne import TSNE

SENT, AFTER = Broadcast(4, 0.1, {"w": torch.zeros(1)}, {}), Broadcast(5, 0.1, {"w": torch.ones(1)}, {})
Y = np.array([0, 0, 1, 1])


def points(s: float) -> Tensor:
    return torch.tensor([[-s], [s], [100 - s], [100 + s]])


def index(*s: float) -> float:
    """The mean of the indices of such points."""
    return 2 * sum(s) / len(s) / 100


def ended(clients: range | list[int], last: bool = True) -> RoundEnd:
    replies = [Reply(k, 1.0, {"w": torch.full((1,), 10.0 + k)}, private={}) for k in clients]
    return RoundEnd(4, last, SENT, AFTER, replies)


@dataclass
class Seen:
    """A lens that knows weights: ("trained", k), ("held", k),or AFTER's, the global ones."""

    trainer: Any
    scoring: Any
    client_names: tuple[str, ...] = ("a", "b", "c")
    asked: list[Any] = field(default_factory=list)

    def each(self, function, items):
        return [function(item) for item in items]

    def trained_weights(self, reply, sent):
        assert sent is SENT
        return "trained", reply.client

    def held_weights(self, reply, after):
        assert after is AFTER
        return "held", reply.client

    def _s(self, k: int, w: Any, start: Broadcast) -> float:
        kind, of = w if isinstance(w, tuple) else ("global", k)
        assert start is (SENT if kind == "trained" else AFTER)
        assert of == k if isinstance(w, tuple) else w is AFTER.weights
        return {"trained": 1.0, "held": 3.0, "global": 5.0}[kind] + max(of, 0)

    def training_features(self, k, w, start, most=0):
        self.asked.append((k, most))
        return points(self._s(k, w, start)), torch.as_tensor(Y)

    def test_features(self, rows, k, w, start):
        return points(10 + self._s(k, w, start))

    def test_labels(self, rows):
        return torch.as_tensor(self.scoring.y[rows])

    def choice(self, rows, most, *purpose):
        return rows


def lens(**more: Any) -> Any:
    fed = SimpleNamespace(
        natural=False,
        sizes=np.array([3, 50, 8]),
        batch=6,
        task=SimpleNamespace(main_score="dice"),
        seed=0,
        net=SimpleNamespace(layout=None, embeds=False),
    )
    trainer = SimpleNamespace(
        fed=fed, sent=("w",), keeps_model=False, device=torch.device("cpu"), samples=None, method=None
    )
    scoring = SimpleNamespace(y=Y, own_inputs=False, clients=[0, 1, 2], test=[np.arange(4)] * 3)
    made = Seen(trainer, scoring)
    for name, value in more.items():
        place = next(each for each in (fed, trainer, scoring, made) if hasattr(each, name))
        setattr(place, name, value)
    return made


def test_separation_is_of_local_models_as_they_were_trained_and_of_the_global_one_after_the_round():
    seen = lens()
    assert Separation(seen).measure(ended([0, 2])).values == {
        "separation_train_local": pytest.approx(index(1, 3)),
        "separation_test_local": pytest.approx(index(11, 13)),
        "separation_train_global": pytest.approx(index(5, 7)),
        "separation_test_global": pytest.approx(index(15)),
    }
    assert [most for _, most in seen.asked] == [0, 0, 1000, 1000]  # two clients have half of 2,000 rows each


def test_where_clients_keep_weights_separation_is_of_the_global_model_as_each_holds_it():
    assert Separation(lens(keeps_model=True)).measure(ended([0, 1])).values == {
        "separation_train_local": pytest.approx(index(1, 2)),
        "separation_test_local": pytest.approx(index(11, 12)),
        "separation_train_global": pytest.approx(index(3, 4)),
        "separation_test_global": pytest.approx(index(13, 14)),
    }
    assert "separation_train_global" not in Separation(lens(sent=())).measure(ended([0])).values


def test_points_of_the_plane_are_grouped_by_their_client_and_named_by_their_label(monkeypatch):
    """The points of both clients have one mean, so an index tells labels, not clients, apart."""
    monkeypatch.setattr(tsne, "plane", lambda x, seed: np.repeat(x, 2, axis=1))
    probe = TSNE(lens())
    found = probe._points(ended([0, 2]))
    assert found["local"].x_ND.flatten().tolist() == [
        *points(11).flatten().tolist(),
        *points(13).flatten().tolist(),
    ]
    assert found["global"].x_ND.flatten().tolist() == [
        *points(13).flatten().tolist(),
        *points(15).flatten().tolist(),
    ]
    assert found["local"].client_N.tolist() == [0] * 4 + [2] * 4
    measured = TSNE(lens(test=[np.array([3, 2, 1, 0])] * 3)).measure(ended([0, 2]))
    assert np.isnan(measured.values["sites_local"])
    assert measured.picture["local"]["label"] == [1, 1, 0, 0] * 2
    assert measured.picture["local"]["client"] == [0] * 4 + [2] * 4
    assert not TSNE(lens()).measure(ended([0, 2], last=False)).values


class Client:
    """Its batch has as many samples as are asked for; at the cut its model gives other numbers than at its
    end."""

    def __init__(self, k: int):
        self.x = torch.arange(50.0)[:, None] ** (1 + 0.2 * k)

    def sample(self, n: int, purpose: str):
        return SimpleNamespace(x=self.x[:n])

    def run(self, w, x, until=""):
        return (x - 2).abs() if until == "cut" else x


def test_correlation_is_of_a_batch_and_its_features_at_the_cut_under_the_model_of_after_the_round():
    def client(k, start, part, w, private):
        assert start is AFTER
        assert w == ("held", k)
        return Client(k)

    probe = Correlation(lens(samples=None))
    probe.trainer.client = client
    probe._sharing = lambda: (SimpleNamespace(name="flea"), "cut")  # type: ignore[method-assign]
    # 3 samples, a batch of 6
    pairs = [distance_correlation(x, (x - 2).abs()) for x in (Client(0).x[:3], Client(1).x[:6])]
    values = probe.measure(ended([0, 1])).values
    assert values["correlation"] == pytest.approx((pairs[0][0] + pairs[1][0]) / 2)
    assert values["correlation_squared"] == pytest.approx((pairs[0][1] + pairs[1][1]) / 2)
    assert values["correlation_squared"] < 0.95 * values["correlation"]


def test_every_model_is_scored_at_every_other_site_and_a_site_that_did_not_train_has_none():
    seen = lens()
    seen.scoring.score_at = lambda k, start, w: (
        (10 * w[1] + k) / 100 if start is SENT and w[0] == "trained" else 0
    )
    measured = CrossSite(seen).measure(ended([0, 2]))
    assert measured.picture["score"] == [[0.0, 0.01, 0.02], [None] * 3, [0.2, 0.21, 0.22]]
    assert {n: v for n, v in measured.values.items() if not np.isnan(v)} == {
        "cross_site": pytest.approx((0.01 + 0.02 + 0.2 + 0.21) / 4),
        "cross_site/a>b": 0.01,
        "cross_site/a>c": 0.02,
        "cross_site/c>a": 0.2,
        "cross_site/c>b": 0.21,
    }
    assert not CrossSite(seen).measure(ended([0, 2], last=False)).values


def test_nothing_is_exposed_by_a_part_that_keeps_all_at_the_server_or_reads_sums_alone():
    """The first's slice alone is sent on; one keeps it, one reads sums, one exchanges at the end."""

    def part(kept: tuple[str, ...], reads: str, when: int) -> Any:
        trip = SimpleNamespace(
            shares=lambda fed: {"s": SimpleNamespace(reads=reads)}, when=lambda t, T: t == when
        )
        return SimpleNamespace(
            trips=[trip], server_init=lambda w, fed: {"pool": 0, "sizes": 0}, keeps_at_server=kept
        )

    sends_on = part(("sizes",), "each", 1)
    parts = (sends_on, part(("pool", "sizes"), "each", 1), part((), "sum", 1), part((), "each", 4))
    seen = lens(method=SimpleNamespace(parts=parts))
    seen.trainer.fed.clients, seen.trainer.fed.rounds = 3, 4
    seen.trainer.fed.net = SimpleNamespace(weights=dict)
    seen.record = None
    assert [each for each, _ in Exposed(seen).exchanges] == [sends_on]


def test_what_a_client_trained_comes_before_what_it_keeps_and_rows_are_drawn_once_each():
    trainer: Any = SimpleNamespace(
        held_weights=lambda start, private: {"w": start.weights["w"], "own": torch.full((1,), 7.0)},
        fed=SimpleNamespace(seed=3),
    )
    scoring: Any = None
    record: Any = None
    real = RunInspector(trainer, scoring, record, ())
    real.trainer.net = SimpleNamespace(run=lambda w, x: (w["w"] + x, 2 * x[..., None]))
    real.scoring = SimpleNamespace(piece=2)  # type: ignore[assignment]
    x = torch.arange(15.0).reshape(5, 3)
    assert torch.equal(real.features(SENT.weights, x), 2 * x)  # what the head receives, not what it answers
    (reply,) = ended([1]).replies
    assert {n: float(t) for n, t in real.trained_weights(reply, SENT).items()} == {"w": 11, "own": 7}
    assert {n: float(t) for n, t in real.held_weights(reply, AFTER).items()} == {"w": 1, "own": 7}
    drawn = real.choice(np.arange(100, 130), 20, "purpose")
    assert len(set(drawn.tolist())) == 20
    assert (np.diff(drawn) > 0).all()
    assert (drawn == real.choice(np.arange(100, 130), 20, "purpose")).all()
    assert (drawn != real.choice(np.arange(100, 130), 20, "another")).any()


def test_a_large_cohort_is_looked_at_in_part_and_what_is_not_finite_is_left_out():
    assert [r.client for r in ended(range(60)).some_replies] == list(range(MOST_CLIENTS))
    assert mean([1.0, float("nan"), 3.0, float("inf")]) == 2
    assert np.isnan(mean([float("nan")]))
    probe: Probe = SimpleNamespace(measure=lambda end: Measurement({"it": 1 / 3e6, "no": float("nan")}))  # type: ignore[assignment]
    measures = Measures({"it": probe})
    measures.remember(SENT, ended([0]).replies)
    rows, pictures = measures.measure(4, AFTER, last=True)
    # with six decimals, the diversity of models that differ little (a rate of 1e-5) was recorded as 0
    assert rows == [{"t": 4, "scope": "measure", "client": None, "metric": "it", "value": 3.333333e-07}]
    assert not pictures
