"""Whole numbers for embeddings: samples travel as float32, and an `nn.Embedding` looks up whole numbers."""

# pyright: reportPrivateUsage=false
# A hook is taken off a copied module by its number, for which torch has no public way.

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from unskew.errors import DataError, UsageError

ROWS = 10_000
"""Samples whose tokens are checked at once."""
_TABLES = (nn.Embedding, nn.EmbeddingBag)
LookedUp = Literal["", "kept", "sent"]
"""Of a model's tables: there are none, none leaves a client, or some do."""


def embeds(module: nn.Module) -> bool:
    """Whether the module looks anything up, so that its samples may be whole numbers."""
    return any(isinstance(layer, _TABLES) for layer in module.modules())


def tables(module: nn.Module) -> dict[str, nn.Embedding | nn.EmbeddingBag]:
    """The layers that look rows up, by the names of their weights."""
    return {f"{name}.weight": layer for name, layer in module.named_modules() if isinstance(layer, _TABLES)}


def looked_up(module: nn.Module, sent: Collection[str]) -> LookedUp:
    """Whether the model looks its samples up, and whether a table of it leaves the client. sent: weights that leave."""
    names = tables(module)
    return "" if not names else "sent" if names.keys() & set(sent) else "kept"


def attach(module: nn.Module) -> None:
    """Let every embedding read float32 as the whole numbers that they stand for, and its row of padding learn nothing also
    where clients train side by side; once is as good as twice."""
    detach(module)
    for layer in module.modules():
        if isinstance(layer, _TABLES):
            layer.register_forward_pre_hook(_whole, with_kwargs=True)
        if isinstance(layer, nn.Embedding) and layer.padding_idx is not None:
            layer.register_forward_hook(_padding_learns_nothing, with_kwargs=True)


def detach(module: nn.Module) -> None:
    """Undo `attach`, also on a copy."""
    for layer in module.modules():
        for number in [n for n, hook in layer._forward_pre_hooks.items() if hook is _whole]:
            del layer._forward_pre_hooks[number]
            layer._forward_pre_hooks_with_kwargs.pop(number, None)
        for number in [n for n, hook in layer._forward_hooks.items() if hook is _padding_learns_nothing]:
            del layer._forward_hooks[number]
            layer._forward_hooks_with_kwargs.pop(number, None)


@contextmanager
def checked(module: nn.Module) -> Iterator[None]:
    """Within it an embedding that is given anything but whole numbers raises ValueError; not inside vmap."""
    layers = [layer for layer in module.modules() if isinstance(layer, _TABLES)]
    handles = [layer.register_forward_pre_hook(_check, prepend=True, with_kwargs=True) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def check_known(module: nn.Module, *samples: np.ndarray) -> None:
    """Raises DataError (E122), whose text quotes them, for samples [N, ...] that are no words of the module's vocabulary, if it names one.

    A module says in `vocabulary` how many words it knows.
    """
    known = int(getattr(module, "vocabulary", 0))  # type: ignore[arg-type]
    for x in samples if known else ():
        for first in range(0, len(x), ROWS):
            rows = np.asarray(x[first : first + ROWS])
            low, high = float(rows.min()), float(rows.max())
            if low < 0 or high >= known:
                text = f"the samples hold token {low if low < 0 else high:g}, and the model's vocabulary has {known:,}"
                raise DataError("E122", f"{text}, from 0 to {known - 1:,}; use the ids of the model's own tokenizer.")
            if (fractions := rows != np.rint(rows)).any():
                text = f"the model looks whole numbers up, and the samples hold {float(rows[fractions][0]):.4g}"
                raise DataError("E122", f"{text}; give token ids.")


def refuse_unknown(error: IndexError) -> None:
    """Raises UsageError (E122) if this is torch's error for a number that an embedding has no row for."""
    if str(error) == "index out of range in self":
        text = "a sample holds a whole number for which an nn.Embedding of the model has no row"
        raise UsageError("E122", f"{text}; numbers go from 0 to num_embeddings - 1.") from error


def ids(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a layer is to look up, which a model may give by its name."""
    return args[0] if args else kwargs["input"]


def _check(_layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    given = ids(args, kwargs)
    if bool((fractions := given != given.round()).any()):
        raise ValueError(f"an embedding looks up whole numbers, and is given {float(given[fractions][0]):.4g}")


def _whole(
    _layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    given = ids(args, kwargs)
    if not given.is_floating_point():
        return None
    whole = given.round().long()
    return ((whole, *args[1:]), kwargs) if args else (args, kwargs | {"input": whole})


def _padding_learns_nothing(
    layer: nn.Embedding, args: tuple[Any, ...], kwargs: dict[str, Any], rows: torch.Tensor
) -> torch.Tensor:
    """torch.func adds up the gradient of this row, too, which the layer alone leaves out."""
    return torch.where((ids(args, kwargs) == layer.padding_idx)[..., None], rows.detach(), rows)
