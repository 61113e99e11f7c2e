"""The gate: checks every reply against what was declared, before anything is merged.

A reply that does not fit is dropped, and an event names its client; the run continues with the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unskew.core.replies import Reply
from unskew.core.shares import Share
from unskew.core.trees import Tree, Weights, flat_tree, leaves
from unskew.errors import suggestion


@dataclass(frozen=True)
class Spec:
    """What a reply must hold: shapes and dtypes of the weights by name, and the declared Shares by Part.

    encoded: whether the Shares include encoded weights.
    """

    weights: dict[str, tuple[int, ...]]
    shares: dict[str, dict[str, Share]]
    dtypes: dict[str, torch.dtype]
    encoded: bool = False

    @cached_property
    def max_bytes(self) -> int:
        """The bytes of the largest valid reply; a network refuses larger messages before it parses them."""
        weights = sum(
            math.prod(s) * torch.empty((), dtype=self.dtypes[n]).element_size()
            for n, s in self.weights.items()
        )
        return weights + sum(s.max_bytes for part in self.shares.values() for s in part.values())


@dataclass(frozen=True)
class Refusal:
    """The problem of a client's reply: the code of the error and a sentence."""

    client: int
    code: str
    text: str


def check(
    replies: Sequence[Reply], spec: Spec, sizes: Sequence[int] | np.ndarray[Any, Any]
) -> tuple[list[Reply], list[Refusal]]:
    """(replies to use, refusals). sizes: the registered number of training samples of each client.

    A reply that reports more samples than registered is used with the registered number, and an event (E305)
    says so. Private state in a reply is checked too, because NaN in it would spoil all later rounds.
    """
    good: list[Reply] = []
    refused: list[Refusal] = []
    finite = _sums_are_finite([tree for r in replies for tree in (r.weights, r.private, *r.shares.values())])
    for reply in replies:
        problem = (
            _weights_problem(reply, spec, finite)
            or _shares_problem(reply, spec, finite)
            or (None if finite else state_problem(reply.private))
        )
        if problem:
            refused.append(Refusal(reply.client, *problem))
            continue
        registered = int(sizes[reply.client])
        if not math.isfinite(reply.size) or reply.size <= 0:
            refused.append(
                Refusal(reply.client, "E305", f"claims {reply.size:g} examples; a reply needs at least one.")
            )
            continue
        if reply.size > registered:
            text = f"claims {reply.size:g} examples; registered {registered:,}. Using {registered:,}."
            refused.append(Refusal(reply.client, "E305", text))
            reply.size = float(registered)
        good.append(reply)
    return good, refused


def _weights_problem(reply: Reply, spec: Spec, finite: bool) -> tuple[str, str] | None:
    if problem := _names_problem(reply.weights, spec.weights):
        return problem
    for name, shape in spec.weights.items():
        tensor = reply.weights[name]
        if tuple(tensor.shape) != tuple(shape):
            return (
                "E303",
                f"'w/{name}' is {list(tensor.shape)}, expected {list(shape)}. Is it running another model?",
            )
        if tensor.dtype != spec.dtypes[name]:
            return "E303", f"'w/{name}' is {tensor.dtype}, expected {spec.dtypes[name]}."
        if not finite and (problem := _finite_problem(f"w/{name}", tensor)):
            return problem
    return None


def _shares_problem(reply: Reply, spec: Spec, finite: bool) -> tuple[str, str] | None:
    if problem := _names_problem(
        {p: 0 for p, t in reply.shares.items() if t}, {p: 0 for p, s in spec.shares.items() if s}
    ):
        return problem
    for part, declared in spec.shares.items():
        sent = flat_tree(reply.shares.get(part, {}))
        if problem := _names_problem(sent, declared, f"{part}/"):
            return problem
        for leaf, share in declared.items():
            if problem := leaf_problem(f"{part}/{leaf}", sent[leaf], share, finite):
                return problem
    return None


