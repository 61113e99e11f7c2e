"""Hooks of users' own Parts, called with care: what fails, returns something else or changes what it was given is told in a
sentence with the hook, the file and the line (E127).

Parts that come with unskew are called as they are; tests hold them to the same rules.
"""

# pyright: reportPrivateUsage=false
# Whether a tensor was changed in place, torch tells in its private version number alone.

from __future__ import annotations

import functools
import linecache
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unskew.core import returned
from unskew.core.client import Client, Fed
from unskew.core.keys import key
from unskew.core.replies import Ups
from unskew.core.trees import Tree, Weights, leaves
from unskew.core.trip import Trip
from unskew.core.values import Batch, Out
from unskew.errors import UnskewError, UsageError

GUIDE = "docs/guides/method.md has the rules."
_BY_VALUE = "decides by a tensor's value; hooks see many clients at once, so choose with torch.where"
_BY_MASK = (
    "picks values by what they are, so that clients differ in how many; multiply by a mask, or choose with torch.where"
)
_IN_A_TRIP = "trip's `client`"
_UNREAD = "In a trip that says what it reads, c.down holds these leaves alone: name this one, too, in its `reads`."
_BESIDE_STEPS = ("hook `begin`", "hook `starts`", "hook `finish`", "hook `sends`", _IN_A_TRIP)
_NO_NOISE = (
    "c.noise holds what `noise` asked for, drawn for a step: `begin`, `finish` and trips find nothing there, so hand a step's "
    "draw on, with a leaf of `begin` that `carry` replaces and c.round holds."
)
RULES = {
    "data-dependent control flow": _BY_VALUE,
    "calling .item()": _BY_VALUE,
    "random operation": "draws random numbers of its own; define `noise` and take them from c.noise",
    "support dynamic shape": _BY_MASK,
    "output dynamic shape": _BY_MASK,
    "doesn't have storage": "leaves torch; hooks see many clients at once, so compute with torch's functions",
    "accessing `data` under vmap": "reads .data; hooks return what they change, so compute new values, or .detach()",
    "refers to a single memory location": "changes in place what it was given; return new values instead",
}
"""Words of an error of torch.func.vmap, and the rule that the hook breaks."""
_PLACES = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))
_PASSED_ON = (UnskewError, MemoryError, OSError, torch.OutOfMemoryError)
_AT_SERVER = ("merge", "server", "refine", "dispatch", "server_init", "client_init")
_W, _S = "the weights it is given", "the slice it is given"
_TREES = {
    **dict.fromkeys(
        ("begin", "starts", "finish", "sends", "personalise", "server_init", "client_init", "carry"), (_W,)
    ),
    **dict.fromkeys(("merge", "refine", "dispatch"), (_W, _S)),
    "server": (_S,),
}
"""By hook, what its first arguments are called; of `carry` its weights stand second."""


SEEDED = ("weights", "server_init", "merge", "server", "refine", "dispatch")
"""Hooks that may draw from torch's own generator, which is seeded for each: by the study, the Part, the round, the client."""


class HookFailed(UsageError, RuntimeError):
    """A hook ended in a RuntimeError: one to those who ask for that, such as a GPU's recording, which goes on without."""


def guarded(name: str, hook: Any) -> Callable[..., Any]:
    """The hook of this name, as a class's body holds it, with care."""

    @functools.wraps(hook)
    def call(part: Any, *args: Any, **kwargs: Any) -> Any:
        bound = hook.__get__(part, type(part))
        if kwargs:  # only people call hooks by their arguments' names
            return bound(*args, **kwargs)
        if name in _AT_SERVER:
            args = tuple(dict(a) if type(a) is dict else a for a in args)  # whose entries a hook may replace
        held = list(_given(name, args))
        drawing = seeded(part.name, name, args) if name in SEEDED else nullcontext()
        with explained(part.name, f"hook `{name}`"), drawing:
            result = bound(*args)
        for one in held:
            if changed := one.changed():
                _refuse(part.name, name, changed, hook)
        with explained(part.name, f"hook `{name}`"):
            problem = returned.problem(part, name, args, result)
        if problem:
            _refuse(part.name, name, f"returned {problem}", hook)
        return result

    return call


def is_own(part: Any) -> bool:
    """Whether a Part is a user's own."""
    return any(k.__module__.partition(".")[0] != "unskew" for k in type(part).__mro__[:-1])


@contextmanager
def seeded(part: str, hook: str, args: tuple[Any, ...]) -> Generator[None]:
    """Within it torch's own generator is at a place that depends on the study's seed, the Part, the hook, round and client."""
    seeds = [a.seed for a in args if isinstance(a, Fed)]
    purpose = [a.t if isinstance(a, Ups) else a for a in args if isinstance(a, Ups | int)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key(*seeds, "hook", part, hook, *purpose).initial_seed())
        yield


def _refuse(part: str, name: str, text: str, hook: Any, of: str = "hook") -> None:
    code = getattr(hook, "__code__", None)
    where = f" ({code.co_filename}, line {code.co_firstlineno})" if code else ""
    raise UsageError("E127", f"the {of} `{name}` of '{part}'{where} {text if text.endswith('?') else f'{text}.'}")


