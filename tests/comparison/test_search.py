"""Where settings are searched, which points are tried, and which one is best."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import pytest
from annotated_types import Ge, Gt, Le, Lt

from unskew.comparison import tuning
from unskew.comparison.progress import Cell
from unskew.comparison.tuning import ParzenSampler, Range, Trial, method_space, range_of
from unskew.config import Settings
from unskew.errors import UsageError
from unskew.formats.arguments import Argument
from unskew.methods import registry

SPACE = {"lr": Range(0.005, 0.5), "p.mu": Range(0.01, 1.0)}
FIRST = {"lr": 0.05123, "p.mu": 0.5}


def run_of(settings: Settings) -> Cell:
    return Cell("m", 0, Path(), settings)


def space(text: str, lr: float = 0.05, **chosen: dict[str, object]) -> dict[str, str]:
    found = method_space(text, run_of(Settings(method=str(registry.parse(text, chosen)), lr=lr)), chosen)
    return {name: str(axis) for name, axis in found.space.items()} | found.left_out


def test_learning_rates_and_numbers_are_searched_and_what_users_gave_is_not():
    assert space("fedavg", lr=0.2) == {"lr": "0.02 to 2"}
    floor = method_space("fedavg", run_of(Settings(lr=0.2, lr_decay=0.9, lr_min=0.05)), {})
    assert floor.lines() == ["lr 0.05 to 2"]  # below it every point would train with lr_min
    assert space("fedprox")["fedprox.mu"] == "0.0001 to 0.01"
    assert (
        space("fedprox(mu=0.1)")["fedprox.mu"]
        == space("fedprox", fedprox={"mu": 0.1})["fedprox.mu"]
        == "it is given"
    )
    assert space("rbsm")["rebafl.mu"] == "it is given"  # which is what makes it this preset
    assert space("fedprox+fedrs")["fedrs.alpha"] == "0.05 to 1"


def test_what_does_not_count_as_things_are_is_not_searched():
    assert space("fedsam")["fedsam.eta"] == "it does not count with adaptive=False"
    assert space("naivemix")["naivemix.a"] == "it does not count with per_batch=False"
    assert space("naivemix(per_batch=True)")["naivemix.a"] == "0.2 to 20"
    assert space("cfl")["cfl.gap"] == "it is 0"


def test_no_score_chooses_what_protects_clients_or_leaves_them():
    for name in ("dp", "dpsgd", "trimmed_mean", "multi_krum", "qffl", "afl", "propfair"):
        assert not [setting for setting, axis in space(name).items() if setting != "lr" and " to " in axis]
    assert "leaves" in space("flea")["flea.alpha"]
    assert "hides" in space("flea")["flea.lambda2"]
    assert "noise" in space("feddpms")["feddpms.sigma"]
    assert "leaves" in space("topk")["topk.share"]


def test_what_each_part_leaves_out_is_a_setting_that_it_has():
    for name in registry.names():
        for part in registry.parse(name).parts:
            assert all(hasattr(part, setting) and why for setting, why in part.untuned.items()), name


@pytest.mark.parametrize(
    ("hint", "value", "expected"),
    [
        (Annotated[float, Ge(0)], 2.0, Range(0.2, 20.0)),
        (Annotated[float, Ge(0), Le(5)], 2.0, Range(0.2, 5.0)),
        (Annotated[float, Ge(0), Le(1)], 0.5, Range(0.05, 1.0)),
        (Annotated[float, Ge(0), Le(1)], 0.01, Range(0.001, 0.1)),
        (Annotated[float, Gt(0), Lt(1)], 0.5, Range(0.05, 0.995)),
        (Annotated[float, Gt(1), Lt(3)], 2.0, Range(1.01, 2.99)),
    ],
)
def test_a_range_follows_from_what_is_declared(hint, value, expected):
    assert range_of(Argument("it", hint), value) == expected


def asked(answers: int) -> list[dict[str, float]]:
    sampler, points = ParzenSampler(SPACE, FIRST, drawn=3), []
    for n in range(answers):
        point = sampler.ask()
        points.append(point)
        if n == 1:
            sampler.tell(math.nan)
        else:
            sampler.tell(-abs(math.log(point["lr"] / 0.3)) - abs(point["p.mu"] - 0.2))
    return points


def test_points_begin_with_what_is_lie_within_the_ranges_and_repeat():
    points = asked(12)
    assert points == asked(12)
    assert points[0] == FIRST
    assert all(0.005 <= p["lr"] <= 0.5 and 0.01 <= p["p.mu"] <= 1 for p in points)
    assert all(float(f"{v:.3g}") == v for p in points[1:] for v in p.values())
    assert Range(0.00123456, 1.0).written(0.0012345) == 0.00123456  # rounded, and still inside


def test_points_are_drawn_by_order_of_magnitude():
    """Half of 30 learning rates from 0.005 to 0.5 are below 0.05."""
    sampler, drawn = ParzenSampler(SPACE, FIRST, drawn=30), []
    for _ in range(30):
        drawn.append(sampler.ask())
        sampler.tell(0.0)
    assert 10 <= sum(point["lr"] < 0.05 for point in drawn) <= 20


def test_a_score_of_which_less_is_better_is_told_with_its_sign():
    assert [Trial({}, 0.5).gain, Trial({}, 3.0, "rmse").gain] == [0.5, -3.0]


def test_points_whose_values_do_not_go_together_are_drawn_again():
    def check(point):
        if point["lr"] < 0.1:
            raise UsageError("E102", "no")

    assert ParzenSampler(SPACE, FIRST, 10, check).ask()["lr"] >= 0.1
    with pytest.raises(UsageError, match="none can be trained"):
        ParzenSampler(SPACE, FIRST, 10, lambda point: check({"lr": 0})).ask()


class Under:
    """A run under way, with the scores of its rounds by scope."""

    def __init__(self, main_score: str, **known: list[float]) -> None:
        self.main_score, self.known = (
            main_score,
            {"personal@client" if n == "own" else n: v for n, v in known.items()},
        )

    def series(self, scope, metric):
        values = self.known.get(scope, []) if metric == ("mean" if "@" in scope else self.main_score) else []
        return list(range(len(values))), list(values)


@pytest.mark.parametrize(
    ("known", "own", "scored"),
    [
        ({"global": [0.1], "own": [0.2]}, False, ("global", "accuracy")),
        ({"global": [0.1], "own": [0.2]}, True, ("personal@client", "mean")),
        ({"global": [0.1]}, True, ("global", "accuracy")),
        ({"own": [0.2]}, False, ("personal@client", "mean")),
    ],
)
def test_a_trial_is_scored_by_what_its_method_trains(known, own, scored):
    run = Under("accuracy", **known)
    run.metric = run.main_score  # type: ignore[attr-defined]
    assert tuning._trial_score(run, own) == scored  # type: ignore[arg-type]


def test_the_best_trial_did_not_diverge():
    trials = [Trial({"lr": 1}, math.nan), Trial({"lr": 3}, 0.5)]
    assert [trial.rank for trial in trials] == [-math.inf, 0.5]
    assert Trial({}, 1.0, "rmse").rank > Trial({}, 3.0, "rmse").rank
