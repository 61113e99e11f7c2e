"""Checks of the results of users' own hooks.

Without these checks a gradient of another shape would be broadcast over a weight, and a missing leaf would be
noticed rounds later. Each check returns the end of a sentence that begins "the hook ... returned", or None.
"""

# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportAttributeAccessIssue=false
# Only private functions of torch return the tensor below vmap.

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from unskew.core.client import Batch, Client
from unskew.core.shares import Noise, Share
from unskew.core.trees import flat_tree
from unskew.errors import suggestion


def problem(part: Any, hook: str, args: tuple[Any, ...], result: Any) -> str | None:
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
