"""A model as a pure function of its weights, with cuts at which a forward pass can stop, be changed, and go on."""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

from unskew.core.trees import Weights
from unskew.errors import UsageError, suggestion
from unskew.models.surgery import last_linear

Tap = Callable[[str, Tensor], Tensor]
_NORMS = (nn.modules.batchnorm._BatchNorm,)


class Network:
    """A model's structure without its weights: `run(w, x)` is a pure function of `w` and `x`.

    A plain `nn.Sequential` is cut at its blocks. Any other module is cut at its direct children, by forward hooks;
    it can go on from a cut only by running from the start and replacing what the cut gave.
    One Network serves one thread; `copy()` makes another.
    """

    def __init__(self, module: nn.Module, shape: tuple[int, ...]):
        self.module = copy.deepcopy(module)
        self.shape = tuple(shape)
        self.blocks = tuple(n for n, _ in self.module.named_children())
        if not self.blocks:
            raise UsageError("E105", "the model has no named children, so it has no head; wrap it in nn.Sequential.")
        self.sequential = isinstance(self.module, nn.Sequential)
        self.head = self.blocks[-1] if self.sequential else _head_of(self.module)
        self.cut = getattr(module, "cut", self.blocks[0])
        self.folds = bool(getattr(module, "folds", False))
        self.around: Callable[[], Any] = contextlib.nullcontext
        """What every block runs within; the engine puts its kernels here."""
        self.norms = frozenset(
            f"{m}.{n}" if m else n
            for m, layer in self.module.named_modules()
            if isinstance(layer, _NORMS)
            for n, _ in [*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)]
        )
        for layer in self.module.modules():
            if isinstance(layer, _NORMS):
                layer.num_batches_tracked = None  # an integer counter nothing here reads; never averaged
        self._start = {n: t.detach().clone() for n, t in _named(self.module)}
        self.extra: Weights = {}
        self.trainable = tuple(n for n, _ in self.module.named_parameters())
        self.buffers = tuple(n for n, b in self.module.named_buffers() if b.is_floating_point())
        self._slots: list[tuple[dict[str, Any], str, str]] = [
            (store, key, f"{m}.{key}" if m else key)
            for m, layer in self.module.named_modules()
            for store in cast(list[dict[str, Any]], [layer._parameters, layer._buffers])
            for key, value in store.items()
            if value is not None and (f"{m}.{key}" if m else key) in self._start
        ]
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._asking = threading.Lock()
        self._training: bool | None = None
        self._taps: dict[str, Tap] = {}
        self._features: Tensor | None = None
        self._hooks: list[tuple[str, int]] = []
        if not self.sequential:
            self._hook()

    def copy(self) -> Network:
        return Network(self.module_with(self._start), self.shape)._like(self)

    def _like(self, other: Network) -> Network:
        self.cut, self.folds = other.cut, other.folds
        self.add(other.extra)
        return self

    def add(self, extra: Weights) -> None:
        """Weights that a Part trains beside the model's; the module knows nothing of them."""
        self.extra = {**self.extra, **extra}
        self.trainable = (*self.trainable, *(n for n in extra if n not in self.trainable))

    def weights(self) -> Weights:
        """Parameters and floating-point buffers as the model was given, by name, and what Parts train beside them."""
        return {n: t.clone() for n, t in (*self._start.items(), *self.extra.items())}

    def module_with(self, w: Weights) -> nn.Module:
        """An ordinary module holding these weights, to keep or to hand to a user."""
        module = copy.deepcopy(self.module)
        for child, number in self._hooks:  # a copy's activations are its own: they must not reach this network
            layer = module.get_submodule(child)
            layer._forward_hooks.pop(number, None)
            layer._forward_pre_hooks.pop(number, None)
        for m, layer in module.named_modules():
            prefix = f"{m}." if m else ""
            for key in layer._parameters:
                if prefix + key in w:
                    layer._parameters[key] = nn.Parameter(w[prefix + key].detach().clone())
            for key in layer._buffers:
                if prefix + key in w:
                    layer._buffers[key] = w[prefix + key].detach().clone()
            if isinstance(layer, _NORMS):
                layer.num_batches_tracked = torch.tensor(0)
        return module.eval()

    def check_cut(self, cut: str) -> str:
        """The block a cut names; "cut" stands for the model's own."""
        name = self.cut if cut == "cut" else cut
        if name not in self.blocks[:-1]:
            known = ", ".join(self.blocks[:-1])
            raise UsageError(
                "E106", f"the model has no cut '{cut}'; it can be cut after: {known}.{suggestion(cut, self.blocks)}"
            )
        return name

    def of_head(self, name: str) -> bool:
        """Whether a weight is the head's."""
        return name.startswith(f"{self.head}.")

    def cuts(self, name: str) -> tuple[str, ...]:
        """The blocks a tap names: one cut, or with "maps" those the model lists, else all with channels of pixels."""
        if name != "maps":
            return (self.check_cut(name),)
        if listed := getattr(self.module, "maps", ()):
            return tuple(listed)
        return tuple(cut for cut in self.blocks[:-1] if len(self.shape_at(cut)) == 3)

    def run(
        self,
        w: Weights,
        x: Tensor,
        *,
        since: str | None = None,
        until: str | None = None,
        train: bool = False,
        taps: dict[str, Tap] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """(output, features): from the input, or from what the cut `since` gave, to the logits or the cut `until`.

        `features` is what the head received. `taps[cut]` may change an activation on the way.
        """
        if self._training is not train:
            self.module.train(train)
            self._training = train
        for store, key, name in self._slots:
            store[key] = w[name]
        try:
            if self.sequential:
                return self._blocks(x, since, until, taps or {})
            return self._whole(x, since, until, taps or {})
        finally:
            for store, key, _ in self._slots:
                store[key] = None

    def _blocks(self, x: Tensor, since: str | None, until: str | None, taps: dict[str, Tap]) -> tuple[Tensor, Tensor]:
        features = x
        first = 0 if since is None else self.blocks.index(since) + 1
        for name, block in zip(self.blocks[first:], list(self.module.children())[first:]):
            if name == self.head:
                features = x = _full(x)
            with self.around():
                narrow = getattr(block, "narrow", None)  # a compact form of its activation, see models/columns.py
                x = narrow(x) if narrow else block(_full(x))
            if name in taps:
                x = taps[name](name, _full(x))
            if name == until:
                break
        return _full(x), features

    def _whole(self, x: Tensor, since: str | None, until: str | None, taps: dict[str, Tap]) -> tuple[Tensor, Tensor]:
        if since == "features":
            head = self.module.get_submodule(self.head)
            with self.around():
                return head(x), x
        found: list[Tensor] = []
        self._taps = dict(taps)
        if since is not None and getattr(self.module, "skips", False):
            raise UsageError("E106", f"a pass cannot go on from '{since}' alone: skip connections pass it by.")
        if since is not None:
            given = x
            x = given.new_zeros((given.shape[0], *self.shape))
            self._taps[since] = lambda _, h: given
        if until is not None:
            self._taps[until] = lambda _, h: found.append(h) or h
        with self.around():
            z = self.module(x)
        features = self._features if self._features is not None else z
        self._taps, self._features = {}, None
        return (found[0] if found else z), features

    def head_of(self, w: Weights, h_BD: Tensor) -> Tensor:
        """Logits from what the head receives."""
        since = self.blocks[-2] if self.sequential and len(self.blocks) > 1 else "features"
        return self.run(w, h_BD, since=since)[0]

    def features_of(self, w: Weights, x: Tensor) -> Tensor:
        """What the head receives, in evaluation mode."""
        return self.run(w, x)[1]

    def shape_at(self, cut: str) -> tuple[int, ...]:
        """The shape of one sample's activation at a cut ("features": at the head's input). Any thread may ask."""
        with self._asking:
            if cut not in self._shapes:
                self._shapes[cut] = self._measured(cut)
            return self._shapes[cut]

    def _measured(self, cut: str) -> tuple[int, ...]:
        with torch.no_grad():
            x = torch.zeros((2, *self.shape))
            if cut == "features":
                return tuple(self.features_of(self._start, x).shape[1:])
            return tuple(self.run(self._start, x, until=self.check_cut(cut))[0].shape[1:])

    def _hook(self) -> None:
        for name, child in self.module.named_children():
            handle = child.register_forward_hook(
                lambda _m, _a, h, name=name: self._taps[name](name, h) if name in self._taps else None  # type: ignore[arg-type]
            )
            self._hooks.append((name, handle.id))

        def keep(_module: nn.Module, args: tuple[Any, ...]) -> None:
            self._features = args[0]

        self._hooks.append((self.head, self.module.get_submodule(self.head).register_forward_pre_hook(keep).id))


def _full(x: Any) -> Tensor:
    return x if isinstance(x, Tensor) else x.full()


def _named(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from ((n, b) for n, b in module.named_buffers() if b.is_floating_point())


def _head_of(module: nn.Module) -> str:
    """The last dense layer, or, of a model that has none because it answers for pixels, the last convolution."""
    convolutions = [n for n, m in module.named_modules() if isinstance(m, nn.modules.conv._ConvNd)]
    dense = any(isinstance(m, nn.Linear) for m in module.modules())
    return convolutions[-1] if convolutions and not dense else last_linear(module)
