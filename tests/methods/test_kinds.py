"""What a Share discloses, and how many samples stand behind its numbers, as methods declare it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from unskew.core.method import Method
from unskew.core.part import Part
from unskew.core.shares import Share
from unskew.methods import registry
from unskew.runs import conformance


def shares(method: str, model: str = "") -> dict[str, Share]:
    """Every Share of a method on colour images of 8x8, by `part/leaf`."""
    parts = registry.parse(method)
    loop = conformance.loop_for(parts, **({"model": model} if model else {}))
    declared = {}
    for part in parts.parts:
        for every in (part.shares(loop.fed), *(trip.shares(loop.fed) for trip in part.trips)):
            declared |= {f"{part.name}/{leaf}": share for leaf, share in every.items()}
    return declared


@pytest.mark.parametrize(
    ("method", "leaf", "behind"),
    [
        ("feddata", "feddata/x", 1),
        ("fedmix(group=1)", "fedmix/x", 1),
        ("fedmix(group=5)", "fedmix/x", 5),
        ("naivemix", "naivemix/x", 5),
        ("fedbr", "fedbr/x", conformance.short_settings().batch),
    ],
)
def test_inputs_are_called_inputs_also_if_they_are_averaged(method, leaf, behind):
    """A study that takes inputs under another name."""
    share = shares(method)[leaf]
    assert (share.kind, share.samples) == ("inputs", behind)


@pytest.mark.parametrize(
    ("method", "leaf", "model", "kind"),
    [
        ("flea", "flea/features", "mlp", "features"),
        ("flea(cut=flat)", "flea/features", "mlp", "inputs"),
        ("ccvr(mode=features)", "ccvr/h", "mlp", "features"),
        ("ccvr(mode=features)", "ccvr/h", "mlp(hidden=())", "inputs"),
        ("rebafl", "rebafl/sums", "mlp", "sums"),
        ("rebafl", "rebafl/sums", "mlp(hidden=())", "inputs"),
    ],
)
def test_activations_that_no_layer_has_mixed_yet_are_inputs(method, leaf, model, kind):
    """FLea cut after a layer that only flattens sends raw samples."""
    share = shares(method, model)[leaf]
    assert share.kind == kind
    assert kind == "features" or share.guarantee == "none"


@dataclass(frozen=True)
class Quiet(Part):
    """A Part of a user's own that does not say what it shares."""

    name: ClassVar[str] = "quiet"

    def shares(self, fed):
        return {"x": Share((3,))}

    def finish(self, w, c):
        return {"x": w[next(iter(w))].flatten()[:3]}, c.mine


def test_a_part_that_does_not_say_counts_as_the_strictest():
    loop = conformance.train_run(Method(Quiet()), until=1).loop
    (row,) = [r for r in loop.record.rows["ledger"] if r["share"] == "quiet/x"]
    assert (row["kind"], row["samples"]) == ("inputs", 1)
