"""Checks of users' own Parts: how a class is written, and how its hooks behave when they are called.

A hook that the engine would never call, or call wrongly, is reported when the class is defined or a Part of
it enters a Method (E121). A hook that fails or returns an invalid value is reported with the hook, the file
and the line (E127). Built-in Parts are not wrapped; tests hold them to these rules. `unskew check` finds what
a single call does not show: hidden randomness, padding that counts, arguments that are changed in place.
"""

# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportAttributeAccessIssue=false
# Only private functions of torch return the tensor below vmap.

from __future__ import annotations

import dataclasses
import functools
import inspect
import linecache
import re
import traceback
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn

from unskew.core.client import Batch, Client, Fed
from unskew.core.random_keys import key
from unskew.core.replies import Ups
from unskew.core.shares import Noise, Share
from unskew.core.trees import Tree, Weights, flat_tree
from unskew.core.trip import Trip
from unskew.errors import UnskewError, UsageError, suggestion

NAME_PATTERN = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
RESERVED_NAMES = ("w", "kept", "slices", "previous")
"""Names that checkpoints and private state use."""
SWITCHES = {
    "merge": "merges",
    "personalise": "personal",
    "protect": "protects",
    "sample_grad": "samples_apart",
    "tap": "taps",
}
"""Hooks that are only called if an attribute of the Part is set, with that attribute."""
TRIP_ARGUMENTS = {
    "when": ("t", "T"),
    "client": ("w", "c"),
    "server": ("w", "s", "ups", "fed"),
    "shares": ("fed",),
}
"""The functions of a trip, with the names of their arguments."""
_BASE_MODULES = ("unskew.core.part", "unskew.core.special_hooks", "unskew.core.description", "builtins")


def check_class(kind: type, hooks: Mapping[str, Any], known: Collection[str]) -> None:
    """Raises UsageError (E121) for hooks and attributes of a class that the engine would not find or could
    not call. hooks: Part's hooks by name. known: the names of other attributes of a Part."""
    body = dict(vars(kind))
    used = {word for value in body.values() for word in names_in(getattr(_function_of(value), "__code__", 0))}
    for name, value in body.items():
        function = _function_of(value)
        if name in hooks:
            _check_hook(kind, name, function, hooks[name])
            continue
        known_names = {*known, *used, *body.get("__annotations__", {})}
        if name.startswith("_") or name in known_names:
            continue
        if near := suggestion(name, hooks if inspect.isfunction(function) else known):
            text = f"class {kind.__name__} defines '{name}', which is no hook or attribute of a Part"
            raise UsageError("E121", f"{text}.{near} A name of your own begins with '_'.")


def _check_hook(kind: type, name: str, function: Any, ours: Any) -> None:
    if not inspect.isfunction(function):
        return
    expected = [*inspect.signature(ours).parameters][1:]
    taken = [*inspect.signature(function).parameters]
    first = () if isinstance(vars(kind)[name], staticmethod) else ("self",)
    own = taken[len(first) :]
    reordered = own != expected and sorted(own) == sorted(expected)
    if reordered or not _can_call(function, *first, *expected):
        text = f"the hook `{name}` of class {kind.__name__} takes ({', '.join(taken)})"
        raise UsageError("E121", f"{text}, and is called with ({', '.join([*first, *expected])}).")


def _can_call(function: Any, *args: str) -> bool:
    try:
        inspect.signature(function).bind(*args)
    except TypeError:
        return False
    return True


