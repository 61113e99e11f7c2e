"""What one pass of a hook does not show: padding that it counts, numbers that differ each time, what it
remembers.

Likely mistakes: a plain mean, flip or sort over a batch that ends in padding; a generator without a seed; a
counter, a list or the last client's weights on the class.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.methods.test_hooks_as_written import part, refused, sized, trained
from unskew.core.method import Method
from unskew.records.checkpoints import digest as digest_of
from unskew.round.hook_checks import PaddingTrial
from unskew.runs import conformance
from unskew.runs.assemble import loop_of
from unskew.runs.resolve import resolve

PADDED = {
    "mean": lambda self, w, out, b, c: sized(out).mean(),
    "divided": lambda self, w, out, b, c: sized(out).sum() / len(b.x),
    "sorted": lambda self, w, out, b, c: sized(out).sort().values[-3:].sum(),
}


@pytest.mark.parametrize("written", PADDED.values(), ids=PADDED)
def test_a_loss_that_counts_padding_is_refused_where_there_is_some(written):
    """Before, a row of another client entered, and results were about right."""
    told = refused(part(loss=written), "16", until=1)
    assert told.startswith(
        "E127 the gradients of a step depend on the padding of a short batch, so 'mine' counts rows"
    )
    trained(part(loss=written), "1", until=1)


@pytest.mark.parametrize(
    "written",
    [
        lambda self, b, c: b.replace(x=b.x - b.x.mean(0)),
        lambda self, b, c: b.replace(x=0.5 * b.x + 0.5 * b.x.flip(0), y=0.5 * b.y + 0.5 * b.y.flip(0)),
        lambda self, b, c: b.replace(weight=torch.ones_like(b.weight)),
    ],
)
def test_a_batch_that_mixes_padding_in_is_refused(written):
    assert "depend on the padding" in refused(part(batch=written), "16", until=1)


@pytest.mark.parametrize("hook", ["begin", "finish"])
def test_a_pass_over_the_data_that_counts_padding_is_refused(hook):
    def counted(c: Any) -> torch.Tensor:
        return torch.stack([b.x.mean() for b in c.batches()]).mean()

    made = {
        "begin": lambda self, w, c: {"k": counted(c)},
        "client_init": lambda self, w, fed: {"k": torch.zeros(())},
        "finish": lambda self, w, c: ({}, {"k": counted(c) if hook == "finish" else c.mine["k"]}),
    }
    if hook == "finish":
        del made["begin"]
    assert f"the values that `{hook}` of 'mine' makes of c.batches() depend" in refused(
        part(**made), "16", until=1
    )


def test_what_leaves_padding_out_trains_the_bits_that_it_would_without_being_tried(monkeypatch):
    """Dropout, batch normalisation and the noise of hooks are left as they are, whatever was tried."""
    body = {
        "loss": lambda self, w, out, b, c: 0.1 * b.mean(sized(out)) + 0.0 * c.round["k"],
        "begin": lambda self, w, c: {
            "k": torch.stack([(b.x.mean((1, 2, 3)) * b.weight).sum() for b in c.batches()]).sum()
        },
    }
    for lanes in ("1", "16"):
        tried = trained(part(**body), lanes, model=conformance.NORMALISED_MODEL)
        with monkeypatch.context() as patched:
            patched.setattr(PaddingTrial, "_due", lambda self, what: False)
            assert trained(part(**body), lanes, model=conformance.NORMALISED_MODEL).digest == tried.digest


class Dropping(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head, self.p = nn.Linear(192, 8), nn.Linear(8, 3), p

    def forward(self, x):
        h = self.body(x.flatten(1))
        if self.training:
            h = h * (torch.rand(8) > self.p)  # which torch's own generator draws
        return self.head(nn.functional.dropout(h, self.p, self.training))


def test_numbers_that_a_model_draws_are_not_used_up(monkeypatch):
    def digest() -> str:
        mine = Method(part(loss=lambda self, w, out, b, c: 0.1 * b.mean(sized(out))))
        loop = loop_of(
            resolve(
                conformance.short_settings(rounds=1),
                conformance.small_federation(),
                mine,
                model=Dropping(0.3),
            )
        )
        try:
            state, _ = loop.round(loop.begin(), 1)
            return digest_of(state.weights)
        finally:
            loop.trainer.close()

    tried = digest()
    monkeypatch.setattr(PaddingTrial, "_due", lambda self, what: False)
    assert digest() == tried


COUNTER = itertools.count()


@pytest.mark.parametrize(
    "drawn",
    [lambda: float(np.random.default_rng().random()), lambda: time.perf_counter() % 1, lambda: next(COUNTER)],
    ids=["generator", "clock", "counter"],
)
@pytest.mark.parametrize("lanes", ["1", "16"])
def test_a_hook_that_makes_other_numbers_each_time_is_refused(drawn, lanes):
    """Before, no two runs were equal, and nothing said so."""
    told = refused(part(loss=lambda self, w, out, b, c: drawn() * b.mean(sized(out))), lanes, until=1)
    assert told.startswith(
        "E127 two equal passes of a step have other gradients: a hook of 'mine' draws from a generator"
    )


def test_what_a_part_keeps_on_its_class_is_refused_and_a_table_or_a_log_is_not():
    """Before, a client was pulled towards whoever had trained before it."""

    def finish(self, w, c):
        self.last["head"] = float(w["head.bias"][0])
        return {}, {}

    told = refused(part(last={}, finish=finish), rounds=3)
    assert told.startswith("E127 'mine' has changed 'last', which it keeps on the Part or its class")

    def loss(self, w, out, b, c):
        self.seen.append(len(b.x))
        eye = self.tables.setdefault("eye", torch.eye(3))
        return 0.1 * b.mean((out.logits @ eye).pow(2).sum(-1))

    trained(part(tables={}, seen=[], loss=loss), "16", rounds=3)
