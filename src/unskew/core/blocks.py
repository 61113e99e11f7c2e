"""How a plain `nn.Sequential` is run: block by block, so that a pass can start, stop and be changed after any of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

from torch import Tensor, nn

from unskew.models.children import children

Tap: TypeAlias = Callable[[str, Tensor], Tensor]
"""Called with a cut's name and the activation there; returns what the pass goes on with."""
Around: TypeAlias = Callable[[], AbstractContextManager[Any]]
"""Makes the context in which a block runs; the engine puts its kernels there."""


class Blocks:
    """A Sequential; its last block is the head."""

    def __init__(self, module: nn.Sequential):
        self.module = module
        self.names = tuple(name for name, _ in children(module))
        self.head = self.names[-1]
        self.before_head = self.names[-2] if len(self.names) > 1 else "features"

    def run(
        self, x: Tensor, since: str | None, until: str | None, taps: dict[str, Tap], around: Around
    ) -> tuple[Tensor, Tensor]:
        """(output, what the head received): `x` enters the first block, or the one that follows `since`.

        `until` names the last block to run; the output is then its activation.
        """
        features = x
        first = 0 if since is None else self.names.index(since) + 1
        for name, block in children(self.module)[first:]:
            if name == self.head:
                features = x = _whole(x)
            with around():
                compact = getattr(block, "narrow", None)  # a block may hand on a compact form, see models/columns.py
                x = compact(x) if compact else block(_whole(x))
            if name in taps:
                x = taps[name](name, _whole(x))
            if name == until:
                break
        return _whole(x), features

    def unhook(self, module: nn.Module) -> None:
        """Nothing to take off a copy of the module: blocks are run from outside."""


def _whole(x: Any) -> Tensor:
    """The activation itself, of a compact form too."""
    return x if isinstance(x, Tensor) else x.full()
