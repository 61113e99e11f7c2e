"""What a Share discloses, and how many samples stand behind its numbers: as methods declare it, and where it
is shown."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from unskew.cli.explain import text
from unskew.core.method import Method
from unskew.core.part import Part
from unskew.core.shares import Share
from unskew.methods import registry
from unskew.runs import conformance
from unskew.runs.assemble import loop_of
from unskew.runs.resolve import resolve

NAMES = [n for n in registry.names() if n != "local"]


def shares(method: str, model: str = "") -> dict[str, Share]:
    """Every Share of a method on colour images of 8x8, by `part/leaf`."""
    parts = registry.parse(method)
    settings = conformance.short_settings(model=model) if model else conformance.settings_for(parts)
    loop = loop_of(resolve(settings, conformance.small_federation(), parts))
    loop.trainer.close()
    declared = {}
    for part in parts.parts:
        for every in (part.shares(loop.fed), *(trip.shares(loop.fed) for trip in part.trips)):
            declared |= {f"{part.name}/{leaf}": share for leaf, share in every.items()}
    return declared


@pytest.mark.parametrize("name", NAMES)
def test_every_method_that_comes_with_unskew_says_what_it_shares(name):
    assert all(share.kind for share in shares(name).values())


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
    """N1: a study that takes inputs under another name."""
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
    """N1: FLea cut after a layer that only flattens sends raw samples."""
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
    loop = conformance.loop_for(Method(Quiet()))
    loop.round(loop.begin(), 1)
    loop.trainer.close()
    (row,) = [r for r in loop.record.rows["ledger"] if r["share"] == "quiet/x"]
    assert (row["kind"], row["samples"]) == ("inputs", 1)


def test_the_checks_of_a_method_say_what_does_not_say():
    (result,) = conformance.check_method(Quiet(), [conformance.shares_only_what_it_declares])
    assert (result.ok, result.detail) == (True, "x: no kind is declared, so real sites count it as inputs")
    (result,) = conformance.check_method(
        registry.parse("rebafl").parts[0], [conformance.shares_only_what_it_declares]
    )
    assert result.detail == ""


def test_how_few_samples_stand_behind_a_number():
    """13 samples: 10 of one class, 3 of another none of a third."""
    counts = np.array([10, 0, 3])
    rows = Share((None, 2), rows=20, samples=5)
    assert rows.fewest(13, counts) == 3  # 13 = 5 + 5 + 3: the last group is smaller
    assert replace(rows, samples=13).fewest(13, counts) == 13
    assert replace(rows, samples=50).fewest(13, counts) == 13
    assert replace(rows, samples=1).fewest(13, counts) == 1
    assert Share((4, 2), samples=5).fewest(13, counts) == 5
    assert Share((2,), samples="class").fewest(13, counts) == 3
    assert Share((2,), samples="client").fewest(13, counts) == 13
    assert Share((2,), samples="class").fewest(2, np.array([640, 0, 128])) == 2  # masks: pixels by class
    assert Share((2,), samples="class").fewest(0, np.zeros(3, int)) == 0


def test_explain_and_the_ledger_say_it():
    said = text("fedmix(group=7)")
    assert (
        "fedmix/x at most 5.38 KB once (kind: inputs, samples behind a number: 7, read: each, guarantee:"
        " none)" in said
    )
    assert "| inputs | 7 |" in said
    loop = conformance.loop_for(registry.parse("scaffold"))
    loop.round(loop.begin(), 1)
    loop.trainer.close()
    rows = {r["share"]: (r["kind"], r["samples"]) for r in loop.record.rows["ledger"] if r["way"] == "up"}
    assert rows == {"w": ("weights", "client"), "scaffold/delta": ("weights", "client")}
