"""A model as a pure function of its weights, with cuts at which a forward pass can stop, be changed and
continue.

A plain `nn.Sequential` runs block by block. Any other module runs as a whole, and forward hooks on its
children read and replace activations. Whether a pass can continue from a cut is found by trying it.
"""

# pyright: reportPrivateUsage=false
# Hooks are removed from a copied module by their numbers, which torch does not offer publicly.

from __future__ import annotations

import contextlib
import copy
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from unskew.core import module_inputs, modules
from unskew.core.trees import Weights
from unskew.errors import UsageError, suggestion
from unskew.formats.input_layout import Layout


class Network:
    """A model's structure without its weights: `run(w, x)` is a pure function of `w` and `x`.

    A plain `nn.Sequential` is cut at its blocks, any other module at its direct children (see `passes`). A
    pass puts its weights into the module, so a Network serves one thread; `copy()` makes another.

    blocks: the names of the direct children, in order. head: the name of the layer that computes logits.
    cut: the default cut, "" for the first one at which several inputs meet. folds: whether training clients
    side by side is faster for this model on a CPU; None if the model does not say.
    trainable, buffers, constants, norms: names of the model's weights, see `TensorRoles`; a pass in training
    mode leaves batch normalisation of constants in evaluation mode. extra: weights that Parts train in
    addition; learnable and statistics include them.
    skips_to_cuts: whether a pass from a cut leaves out the layers before it; else they run on zeros.
    embeds: whether the model looks up embeddings of whole numbers, or inputs hold whole numbers, so that
    samples must not be scaled or mixed. layout: of samples with several inputs; the network receives them as
    rows, the module separately. draws: whether a training pass draws from torch's global generator; the
    engine sets it. around: makes the context in which the model runs; differentiable: makes a context in
    which passes have gradients.
    """

    def __init__(
        self,
        module: nn.Module,
        shape: tuple[int, ...],
        handed_over: bool = False,
        layout: Layout | None = None,
    ):
        """Raises UsageError (E104) for a module without children.

        shape: of one input, or of the row of several. handed_over: the caller no longer uses the module, so
        it need not be copied.
        """
        self._build(module if handed_over else copy.deepcopy(module), shape, layout)

    def _build(self, module: nn.Module, shape: tuple[int, ...], layout: Layout | None) -> None:
        """Set all attributes. module: not used by others, but it may hold the tensors of another network."""
        self.module = modules.without_inplace(module)
        module_inputs.attach_lookup(self.module)
        module_inputs.attach_layout(self.module, layout)
        self.embeds = module_inputs.has_embedding(self.module) or bool(layout and layout.whole)
        self.shape, self.layout = tuple(shape), layout
        self.blocks = tuple(n for n, _ in modules.children(self.module))
        if not self.blocks:
            text = "the model has no named children, so it has no head; wrap it in nn.Sequential."
            raise UsageError("E104", text)
        self._passes = (
            SequentialPasses(self.module)  # pyright: ignore[reportArgumentType]  (a Sequential, which ends_with_head has seen)
            if modules.ends_with_head(self.module)
            else HookedPasses(self.module, self.shape)
        )
        self.skips_to_cuts = isinstance(self._passes, SequentialPasses)
        self.head = self._passes.head
        self._cuts = tuple(b for b in self.blocks if b != self.head.partition(".")[0])
        self._mixing = modules.mixing_children(self.module, all_inputs=layout is not None)
        self.cut: str = getattr(module, "cut", "" if layout else self.blocks[0])
        self.folds: bool | None = getattr(module, "folds", None)
        self.around: Around = contextlib.nullcontext
        self.differentiable: Around = contextlib.nullcontext
        roles = modules.tensor_roles(self.module)
        self.trainable, self.buffers = roles.trainable, roles.buffers
        self.constants, self.norms = roles.constants, roles.norms
        self._fixed = [self.module.get_submodule(name) for name in roles.fixed]
        self._counts = {
            n: layer.num_batches_tracked for n, layer in modules.batch_norms(self.module) if n in roles.fixed
        }
        for _, layer in modules.batch_norms(self.module):
            layer.num_batches_tracked = None  # an integer counter that is not needed and must not be averaged
        self._start: Mapping[str, Tensor] = {n: t.detach() for n, t in modules.named_tensors(self.module)}
        self.extra: Weights = {}
        self.add({})
        self._name_of = roles.name_of
        self._learns = {n: p.requires_grad for n, p in self.module.named_parameters()}
        places = modules.tensor_slots(self.module)
        self._slots = [(store, key, self._name_of[n]) for store, key, n in places if n in self._name_of]
        self._empty()
        self.draws = False
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._onward = CutPasses(self.shape, layout)
        self._asking = threading.Lock()
        self._training: bool | None = None

    def copy(self) -> Network:
        """The network for another thread. Both share the initial weights, which neither changes."""
        other = Network.__new__(Network)
        other._build(self._holding(self._start), self.shape, self.layout)
        other._start = self._start
        other.cut, other.folds, other.draws = self.cut, self.folds, self.draws
        other.add(self.extra)
        other._shapes, other._onward = self._shapes, self._onward
        return other

    def add(self, extra: Weights) -> None:
        """Add weights that a Part trains in addition to the model's, named `<part>.<name>`; the module does
        not use them. If <name> is a running statistic of the model, they are that of a second model, and are
        not trained."""
        self.extra = {**self.extra, **extra}
        self.statistics = (*self.buffers, *(n for n in self.extra if n.partition(".")[2] in self.buffers))
        self.learnable = (*self.trainable, *(n for n in self.extra if n not in self.statistics))

    @property
    def initial(self) -> Mapping[str, Tensor]:
        """The initial weights; do not change them."""
        return {**self._start, **self.extra}

    def weights(self) -> Weights:
        """Copies of the initial parameters and floating-point buffers by name, and of the extra weights."""
        return {n: t.clone() for n, t in (*self._start.items(), *self.extra.items())}

    def module_with(self, w: Weights) -> nn.Module:
        """An ordinary module with these weights, in evaluation mode, for users and files."""
        return self._holding({n: w[n].detach().clone() for n in self._start if n in w}).eval()

    def _holding(self, w: Mapping[str, Tensor]) -> nn.Module:
        """A copy of the module that holds these tensors without copying them."""
        module = copy.deepcopy(self.module)
        self._passes.unhook(module)
        module_inputs.detach_lookup(module)
        module_inputs.detach_layout(module)
        tensors = dict(w) | {n: nn.Parameter(w[n], learns) for n, learns in self._learns.items() if n in w}
        for store, key, place in modules.tensor_slots(module):
            if self._name_of.get(place) in tensors:
                store[key] = tensors[self._name_of[place]]
        for name, layer in modules.batch_norms(module):
            layer.num_batches_tracked = copy.deepcopy(self._counts.get(name, torch.tensor(0)))
        return module

    def _empty(self) -> None:
        """Remove all tensors from the module, so that it does not keep them in memory after a pass."""
        for store, key, _ in self._slots:
            store[key] = None

    def check_cut(self, cut: str) -> str:
        """The block after which a cut lies; "cut" is the model's default. Raises UsageError (E104) for an
        unknown cut."""
        name = (self.cut or self._onward.meet(self._cuts, self.goes_on)) if cut == "cut" else cut
        if name not in self._cuts:
            known = ", ".join(self._cuts) or f"nowhere, because it has one child, '{self.blocks[0]}'"
            text = f"the model has no cut '{cut}'; it can be cut after: {known}"
            raise UsageError("E104", f"{text}.{suggestion(cut, self._cuts)}")
        return name

    def of_head(self, name: str) -> bool:
        """Whether a weight belongs to the head, possibly shared with another layer, and may be trained."""
        return name not in self.constants and any(
            place.startswith(f"{self.head}.") for place, n in self._name_of.items() if n == name
        )

    def untrained_head(self, alone: bool = False) -> str | None:
        """Why a Part cannot train the head, as the end of a sentence; None if it can. alone: it trains the
        head on features, without the body."""
        if not any(self.of_head(n) for n in self.trainable):
            return "it trains the head, which is frozen"
        text = self.stops_at("features") if alone else None
        return text and f"it trains the head alone, and {text}"

    def is_input_at(self, cut: str) -> bool:
        """Whether the activation at a cut ("features": the head's input) is still the input, at most
        flattened, scaled or looked up, because no layer before it mixes the input's numbers. With several
        inputs, all of them must pass through that layer."""
        if cut == "features":
            blocks = tuple(b for b in self.blocks if b != self.head)
        else:
            upto = self.blocks.index(self.check_cut(cut)) + 1
            blocks = self.blocks[upto - 1 if self.layout else 0 : upto]
        return not any(b in self._mixing and (not self.layout or self.goes_on(b)) for b in blocks)

    def goes_on(self, cut: str) -> bool:
        """Whether every path of the model leads through this cut, so that its activation determines the
        logits."""
        with contextlib.suppress(UsageError):
            return self.stops_at(cut) is None
        return False

    def cuts(self, name: str) -> tuple[str, ...]:
        """The cuts that an entry of `Part.taps` names: one cut, or for "maps" those that the model lists,
        else all with activations [B, C, H, W]."""
        if name != "maps":
            return (self.check_cut(name),)
        if listed := getattr(self.module, "maps", ()):
            return tuple(listed)
        return tuple(cut for cut in self._cuts if len(self.shape_at(cut)) == 3)

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
        """(output, features) of a pass with weights `w`: the logits [B, ...], and the head's input [B, D].

        since: start at this cut; `x` is then the activation there ("features": the head's input, not
        flattened). until: stop at this cut; the output is then the activation there. train: run in training
        mode: dropout is active, batch normalisation uses and updates batch statistics. taps: by cut, a
        function from the activation to the one with which the pass continues. Raises UsageError: E104 for a
        cut from which a pass cannot start, E123 if an embedding has no row for a number.
        """
        if since is not None and (text := self.stops_at(since)):
            raise UsageError("E104", f"a pass cannot go on from '{since}' alone: {text}.")
        z, h = self._run(w, x, since, until, train, taps or {})
        ends = since if until is None and isinstance(self._passes, HookedPasses) else None
        return (z.reshape(len(z), *(self._logits_shape(ends) or ())) if ends else z), h.flatten(1)

    def stops_at(self, since: str) -> str | None:
        """Why the activation at this cut does not determine the logits, as the end of a sentence; None if it
        does. Raises UsageError (E104) for a cut whose layer the model's forward does not call."""
        if isinstance(self._passes, SequentialPasses) or self._logits_shape(since) is not None:
            return None
        return self._onward.why(since, self.head)

    def _logits_shape(self, since: str) -> tuple[int, ...] | None:
        if since not in self._onward.logits:
            if since != "features":
                self.shape_at(since)  # raises for a layer that does not return a tensor
            around, self.around = self.around, contextlib.nullcontext
            try:
                self._onward.find(since, self._run, self.initial, self.trainable)
            finally:
                self.around = around
        return self._onward.logits[since]

    def _run(
        self,
        w: Weights,
        x: Tensor,
        since: str | None = None,
        until: str | None = None,
        train: bool = False,
        taps: dict[str, Tap] | None = None,
    ) -> tuple[Tensor, Tensor]:
        if self._training is not train:
            self.module.train(train)
            for layer in self._fixed:
                layer.eval()
            self._training = train
        for store, key, name in self._slots:
            store[key] = w[name]
        try:
            return self._passes.run(x, since, until, taps or {}, self.around)
        except IndexError as error:
            module_inputs.explain_lookup_error(error)
            raise
        finally:
            self._empty()

    def head_of(self, w: Weights, h_BD: Tensor) -> Tensor:
        """The logits for features, in evaluation mode."""
        h = h_BD.reshape(len(h_BD), *self.shape_at("features"))
        return self.run(w, h, since=self._passes.before_head)[0]

    def features_of(self, w: Weights, x: Tensor) -> Tensor:
        """The flattened input of the head, [B, D], for inputs `x`, in evaluation mode."""
        return self.run(w, x)[1]

    def shape_at(self, cut: str) -> tuple[int, ...]:
        """The shape of one sample's activation at a cut ("features": at the head's input). Thread-safe."""
        name = cut if cut == "features" else self.check_cut(cut)
        with self._asking:
            if name not in self._shapes:
                self._shapes[name] = self._measured(name)
            return self._shapes[name]

    def _measured(self, name: str) -> tuple[int, ...]:
        """`shape_at`, from a pass on zeros."""
        with torch.no_grad():
            x = torch.zeros((2, *self.shape))
            if name == "features":
                return tuple(self._run(dict(self._start), x)[1].shape[1:])
            activation: Any = self.run(dict(self._start), x, until=name)[0]
            if not isinstance(activation, Tensor):
                text = f"the model cannot be cut after '{name}', which gives a {type(activation).__name__}"
                raise UsageError("E104", f"{text} instead of a tensor; cut it after another block.")
            return tuple(activation.shape[1:])