def state_problem(private: Tree) -> tuple[str, str] | None:
    """Why a client cannot continue from this private state, as (code, sentence); None if it can."""
    for path, tensor in flat_tree(private).items():
        if problem := _finite_problem(f"private state {path}", tensor):
            return problem
    return None


def merged_problem(weights: Weights, slices: Mapping[str, Tree]) -> str | None:
    """Why merged weights and slices must not replace those of the previous round, as a sentence; None if they
    may."""
    merged: Tree = {"w": weights, **slices}
    if _sums_are_finite([merged]):
        return None
    problems = (_finite_problem(path, tensor) for path, tensor in leaves(merged))
    return next((problem[1] for problem in problems if problem), None)


def leaf_problem(path: str, tensor: Tensor, share: Share, finite: bool = False) -> tuple[str, str] | None:
    """How a tensor violates its declaration, as (code, sentence); None if it does not. finite: all values are
    known to be finite."""
    shape = tuple(tensor.shape)
    fits = len(shape) == len(share.shape) and all(
        size in (None, sent) for size, sent in zip(share.shape, shape)
    )
    if not fits or (share.shape[:1] == (None,) and shape[0] > share.rows):
        expected = ["up to " + str(share.rows) if s is None else s for s in share.shape]
        return "E303", f"'{path}' is {list(shape)}, expected {expected}."
    if tensor.dtype != share.dtype:
        return "E303", f"'{path}' is {tensor.dtype}, expected {share.dtype}."
    if not finite and (problem := _finite_problem(path, tensor)):
        return problem
    if tensor.numel() == 0:
        return None
    bounded = share.low > -math.inf or share.high < math.inf
    if bounded and (problem := _bounds_problem(path, tensor, share)):
        return problem
    if share.norm is not None and (norm := tensor.double().norm().item()) > share.norm * (1 + 1e-6):
        return "E303", f"'{path}' has L2 norm {norm:g}; the declared bound is {share.norm:g}."
    return None


def _bounds_problem(path: str, tensor: Tensor, share: Share) -> tuple[str, str] | None:
    low, high = tensor.min().item(), tensor.max().item()
    least, most = share.low, share.high
    if share.dtype.is_floating_point:  # the float32 nearest to 1e-6, to which a client clamps, is below 1e-6
        least, most = (torch.tensor(bound, dtype=share.dtype).item() for bound in (least, most))
    if low < least or high > most:
        outside = low if low < least else high
        if share.dtype.is_floating_point:
            return "E303", f"'{path}' must lie in [{share.low:g}, {share.high:g}]; got {outside:g}."
        return "E303", f"'{path}' holds {outside}; allowed are {share.low:g} to {share.high:g}."
    return None


def _names_problem(
    sent: Mapping[str, Any], expected: Mapping[str, Any], prefix: str = ""
) -> tuple[str, str] | None:
    if sent.keys() == expected.keys():
        return None
    missing, extra = sorted(expected.keys() - sent.keys()), sorted(sent.keys() - expected.keys())
    differences: list[str] = []
    if missing:
        differences.append("missing " + ", ".join(f"'{prefix}{n}'" for n in missing[:3]))
    if extra:
        names = ", ".join(f"'{prefix}{n}'" for n in extra[:3])
        differences.append(f"unexpected {names}" + suggestion(extra[0], missing).rstrip("?"))
    return "E303", "; ".join(differences) + "."


def _sums_are_finite(trees: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the sums of all tensors, and so all values, are finite, in one transfer from the device."""
    sums = [
        t.sum(dtype=torch.float32) for tree in trees for _, t in leaves(tree) if t.dtype.is_floating_point
    ]
    return len({t.device for t in sums}) == 1 and all(map(math.isfinite, torch.stack(sums).tolist()))


def _finite_problem(path: str, tensor: Tensor) -> tuple[str, str] | None:
    if not tensor.dtype.is_floating_point or bool(torch.isfinite(tensor.sum())):
        return None  # a finite sum has no NaN or Inf among its terms
    count = int((~torch.isfinite(tensor)).sum())
    return ("E301", f"'{path}' has {count} non-finite value{'s' * (count != 1)}.") if count else None
