"""A language model as unskew trains it: token ids in, one answer a sequence or one a token out.

Attention is told which tokens each may see as a mask [B, 1, T, T] of numbers that are added to its scores, because most
architectures take that form as it is, also where clients train side by side.
Letters: B batch, T tokens, D features, C classes or words of the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Window:
    """Layers whose tokens see only near ones. reach: how many places away the farthest is that a token sees.

    mixed: other layers of the model see all tokens, and the model takes a mask for either kind by its name.
    """

    reach: int
    mixed: bool

    def mask(self, sees: Tensor) -> Tensor | dict[str, Tensor]:
        """What the model is told, of what every token would see without a window, bool [B, 1, T, T]."""
        place = torch.arange(sees.shape[-1], device=sees.device)
        near = added(sees & ((place[:, None] - place).abs() <= self.reach))
        return {"full_attention": added(sees), "sliding_attention": near} if self.mixed else near


class Tokens(nn.Module):
    """A transformer and how its tokens see each other. padding: the id of tokens that do not count, or None.

    causal: a token sees only those before it, and itself. window: of layers that see only near tokens, if there are any.
    """

    buffers_stay = True

    def __init__(self, model: nn.Module, padding: int | None, causal: bool, window: Window | None = None):
        super().__init__()
        self.model, self.padding, self.causal, self.window = model, padding, causal, window

    def known(self, ids_BT: Tensor) -> Tensor:
        """Which tokens count, bool [B, T]."""
        return torch.ones_like(ids_BT, dtype=torch.bool) if self.padding is None else ids_BT != self.padding

    def answer(self, ids_BT: Tensor) -> Any:
        """What the transformer returns for these whole numbers."""
        T = ids_BT.shape[1]
        sees = self.known(ids_BT)[:, None, None, :].expand(-1, 1, T, T)
        if self.causal:
            sees = sees & torch.ones(T, T, dtype=torch.bool, device=ids_BT.device).tril()
        mask = self.window.mask(sees) if self.window else added(sees)
        return self.model(input_ids=ids_BT, attention_mask=mask)


class Pooled(Tokens):
    """The mean of the last layer's outputs over the tokens that count, [B, D]."""

    def forward(self, x: Tensor) -> Tensor:
        ids_BT = whole(x)
        h_BTD, known = self.answer(ids_BT).last_hidden_state, self.known(ids_BT)[:, :, None]
        return (h_BTD * known).sum(1) / known.sum(1).clamp(min=1)


class Last(Tokens):
    """The last layer's output at the last token that counts, [B, D]."""

    def forward(self, x: Tensor) -> Tensor:
        ids_BT = whole(x)
        h_BTD, known = self.answer(ids_BT).last_hidden_state, self.known(ids_BT)
        is_last = known & (known.cumsum(1) == known.sum(1, keepdim=True))
        return (h_BTD * is_last[:, :, None]).sum(1)


class Each(Tokens):
    """The last layer's output at every token, [B, T, D]."""

    def forward(self, x: Tensor) -> Tensor:
        return self.answer(whole(x)).last_hidden_state


class Sequences(nn.Sequential):
    """A body that reads tokens and a dense head, one answer a sequence or one a token.

    vocabulary: how many tokens it knows. fresh: beginnings of names of layers whose weights come from no folder.
    """

    dense, cut, folds = False, "body", False

    def __init__(self, body: Tokens, head: nn.Linear, vocabulary: int, brings_head: bool = False):
        """brings_head: the head's weights come from the folder, too."""
        super().__init__()
        self.add_module("body", body)
        self.add_module("head", head)
        self.vocabulary = vocabulary
        self.fresh = fresh_of(self) if brings_head else fresh_of(self, "head")

    def at_every_token(self) -> Sequences:
        """The same model with an answer at every token, [B, T, C]."""
        body = self.body
        assert isinstance(body, Tokens)
        self.body, self.dense = Each(body.model, body.padding, body.causal, body.window), True
        return self


def added(sees: Tensor) -> Tensor:
    """0 where a token is seen, and the least number of float32 elsewhere."""
    return torch.zeros_like(sees, dtype=torch.float32).masked_fill(~sees, torch.finfo(torch.float32).min)


def whole(x: Tensor) -> Tensor:
    """Token ids as whole numbers, which travel as float32."""
    return x.round().long() if x.is_floating_point() else x


def fresh_of(module: nn.Module, *others: str) -> tuple[str, ...]:
    """The names of adapters' first layers, which are drawn anew (the second begin at zero), and these others."""
    return (*others, *(n for n, _ in module.named_modules() if ".lora_A." in n))