def check_part(part: Any, overridden: Collection[str]) -> None:
    """Raises UsageError (E121) for a Part with an invalid name, hooks without their switch, or invalid taps,
    trips or tensors. overridden: the hooks that it defines."""
    name, kind = part.name, type(part)
    if not NAME_PATTERN.fullmatch(name) or name in RESERVED_NAMES:
        text = f"class {kind.__name__} is called {name!r}" if name else f"class {kind.__name__} has no name"
        raise UsageError("E121", f"{text}; give it one of letters, digits and '_', like name = 'mine'.")
    mine = [k for k in kind.__mro__ if k.__module__ not in _BASE_MODULES]
    for attribute, of, like in (("taps", str, "('cut',)"), ("trips", Trip, "(Trip(...),)")):
        value = getattr(part, attribute)
        if not isinstance(value, tuple | list) or not all(isinstance(one, of) for one in value):
            how = f"has to be a tuple, like {like}, or a property that returns one"
            raise UsageError("E121", f"'{name}': {attribute} {how}.")
    for hook, switch in SWITCHES.items():
        said = getattr(part, switch)
        if hook in overridden and not said and not any(switch in vars(k) for k in mine):
            text = f"'{name}' defines `{hook}`, which is only called with {switch} = True (taps: the cuts)"
            raise UsageError("E121", f"{text}; set it.")
        if hook not in overridden and hook in ("merge", "protect") and said:
            raise UsageError("E121", f"'{name}' says {switch} = True and defines no `{hook}`.")
    for trip in part.trips:
        for role, arguments in TRIP_ARGUMENTS.items():
            if not callable(getattr(trip, role)) or not _can_call(getattr(trip, role), *arguments):
                text = (
                    f"a trip of '{name}' has a `{role}` that cannot be called with ({', '.join(arguments)})"
                )
                raise UsageError("E121", f"{text}; give a function of these arguments.")
    for place, value in {n: v for k in (*reversed(mine), part) for n, v in vars(k).items()}.items():
        held = value.parameters() if isinstance(value, nn.Module) else [value]
        if any(isinstance(one, Tensor) and one.requires_grad for one in held):
            text = f"'{name}' keeps weights on itself ('{place}'), which are not trained, sent or saved"
            raise UsageError(
                "E121", f"{text}; name them in the hook `weights`, or freeze them: requires_grad_(False)."
            )


def check_frozen(kind: type) -> None:
    """Raises UsageError (E121) for a user's class without @dataclass(frozen=True)."""
    if kind.__module__.partition(".")[0] == "unskew":
        return
    params = getattr(kind, "__dataclass_params__", None)
    own = {n for n, text in vars(kind).get("__annotations__", {}).items() if "ClassVar" not in str(text)}
    known = {f.name for f in dataclasses.fields(kind)} if params else set[str]()
    if params is None or not params.frozen or own - known:
        raise UsageError("E121", f"write @dataclass(frozen=True) above class {kind.__name__}.")


def _function_of(value: Any) -> Any:
    """The function in a static or class method or a property."""
    return getattr(value, "__func__", None) or getattr(value, "fget", None) or value


def names_in(code: Any) -> Iterator[str]:
    """The names that code and the functions inside it read."""
    if isinstance(code, CodeType):
        yield from code.co_names
        for constant in code.co_consts:
            yield from names_in(constant)


GUIDE = "The rules: unskew explain docs/guides/method.md."
_BY_VALUE = "decides by a tensor's value; hooks see many clients at once, so choose with torch.where"
_BY_MASK = (
    "picks values by what they are, so that clients differ in how many; multiply by a mask, or choose with"
    " torch.where"
)
RULES = {
    "data-dependent control flow": _BY_VALUE,
    "calling .item()": _BY_VALUE,
    "random operation": "draws random numbers of its own; define `noise` and take them from c.noise",
    "support dynamic shape": _BY_MASK,
    "output dynamic shape": _BY_MASK,
    "doesn't have storage": "leaves torch; hooks see many clients at once, so compute with torch's functions",
    "accessing `data` under vmap": (
        "reads .data; hooks return what they change, so compute new values, or .detach()"
    ),
    "refers to a single memory location": "changes in place what it was given; return new values instead",
    "cannot assign to field": "remembers something on the Part or the client; keep it in a slice",
}
"""By words of an error of torch or of a frozen dataclass, the rule that the hook breaks."""
_OUR_FOLDERS = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))
_OUR_ERRORS = (UnskewError, MemoryError, OSError, torch.OutOfMemoryError)
_SERVER_HOOKS = ("merge", "server", "refine", "dispatch", "server_init", "client_init")
SEEDED_HOOKS = ("weights", "server_init", "merge", "server", "refine", "dispatch")
"""Hooks that may draw from torch's global generator, which is seeded by the study, the Part, the round and
the client."""


class HookFailed(UsageError, RuntimeError):
    """A hook raised a RuntimeError. It is one, too, so that a GPU's recording can catch it and continue."""


def wrap_hook(name: str, hook: Any) -> Callable[..., Any]:
    """The hook of this name with checks of its arguments, result and errors."""

    @functools.wraps(hook)
    def call(part: Any, *args: Any, **kwargs: Any) -> Any:
        bound = hook.__get__(part, type(part))
        if kwargs:  # the engine only passes positional arguments
            return bound(*args, **kwargs)
        if name in _SERVER_HOOKS:
            args = tuple(
                dict(a) if type(a) is dict else a for a in args
            )  # copies, because a hook may replace entries
        drawing = seed_hook(part.name, name, args) if name in SEEDED_HOOKS else nullcontext()
        with drawing:
            check = functools.partial(result_problem, part, name, args)
            return _checked(part.name, f"hook `{name}`", bound, args, check)

    return call