def answer_of(trip: Trip, part: Any, w: Weights, c: Client) -> Tree:
    """What the client side of a trip answers, of a user's own Part with care."""
    if not is_own(part):
        return trip.client(w, c)
    held = _Held(_W, dict(w), False)
    with explained(part.name, _IN_A_TRIP):
        tree = trip.client(w, c)
    problem = returned.no_tree(tree) or returned.undeclared(trip.shares(c.fed), tree, "the trip's `shares`")
    if text := held.changed() or (problem and f"returned {problem}"):
        _refuse(part.name, "client", text, trip.client, "trip's")
    return tree


def served(trip: Trip, part: Any, w: Weights, s: Tree, ups: Ups, fed: Fed) -> tuple[Weights, Tree]:
    """What the server side of a trip makes of its answers, likewise."""
    if not is_own(part):
        return trip.server(w, s, ups, fed)
    held = [_Held(_W, w, False), _Held(_S, s, False)]
    with explained(part.name, "trip's `server`"), seeded(part.name, "trip", (ups, fed)):
        result = trip.server(dict(w), dict(s), ups, fed)
    problem = returned.merged(w, result)
    text = next((text for one in held if (text := one.changed())), "") or (problem and f"returned {problem}")
    if text:
        _refuse(part.name, "server", text, trip.server, "trip's")
    return result


@contextmanager
def explained(part: str, what: str) -> Generator[None]:
    """Raises UsageError (E127), with the file and the line, for an error of a user's own code. what: "hook `loss`"."""
    try:
        yield
    except _PASSED_ON:
        raise
    except Exception as error:
        words = str(error)
        if "can't allocate memory" in words:
            raise
        rule = next((rule for of_torch, rule in RULES.items() if of_torch in words), None)
        failed = HookFailed if isinstance(error, RuntimeError) else UsageError
        if rule:
            raise failed("E127", f"{line_of(error)} {rule}. {GUIDE}") from error
        if type(error).__name__ == "FrozenInstanceError":
            text = f"the {what} of '{part}' remembers something on the Part or the client ({words}) in {line_of(error)}"
            raise UsageError("E127", f"{text}; keep it in a slice. {GUIDE}") from error
        first = words.strip().splitlines()[0].rstrip(".") if words.strip() else "no words"
        place = line_of(error)
        missed = isinstance(error, KeyError) and "c.noise[" in place and what in _BESIDE_STEPS
        unread = isinstance(error, KeyError) and "c.down[" in place and what == _IN_A_TRIP
        hint = f" {_NO_NOISE}" * missed + f" {_UNREAD}" * unread
        text = f"the {what} of '{part}' failed in {place}: {type(error).__name__}: {first[:300]}.{hint}"
        raise failed("E127", text) from error


def line_of(error: BaseException) -> str:
    """The last line outside torch and unskew that led to an error: "my.py, line 3 (`return x`)"."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [f for f in frames if not f.filename.startswith((*_PLACES, "<"))] or list(frames)
    file, line = theirs[-1].filename, theirs[-1].lineno or 0
    return f"{file}, line {line} (`{linecache.getline(file, line).strip()}`)"


@dataclass
class _Held:
    """A tree that a hook is given. place: what hooks call it. entries: whether they must not be replaced either, because
    nobody would see it. tensors: (path, tensor, how often it was changed)."""

    place: str
    tree: Mapping[str, Any]
    entries: bool
    tensors: list[tuple[str, Any, int]] = field(init=False)

    def __post_init__(self):
        self.tensors = [(path, t, _version(t)) for path, t in leaves(self.tree)]

    def changed(self) -> str:
        """What a hook did to it, "" if nothing."""
        for path, t, version in self.tensors:
            if _version(t) != version:
                which = f" ('{path}')" if path else ""
                return f"changes {self.place}{which} in place; return new values instead"
        now = list(leaves(self.tree)) if self.entries else []
        if len(now) != len(self.tensors) * self.entries:
            return f"puts entries into {self.place} or takes them out, which nobody would see; return what changes"
        for (path, t), (_, before, _) in zip(now, self.tensors):
            if t is not before:
                return f"puts another '{path}' into {self.place}, which nobody would see; return what changes"
        return ""


def _given(name: str, args: tuple[Any, ...]) -> Iterator[_Held]:
    """The trees of others that a hook is given; not those that are made for this call alone, as gradients are."""
    for arg in args:
        if isinstance(arg, Client):
            for place in ("start", "down", "mine", "round"):
                yield _Held(f"c.{place}", getattr(arg, place), place != "mine" or name != "finish")
        elif isinstance(arg, Ups):
            for tree in (tree for r in arg.replies for tree in (r.weights, r.shares) if type(tree) is dict):
                yield _Held("a reply", tree, True)
        elif isinstance(arg, Batch):
            yield _Held("the batch it is given", _tensors(arg), False)
        elif isinstance(arg, Out):
            yield _Held("what the forward pass gave", _tensors(arg), False)
        elif isinstance(arg, Tensor):
            yield _Held("the tensor it is given", {"": arg}, False)
    places = _TREES.get(name, ())
    for place, arg in zip(places, args[1:] if name == "carry" else args):
        if type(arg) is dict:
            yield _Held(place, arg, name not in _AT_SERVER)


def _tensors(value: Batch | Out) -> dict[str, Tensor]:
    return {n: t for n, t in vars(value).items() if isinstance(t, Tensor)}


def _version(t: Any) -> int:
    if not isinstance(t, Tensor):
        return 0
    t = returned.below_vmap(t)
    return 0 if t.is_inference() else t._version
