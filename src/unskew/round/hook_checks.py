"""Checks of users' own hooks and models while they train.

Errors of torch.func are explained by the rule that a hook breaks. Values that a model or a Part stores in
attributes between passes are refused, since a run neither saves nor sends nor merges them. Padding is tried
once: another client's sample at weight 0 replaces it, which a plain mean over the batch would count.
Letters: B batch, G lanes, V visits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unskew.core.part import Part
from unskew.core.trees import Tree, leaves
from unskew.core.user_parts import GUIDE, RULES, error_line, is_own
from unskew.errors import UsageError
from unskew.round.clients import Clients
from unskew.round.samples import StreamedSamples, on_device
from unskew.round.schedule import Step
from unskew.round.step import Feed, LaneStep


@contextmanager
def explain_hook_rules() -> Iterator[None]:
    """A context that raises UsageError (E127) with the file and the line for a hook that breaks a rule."""
    try:
        yield
    except RuntimeError as error:
        rule = next((rule for words, rule in RULES.items() if words in str(error)), None)
        if rule is None or isinstance(error, UsageError):
            raise
        raise UsageError("E127", f"{error_line(error)} {rule}. {GUIDE}") from error


_MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))
_TOLERANCE = 1e-4
"""The largest relative difference between two equal passes, whose sums a GPU may order differently."""


def check_attributes(module: nn.Module, again: Callable[[], object]) -> None:
    """Raises UsageError (E123) if an equal pass, `again`, changes the module's attributes once more.

    Attributes that follow from the current samples are allowed, because they are equal both times.
    """
    first = _attributes(module)
    again()
    second = _attributes(module)
    if changed := [n for n, value in second.items() if n not in first or not _alike(first[n], value)]:
        raise UsageError(
            "E123",
            f"the model's forward changes its attribute '{changed[0]}' at every pass, which no run could save"
            " or resume, and which clients would take from one another; leave it out, or make it a buffer of"
            " floats that is updated in place.",
        )


class PartAttributes:
    """Detects attributes of Parts and their classes that change between rounds. An attribute that is set
    once, such as a cache, is allowed."""

    def __init__(self, parts: Sequence[Any]):
        self.parts, self.before = parts, dict[str, dict[str, Any]]()

    def check(self) -> None:
        """Call it after every round. Raises UsageError (E127) for an attribute that changed since the last
        one."""
        for part in self.parts:
            own = [
                k
                for k in type(part).__mro__
                if k.__module__.partition(".")[0] != "unskew" and k is not object
            ]
            names = {
                n: v for k in (*reversed(own), part) for n, v in vars(k).items() if not n.startswith("__")
            }
            now = {n: _snapshot(v) for n, v in names.items()}
            before = self.before.get(part.name, {})
            if moved := [n for n, v in now.items() if n in before and _differs(before[n], v)]:
                text = f"'{part.name}' has changed '{moved[0]}', which it keeps on the Part or its class"
                raise UsageError(
                    "E127",
                    f"{text}: no checkpoint holds it, and clients take it from one another; keep it in a"
                    " slice, c.mine or s.",
                )
            self.before[part.name] = now


def _differs(before: Any, now: Any) -> bool:
    """Whether a value changed; additions to a dictionary or a list, as to a log, do not count."""
    if isinstance(before, list) and isinstance(now, list):
        return len(now) < len(before) or any(map(_differs, before, now))
    if isinstance(before, dict) and isinstance(now, dict):
        return any(key not in now or _differs(v, now[key]) for key, v in before.items())
    return not _alike(before, now)


def _attributes(module: nn.Module) -> dict[str, Any]:
    """Copies of all attributes of a user's layers that are neither parameters, buffers nor layers, by
    name."""
    return {
        f"{name}.{key}".lstrip("."): _snapshot(value)
        for name, layer in module.named_modules()
        if not type(layer).__module__.startswith("torch.nn.")
        for key, value in vars(layer).items()
        if key not in _MODULE_ATTRIBUTES
    }


def _snapshot(value: Any) -> Any:
    """A copy of numbers, texts, arrays and their containers; None for other objects, which do not count."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return torch.as_tensor(value.copy()) if value.dtype.kind in "biuf" else None
    if isinstance(value, Mapping):
        return {str(key): _snapshot(v) for key, v in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_snapshot(v) for v in value]
    return value if isinstance(value, (bool, int, float, str)) else None


def _alike(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        return (
            torch.allclose(a, b, rtol=_TOLERANCE, equal_nan=True)
            if a.is_floating_point()
            else torch.equal(a, b)
        )
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_alike(v, b[key]) for key, v in a.items())
    if isinstance(a, list):
        return len(a) == len(b) and all(map(_alike, a, b))
    if isinstance(a, float):
        return math.isclose(a, b, rel_tol=_TOLERANCE) or (math.isnan(a) and math.isnan(b))
    return a == b


