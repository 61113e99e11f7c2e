"""Run the engine and an oracle on the same federation and compare everything they leave, round by round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.oracles import ours
from tests.oracles.plain import FedAvg
from tests.oracles.tiny import Case
from tests.oracles.values import Snapshot
from tests.samples import EVERYTHING

LANES = (1, 16)
ONE_OF_THEM = {Case("mlp"): (1,), Case("mlp", 0.9): (16,), Case("cnn"): (1,), Case("cnn", 0.9): (16,)}
"""The lanes of the usual cases in `make test`: each method meets both, as every method's check of its own
does."""
CASES = [Case(model, momentum) for model in ("mlp", "cnn") for momentum in (0.0, 0.9)]
everywhere = pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.model}-momentum{c.momentum:g}")
"""The cases every oracle is run with."""
on_both_models = pytest.mark.parametrize("case", [Case("mlp"), Case("cnn", 0.9)], ids=lambda c: c.model)
"""Enough for a second setting of the same method."""


def agree(case: Case, oracle: type[FedAvg], atol: float = 1e-5, **settings: Any) -> None:
    """Assert that engine and oracle give the same weights, slices, private state and answers after every
    round.

    settings: of the method, for both. atol: the largest difference of any number, absolute.
    """
    arguments = ", ".join(f"{n}={v}" for n, v in settings.items())
    method = (f"{oracle.part}({arguments})" if arguments else oracle.part or "fedavg") + oracle.beside
    expected: list[Snapshot] = []
    for lanes in LANES if EVERYTHING else ONE_OF_THEM.get(case, LANES):
        run = ours.run(method, case, lanes)
        expected = expected or oracle(run, **settings).run()
        assert len(run.rounds) == len(expected) == case.rounds
        for t, (engine, plain) in enumerate(zip(run.rounds, expected), 1):
            where = f"{method}, lanes={lanes}, round {t}"
            assert_same(engine.weights, plain.weights, atol, f"{where}: weights")
            assert_same(engine.slices, plain.slices, atol, f"{where}: slices")
            assert_same(engine.private, plain.private, atol, f"{where}: private")
            assert engine.loss == pytest.approx(plain.loss, rel=0, abs=atol, nan_ok=True), f"{where}: loss"
            for k, z in plain.answers.items():
                assert_same({"z": engine.answers[k]}, {"z": z}, atol, f"{where}: answers of {k}")


def assert_same(engine: Mapping[Any, Any], plain: Mapping[Any, Any], atol: float, where: str) -> None:
    """Both trees have the same leaves, and their numbers differ by at most `atol`."""
    ours_, theirs = leaves(engine), leaves(plain)
    assert sorted(ours_) == sorted(theirs), (
        f"{where}: the engine has {sorted(ours_)}, the oracle {sorted(theirs)}"
    )
    for name, value in theirs.items():
        torch.testing.assert_close(
            ours_[name].double(),
            torch.as_tensor(value).double(),
            rtol=0,
            atol=atol,
            msg=lambda text, name=name: f"{where}: {name}: {text}",
        )


def leaves(tree: Mapping[Any, Any], prefix: str = "") -> dict[str, Tensor]:
    """Every tensor of a nested mapping by its path; empty branches do not count."""
    found: dict[str, Tensor] = {}
    for name, value in tree.items():
        found |= (
            leaves(value, f"{prefix}{name}/") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
        )
    return found
