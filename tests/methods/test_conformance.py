"""Every method of ours stands the checks that a stranger's must stand, and a broken one does not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from unskew.core.method import part
from unskew.core.part import Part, Share
from unskew.engine import check

OURS = [
    "fedprox", "scaffold", "fedbn", "norm", "fedrdn", "fedrdn_v", "rebafl", "rbsm", "faug", "flea", "local",
]  # fmt: skip


@pytest.mark.parametrize("name", OURS)
def test_ours(name):
    failed = [f"{f.name}: {f.detail}" for f in check.check_method(part(name, {})) if not f.ok]
    assert not failed


@pytest.mark.parametrize("name", ["flea", "fedrdn"])
def test_official_variants(name):
    failed = [f"{f.name}: {f.detail}" for f in check.check_method(part(name, {"variant": "official"})) if not f.ok]
    assert not failed


@dataclass(frozen=True)
class Sloppy(Part):
    """Averages over padding, shares what it did not declare, and remembers on the Part."""

    name: ClassVar[str] = "sloppy"

    def loss(self, w, out, b, c):
        return out.raw.pow(2).mean()

    def finish(self, w, c):
        return {"secret": torch.zeros(3)}, {}


@dataclass(frozen=True)
class Wrong(Part):
    """Declares another shape than it sends."""

    name: ClassVar[str] = "wrong"

    def shares(self, fed):
        return {"s": Share((4,))}

    def finish(self, w, c):
        return {"s": torch.zeros(3)}, {}


@dataclass(frozen=True)
class Random(Part):
    """Draws its own random numbers."""

    name: ClassVar[str] = "random"

    def loss(self, w, out, b, c):
        return 0 * out.raw.sum() + b.mean((out.raw * float(torch.rand(()))).sum(-1))


@pytest.mark.parametrize(
    ("broken", "caught"),
    [
        (Sloppy(), {"padding changes nothing", "leaves nothing undeclared"}),
        (Wrong(), {"leaves nothing undeclared"}),
        (Random(), {"is deterministic"}),
    ],
)
def test_broken_methods_are_caught(broken, caught):
    assert caught <= {f.name for f in check.check_method(broken) if not f.ok}