def each_input(net: Network, x: Tensor) -> list[tuple[Tensor, bool]]:
    """The inputs of samples x [B, ...]: for each, (its values [B, ...], whether they are categories).

    Categories are words, codes and truth values, whose differences mean nothing. If samples have one input,
    its values are categories if the model has an embedding.
    """
    if not net.layout:
        return [(x, net.embeds)]
    return [(x[:, start:end], each.kind != "float32") for each, start, end in net.layout.places]


# pyright: reportPrivateUsage=false
# Hooks are removed from a copied module by their numbers, which torch does not offer publicly.


Tap: TypeAlias = Callable[[str, Tensor], Tensor]
"""From a cut's name and its activation to the activation with which the pass continues."""
Around: TypeAlias = Callable[[], AbstractContextManager[Any]]
"""Makes the context in which a block runs; the engine installs its kernels there."""


class SequentialPasses:
    """Passes through an `nn.Sequential` with the head as its last block."""

    def __init__(self, module: nn.Sequential):
        self.module = module
        self.names = tuple(name for name, _ in modules.children(module))
        self.head = self.names[-1]
        self.before_head = self.names[-2] if len(self.names) > 1 else "features"

    def run(
        self, x: Tensor, since: str | None, until: str | None, taps: dict[str, Tap], around: Around
    ) -> tuple[Tensor, Tensor]:
        """(output, input of the head). `x` enters the first block, or the one after `since`; `until` is the
        last block to run, whose activation is then the output."""
        features = x
        first = 0 if since is None else self.names.index(since) + 1
        for name, block in modules.children(self.module)[first:]:
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
        self.head = modules.head_of(module)
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
