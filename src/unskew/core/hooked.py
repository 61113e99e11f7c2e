"""How any module but a plain Sequential is run: as a whole, while forward hooks on its children see and change activations."""

# pyright: reportPrivateUsage=false
# Hooks are taken off a copied module by their numbers, for which torch has no public way.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from unskew.core.blocks import Around, Tap
from unskew.errors import UsageError
from unskew.models.heads import head_of


class Hooked:
    """A module whose forward is its own; its cuts are its direct children, its head the last dense layer.

    It can go on from a cut only by running from the start and replacing what the cut gave, which is a pass of that alone
    where no other path passes the cut by (`onward.py`). One pass at a time: the hooks read what `run` has set.
    """

    def __init__(self, module: nn.Module, shape: tuple[int, ...]):
        self.module, self.shape = module, shape
        self.head = head_of(module)
        self.before_head = "features"
        self.taps: dict[str, Tap] = {}
        self.features: Tensor | None = None
        self.called: set[str] = set()
        self._handles: list[tuple[str, int]] = []
        self._hook()

    def run(
        self, x: Tensor, since: str | None, until: str | None, taps: dict[str, Tap], around: Around
    ) -> tuple[Tensor, Tensor]:
        """(output, what the head received), from the input or the cut `since` to the logits or the cut `until`.

        Raises UsageError (E106) for a cut whose layer is not called.
        """
        if since == "features":
            head = self.module.get_submodule(self.head)
            with around():
                return head(x), x
        stopped: list[Tensor] = []
        self.taps, self.called = dict(taps), set()
        if since is not None:
            given = x
            x = given.new_zeros((given.shape[0], *self.shape))
            self.taps[since] = lambda _, h: given
        if until is not None:
            self.taps[until] = lambda _, h: stopped.append(h) or h
        with around():
            z = self.module(x)
        if missed := [cut for cut in self.taps if cut not in self.called]:
            raise UsageError(
                "E106",
                f"the model cannot be cut after '{missed[0]}', which its forward does not call, or calls by another name.",
            )
        features = self.features if self.features is not None else z
        self.taps, self.features = {}, None
        return (stopped[0] if stopped else z), features

    def unhook(self, module: nn.Module) -> None:
        """Take the hooks off a copy of the module: its activations must not reach this one's taps."""
        for child, number in self._handles:
            layer = module.get_submodule(child)
            layer._forward_hooks.pop(number, None)
            layer._forward_pre_hooks.pop(number, None)

    def _hook(self) -> None:
        for name, child in self.module.named_children():
            self._handles.append((name, child.register_forward_hook(self._tap_at(name)).id))

        def keep(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self.features = args[0] if args else kwargs["input"]

        head = self.module.get_submodule(self.head)
        self._handles.append((self.head, head.register_forward_pre_hook(keep, with_kwargs=True).id))

    def _tap_at(self, name: str) -> Callable[[nn.Module, Any, Tensor], Tensor | None]:
        def tap(_module: nn.Module, _args: Any, h: Tensor) -> Tensor | None:
            self.called.add(name)
            return self.taps[name](name, h) if name in self.taps else None

        return tap
