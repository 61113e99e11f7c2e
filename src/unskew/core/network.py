"""A model as a pure function of its weights, with cuts at which a forward pass can stop, be changed, and go on."""

# pyright: reportPrivateUsage=false
# Every pass puts its weights into the module's own dicts, for which torch has no public way.

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

from unskew.core.blocks import Around, Blocks, Tap
from unskew.core.hooked import Hooked
from unskew.core.trees import Weights
from unskew.errors import UsageError, suggestion

_NORMS = (nn.modules.batchnorm._BatchNorm,)


class Network:
    """A model's structure without its weights: `run(w, x)` is a pure function of `w` and `x`.

    A plain `nn.Sequential` is cut at its blocks (`blocks.py`), any other module at its direct children (`hooked.py`).
    One Network serves one thread, for a pass puts its weights into the module; `copy()` makes another.

    blocks: the names of the direct children, in order. head: the name of the layer that gives logits. cut: the cut
    that Parts use unless told otherwise. folds: whether training clients side by side pays for this model. norms:
    names of everything that belongs to batch normalisation. trainable, buffers: names of parameters, and of
    floating-point buffers. extra: weights that Parts train beside the model's, by name. around: makes the context in
    which the model runs.
    """

    def __init__(self, module: nn.Module, shape: tuple[int, ...]):
        """shape: of one input. Raises UsageError (E105) for a module without children."""
        self.module = copy.deepcopy(module)
        self.shape = tuple(shape)
        self.blocks = tuple(n for n, _ in self.module.named_children())
        if not self.blocks:
            raise UsageError("E105", "the model has no named children, so it has no head; wrap it in nn.Sequential.")
        self._passes = (
            Blocks(self.module) if isinstance(self.module, nn.Sequential) else Hooked(self.module, self.shape)
        )
        self.head = self._passes.head
        self.cut: str = getattr(module, "cut", self.blocks[0])
        self.folds = bool(getattr(module, "folds", False))
        self.around: Around = contextlib.nullcontext
        self.norms = frozenset(
            f"{m}.{n}" if m else n
            for m, layer in self.module.named_modules()
            if isinstance(layer, _NORMS)
            for n, _ in [*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)]
        )
        for layer in self.module.modules():
            if isinstance(layer, _NORMS):
                layer.num_batches_tracked = None  # an integer counter nothing here reads; never averaged
        self._start = {n: t.detach().clone() for n, t in _floating(self.module)}
        self.extra: Weights = {}
        self.trainable = tuple(n for n, _ in self.module.named_parameters())
        self.buffers = tuple(n for n, b in self.module.named_buffers() if b.is_floating_point())
        self._slots = _slots(self.module, self._start)
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._asking = threading.Lock()
        self._training: bool | None = None

    def copy(self) -> Network:
        """The same network for another thread."""
        other = Network(self.module_with(self._start), self.shape)
        other.cut, other.folds = self.cut, self.folds
        other.add(self.extra)
        return other

    def add(self, extra: Weights) -> None:
        """Name weights that a Part trains beside the model's; the module knows nothing of them."""
        self.extra = {**self.extra, **extra}
        self.trainable = (*self.trainable, *(n for n in extra if n not in self.trainable))

    def weights(self) -> Weights:
        """Copies of the initial parameters and floating-point buffers by name, and of what Parts train beside them."""
        return {n: t.clone() for n, t in (*self._start.items(), *self.extra.items())}

    def module_with(self, w: Weights) -> nn.Module:
        """An ordinary module holding these weights, in evaluation mode, to keep or to hand to a user."""
        module = copy.deepcopy(self.module)
        self._passes.unhook(module)
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
        """The block after which a cut lies; "cut" stands for the model's own. Raises UsageError (E106) for none."""
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
        """(output, features) of a pass with weights `w`: from the input to the logits, both [B, ...].

        since: go on from this cut; `x` is then the activation there ("features": what the head receives).
        until: stop at this cut; the output is then the activation there.
        train: run in training mode: dropout is active, batch normalisation uses and updates batch statistics.
        taps: by cut, a function that sees the activation and returns what the pass goes on with.
        The features are what the head received.
        """
        if self._training is not train:
            self.module.train(train)
            self._training = train
        for store, key, name in self._slots:
            store[key] = w[name]
        try:
            return self._passes.run(x, since, until, taps or {}, self.around)
        finally:
            for store, key, _ in self._slots:
                store[key] = None

    def head_of(self, w: Weights, h_BD: Tensor) -> Tensor:
        """Logits from what the head receives, in evaluation mode."""
        return self.run(w, h_BD, since=self._passes.before_head)[0]

    def features_of(self, w: Weights, x: Tensor) -> Tensor:
        """What the head receives for inputs `x`, in evaluation mode."""
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


def _floating(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters, then floating-point buffers, by name."""
    yield from module.named_parameters()
    yield from ((n, b) for n, b in module.named_buffers() if b.is_floating_point())


def _slots(module: nn.Module, start: Weights) -> list[tuple[dict[str, Any], str, str]]:
    """Where each weight sits in the module: (a layer's dict, its key there, the weight's name)."""
    return [
        (store, key, f"{m}.{key}" if m else key)
        for m, layer in module.named_modules()
        for store in cast(list[dict[str, Any]], [layer._parameters, layer._buffers])
        for key, value in store.items()
        if value is not None and (f"{m}.{key}" if m else key) in start
    ]
