"""A user's own model: made by a function in a file, and checked for what every model must do."""

from __future__ import annotations

import copy
from collections.abc import Callable
from inspect import Parameter, signature

import torch
from torch import nn

from unskew import arguments, calls, own
from unskew.data.layout import Layout
from unskew.errors import UnskewError, UsageError, suggestion
from unskew.models import elsewhere, heads, tokens, unpacking, untrained
from unskew.models.blocks import outputs
from unskew.models.modes import evaluating, nothing_in_place

_PLACES = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def from_file(
    text: str, shape: tuple[int, ...], classes: int, pixels: tuple[int, ...] = (), layout: Layout | None = None
) -> nn.Module:
    """The model that `path/to/file.py:function` makes when it is called with a sample's shape and the number of classes.

    layout: of samples with several inputs; the function is then called with the shape of each, by name or in a tuple. The text may hold further arguments of the function: `file.py:function(width=64)`.
    Raises UsageError: E104 for a function or argument that does not exist, E111 for the file, E123 if it or its model fails.
    """
    call = calls.parse(text, "model", "E104")
    if not call.file:
        raise UsageError("E111", f"there is no file for the model '{text}'; a model is a name or file.py:function.")
    if not call.member:
        raise UsageError("E104", f"the model '{text}' names no function; write {call.file}:function.")
    defined = own.module(call.file)
    make = getattr(defined, call.member, None)
    if not callable(make):
        near = suggestion(call.member, vars(defined))
        raise UsageError("E104", f"{call.file} has no function '{call.member}'.{near}")
    values = arguments.check(make, call.arguments, f"model '{call.name}'", "E104") if call.arguments else {}
    given = layout.shapes if layout else tuple(shape)
    try:
        module = make(given, classes, **values)
    except UnskewError:
        raise
    except Exception as error:
        raise UsageError(
            "E123", f"{text} fails when called with {given}, {classes}: {own.in_one_line(error)}."
        ) from error
    return check_module(module, shape, classes, pixels, layout)


