"""What a transformer is told of its tokens, and what becomes of its answers: worked by hand with one that
only repeats them.

Letters: B batch, T tokens, D features.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn

from unskew.models.language_models import EveryToken, LastToken, LocalAttention, MeanPooling

PADDING, D = 0, 6
IDS = torch.tensor([[3, 5, 4, PADDING], [PADDING, 2, 2, 1], [PADDING] * 4])
LEAST = torch.finfo(torch.float32).min


class Repeats(nn.Module):
    """Answers every token by itself, as one-hot features, and remembers what it was given."""

    def forward(self, input_ids, attention_mask):
        self.ids, self.mask = input_ids, attention_mask
        return SimpleNamespace(last_hidden_state=nn.functional.one_hot(input_ids, D).float())


def one(*ids):
    return nn.functional.one_hot(torch.tensor(ids), D).float()


def test_the_mean_is_of_the_tokens_that_count():
    pooled = MeanPooling(Repeats(), PADDING, causal=False)(IDS)
    torch.testing.assert_close(pooled[0], one(3, 5, 4).mean(0))
    torch.testing.assert_close(pooled[1], one(2, 2, 1).mean(0))
    assert not pooled[2].any()  # of nothing
    torch.testing.assert_close(MeanPooling(Repeats(), None, causal=False)(IDS)[0], one(3, 5, 4, 0).mean(0))


def test_the_last_token_that_counts_answers():
    """Wherever the padding stands."""
    last = LastToken(Repeats(), PADDING, causal=True)(IDS)
    assert last[:2].equal(one(4, 1))
    assert not last[2].any()
    assert LastToken(Repeats(), None, causal=True)(IDS)[:2].equal(one(0, 1))


def test_a_token_sees_no_padding_and_where_it_is_asked_nothing_behind_it():
    """In masks of numbers that are added: 0 for what is seen."""
    for causal in (False, True):
        body = EveryToken(Repeats(), PADDING, causal)
        body(IDS)
        mask = body.model.mask
        assert mask.shape == (3, 1, 4, 4)
        for b in range(3):
            for t in range(4):
                sees = [IDS[b, j] != PADDING and (j <= t or not causal) for j in range(4)]
                assert mask[b, 0, t].tolist() == [0.0 if s else LEAST for s in sees]


def test_a_token_sees_as_far_as_its_window_reaches():
    """Two places here, itself not counted; where layers differ, either mask by its name."""
    for causal in (False, True):
        whole, narrow, both = (
            EveryToken(Repeats(), PADDING, causal, w)
            for w in (None, LocalAttention(2, mixed=False), LocalAttention(2, mixed=True))
        )
        ids = torch.tensor([[1, 2, 3, 4, 5, PADDING]])
        for body in (whole, narrow, both):
            body(ids)
        for t in range(6):
            sees = [ids[0, j] != PADDING and abs(t - j) <= 2 and (j <= t or not causal) for j in range(6)]
            assert narrow.model.mask[0, 0, t].tolist() == [0.0 if s else LEAST for s in sees]
        assert sorted(both.model.mask) == ["full_attention", "sliding_attention"]
        assert both.model.mask["full_attention"].equal(whole.model.mask)
        assert both.model.mask["sliding_attention"].equal(narrow.model.mask)
