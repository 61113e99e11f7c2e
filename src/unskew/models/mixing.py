"""Which parts of a model mix the numbers of its input by weights, so that the input does not lie behind them any more.

Linear layers and convolutions do so. Normalisation scales numbers and embeddings look them up, both of which can be undone.
"""

from __future__ import annotations

from torch import nn

from unskew.models.children import children


def mixing(module: nn.Module, all_inputs: bool) -> frozenset[str]:
    """The names of its direct children that mix. all_inputs: only those beside whose layers nothing passes by."""
    return frozenset(name for name, child in children(module) if (_mixes_all if all_inputs else _mixes)(child))


def _mixes(module: nn.Module) -> bool:
    """Whether any layer of the module mixes."""
    return any(
        p.dim() > 1
        for layer in module.modules()
        if not isinstance(layer, (nn.LayerNorm, nn.Embedding, nn.EmbeddingBag))
        for p in layer.parameters(recurse=False)
    )


def _mixes_all(module: nn.Module) -> bool:
    """Whether the module is a layer of torch's that mixes, or has one of them among those that it runs one after another.

    A module of a user's own may let a number by beside the layers that it has.
    """
    if isinstance(module, nn.Sequential):
        return any(_mixes_all(layer) for layer in module)
    is_layer = next(module.children(), None) is None and type(module).__module__.startswith("torch.nn.")
    return is_layer and _mixes(module)
