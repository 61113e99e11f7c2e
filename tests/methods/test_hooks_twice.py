"""What one pass of a hook does not show, and `unskew check` finds: padding that it counts, numbers that differ
each time, what it remembers."""

from __future__ import annotations

import itertools
import random
import time
from typing import Any

import numpy as np
import pytest
import torch

from tests.methods.test_hooks_as_written import ONE, checked, part, sized, trained, trip_part
from unskew.runs import conformance


def counted(c: Any) -> torch.Tensor:
    return torch.stack([b.x.mean() for b in c.batches()]).mean()


PADDED = {
    "mean": {"loss": lambda self, w, out, b, c: sized(out).mean()},
    "division": {"loss": lambda self, w, out, b, c: sized(out).sum() / len(b.x)},
    "order": {"loss": lambda self, w, out, b, c: sized(out).sort().values[-3:].sum()},
    "scale": {"batch": lambda self, b, c: b.replace(x=b.x - b.x.mean(0))},
    "mixture": {"batch": lambda self, b, c: b.replace(x=b.x + b.x.flip(0), y=0.5 * (b.y + b.y.flip(0)))},
    "weight": {"batch": lambda self, b, c: b.replace(weight=torch.ones_like(b.weight))},
    "begin": {
        "begin": lambda self, w, c: {"k": counted(c)},
        "loss": lambda self, w, out, b, c: c.round["k"] * b.mean(sized(out)),
    },
    "finish": {
        "client_init": lambda self, w, fed: {"k": torch.zeros(())},
        "finish": lambda self, w, c: ({}, {"k": counted(c)}),
    },
    "trip": {
        "trips": trip_part().trips,
        "loss": lambda self, w, out, b, c: sized(out).mean(),
    },
}


@pytest.mark.parametrize("body", PADDED.values(), ids=PADDED)
def test_the_check_finds_what_counts_padding(body):
    assert "the padding of short batches" in checked(part(**body), conformance.ignores_padding)


def test_what_leaves_padding_out_passes():
    body = {
        "loss": lambda self, w, out, b, c: 0.1 * b.mean(sized(out)) * c.round["k"],
        "begin": lambda self, w, c: {
            "k": torch.stack([(b.x.mean((1, 2, 3)) * b.weight).sum() for b in c.batches()]).sum()
        },
    }
    assert not checked(part(**body), conformance.ignores_padding)


COUNTER = itertools.count()
DRAWS = {
    "NumPy": lambda: float(np.random.rand()),
    "Python": random.random,
    "generator": lambda: float(np.random.default_rng().random()),
    "clock": lambda: time.perf_counter() % 1,
    "counter": lambda: next(COUNTER),
}


@pytest.mark.parametrize(
    ("source", "place"), [*zip(DRAWS, ("loss", "finish", "trip", "loss", "finish")), ("NumPy", "trip")]
)
def test_the_check_finds_numbers_that_differ_each_time(source, place):
    drawn = DRAWS[source]
    shares = {"shares": lambda self, fed: ONE, "server": lambda self, s, ups, fed: {"v": ups["v"].sum(0)}}
    mine = {
        "loss": part(loss=lambda self, w, out, b, c: (1 + drawn()) * b.mean(sized(out))),
        "finish": part(finish=lambda self, w, c: ({"v": torch.ones(3) * drawn()}, {}), **shares),
        "trip": trip_part(client=lambda w, c: {"v": torch.ones(3) * drawn()}),
    }
    assert "ended with different bits" in checked(mine[place], conformance.is_deterministic)


def test_the_check_finds_what_a_part_keeps_on_its_class():
    """A client is pulled towards the one that trained before it."""

    def finish(self, w, c):
        self.last["head"] = w["head.bias"].mean()
        return {}, {}

    def loss(self, w, out, b, c):
        return self.last.get("head", 1.0) * b.mean(sized(out))

    assert checked(part(last={}, finish=finish, loss=loss), conformance.is_deterministic)


def test_a_table_or_a_log_on_the_class_is_no_mistake():
    def loss(self, w, out, b, c):
        self.seen.append(len(b.x))
        eye = self.tables.setdefault("eye", torch.eye(3))
        return 0.1 * b.mean((out.logits @ eye).pow(2).sum(-1))

    trained(part(tables={}, seen=[], loss=loss), "16", rounds=3)
