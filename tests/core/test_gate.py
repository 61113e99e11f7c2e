"""Bad replies are dropped and named; good ones pass."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unskew.core.gate import Refusal, Spec, check, leaf_problem
from unskew.core.replies import Reply, Ups
from unskew.core.shares import Share

SPEC = Spec(
    {"fc.weight": (3, 2), "fc.bias": (3,)},
    {
        "p": {
            "f": Share((None, 4), rows=5),
            "y": Share((None,), torch.int64, 0, 9, rows=5),
            "s": Share((2,), low=1e-6, norm=10.0),
        }
    },
    {"fc.weight": torch.float32, "fc.bias": torch.float32},
)
SIZES = [12, 30]


def reply(weights=None, shares=None, size=12.0, client=0):
    good = {"fc.weight": torch.ones(3, 2), "fc.bias": torch.zeros(3)}
    told = {"f": torch.ones(2, 4), "y": torch.tensor([0, 9]), "s": torch.ones(2)}
    return Reply(client, size, {**good, **(weights or {})}, {"p": {**told, **(shares or {})}})


def without(name):
    made = reply()
    del made.weights[name]
    return made


def refused(made):
    good, refusals = check([made], SPEC, SIZES)
    assert not good
    return refusals[0]


def test_an_honest_reply_passes():
    good, refusals = check([reply(), reply(client=1, size=30.0)], SPEC, SIZES)
    assert len(good) == 2
    assert not refusals


@pytest.mark.parametrize(
    ("made", "code", "told"),
    [
        (reply({"fc.weight": torch.full((3, 2), math.nan)}), "E301", "'w/fc.weight' has 6 non-finite values"),
        (reply({"fc.bias": torch.tensor([0, math.inf, 0])}), "E301", "has 1 non-finite value."),
        (reply({"fc.bias": torch.tensor([math.inf, -math.inf, 0])}), "E301", "has 2 non-finite"),
        (reply({"fc.weight": torch.ones(3, 1)}), "E303", r"is \[3, 1\], expected \[3, 2\]"),
        (reply({"fc.bias": torch.ones(1)}), "E303", "expected"),
        (reply({"fc.bias": torch.ones(())}), "E303", "expected"),
        (reply({"fc.bias": torch.zeros(3).half()}), "E303", "float16"),
        (without("fc.bias"), "E303", "missing 'fc.bias'"),
        (reply({"fc.b1as": torch.zeros(1)}), "E303|E303", ""),
        (reply({"big": torch.zeros(10_000)}), "E303", "unexpected 'big'"),
        (reply({"fc.weight": torch.ones(2, 3)}), "E303", r"is \[2, 3\], expected \[3, 2\]"),
        (reply(size=0.0), "E305", "at least one"),
        (reply(size=math.nan), "E305", "nan"),
        (reply(shares={"y": torch.tensor([0, 10])}), "E303", "holds 10"),
        (reply(shares={"y": torch.tensor([-1, 3])}), "E303", "holds -1"),
        (reply(shares={"s": torch.tensor([-0.2, 1])}), "E303", "got -0.2"),
        (reply(shares={"s": torch.tensor([9.0, 9.0])}), "E303", "L2 norm 12.7"),
        (
            reply(shares={"f": torch.ones(6, 4)[:, :4], "y": torch.zeros(0, dtype=torch.int64)}),
            "E303",
            "up to 5",
        ),
        (reply(shares={"f": torch.full((2, 4), math.nan)}), "E301", "'p/f'"),
        (reply(shares={"extra": torch.ones(1)}), "E303", "unexpected 'p/extra'"),
    ],
)
def test_bad_replies_are_named(made, code, told):
    import re

    found = refused(made)
    assert re.fullmatch(code, found.code)
    assert re.search(told, found.text), found.text


@pytest.mark.parametrize("claim", [13.0, 1e12])
def test_claims_above_the_registered_size_are_cut_down(claim):
    good, refusals = check([reply(size=claim)], SPEC, SIZES)
    assert good[0].size == 12
    assert refusals[0].code == "E305"
    assert "Using 12" in refusals[0].text


def test_private_state_is_checked_where_the_reply_holds_it():
    """M2: the private state of a reply was stored unseen."""
    spoilt = reply()
    spoilt.private = {"p": {"c": torch.tensor([1.0, math.nan])}}
    assert refused(spoilt) == Refusal(0, "E301", "'private state p/c' has 1 non-finite value.")


def test_the_servers_hooks_see_replies_in_the_order_of_clients():
    """Bits must not depend on who answers first."""
    ups = Ups.of([reply(client=1, size=30.0), reply(client=0)])
    assert ups.clients.tolist() == [0, 1]
    assert ups.sizes.tolist() == [12.0, 30.0]
    assert [r.client for r in ups.replies] == [0, 1]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=0, max_size=3),
    st.sampled_from([torch.float32, torch.float64, torch.int64, torch.bool, torch.float16]),
    st.floats(allow_nan=True, allow_infinity=True, width=32),
    st.sampled_from(["fc.weight", "fc.bias", "other"]),
)
def test_whatever_passes_is_finite_and_fits(shape, dtype, value, name):
    tensor = torch.full(shape, value).to(dtype)
    good, refusals = check([reply({name: tensor})], SPEC, SIZES)
    assert bool(good) != bool(refusals)
    for made in good:
        assert set(made.weights) == set(SPEC.weights)
        assert all(
            tuple(made.weights[n].shape) == s and torch.isfinite(made.weights[n]).all()
            for n, s in SPEC.weights.items()
        )


@pytest.mark.parametrize(
    ("bounds", "sent"), [({"low": 1e-6}, 0.0), ({"high": 0.1}, 9.0), ({"low": 1, "high": 3}, 2.0)]
)
def test_a_number_that_is_clamped_to_a_bound_is_within_it(bounds, sent):
    """The float32 nearest to 1e-6 is below it, that nearest to 0.1 above it: such replies were dropped."""
    share = Share((1,), **bounds)
    clamped = torch.tensor([sent]).clamp(bounds.get("low"), bounds.get("high"))
    assert leaf_problem("s", clamped, share) is None
    assert leaf_problem("s", clamped * 0.99 - 1e-7, Share((1,), low=float(clamped)))[0] == "E303"
