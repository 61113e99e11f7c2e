"""What of a user's model would stay as it is, or change, without anybody seeing it: told before anything trains (E123).

A plain loop of torch leaves layers in a list untrained in silence, too; runs also would not save or send them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from unskew.errors import UsageError
from unskew.models.roles import batch_norms, roles_of

_OF_ANY_MODULE = frozenset(vars(nn.Module()))
_INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_LAYERS = "layers with weights"


def check(module: nn.Module) -> None:
    """Raises UsageError (E123) for weights that no pass can train, or whose gradients a hook of torch should change."""
    known = {id(layer) for layer in module.modules()} | {id(p) for p in module.parameters()}
    for path, layer in module.named_modules():
        if hasattr(layer, "_orig_mod") and path:
            _refuse(
                f"its layer '{path}' is compiled, and holds its weights where no pass can put others; compile nothing"
            )
        for key, value in vars(layer).items():
            place = f"{path}.{key}".lstrip(".")
            if key not in _OF_ANY_MODULE and (what := _learns(value, known)):
                how = "nn.ModuleList" if what == _LAYERS else "nn.Parameter"
                text = f"it keeps {what} in '{place}', which nobody trains, sends or saves; make it {how}"
                _refuse(f"{text}, or freeze it: requires_grad_(False)")
    for name, p in module.named_parameters():
        if p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None):  # pyright: ignore[reportPrivateUsage]
            _refuse(
                f"its weight '{name}' has a hook on its gradient (register_hook), which clients' own copies have not"
            )


def shape_lazy_layers(module: nn.Module, x: Tensor) -> None:
    """Let lazy layers (nn.LazyLinear) take their shapes and first weights from samples."""
    if any(is_lazy(t) for t in (*module.parameters(), *module.buffers())):
        module(x)


@contextmanager
def unchanged(module: nn.Module) -> Iterator[None]:
    """Within it the module answers in evaluation mode. Raises UsageError (E123) for a buffer that it changes there, with which
    scoring a model would train it; the buffer is put back."""
    before = {name: b.clone() for name, b in module.named_buffers() if not b.is_meta}
    yield
    now = dict(module.named_buffers())
    changed = [n for n, b in before.items() if n in now and not torch.equal(b.nan_to_num(), now[n].nan_to_num())]
    if changed:
        with torch.no_grad():
            for name in changed:
                now[name].copy_(before[name])
        _refuse(
            f"it changes its buffer '{changed[0]}' in evaluation mode, so that scoring would change the model; update it where "
            "self.training is True"
        )


def problem(module: nn.Module) -> str:
    """Why clients cannot train this module together, "" if they can."""
    for name in (*dict(module.named_modules()), *dict(module.named_parameters()), *dict(module.named_buffers())):
        if "/" in name:
            return f"'{name}' has a '/' in its name, which separates the parts of names in files; rename it"
    fixed = roles_of(module).fixed
    for name, layer in batch_norms(module):
        if isinstance(layer, nn.SyncBatchNorm):
            return f"'{name}' is nn.SyncBatchNorm, which waits for other processes; use nn.BatchNorm2d"
        if layer.running_mean is None:
            return (
                f"'{name}' keeps no running statistics (track_running_stats=False), so the answer for a sample would "
                "depend on the samples beside it; leave track_running_stats on, or use nn.GroupNorm"
            )
        if layer.momentum is None and name not in fixed:
            return (
                f"'{name}' averages over all batches it has seen (momentum=None), whose number is lost when clients' "
                "statistics are averaged; give it a momentum, such as 0.1"
            )
    for name, layer in module.named_modules():
        if isinstance(layer, _INSTANCE_NORMS) and layer.track_running_stats:
            return f"'{name}' is instance normalisation with running statistics; set track_running_stats=False"
    return ""


def _learns(value: Any, known: set[int]) -> str:
    """What trainable is in an attribute that is no part of the module, in words; "" if nothing."""
    if isinstance(value, nn.Module):
        return _LAYERS if id(value) not in known and any(p.requires_grad for p in value.parameters()) else ""
    if isinstance(value, Tensor):
        return (
            "a tensor that requires gradients"
            if id(value) not in known and value.is_leaf and value.requires_grad
            else ""
        )
    inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple | set) else ()
    return next((what for one in inside if (what := _learns(one, known))), "")


def _refuse(text: str) -> None:
    raise UsageError("E123", f"the model cannot be trained among clients: {text}.")
