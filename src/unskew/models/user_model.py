"""A user's own model: made by a function in a file, and checked against the requirements of every model.

Before training, this module refuses (E123) weights that no pass can train or replace: weights in lists, in
functions, or anywhere except in a layer's own slot. A plain loop of torch also leaves layers in a list
untrained, without a warning, and a run would neither save nor send them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from types import FunctionType
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from unskew.core import module_inputs, modules
from unskew.core.modules import batch_norms, evaluation_mode, tensor_roles, without_inplace
from unskew.errors import UnskewError, UsageError, suggestion
from unskew.formats import arguments, calls
from unskew.formats.input_layout import Layout
from unskew.models.blocks import outputs
from unskew.system import python_files

ModelFunction: TypeAlias = Callable[..., nn.Module]
"""A function of a sample's shape and the number of classes that returns a new model."""
_MODULE_ATTRIBUTES = frozenset((*vars(nn.Module()), "_flat_weights"))
"""Attributes of every module, and the one in which torch's recurrent layers list their weights."""


def check_attributes(module: nn.Module) -> None:
    """Raises UsageError (E123) for weights and layers that an attribute, its lists or dictionaries hold
    elsewhere than in a layer's own slot.

    A pass puts weights into the layers' slots, so it would neither replace nor train those.
    """
    weights = {p.untyped_storage().data_ptr(): name for name, p in module.named_parameters() if p.numel()}
    known = {id(layer) for layer in module.modules()}
    for path, layer in module.named_modules():
        for key, value in vars(layer).items():
            if key in _MODULE_ATTRIBUTES:
                continue
            place = f"{path}.{key}".lstrip(".")
            for one in _contents(value):
                if isinstance(one, Tensor) and one.numel() and not one.is_meta:
                    if name := weights.get(one.untyped_storage().data_ptr()):
                        text = f"it holds its weight '{name}' in '{place}', too, where it stays as it is"
                        _refuse(f"{text}; read it from its layer, or list layers (nn.ModuleList)")
                    if one.is_leaf and one.requires_grad:
                        _keeps("a tensor that requires gradients", place, "nn.Parameter")
                elif isinstance(one, nn.Module) and id(one) not in known and _learns(one):
                    _keeps("layers with weights", place, "nn.ModuleList")


def _learns(module: nn.Module) -> bool:
    return any(p.requires_grad for p in module.parameters())