def is_own(part: Any) -> bool:
    """Whether a Part's class, or a base class of it, is a user's own."""
    return any(k.__module__.partition(".")[0] != "unskew" for k in type(part).__mro__[:-1])


@contextmanager
def seed_hook(part: str, hook: str, args: tuple[Any, ...]) -> Generator[None]:
    """A context in which torch's global generator is seeded by the study's seed, the Part, the hook, the
    round and the client."""
    seeds = [a.seed for a in args if isinstance(a, Fed)]
    purpose = [a.t if isinstance(a, Ups) else a for a in args if isinstance(a, Ups | int)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key(*seeds, "hook", part, hook, *purpose).initial_seed())
        yield


def _checked(
    part: str,
    what: str,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    check: Callable[[Any], str | None],
) -> Any:
    """The function's result. Raises UsageError (E127) if it fails, or if `check` finds a problem."""
    with explain_errors(part, what):
        result = function(*args)
        problem = check(result)
    if problem:
        code = getattr(function, "__code__", None)
        where = f" ({code.co_filename}, line {code.co_firstlineno})" if code else ""
        ending = "" if problem.endswith("?") else "."
        raise UsageError("E127", f"the {what} of '{part}'{where} returned {problem}{ending}")
    return result


def trip_answer(trip: Trip, part: Any, w: Weights, c: Client) -> Tree:
    """The answer of the client side of a trip; a user's own trip is checked as hooks are."""
    if not is_own(part):
        return trip.client(w, c)

    def check(tree: Any) -> str | None:
        return tree_problem(tree) or share_problem(trip.shares(c.fed), tree, "the trip's `shares`")

    return _checked(part.name, "trip's `client`", trip.client, (w, c), check)


def trip_result(trip: Trip, part: Any, w: Weights, s: Tree, ups: Ups, fed: Fed) -> tuple[Weights, Tree]:
    """The result of the server side of a trip; a user's own trip is checked as hooks are."""
    if not is_own(part):
        return trip.server(w, s, ups, fed)
    args = dict(w), dict(s), ups, fed
    with seed_hook(part.name, "trip", (ups, fed)):
        return _checked(part.name, "trip's `server`", trip.server, args, lambda r: merge_problem(w, r))


@contextmanager
def explain_errors(part: str, what: str) -> Generator[None]:
    """A context that turns an error of a user's code into UsageError (E127) with the file and the line. what:
    such as "hook `loss`"."""
    try:
        yield
    except _OUR_ERRORS:
        raise
    except Exception as error:
        words = str(error)
        if "can't allocate memory" in words:
            raise
        rule = next((rule for of_torch, rule in RULES.items() if of_torch in words), None)
        failed = HookFailed if isinstance(error, RuntimeError) else UsageError
        if rule:
            raise failed("E127", f"{error_line(error)} {rule}. {GUIDE}") from error
        first = words.strip().splitlines()[0].rstrip(".") if words.strip() else "no words"
        place = error_line(error)
        text = f"the {what} of '{part}' failed in {place}: {type(error).__name__}: {first[:300]}."
        raise failed("E127", text) from error


def error_line(error: BaseException) -> str:
    """The last line outside torch and unskew that led to an error: "my.py, line 3 (`return x`)"."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [f for f in frames if not f.filename.startswith((*_OUR_FOLDERS, "<"))] or list(frames)
    file, line = theirs[-1].filename, theirs[-1].lineno or 0
    return f"{file}, line {line} (`{linecache.getline(file, line).strip()}`)"


def result_problem(part: Any, hook: str, args: tuple[Any, ...], result: Any) -> str | None:
    """The problem of a hook's result for these arguments, as the end of a sentence; None if there is none."""
    match hook:
        case "model":
            return _not_a(nn.Module, result, "a torch.nn.Module")
        case "refuse":
            return _not_a(str | None, result, "a reason or None")
        case "weights":
            return _weights_problem(result)
        case "shares" | "encoded":
            return _dictionary_problem(Share, result, "Shares")
        case "noise":
            return _dictionary_problem(Noise, result, "Noise")
        case "server_init" | "client_init" | "begin":
            return tree_problem(result)
        case "carry":
            return tree_problem(result) or mismatch(flat_tree(args[2].round), flat_tree(result), whole=False)
        case "starts" | "perturb":
            return mismatch(args[hook == "perturb"], result, whole=False)
        case "sends" | "grad" | "sample_grad" | "logits":
            return _unlike(args[0], result)
        case "personalise" | "evaluate_with" | "scores":
            return _unlike(args[0], result) or _nan_problem(args[0], result)
        case "batch":
            return _batch_problem(args[0], result)
        case "tap":
            return _tap_problem(args[1], args[2], result)
        case "loss":
            return _loss_problem(args[0], result)
        case "finish":
            return _finish_problem(part, args[1], result)
        case "holds":
            truths = dict.fromkeys(args[0].net.learnable, torch.zeros((), dtype=torch.bool))
            return mismatch(truths, result, whole=False, placed=False)
        case "server":
            return tree_problem(result) or _lost_leaf(args[0], result)
        case "dispatch":
            text = _pair_problem(result, "the client's weights", "what it finds in c.down")
            return text or mismatch(args[0], result[0], whole=False, placed=False) or tree_problem(result[1])
        case "merge" | "refine":
            return merge_problem(args[0], result)
        case _:
            return None