DROPOUT_NUMBER = 0.75
"""The uniform number in place of dropout's draws, which the trial must not use up."""


class PaddingTrial:
    """Trials of users' own hooks, each once per run, at the first chunk that allows it.

    There are none on a GPU, where last bits may vary, with streamed samples, and with Parts that add noise.
    """

    def __init__(self, clients: Clients):
        self.clients, x = clients, clients.samples.x
        self.own = [p for p in clients.method.parts if is_own(p)]
        self.names = "' or '".join(p.name for p in self.own)
        noisy = clients.apart is not None or clients.method.protector is not None
        self.tries = (
            bool(self.own) and not noisy and x.device.type == "cpu" and not isinstance(x, StreamedSamples)
        )

    def check_step(self, lane_step: LaneStep, plan: Sequence[Step], shapes: Any) -> None:
        """Raises UsageError (E127) if equal steps differ, or if another sample in a step's padding changes
        its gradients."""
        if plan and self._due("equal") and not self._agree(lane_step, plan[0], (0, 0), shapes):
            text = (
                f"two equal passes of a step have other gradients: a hook of '{self.names}' draws from a"
                " generator"
            )
            remedy = "take random numbers from c.noise, and keep state in slices"
            raise UsageError(
                "E127", f"{text} of its own, reads a clock, or remembers something; {remedy}. {GUIDE}"
            )
        step = next((s for s in plan if s.weight_GB is not None and not s.weight_GB.all()), None)
        if step and self._due("padding") and not self._agree(lane_step, step, (0, self._stranger()), shapes):
            self._refuse("the gradients of a step")

    def _agree(self, lane_step: LaneStep, step: Step, rows: tuple[int, int], shapes: Any) -> bool:
        """Whether a step's gradients are equal with each of these samples in place of padding."""
        grads = []
        for row in rows:
            # needed only for a model that draws from torch's global generator; it trains on one thread
            with torch.random.fork_rng(devices=[], enabled=self.clients.fed.net.draws):
                grads.append(lane_step.gradients(step, self._feed(step, row, shapes)))
        return all(_equal_gradients(a, b) for a, b in zip(*grads))

    def check_pass(self, p: Part, hook: str, table: Tree, before: Any, again: Callable[[Tree], Any]) -> None:
        """Raises UsageError (E127) if another sample in the padding of a pass over the data changes a hook's
        result, `before`. again: calls the hook with another lane table."""
        padding_GVB = table["rows_weight"] == 0
        if not is_own(p) or not padding_GVB.any() or not self._due(f"{hook} of {p.name}"):
            return
        other = {**table, "rows": torch.where(padding_GVB, self._stranger(), table["rows"])}
        if not all(
            _equal_gradients(a, b) for a, b in zip(_result_tensors(before), _result_tensors(again(other)))
        ):
            self._refuse(f"the values that `{hook}` of '{p.name}' makes of c.batches()")

    def _due(self, what: str) -> bool:
        """Whether to run this trial now; True at most once per run."""
        if not self.tries or what in self.clients.tried:
            return False
        self.clients.tried.add(what)
        return True

    def _stranger(self) -> int:
        """The index of a sample with another label than sample 0, which pads batches; else the last one."""
        y = self.clients.samples.y
        others = (y != y[:1]).flatten(1).any(1).nonzero()
        return int(others[0]) if len(others) else len(y) - 1

    def _feed(self, step: Step, row: int, shapes: Any) -> Feed:
        """The step's feed with this sample in place of padding."""
        weight, device = step.weight_GB, self.clients.device
        rows = step.rows_GB if weight is None else np.where(weight == 0, row, step.rows_GB)
        sizes = [(step.width, 0) if shape is None else (step.width, step.size, *shape) for shape in shapes]
        return Feed(
            on_device(rows.T.ravel(), device),
            on_device(step.local_G, device),
            None if weight is None else on_device(weight, device),
            tuple(torch.full(size, DROPOUT_NUMBER) for size in sizes),
        )

    def _refuse(self, what: str) -> None:
        text = (
            f"{what} depend on the padding of a short batch, so '{self.names}' counts rows that are other"
            " clients' samples"
        )
        raise UsageError("E127", f"{text}; average by b.mean, weight sums by b.weight, mix no rows. {GUIDE}")


def _result_tensors(result: Any) -> list[Tensor]:
    trees = result if isinstance(result, tuple) else (result,)
    return [t for tree in trees if isinstance(tree, Mapping) for _, t in leaves(tree)]


def _equal_gradients(a: Tensor | None, b: Tensor | None) -> bool:
    return (a is None) == (b is None) and (
        a is None or b is None or torch.equal(a.nan_to_num(), b.nan_to_num())
    )