def _contents(value: Any) -> Iterator[Any]:
    """A value, or what its lists and dictionaries hold."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple | set):
        for one in value:
            yield from _contents(one)
    else:
        yield value


def _keeps(what: str, place: str, how: str) -> None:
    text = f"it keeps {what} in '{place}', which nobody trains, sends or saves; make it {how}"
    _refuse(f"{text}, or freeze it: requires_grad_(False)")


_INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)


@contextmanager
def forbid_changes(module: nn.Module) -> Iterator[None]:
    """A context in which the module is in evaluation mode. On exit, raises UsageError (E123) for a buffer
    that the module changed there, because scoring would then train the model; the buffer is restored."""
    before = {name: b.clone() for name, b in module.named_buffers() if not b.is_meta}
    yield
    now = dict(module.named_buffers())
    changed = [
        n for n, b in before.items() if n in now and not torch.equal(b.nan_to_num(), now[n].nan_to_num())
    ]
    if changed:
        with torch.no_grad():
            for name in changed:
                now[name].copy_(before[name])
        _refuse(
            f"it changes its buffer '{changed[0]}' in evaluation mode, so that scoring would change the"
            " model; update it where self.training is True"
        )


def training_problem(module: nn.Module) -> str:
    """The reason why clients cannot train this module together; "" if they can."""
    named = (module.named_modules(), module.named_parameters(), module.named_buffers())
    for name, _ in chain(*named):
        if "/" in name:
            return f"'{name}' has a '/' in its name, which separates the parts of names in files; rename it"
    for name, layer in module.named_modules():
        if hasattr(layer, "_orig_mod"):
            return (
                f"'{name}' is compiled, and holds its weights where no pass can put others; compile nothing"
            )
    for name, p in module.named_parameters():
        if p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None):  # pyright: ignore[reportPrivateUsage]
            return f"'{name}' has a hook on its gradient (register_hook), which clients' copies have not"
    fixed = tensor_roles(module).fixed
    for name, layer in batch_norms(module):
        if isinstance(layer, nn.SyncBatchNorm):
            return f"'{name}' is nn.SyncBatchNorm, which waits for other processes; use nn.BatchNorm2d"
        if layer.running_mean is None:
            return (
                f"'{name}' keeps no running statistics (track_running_stats=False), so the answer for a"
                " sample would depend on the samples beside it; leave track_running_stats on, or use"
                " nn.GroupNorm"
            )
        if layer.momentum is None and name not in fixed:
            return (
                f"'{name}' averages over all batches it has seen (momentum=None), whose number is lost when"
                " clients' statistics are averaged; give it a momentum, such as 0.1"
            )
    for name, layer in module.named_modules():
        if isinstance(layer, _INSTANCE_NORMS) and layer.track_running_stats:
            return (
                f"'{name}' is instance normalisation with running statistics; set track_running_stats=False"
            )
    return ""


def _refuse(text: str) -> None:
    raise UsageError("E123", f"the model cannot be trained among clients: {text}.")


def from_file(
    text: str,
    shape: tuple[int, ...],
    classes: int,
    pixels: tuple[int, ...] = (),
    layout: Layout | None = None,
) -> nn.Module:
    """The model that the function `path/to/file.py:function` returns for a sample's shape and the number of
    classes.

    layout: the layout of samples with several inputs; the function then receives the shape of each, by name
    or in a tuple. The text may contain further arguments of the function: `file.py:function(width=64)`.
    Raises UsageError: E104 for an unknown function or argument, E111 for the file, E123 if it or its model
    fails.
    """
    call = calls.parse(text, "model", "E104")
    if not call.file:
        raise UsageError(
            "E111", f"there is no file for the model '{text}'; a model is a name or file.py:function."
        )
    if not call.member:
        raise UsageError("E104", f"the model '{text}' names no function; write {call.file}:function.")
    defined = python_files.import_file(call.file)
    make: ModelFunction | None = getattr(defined, call.member, None)
    if not callable(make):
        near = suggestion(call.member, vars(defined))
        raise UsageError("E104", f"{call.file} has no function '{call.member}'.{near}")
    values = arguments.check(make, call.arguments, f"model '{call.name}'", "E104") if call.arguments else {}
    return from_function(partial(make, **values), text, shape, classes, pixels, layout)


def from_function(
    make: ModelFunction,
    name: str,
    shape: tuple[int, ...],
    classes: int,
    pixels: tuple[int, ...] = (),
    layout: Layout | None = None,
) -> nn.Module:
    """The model that a function returns for a sample's shape and the number of classes.

    name: of the function, for messages. layout: as for `from_file`. Raises UsageError (E123) if the function
    or its model fails.
    """
    given = layout.shapes if layout else tuple(shape)
    try:
        module = make(given, classes)
    except UnskewError:
        raise
    except Exception as error:
        raise UsageError(
            "E123", f"{name} fails when called with {given}, {classes}: {python_files.one_line(error)}."
        ) from error
    return check_module(module, shape, classes, pixels, layout)


def check_module(
    module: object,
    shape: tuple[int, ...],
    classes: int,
    pixels: tuple[int, ...] = (),
    layout: Layout | None = None,
) -> nn.Module:
    """The module itself, if it maps two samples of this shape to logits [2, classes, *pixels] or [2, tokens,
    classes].

    pixels: the shape of a sample's mask or tokens; () if a sample has one label. layout: the layout of
    samples with several inputs. Weights, statistics and modes are unchanged afterwards. Raises UsageError
    (E123) otherwise, and for layers and names that federated training cannot support.
    """
    module = unwrapped(module)
    if problem := training_problem(module):
        _refuse(problem)
    logits = _answers(module, shape, layout)
    expected = [2, *outputs(shape, classes, pixels)]
    if not isinstance(logits, torch.Tensor) or list(logits.shape) != expected:
        is_tensor = isinstance(logits, torch.Tensor)
        returned = list(logits.shape) if is_tensor else type(logits).__name__
        each = "a row of logits"
        if pixels:
            each = "a row of logits a token" if len(shape) == 1 else "a map of logits"
        raise UsageError(
            "E123",
            f"the model gives {returned} for two samples; expected {expected}, {each} for each: the labels "
            f"have {classes} {'class' if classes == 1 else 'classes'}."
            + ("" if is_tensor else " Return the logits alone."),
        )
    check_attributes(module)
    try:
        copied = copy.deepcopy(module)
    except Exception as error:
        raise UsageError("E123", f"the model cannot be copied: {python_files.one_line(error)}.") from error
    if layer := _changed_input_layer(copied, shape, layout):
        raise UsageError(
            "E123",
            f"a layer of the model ('{layer}') changes its input in place (inplace=True) and the model goes"
            " on with that input as it then is; clients train with inplace=False, and would train another"
            " model: set that, and use what the layer returns.",
        )
    _mark_head(module, shape, layout, logits.shape[-1 if pixels and len(shape) == 1 else 1])
    return module


def model_object(model: object) -> nn.Module | ModelFunction:
    """The argument `model` of `run` if it is an object: a function, or a module as `unwrapped` returns it."""
    return model if isinstance(model, FunctionType | partial) else unwrapped(model)


def unwrapped(model: object) -> nn.Module:
    """The module without torch's wrappers for several GPUs and for compilation, which cannot hold other
    weights.

    Raises UsageError (E123) for an object that is no module, and for a module of torch.jit.
    """
    if isinstance(model, type) and issubclass(model, nn.Module):
        raise UsageError(
            "E123", f"{model.__name__} is a class, not a module; create it first: {model.__name__}(...)."
        )
    if not isinstance(model, nn.Module):
        raise UsageError(
            "E123",
            f"a model is a torch.nn.Module or a function that returns one, got {type(model).__name__}.",
        )
    if isinstance(model, torch.jit.ScriptModule):
        raise UsageError(
            "E123", "a module of torch.jit cannot be run with other weights; give the one it was made from."
        )
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return unwrapped(model.module)
    inner = getattr(model, "_orig_mod", None)
    return unwrapped(inner) if isinstance(inner, nn.Module) else model


def _answers(module: nn.Module, shape: tuple[int, ...], layout: Layout | None) -> object:
    """The module's output for two samples. Raises UsageError (E123) if it fails or changes them."""
    x = torch.zeros(2, *shape)
    try:
        with (
            _prepared(module, layout),
            torch.no_grad(),
            evaluation_mode(module),
            torch.random.fork_rng(devices=[]),
        ):
            if any(is_lazy(t) for t in (*module.parameters(), *module.buffers())):
                module(torch.zeros(2, *shape))
            before = torch.get_rng_state()
            with forbid_changes(module):
                logits, draws = module(x), not torch.equal(before, torch.get_rng_state())
    except UnskewError:
        raise
    except Exception as error:
        others = {
            str(p.dtype).removeprefix("torch.") for p in module.parameters() if p.dtype != torch.float32
        }
        why = (
            f" Its parameters are {others.pop()}, samples are float32; give model.float()." if others else ""
        )
        if layout and layout.whole:
            why += (
                " Whole numbers come as int64 and truth values as bool; give what is to be computed with as"
                " floats."
            )
        raise UsageError(
            "E123",
            f"the model fails on two samples of {layout or list(shape)}:"
            f" {python_files.one_line(error)}.{why}",
        ) from error
    if draws:
        raise UsageError(
            "E123",
            "the model draws random numbers in evaluation mode, so that it would answer and score otherwise"
            " each time; write F.dropout(h, p, training=self.training), and draw nothing where self.training"
            " is False.",
        )
    if x._version:
        raise UsageError("E123", "the model changes its input in place; return a new tensor.")
    return logits


