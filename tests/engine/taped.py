"""In place of CUDA graphs: the kernels of a step on pretended GPUs (`pretended`), recorded and computed again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_flatten

from tests.engine.gpu_notes import NOTES


class Tape:
    """The kernels of a step in order. Recording leaves memory as it was, as on a GPU, where nothing is computed meanwhile."""

    def __init__(self) -> None:
        self.kernels: list[tuple[Any, Any, Any, list[Tensor]]] = []
        self.before: dict[int, tuple[Any, Any]] = {}

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        for argument, value in zip(func._schema.arguments, args):
            if argument.alias_info is not None and argument.alias_info.is_write:
                for t in tree_flatten(value)[0]:
                    storage = t.untyped_storage()
                    self.before.setdefault(storage.data_ptr(), (storage, storage.clone()))
        result = func(*args, **kwargs)
        fresh = any(r.alias_info is None for r in func._schema.returns)
        made = [t for t in tree_flatten(result)[0] if isinstance(t, Tensor)] if fresh else []
        self.kernels.append((func, args, kwargs, made))
        return result

    def end(self) -> None:
        for storage, copy in self.before.values():
            storage.copy_(copy)

    def replay(self) -> None:
        for func, args, kwargs, made in self.kernels:
            result = func(*args, **kwargs)
            again = [t for t in tree_flatten(result)[0] if isinstance(t, Tensor)] if made else []
            for place, t in zip(made, again):
                place.untyped_storage().copy_(t.untyped_storage())


class Taped:
    """In place of `Graphs`: it records what a GPU would be asked to compute, and computes that again."""

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

        return replay
