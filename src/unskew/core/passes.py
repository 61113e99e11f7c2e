"""Forward passes through a module that can stop at a cut and continue from one.

A plain `nn.Sequential` runs block by block. Any other module runs as a whole, and forward hooks on its
children read and replace activations. Whether a pass can continue from a cut is found by trying it.
"""

# pyright: reportPrivateUsage=false
# Hooks are removed from a copied module by their numbers, which torch does not offer publicly.

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from unskew.core.modules import children, head_of
from unskew.errors import UsageError
from unskew.formats.input_layout import Layout

Tap: TypeAlias = Callable[[str, Tensor], Tensor]
"""From a cut's name and its activation to the activation with which the pass continues."""
Around: TypeAlias = Callable[[], AbstractContextManager[Any]]
"""Makes the context in which a block runs; the engine installs its kernels there."""


class SequentialPasses:
    """Passes through an `nn.Sequential` with the head as its last block."""

    def __init__(self, module: nn.Sequential):
        self.module = module
        self.names = tuple(name for name, _ in children(module))
        self.head = self.names[-1]
        self.before_head = self.names[-2] if len(self.names) > 1 else "features"

    def run(
        self, x: Tensor, since: str | None, until: str | None, taps: dict[str, Tap], around: Around
    ) -> tuple[Tensor, Tensor]:
        """(output, input of the head). `x` enters the first block, or the one after `since`; `until` is the
        last block to run, whose activation is then the output."""
        features = x
        first = 0 if since is None else self.names.index(since) + 1
        for name, block in children(self.module)[first:]:
            if name == self.head:
                features = x = _full_activation(x)
            with around():
                compact = getattr(block, "narrow", None)  # see models/time_convolution.py
                x = compact(x) if compact else block(_full_activation(x))
            if name in taps:
                x = taps[name](name, _full_activation(x))
            if name == until:
                break
        return _full_activation(x), features

    def unhook(self, module: nn.Module) -> None:
        """Do nothing: a Sequential has no hooks."""


def _full_activation(x: Any) -> Tensor:
    """The activation as a tensor, also from its compact form."""
    return x if isinstance(x, Tensor) else x.full()


class HookedPasses:
    """Passes through a module with its own forward; cuts are its direct children, the head its last dense
    layer.

    A pass from a cut runs all layers and replaces the activation at the cut, which is valid if no path avoids
    the cut (`CutPasses`). Only one pass may run at a time, because the hooks read attributes that `run` sets.
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
        """(output, input of the head), from the input or the cut `since` to the logits or the cut `until`.

        Raises UsageError (E104) for a cut whose layer is not called.
        """
        if since == "features":
            head = self.module.get_submodule(self.head)
            with around():
                return head(x), x
        activation: list[Tensor] = []
        self.taps, self.called = dict(taps), set()
        if since is not None:
            start = x
            x = start.new_zeros((start.shape[0], *self.shape))
            self.taps[since] = lambda _, h: start
        if until is not None:
            self.taps[until] = lambda _, h: activation.append(h) or h
        with around():
            z = self.module(x)
        if missed := [cut for cut in self.taps if cut not in self.called]:
            text = (
                f"the model cannot be cut after '{missed[0]}', which its forward does not call by that name."
            )
            raise UsageError("E104", text)
        features = self.features if self.features is not None else z
        self.taps, self.features = {}, None
        return (activation[0] if activation else z), features

    def unhook(self, module: nn.Module) -> None:
        """Remove the hooks from a copy of the module, so that its activations do not reach these taps."""
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


RunPass = Callable[..., tuple[Tensor, Tensor]]
"""`run(w, x, since=, until=)` returns (output, input of the head), in evaluation mode."""
NUDGE = 0.03
"""The change of weights for the second trial, which opens paths with initial weights 0, such as adapters."""


class CutPasses:
    """The cuts from which passes of a network and its copies can continue, as far as they have been tried.

    shape: of one input, or of the row of several. layout: of several inputs in a row. logits: by cut, the
    shape of one sample's logits if a pass from there reproduces the logits of a whole pass, possibly in
    another shape (nn.Flatten); else None. meeting: the first cut at which all inputs of a sample meet; ""
    until `meet` is called.
    """

    def __init__(self, shape: tuple[int, ...], layout: Layout | None):
        self.shape, self.layout = shape, layout
        self.logits: dict[str, tuple[int, ...] | None] = {}
        self.meeting = ""

    def find(self, since: str, run: RunPass, weights: Mapping[str, Tensor], trainable: Iterable[str]) -> None:
        """Try this cut and record the result in `logits`. weights: the model's initial ones. trainable: names
        of the weights to change in the second trial."""
        shapes = [
            _continued_shape(run, w, self._samples(run, w), since) for w in _trial_weights(weights, trainable)
        ]
        self.logits[since] = shapes[0] if None not in shapes else None

    def meet(self, cuts: Iterable[str], goes_on: Callable[[str], bool]) -> str:
        """The first of these cuts at which all inputs meet. Raises UsageError (E104) if there is none."""
        self.meeting = self.meeting or next(filter(goes_on, cuts), "")
        if not self.meeting:
            text = "the inputs of a sample meet at none of the model's direct children"
            raise UsageError("E104", f"{text}; let all of them go through one before its head.")
        return self.meeting

    def why(self, since: str, head: str) -> str:
        """Why no pass can continue from this cut, as the end of a sentence."""
        if since == "features":
            return f"what the model does after its head '{head}' would be left out; return the head's answer"
        passing = "other inputs of a sample" if self.layout else "other paths of the model"
        return f"{passing} pass it by; cut it where all of them meet"

    def _samples(self, run: RunPass, w: dict[str, Tensor]) -> Tensor:
        """Two samples that differ from each other and from the zeros on which layers before a cut run."""
        x = torch.arange(2 * math.prod(self.shape)).sin().mul(0.5).add(0.5).reshape(2, *self.shape)
        places = self.layout.places if self.layout else ()
        whole = [(start, end) for each, start, end in places if each.kind != "float32"]
        for start, end in whole:
            x[0, start:end], x[1, start:end] = 1, (torch.arange(end - start) + 1) % 2
        try:
            with torch.no_grad():
                run(w, x)
        except UsageError:  # an embedding with a single row
            for start, end in whole:
                x[:, start:end] = 0
        except RuntimeError:  # `_continued_shape` meets it again
            pass
        return x


def _trial_weights(weights: Mapping[str, Tensor], trainable: Iterable[str]) -> Iterator[dict[str, Tensor]]:
    """The initial weights, and weights near them."""
    yield dict(weights)
    change = {n: torch.arange(weights[n].numel()).add(1.0).sin().reshape(weights[n].shape) for n in trainable}
    yield {n: t + NUDGE * change[n].to(t) if n in change else t for n, t in weights.items()}


def _continued_shape(run: RunPass, w: dict[str, Tensor], x: Tensor, since: str) -> tuple[int, ...] | None:
    """The shape of one sample's logits if a pass from the cut ends in those of a whole pass; else None."""
    try:
        with torch.no_grad():
            z, h = run(w, x)
            h = h if since == "features" else run(w, x, until=since)[0]
            again = run(w, h, since=since)[0]
    except RuntimeError:
        return None
    alike = again.numel() == z.numel() and torch.allclose(
        z, again.reshape(z.shape), 1e-3, 1e-5, equal_nan=True
    )
    return tuple(z.shape[1:]) if alike else None