@contextmanager
def _prepared(module: nn.Module, layout: Layout | None) -> Iterator[None]:
    """A context in which the module takes rows of samples and looks up whole numbers."""
    module_inputs.attach_lookup(module)
    module_inputs.attach_layout(module, layout)
    try:
        yield
    finally:
        module_inputs.detach_lookup(module)
        module_inputs.detach_layout(module)


def _mark_head(module: nn.Module, shape: tuple[int, ...], layout: Layout | None, classes: int) -> None:
    """Set the attribute that names the module's head; for a Sequential it is the last block, if that has
    weights."""
    if modules.ends_with_head(module):
        return
    x = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))
    # it may accept zeros, but not these numbers; then its last layer counts as the head
    with suppress(Exception), _prepared(module, layout):
        modules.find_head(module, x, classes)


def _changed_input_layer(module: nn.Module, shape: tuple[int, ...], layout: Layout | None) -> str:
    """The first layer that works in place, if the model's outputs or gradients depend on that; else "".

    The weights are perturbed, because initial ones and zeros (a normalisation's scale, a last layer of zeros)
    hide effects. Afterwards no layer of the module works in place.
    """
    layers = [n for n, layer in module.named_modules() if getattr(layer, "inplace", False) is True]
    if not layers:
        return ""
    module_inputs.attach_lookup(module)
    module_inputs.attach_layout(module, layout)
    generator = torch.Generator().manual_seed(0)
    x = torch.rand((8, *shape), generator=generator)
    # Numbers of both signs activate more units, but cannot be indices.
    if not module_inputs.has_embedding(module) and not layout:
        x = torch.cat([x, 2 * torch.randn(x.shape, generator=generator)])
    with torch.no_grad():
        for p in filter(torch.is_floating_point, module.parameters()):
            scaled, moved = torch.randn((2, *p.shape), generator=generator)
            p.mul_(1 + 0.1 * scaled).add_(0.05 * moved)
    try:
        as_written = _step(module, x)
        without_inplace(module)
        returned = _step(module, x)
    except Exception:  # the trial of a training step reports the reason
        without_inplace(module)
        return ""
    return "" if all(map(_equal, as_written, returned)) else layers[0]


def _step(module: nn.Module, x: Tensor) -> list[Tensor | None]:
    """A module's outputs in training mode and, if autograd can compute them, the gradients of their sum."""
    with torch.random.fork_rng(devices=[]):
        # Dropout is one of the layers that work in place.
        torch.set_rng_state(torch.Generator().manual_seed(0).get_state())
        z = module.train()(x.clone())
        weights = 0.5 + torch.rand(z.shape)
    learnt = [p for p in module.parameters() if p.requires_grad]
    with suppress(RuntimeError):  # autograd needs a tensor that was changed in place, so it cannot be trained
        return [z.detach(), *torch.autograd.grad((z * weights).sum(), learnt, allow_unused=True)]
    return [z.detach()]


def _equal(a: Tensor | None, b: Tensor | None) -> bool:
    """Whether two tensors are equal except for rounding."""
    if a is None or b is None or not a.numel():
        return (a is None) == (b is None)
    return torch.allclose(a, b, rtol=1e-5, atol=1e-5 * float(a.abs().max()), equal_nan=True)
