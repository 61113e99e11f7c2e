"""Objects of a program are remembered by a digest: another model or Part does not continue a run."""

from __future__ import annotations

import importlib
import math
import sys
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import unskew
from unskew.core import Part
from unskew.core.method import Method
from unskew.errors import StateError
from unskew.runs import conformance, object_digests


def first_kind() -> type[Part]:
    @dataclass(frozen=True)
    class Own(Part):
        name = "own"

        def loss(self, w, out, b, c):
            return 0.001 * out.logits.square().sum()

    return Own


def second_kind() -> type[Part]:
    @dataclass(frozen=True)
    class Own(Part):
        name = "own"

        def loss(self, w, out, b, c):
            return 0.1 * out.logits.square().sum()

    return Own


STRENGTH = 0.001


def enclosed(strength: float) -> Part:
    """A Part whose hook reads a variable around its class."""

    @dataclass(frozen=True)
    class Own(Part):
        name = "own"

        def loss(self, w, out, b, c):
            return strength * out.logits.square().sum()

    return Own()


def typed(strength: str) -> Part:
    """A Part as a notebook's cell defines it: Python has no source of its class."""
    lines = (
        "from dataclasses import dataclass",
        "from unskew import Part",
        "@dataclass(frozen=True)",
        "class Typed(Part):",
        "    name = 'typed'",
        "    def loss(self, w, out, b, c):",
        f"        return {strength} * out.logits.square().sum()",
    )
    cell: dict[str, type[Part]] = {"__name__": "__main__"}  # type: ignore[dict-item]
    exec(compile("\n".join(lines), "<cell>", "exec"), cell)
    return cell["Typed"]()


def module(seed: int = 0, width: int = 4, frozen: bool = False) -> nn.Sequential:
    torch.manual_seed(seed)
    federation = conformance.small_federation()
    size = math.prod(federation.shape)
    layers = nn.Sequential(
        nn.Flatten(), nn.Linear(size, width), nn.ReLU(), nn.Linear(width, federation.n_classes)
    )
    layers[1].requires_grad_(not frozen)
    return layers


def run(tmp_path, method="fedavg", **options):
    settings = {"rounds": 1, "epochs": 1, "workers": 1, "lanes": "1", "name": "s", "folder": tmp_path}
    return unskew.run(method, conformance.small_federation(), **(settings | options))


@pytest.mark.parametrize("other", [{"seed": 1}, {"width": 5}, {"frozen": True}])
def test_another_module_does_not_continue_a_run(tmp_path, other):
    """Under a taken name any module gave the first module's result, or went on from its checkpoint."""
    before = run(tmp_path, model=module())
    assert run(tmp_path, model=module()).digest == before.digest
    with pytest.raises(StateError, match="E112 the model given here is not the one"):
        run(tmp_path, model=module(**other))


def test_another_part_of_the_same_name_does_not_continue_a_run(tmp_path):
    """A Part with the same name and settings, but of another source, was taken for the first one."""
    before = run(tmp_path, first_kind()(), model="mlp")
    assert run(tmp_path, first_kind()(), model="mlp").digest == before.digest
    with pytest.raises(StateError, match="E112 the Part 'own' given here is not the one"):
        run(tmp_path, second_kind()(), model="mlp")


@pytest.mark.parametrize(("make", "one", "other"), [(enclosed, 0.1, 0.2), (typed, "0.1", "0.2")])
def test_a_digest_is_of_what_a_hook_computes(make, one, other):
    """Also where Python has no source of the class, and where a variable around it is what differs."""
    assert object_digests.part_digest(make(one)) == object_digests.part_digest(make(one))
    assert object_digests.part_digest(make(one)) != object_digests.part_digest(make(other))


def test_a_digest_is_of_the_code_that_was_imported(tmp_path, monkeypatch):
    """Whoever edits a file and does not import it anew trains with the code of before."""
    file = tmp_path / "edited_later.py"
    file.write_text("def double(x):\n    return 2 * x\n")
    monkeypatch.syspath_prepend(tmp_path)
    double = importlib.import_module("edited_later").double
    before = [*object_digests.texts_of(double)]
    file.write_text("def double(x):\n    return 3 * x + 1\n")
    assert [*object_digests.texts_of(double)] == before
    del sys.modules["edited_later"]
    importlib.invalidate_caches()
    assert [*object_digests.texts_of(importlib.import_module("edited_later").double)] != before


def test_what_a_model_and_a_metric_name_counts():
    def scaled(by: torch.Tensor) -> type[nn.Module]:
        class Scaled(nn.Module):
            def forward(self, x):
                return x * by

        return Scaled

    def cost(table: dict[str, float]):
        return lambda y, p: table["miss"]

    once, twice = torch.ones(2), torch.full((2,), 2.0)
    assert object_digests.model_digest(scaled(once)()) == object_digests.model_digest(scaled(once.clone())())
    assert object_digests.model_digest(scaled(once)()) != object_digests.model_digest(scaled(twice)())
    of_costs = [
        object_digests.object_digests(Method(), None, {"cost": cost({"miss": v})}) for v in (1.0, 1.0, 2.0)
    ]
    assert of_costs[0] == of_costs[1] != of_costs[2]


def test_a_part_called_like_one_of_ours_is_not_resumed_as_ours(tmp_path):
    """`resume` read the method's text alone, so that a user's own 'fedprox' went on as the built-in one."""

    @dataclass(frozen=True)
    class Own(Part):
        name = "fedrs"

    path = unskew.run(
        Own(),
        "digits",
        model="mlp",
        clients=3,
        samples=20,
        rounds=1,
        epochs=1,
        workers=1,
        name="s",
        folder=tmp_path,
    ).path
    with pytest.raises(StateError, match=r"E156 .*the Part 'fedrs' given as an object"):
        unskew.resume(path)


def test_a_digest_is_of_what_a_module_computes():
    """Plain attributes that forward reads count; where an object lies in memory, and the mode, do not."""

    class Scaled(nn.Module):
        def __init__(self, scale: float) -> None:
            super().__init__()
            self.scale, self.head = scale, nn.Identity()

        def extra_repr(self) -> str:
            return repr(object())

    assert object_digests.model_digest(Scaled(1.0)) == object_digests.model_digest(Scaled(1.0).eval())
    assert object_digests.model_digest(Scaled(1.0)) != object_digests.model_digest(Scaled(2.0))


@dataclass(frozen=True)
class Holding(Part):
    """A Part with a setting that is no plain value."""

    held: Any = None
    name = "holding"


def double(x: torch.Tensor) -> torch.Tensor:
    return 2 * STRENGTH * x


def test_a_function_as_a_setting_is_known_by_its_code(tmp_path, monkeypatch):
    """Where it lay in memory stood in the run's settings, so no other process could go on with it."""
    assert str(Holding(double)) == "holding(held=double)"
    assert str(Holding(lambda x: x)) == "holding(held=<lambda>)"
    before = object_digests.part_digest(Holding(double))
    monkeypatch.setitem(globals(), "STRENGTH", 0.1)
    assert object_digests.part_digest(Holding(double)) != before