def describe(value: Any) -> str:
    """A short description of a value: "nothing (None)", "list", "a tensor [3]"."""
    if isinstance(value, Tensor):
        return f"a tensor {list(value.shape)}"
    return "nothing (None)" if value is None else f"an object of type {type(value).__name__}"


def mismatch(given: Mapping[str, Tensor], result: Any, whole: bool = True, placed: bool = True) -> str | None:
    """The difference between a result and the tensors `given` in names, shapes, types or device.

    whole: all names are required. placed: the devices must be equal, too.
    """
    if not isinstance(result, Mapping):
        return f"{describe(result)}; expected tensors by name, as they were given"
    if extra := [n for n in result if n not in given]:
        return f"'{extra[0]}', which it was not given.{suggestion(str(extra[0]), given)}".rstrip(".")
    if whole and (missing := [n for n in given if n not in result]):
        return f"no '{missing[0]}'; expected every one that it was given, changed or not"
    texts = ((n, _tensor_mismatch(given[n], value, placed)) for n, value in result.items())
    return next((f"'{n}' as {text}" for n, text in texts if text), None)


def _tensor_mismatch(
    given: Tensor, value: Any, placed: bool = True, shape: tuple[int, ...] | None = None
) -> str | None:
    """The difference between a result and a tensor; shape: in place of the tensor's."""
    shape = tuple(given.shape) if shape is None else shape
    if not isinstance(value, Tensor) or value.shape != shape:
        return f"{describe(value)}; expected {list(shape)}"
    for fact in ("dtype", "layout", "device"):
        expected, actual = getattr(given, fact), getattr(value, fact)
        if actual != expected and (placed or fact != "device"):
            return f"a tensor of {fact} {actual}; expected {expected}"
    return None


def tree_problem(result: Any) -> str | None:
    """The reason why a result is no tree of named tensors."""
    if not isinstance(result, Mapping):
        return f"{describe(result)}; expected a dictionary of tensors"
    for name, value in result.items():
        if not isinstance(name, str) or "/" in name:
            return f"a leaf called {name!r}; names are texts without '/'"
        if isinstance(value, Mapping):
            if text := tree_problem(value):
                return text
        elif not isinstance(value, Tensor):
            return f"'{name}' as {describe(value)}; expected a tensor, such as torch.tensor(1.0)"
    return None


def _pair_problem(result: Any, first: str, second: str) -> str | None:
    if isinstance(result, tuple) and len(result) == 2:
        return None
    many = f"{len(result)} things" if isinstance(result, tuple) else describe(result)
    return f"{many}; expected two: {first}, {second}"


def share_problem(declared: Mapping[str, Share], tree: Mapping[str, Any], by: str = "`shares`") -> str | None:
    """The reason why a client's shares differ from the declared ones; the gate checks their bounds. by: the
    declaring attribute."""
    sent = flat_tree(tree)
    if extra := [n for n in sent if n not in declared]:
        near = suggestion(extra[0], declared)
        return f"'{extra[0]}' to share, which {by} does not declare.{near}".rstrip(".")
    if missing := [n for n in declared if n not in sent]:
        return f"no '{missing[0]}' to share, which {by} declares"
    for name, share in declared.items():
        shape, dtype = tuple(sent[name].shape), sent[name].dtype
        fits = len(shape) == len(share.shape) and all(a in (None, b) for a, b in zip(share.shape, shape))
        if not fits or dtype != share.dtype:
            declares = f"{by} declares {list(share.shape)}, {share.dtype}"
            return f"'{name}' to share as {list(shape)}, {dtype}; {declares}"
    return None


def merge_problem(w: Mapping[str, Tensor], result: Any) -> str | None:
    """The reason why the result of a server hook is not the next weights and slice."""
    text = _pair_problem(result, "the next weights", "the next slice")
    return text or mismatch(w, result[0]) or tree_problem(result[1])


