"""In place of CUDA graphs: the kernels of a step on pretended GPUs (`pretended`), recorded and computed
again."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from torch import Tensor

from tests.round.gpu_notes import NOTES


def tensors(value: Any) -> list[Tensor]:
    """Those in arguments or results of a kernel, in order. torch's own tree_flatten takes longer than such
    small kernels."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (tuple, list)):
        return []
    return [t for v in value for t in tensors(v)]


@cache
def written(func: Any) -> list[int]:
    """The places of the arguments that a kernel writes to."""
    arguments = enumerate(func._schema.arguments)
    return [place for place, a in arguments if a.alias_info is not None and a.alias_info.is_write]


@cache
def is_fresh(func: Any) -> bool:
    """Whether a kernel makes memory for something that it returns."""
    return any(r.alias_info is None for r in func._schema.returns)


class Tape:
    """The kernels of a step in order. Recording leaves memory as it was, as on a GPU, where nothing is
    computed meanwhile."""

    def __init__(self) -> None:
        self.kernels: list[tuple[Any, Any, Any, list[Tensor]]] = []
        self.before: dict[int, tuple[Any, Any]] = {}

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        for t in (t for place in written(func) if place < len(args) for t in tensors(args[place])):
            storage = t.untyped_storage()
            if storage.data_ptr() not in self.before:
                self.before[storage.data_ptr()] = (storage, storage.clone())
        result = func(*args, **kwargs)
        self.kernels.append((func, args, kwargs, tensors(result) if is_fresh(func) else []))
        return result

    def end(self) -> None:
        for storage, copy in self.before.values():
            storage.copy_(copy)

    def replay(self) -> None:
        for func, args, kwargs, made in self.kernels:
            result = func(*args, **kwargs)
            for place, t in zip(made, tensors(result) if made else ()):
                place.untyped_storage().copy_(t.untyped_storage())


class Taped:
    """In place of `CudaGraphs`: it records what a GPU would be asked to compute, and computes that again."""

    calls_before, exact = 1, False

    def __init__(self) -> None:
        self.watched = self.recorded = self.replayed = 0

    def watch(self, function: Callable[[], None]) -> str:
        self.watched += 1
        before = len(NOTES.waits)
        function()
        waits = NOTES.waits[before:]
        return f"{waits[0]} waits for the GPU" if waits else ""

    def record(self, function: Callable[[], None]) -> Callable[[], None]:
        tape = NOTES.thread.tape = Tape()
        try:
            function()
        finally:
            NOTES.thread.tape = None
            tape.end()
        self.recorded += 1

        def replay() -> None:
            self.replayed += 1
            tape.replay()

        replay()
        return replay