def check_module(
    module: object, shape: tuple[int, ...], classes: int, pixels: tuple[int, ...] = (), layout: Layout | None = None
) -> nn.Module:
    """The module itself, if it turns two samples of this shape into logits [2, classes, *pixels], or
    [2, tokens, classes].

    pixels: the shape of a sample's mask or tokens, () where a sample has one label. layout: of samples with several inputs. Weights, statistics and modes stay as they are.
    Raises UsageError (E123) otherwise, and for layers and names with which nobody can train it among clients.
    """
    module = unwrapped(module)
    untrained.check(module)
    logits = _answers(module, shape, layout)
    expected = [2, *outputs(shape, classes, pixels)]
    if not isinstance(logits, torch.Tensor) or list(logits.shape) != expected:
        returned = list(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        each = "a row of logits" if not pixels else "a row of logits a token" if len(shape) == 1 else "a map of logits"
        raise UsageError(
            "E123",
            f"the model gives {returned} for two samples; expected {expected}, {each} for each: the labels "
            f"have {classes} {'class' if classes == 1 else 'classes'}."
            + " Return the logits alone."
            * (type(returned) is str),
        )
    elsewhere.check(module)
    if problem := untrained.problem(module):
        raise UsageError("E123", f"the model cannot be trained among clients: {problem}.")
    try:
        copied = copy.deepcopy(module)
    except Exception as error:
        raise UsageError("E123", f"the model cannot be copied: {own.in_one_line(error)}.") from error
    if layer := _counted_on(copied, shape, layout):
        raise UsageError(
            "E123",
            f"the model's '{layer}' changes its input in place (inplace=True) and the model goes on with that input as it "
            "then is; clients train with inplace=False, and would train another model: set that, and use what the layer "
            "returns.",
        )
    if changed := _changed_in_place(copied, shape, layout):
        raise UsageError("E123", f"{changed} changes its input in place, which others still read; return a new tensor.")
    _mark_head(module, shape, layout, logits.shape[-1 if pixels and len(shape) == 1 else 1])
    return module


def unwrapped(model: object) -> nn.Module:
    """The module itself, out of torch's wrappers for several GPUs and for compilation, which cannot hold other weights.

    Raises UsageError (E123) for what is no module, and for one of torch.jit.
    """
    if isinstance(model, type) and issubclass(model, nn.Module):
        raise UsageError("E123", f"{model.__name__} is a class, not a module; create it first: {model.__name__}(...).")
    if not isinstance(model, nn.Module):
        raise UsageError("E123", f"a model must be a torch.nn.Module, got {type(model).__name__}.")
    if isinstance(model, torch.jit.ScriptModule):
        raise UsageError(
            "E123", "a module of torch.jit cannot be run with other weights; give the one it was made from."
        )
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return unwrapped(model.module)
    inner = getattr(model, "_orig_mod", None)
    return unwrapped(inner) if isinstance(inner, nn.Module) else model


def _answers(module: nn.Module, shape: tuple[int, ...], layout: Layout | None) -> object:
    """What the module returns for two samples. Raises UsageError (E123) if it fails."""
    if layout:
        unpacking.check_takes(module, layout)
    else:
        _check_takes_one(module)
    tokens.attach(module)
    unpacking.attach(module, layout)
    try:
        with torch.no_grad(), evaluating(module), torch.random.fork_rng(devices=[]):
            untrained.shape_lazy_layers(module, torch.zeros(2, *shape))
            before = torch.get_rng_state()
            with untrained.unchanged(module):
                logits, draws = module(torch.zeros(2, *shape)), not torch.equal(before, torch.get_rng_state())
    except UnskewError:
        raise
    except Exception as error:
        others = {str(p.dtype).removeprefix("torch.") for p in module.parameters() if p.dtype != torch.float32}
        why = f" Its parameters are {others.pop()}, samples are float32; give model.float()." if others else ""
        if layout and layout.whole:
            why += " Whole numbers come as int64 and truth values as bool; give what is to be computed with as floats."
        raise UsageError(
            "E123", f"the model fails on two samples of {layout or list(shape)}: {own.in_one_line(error)}.{why}"
        ) from error
    finally:
        tokens.detach(module)
        unpacking.detach(module)
    if draws:
        raise UsageError(
            "E123",
            "the model draws random numbers in evaluation mode, so that it would answer and score otherwise each time; write "
            "F.dropout(h, p, training=self.training), and draw nothing where self.training is False.",
        )
    return logits


def _check_takes_one(module: nn.Module) -> None:
    """Raises UsageError (E123) for a module whose forward asks for several inputs."""
    required = [p for p in signature(module.forward).parameters.values() if p.default is p.empty and p.kind in _PLACES]
    if len(required) > 1:
        names = ", ".join(f"'{p.name}'" for p in required)
        raise UsageError(
            "E123",
            f"the model takes {len(required)} inputs ({names}), but a sample is one array; give samples whose x is a "
            "dictionary or a tuple of as many.",
        )


def _changed_in_place(module: nn.Module, shape: tuple[int, ...], layout: Layout | None) -> str:
    """Which of the module and its direct children changes its input, in words; "" if none does."""
    before: dict[str, int] = {}
    changed: list[str] = []

    def note(name: str) -> Callable[..., None]:
        return lambda _layer, args: before.update({name: args[0]._version}) if _first(args) is not None else None

    def compare(name: str) -> Callable[..., None]:
        def hook(_layer: nn.Module, args: tuple[object, ...], _output: object) -> None:
            x = _first(args)
            if x is not None and x._version != before[name]:
                changed.append(name)

        return hook

    for name, child in module.named_children():
        child.register_forward_pre_hook(note(name))
        child.register_forward_hook(compare(name))
    tokens.attach(module)
    unpacking.attach(module, layout)
    x = torch.zeros(2, *shape)
    with torch.no_grad(), evaluating(module):
        module(x)
    if x._version:
        return "the model"
    return f"the model's '{changed[0]}'" if changed else ""


def _mark_head(module: nn.Module, shape: tuple[int, ...], layout: Layout | None, classes: int) -> None:
    """Have the module know its head; a Sequential's is its last block, if that has weights."""
    if heads.ends_with_head(module):
        return
    tokens.attach(module)
    unpacking.attach(module, layout)
    try:
        heads.find(module, torch.rand(2, *shape, generator=torch.Generator().manual_seed(0)), classes)
    except Exception:  # it takes zeros, but not these numbers; the layer made last stands for its head
        return
    finally:
        tokens.detach(module)
        unpacking.detach(module)


def _counted_on(module: nn.Module, shape: tuple[int, ...], layout: Layout | None) -> str:
    """The layer whose change of its input in place counts for the model's answers or gradients, "" if there is none.

    Asked away from the initial weights, where ones and zeros hide what counts later: what a normalisation's scale is
    multiplied with, what a last layer of zeros is given. The module's weights are changed, and all such layers turned off.
    """
    layers = {n: layer for n, layer in module.named_modules() if getattr(layer, "inplace", False) is True}
    if not layers:
        return ""
    tokens.attach(module)
    unpacking.attach(module, layout)
    generator = torch.Generator().manual_seed(0)
    size = (8, *shape)
    x = torch.rand(size, generator=generator)
    if not tokens.embeds(module) and not layout:  # numbers of either sign wake more units, but are no indices
        x = torch.cat([x, 2 * torch.randn(size, generator=generator)])
    with torch.no_grad():
        for p in module.parameters():
            if p.is_floating_point():
                scaled, moved = torch.randn((2, *p.shape), generator=generator)
                p.mul_(1 + 0.1 * scaled).add_(0.05 * moved)
    try:
        as_written = _step(module, x)
        nothing_in_place(module)
        returned = _step(module, x)
    except Exception:  # the trial of a training step says why
        nothing_in_place(module)
        return ""
    if _equal(as_written, returned):
        return ""
    for name, layer in layers.items():
        layer.inplace = True  # type: ignore[assignment]
        alone = _step(module, x)
        layer.inplace = False  # type: ignore[assignment]
        if not _equal(alone, returned):
            return name
    return next(iter(layers))


def _step(module: nn.Module, x: torch.Tensor) -> list[torch.Tensor | None]:
    """A module's answers in training and, if they can be had, the gradients of a sum of them."""
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(
            torch.Generator().manual_seed(0).get_state()
        )  # dropout is one of the layers that work in place
        z = module.train()(x.clone())
        if not isinstance(z, torch.Tensor):
            return []
        weights = 0.5 + torch.rand(z.shape)
    learnt = [p for p in module.parameters() if p.requires_grad]
    try:
        gradients = torch.autograd.grad((z * weights).sum(), learnt, allow_unused=True)
    except RuntimeError:  # autograd needs what was changed in place, so nobody can train the model as it is written
        gradients = ()
    return [z.detach(), *gradients]


def _equal(some: list[torch.Tensor | None], others: list[torch.Tensor | None]) -> bool:
    """Whether tensors are the same but for rounding, as far as both have them."""
    for a, b in zip(some, others):
        if (a is None) != (b is None):
            return False
        if a is None or b is None or not a.numel():
            continue
        if not torch.allclose(a, b, rtol=1e-5, atol=1e-5 * float(a.abs().max()), equal_nan=True):
            return False
    return True


def _first(args: tuple[object, ...]) -> torch.Tensor | None:
    return args[0] if args and isinstance(args[0], torch.Tensor) else None
