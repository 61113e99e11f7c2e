"""Parts' slices as a site expects them in a request, so that one made by other code of a Part is named before it is used."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from unskew.core.client import Fed
from unskew.core.guarded import is_own
from unskew.core.method import Method
from unskew.core.part import Part, overrides
from unskew.core.trees import Weights, flat
from unskew.errors import UsageError

Form = tuple[tuple[int, ...], torch.dtype]
"""The shape and type of a tensor."""

Reads = Mapping[str, Collection[str] | None]
"""By Part, which leaves of its slice a request brings; all of them where it says nothing, or None."""


class Slices:
    """What this site's own Parts begin with at the server. first: the weights before round 1."""

    def __init__(self, method: Method, fed: Fed, first: Weights):
        self.method, self.fed, self.first = method, fed, first

    @cached_property
    def _forms(self) -> dict[str, dict[str, Form]]:
        """By Part, what it broadcasts; not of a Part that makes a slice for each client."""
        with torch.random.fork_rng(devices=[]):
            return {p.name: self._of(p) for p in self.method.parts if not overrides(p, "dispatch")}

    def _of(self, part: Part) -> dict[str, Form]:
        try:  # without memory for a slice as large as the model
            tree = part.server_init({n: t.to("meta") for n, t in self.first.items()}, self.fed)
        except Exception:  # of a hook that looks at values
            tree = part.server_init(dict(self.first), self.fed)
        kept = {leaf: t for leaf, t in tree.items() if leaf not in part.keeps_at_server}
        return {path: (tuple(t.shape), t.dtype) for path, t in flat(kept).items()}

    def _expected(self, part: Part, reads: Reads) -> Iterator[tuple[str, Form]]:
        """What a request has to bring of this Part's slice."""
        only = reads.get(part.name)
        for path, form in self._forms.get(part.name, {}).items():
            if only is None or path.partition("/")[0] in only:
                yield path, form

    def check(self, down: Any, reads: Reads) -> None:
        """Raises UsageError (E504) for a slice that lacks a tensor, or holds one of another type or shape than it has here. A first
        axis may be of another length, as that of samples is which a method collects; of a user's own Part any axis."""
        if not isinstance(down, Mapping):
            raise UsageError("E310", "the request's slices are one tensor, expected some for each Part.")
        for part in self.method.parts:
            leaves = _leaves(down, part)
            for path, form in self._expected(part, reads) if part.name in down else ():
                if path not in leaves:
                    raise _other(part, f"without '{path}', which it has at this site")
                if not is_own(part) and _inner(leaves[path]) != _inner_of(form):
                    raise _other(part, f"with '{path}' as {_shown(leaves[path])}; at this site it is {_form(*form)}")

    def explained(self, error: Exception, down: Any, reads: Reads) -> Exception:
        """What a request ended with, or (E504) that slices are not those that Parts here read, if that is why: a KeyError or an
        error of torch's says nothing of it."""
        is_known = isinstance(error, UsageError)
        cause = error.__cause__ if is_known else error
        is_lacking = isinstance(cause, KeyError)
        if not is_lacking and (is_known or not isinstance(cause, RuntimeError | IndexError | ValueError)):
            return error
        for part in self.method.parts:
            leaves = _leaves(down, part)
            for path, (shape, dtype) in self._expected(part, reads):
                if is_lacking and path not in leaves:
                    return _other(part, f"without '{path}', which it has at this site")
                is_fixed = bool(shape) and shape[0] > 1  # what begins with none or one may grow
                if not is_lacking and is_fixed and path in leaves and tuple(leaves[path].shape) != shape:
                    text = f"with '{path}' as {_shown(leaves[path])}; at this site it is {_form(shape, dtype)}"
                    return _other(part, text)
        return error


def _leaves(down: Any, part: Part) -> dict[str, Any]:
    """What a request holds of a Part's slice, by path."""
    sent = down.get(part.name, {}) if isinstance(down, Mapping) else {}
    return flat(sent) if isinstance(sent, Mapping) else {}


def _other(part: Part, text: str) -> UsageError:
    return UsageError(
        "E504", f"the coordinator sends the slice of '{part.name}' {text}; run the same version of it at both ends."
    )


def _inner(value: Any) -> object:
    return _inner_of((tuple(value.shape), value.dtype)) if isinstance(value, Tensor) else None


def _inner_of(form: Form) -> object:
    """A form without the length of its first axis."""
    shape, dtype = form
    return len(shape), shape[1:], dtype


def _shown(value: Any) -> str:
    return _form(tuple(value.shape), value.dtype) if isinstance(value, Tensor) else "no tensor"


def _form(shape: tuple[int, ...], dtype: torch.dtype) -> str:
    return f"{list(shape)} of {str(dtype).removeprefix('torch.')}"
