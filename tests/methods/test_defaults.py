"""Defaults: those of the authors' own code, and a reason for every method that scores far below FedAvg."""

from __future__ import annotations

from typing import Any

import pytest

from unskew.methods import registry
from unskew.report.method_profile import FAR_BELOW, scores

AUTHORS: dict[str, dict[str, Any]] = {
    # what the official scripts, option parsers or configuration files run, in our units
    "propfair": {"baseline": 2.0, "eps": 0.2},
    "qffl": {"q": 0.1, "L": 0.0},
    "afl": {"step": 0.2},
    "fedlesam": {"rho": 0.1},
    "fedsam": {"rho": 0.1},
}


@pytest.mark.parametrize("method", AUTHORS)
def test_a_default_is_what_the_authors_run(method: str) -> None:
    part = registry.parse(method).parts[0]
    assert {name: getattr(part, name) for name in AUTHORS[method]} == AUTHORS[method]


def test_every_method_is_measured_and_one_far_below_fedavg_has_a_reason() -> None:
    measured = scores()
    unchanged = {
        "fedavg",
        "fedbn",
        "norm",
    }  # the digits have no batch normalisation and no channels to normalise
    assert set(registry.names()) - unchanged <= set(measured)
    for method, score in measured.items():
        below = score.fedavg - score.score > FAR_BELOW
        assert bool(score.why) == below, method