def _loss_problem(w: Mapping[str, Tensor], result: Any) -> str | None:
    if not isinstance(result, Tensor):
        number = isinstance(result, int | float) and not isinstance(result, bool)
        return None if number else f"{describe(result)}; expected one number of Python's or a tensor's"
    if result.dim():
        return f"many numbers ({list(result.shape)}); expected one number, such as b.mean(...)"
    if result.device.type != "cpu" or not torch.is_grad_enabled():
        return None  # to look at the value would stop a GPU in every step
    inner, learns = below_vmap(result), any(below_vmap(t).requires_grad for t in w.values())
    if not learns or inner.requires_grad or not inner.any():  # all zeros mean that nothing is added
        return None
    return (
        "a number through which no gradient reaches a weight, so that it would change nothing; compute it"
        " from w or out without detach() and no_grad(), or return 0.0 where nothing is to be added"
    )


def below_vmap(t: Tensor) -> Tensor:
    """The tensor of all clients if vmap shows the hook one client's part; otherwise the tensor itself."""
    while torch._C._functorch.is_batchedtensor(t):
        t = torch._C._functorch.get_unwrapped(t)
    return t


def _batch_problem(given: Batch, result: Any) -> str | None:
    if not isinstance(result, Batch):
        return f"{describe(result)}; expected a batch, such as b.replace(x=...)"
    for name in ("x", "y"):
        before, after = getattr(given, name), getattr(result, name)
        if text := _tensor_mismatch(before, after, shape=(len(result.weight), *before.shape[1:])):
            return f"a batch with {name} as {text}"
    return None


def _tap_problem(given: Tensor, batch: Batch, result: Any) -> str | None:
    if text := _pair_problem(result, "the activation", "the batch to go on with"):
        return text
    h, b = result
    if not isinstance(b, Batch):
        return f"{describe(b)} for a batch"
    if text := _tensor_mismatch(given, h, shape=(len(b.weight), *given.shape[1:])):
        return f"{text}, a row for each row of the batch"
    return None if len(b.x) != len(b.weight) else _batch_problem(batch, b)


def _unlike(given: Any, result: Any) -> str | None:
    """The difference between a result and a tensor, or tensors by name."""
    return _tensor_mismatch(given, result) if isinstance(given, Tensor) else mismatch(given, result)


def _nan_problem(given: Any, result: Any) -> str | None:
    """Whether the result has NaN where the argument has none. Elsewhere the gate finds this, but results at
    test time do not pass it, and a NaN would count as a wrong answer."""
    before, after = (tree if isinstance(tree, Mapping) else {"": tree} for tree in (given, result))
    if any(below_vmap(after[n]).isnan().any() and not below_vmap(before[n]).isnan().any() for n in after):
        return "values that are no numbers (the logarithm or the root of 0, say), though it was given numbers"
    return None


def _finish_problem(part: Any, c: Client, result: Any) -> str | None:
    text = _pair_problem(
        result, "what to share ({} if nothing)", "the next private tree (c.mine if unchanged)"
    )
    text = text or tree_problem(result[0]) or tree_problem(result[1])
    return text or share_problem(part.shares(c.fed), result[0]) or _private_problem(c.mine, result[1])


def _private_problem(before: Mapping[str, Any], after: Mapping[str, Any]) -> str | None:
    text = mismatch(flat_tree(before), flat_tree(after))
    return (
        text
        and f"as the next private tree {text} (`client_init` makes it, and its tensors keep their shapes)"
    )


def _lost_leaf(before: Mapping[str, Any], after: Mapping[str, Any]) -> str | None:
    gone = [n for n in flat_tree(before) if n not in flat_tree(after)]
    return f"no '{gone[0]}', which the slice had; return all of it, such as {{**s, ...}}" if gone else None


def _dictionary_problem(kind: type, result: Any, word: str) -> str | None:
    if not isinstance(result, Mapping):
        return f"{describe(result)}; expected a dictionary of {word}"
    odd = [n for n, v in result.items() if not isinstance(v, kind)]
    return f"'{odd[0]}' as {describe(result[odd[0]])}; expected {word}" if odd else None


def _not_a(kind: Any, result: Any, word: str) -> str | None:
    return None if isinstance(result, kind) else f"{describe(result)}; expected {word}"


def _weights_problem(result: Any) -> str | None:
    if text := tree_problem(result):
        return text
    odd = [n for n, t in result.items() if isinstance(t, Mapping) or t.dtype != torch.float32]
    return f"'{odd[0]}', which is no tensor of torch.float32" if odd else None
