"""Detects hooks that change their arguments in place, for `unskew check`.

A copy of the Part compares the tensors among a hook's arguments before and after each call. Gradients are not
compared, because no other hook reads those that a hook received.
"""

# pyright: reportPrivateUsage=false
# Only a tensor's private version number tells whether it was changed in place.

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor

from unskew.core.client import Batch, Client, Out
from unskew.core.hook_results import below_vmap
from unskew.core.part import HOOKS, Part, overrides
from unskew.core.replies import Ups
from unskew.core.trees import leaves
from unskew.errors import UsageError

CLIENT_TREES = ("start", "down", "mine", "round")
GRADIENTS_FIRST = ("grad", "perturb", "sample_grad", "carry")
"""Hooks whose first argument are gradients."""
SERVER_HOOKS = ("merge", "server", "refine", "dispatch", "server_init", "client_init")
"""Hooks that receive copies of dictionaries, whose entries they may replace."""


class _Leaf(NamedTuple):
    """A tensor among the arguments. place: its name in hooks. kept: whether replacing it in its dictionary is
    an error, too, because the replacement has no effect."""

    place: str
    tensor: Any
    kept: bool


def watched(part: Part) -> Part:
    """A copy of a Part; its hooks and trips raise UsageError (E127) if they change an argument."""
    kind = type(part)
    hooks = {
        h: _watch(h, f"hook `{h}` of '{part.name}'", getattr(kind, h)) for h in HOOKS if overrides(part, h)
    }
    trips = [
        replace(
            trip,
            client=_watch("", f"trip's `client` of '{part.name}'", trip.client),
            server=_watch("merge", f"trip's `server` of '{part.name}'", trip.server),
        )
        for trip in part.trips
    ]
    same = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    body = {**same, **hooks, **({"trips": tuple(trips)} if trips else {})}
    clone = copy.copy(part)
    object.__setattr__(clone, "__class__", type(kind.__name__, (kind,), body))
    return clone


def _watch(name: str, what: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with a comparison of its arguments. name: the hook of whose kind it is; "" for another
    one."""

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        before = {leaf.place: (leaf, _version(leaf.tensor)) for leaf in _leaves(name, args)}
        result = function(*args)
        after = {leaf.place: leaf for leaf in _leaves(name, args)}
        for place, (leaf, version) in before.items():
            if _version(leaf.tensor) != version:
                raise UsageError("E127", f"the {what} changes {place} in place; return new values.")
        for place in {**before, **after}:
            leaf = before[place][0] if place in before else after[place]
            if leaf.kept and (
                place not in before or place not in after or after[place].tensor is not leaf.tensor
            ):
                raise UsageError(
                    "E127", f"the {what} replaces {place}, which has no effect; return the new value."
                )
        return result

    return call


def _leaves(name: str, args: tuple[Any, ...]) -> Iterator[_Leaf]:
    """The tensors among a hook's arguments that the engine uses after the call."""
    for i, arg in enumerate(args):
        if isinstance(arg, Client):
            for place in CLIENT_TREES:
                kept = place != "mine" or name != "finish"
                yield from (_Leaf(f"c.{place}['{n}']", t, kept) for n, t in leaves(getattr(arg, place)))
        elif isinstance(arg, Ups):
            for reply in arg.replies:
                for tree in (reply.weights, reply.shares):
                    named = leaves(tree) if type(tree) is dict else ()
                    yield from (_Leaf(f"'{n}' of client {reply.client}'s reply", t, True) for n, t in named)
        elif isinstance(arg, Batch | Out):
            kind = "batch" if isinstance(arg, Batch) else "model's output"
            yield from (_Leaf(f"'{n}' of the {kind}", t, False) for n, t in vars(arg).items())
        elif isinstance(arg, Tensor):
            yield _Leaf(f"argument {i}", arg, False)
        elif type(arg) is dict and not (name in GRADIENTS_FIRST and i == 1):
            kept = name not in SERVER_HOOKS
            yield from (_Leaf(f"'{n}' of argument {i}", t, kept) for n, t in leaves(arg))


def _version(t: Any) -> int:
    if not isinstance(t, Tensor):
        return 0
    t = below_vmap(t)
    return 0 if t.is_inference() else t._version
