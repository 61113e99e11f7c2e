"""The inputs of a module: token ids for embeddings, and several inputs that are packed into one row; and its
logits, where its output holds more.

Samples are float32, while an `nn.Embedding` looks up whole numbers. A hook before the module's forward splits
rows of several inputs: a dictionary's inputs become keyword arguments, a tuple's positional ones. The module,
its names and its weights do not change. Letters: B batch, D numbers of a row.
"""

# pyright: reportPrivateUsage=false
# A hook is removed from a copied module by its number, which torch does not offer publicly.

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from unskew.errors import DataError, UsageError
from unskew.formats.input_layout import Input, Layout

ROWS_AT_ONCE = 10_000
"""The number of samples whose tokens are checked at once."""
_TABLES = (nn.Embedding, nn.EmbeddingBag)
TableExposure = Literal["", "kept", "sent"]
"""Whether a model's embedding tables leave a client: it has none (""), none leaves, or some do."""


def has_embedding(module: nn.Module) -> bool:
    """Whether the module has an embedding, so that its samples may be whole numbers."""
    return any(isinstance(layer, _TABLES) for layer in module.modules())


def embedding_tables(module: nn.Module) -> dict[str, nn.Embedding | nn.EmbeddingBag]:
    """The embedding layers by the names of their weights."""
    return {f"{name}.weight": layer for name, layer in module.named_modules() if isinstance(layer, _TABLES)}


def table_exposure(module: nn.Module, sent: Collection[str]) -> TableExposure:
    """Whether the model's embedding tables leave a client. sent: names of the weights that leave."""
    names = embedding_tables(module)
    return "" if not names else "sent" if names.keys() & set(sent) else "kept"


def attach_lookup(module: nn.Module) -> None:
    """Make every embedding accept whole numbers as float32, and keep its padding row constant also under
    vmap. Idempotent."""
    detach_lookup(module)
    for layer in module.modules():
        if isinstance(layer, _TABLES):
            layer.register_forward_pre_hook(_round_ids, with_kwargs=True)
        if isinstance(layer, nn.Embedding) and layer.padding_idx is not None:
            layer.register_forward_hook(_freeze_padding_row, with_kwargs=True)


def detach_lookup(module: nn.Module) -> None:
    """Undo `attach_lookup`, also on a copy."""
    for layer in module.modules():
        for number in [n for n, hook in layer._forward_pre_hooks.items() if hook is _round_ids]:
            del layer._forward_pre_hooks[number]
            layer._forward_pre_hooks_with_kwargs.pop(number, None)
        for number in [n for n, hook in layer._forward_hooks.items() if hook is _freeze_padding_row]:
            del layer._forward_hooks[number]
            layer._forward_hooks_with_kwargs.pop(number, None)


@contextmanager
def check_whole_numbers(module: nn.Module) -> Generator[None]:
    """A context in which an embedding raises ValueError for other than whole numbers; not for use in vmap."""
    layers = [layer for layer in module.modules() if isinstance(layer, _TABLES)]
    handles = [
        layer.register_forward_pre_hook(_check_ids, prepend=True, with_kwargs=True) for layer in layers
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def check_vocabulary(module: nn.Module, *samples: np.ndarray) -> None:
    """Raises DataError (E123) for samples [N, ...] with token ids outside the module's vocabulary, whose size
    is its attribute `vocabulary`, if any."""
    known = int(getattr(module, "vocabulary", 0))  # type: ignore[arg-type]
    for x in samples if known else ():
        for first in range(0, len(x), ROWS_AT_ONCE):
            rows = np.asarray(x[first : first + ROWS_AT_ONCE])
            wrong = rows[(rows < 0) | (rows >= known) | (rows != np.rint(rows))]
            if len(wrong):
                text = (
                    f"the samples hold token {float(wrong[0]):.4g}, and the model's vocabulary has {known:,}"
                )
                text = f"{text}, from 0 to {known - 1:,}; give the ids of the model's own tokenizer."
                raise DataError("E123", text)


def explain_lookup_error(error: IndexError) -> None:
    """Raises UsageError (E123) if this is torch's error for a number without a row in an embedding."""
    if str(error) == "index out of range in self":
        text = "a sample holds a whole number for which an nn.Embedding of the model has no row"
        raise UsageError("E123", f"{text}; numbers go from 0 to num_embeddings - 1.") from error


def lookup_ids(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An embedding layer's input, which may be a positional or a keyword argument."""
    return args[0] if args else kwargs["input"]


def _check_ids(_layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    ids = lookup_ids(args, kwargs)
    if bool((fractions := ids != ids.round()).any()):
        raise ValueError(f"an embedding looks up whole numbers, and is given {float(ids[fractions][0]):.4g}")


def _round_ids(
    _layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    ids = lookup_ids(args, kwargs)
    if not ids.is_floating_point():
        return None
    whole = ids.round().long()
    return ((whole, *args[1:]), kwargs) if args else (args, kwargs | {"input": whole})


def _freeze_padding_row(
    layer: nn.Embedding, args: tuple[Any, ...], kwargs: dict[str, Any], rows: torch.Tensor
) -> torch.Tensor:
    """Detach the padding row, whose gradient torch.func would include."""
    return torch.where((lookup_ids(args, kwargs) == layer.padding_idx)[..., None], rows.detach(), rows)


class InputSplit:
    """The hook that splits rows of this layout into the module's inputs."""

    def __init__(self, layout: Layout):
        self.layout = layout

    def __call__(
        self, _module: nn.Module, args: tuple[Any, ...], _kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        (x,) = args
        values = split_inputs(self.layout, x)
        return ((), values) if self.layout.named else (tuple(values.values()), {})


def split_inputs(layout: Layout, x: Tensor) -> dict[str, Tensor]:
    """The inputs of rows [B, D], by name or number: [B, *shape] each. It only depends on shapes, as vmap
    requires."""
    return {each.name: _restore_input(each, x[..., start:end]) for each, start, end in layout.places}


def _restore_input(each: Input, x: Tensor) -> Tensor:
    """An input [B, numbers] in its own shape and type."""
    x = x.unflatten(-1, each.shape) if each.shape else x[..., 0]
    if each.kind == "bool":
        return x > 0.5
    return x.round().to(torch.int64) if each.kind == "int64" else x


def _logits_alone(_module: nn.Module, _args: Any, output: Any) -> Any:
    """The logits of an output that names them, as those of Hugging Face's models do."""
    logits = output.get("logits") if isinstance(output, Mapping) else None
    return logits if isinstance(logits, Tensor) else output


def attach_layout(module: nn.Module, layout: Layout | None) -> None:
    """Make the module read rows of this layout, in place of any earlier layout, and return its logits alone;
    None: plain inputs."""
    detach_layout(module)
    module.register_forward_hook(_logits_alone)
    if layout:
        # prepended, so that it runs before the user's hooks
        module.register_forward_pre_hook(InputSplit(layout), prepend=True, with_kwargs=True)


def detach_layout(module: nn.Module) -> None:
    """Undo `attach_layout`, also on a copy."""
    for number in [n for n, hook in module._forward_pre_hooks.items() if isinstance(hook, InputSplit)]:
        del module._forward_pre_hooks[number]
        module._forward_pre_hooks_with_kwargs.pop(number, None)
    for number in [n for n, hook in module._forward_hooks.items() if hook is _logits_alone]:
        del module._forward_hooks[number]
