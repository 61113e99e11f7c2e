"""CUDA graphs: kernels on a GPU are recorded once and launched together, to avoid the overhead of single
launches."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

from unskew.system.python_files import one_line


class CudaGraphs:
    """Records kernels as CUDA graphs.

    The graphs share one memory pool, because none keeps data in it between launches.
    """

    calls_before, exact = 1, False

    def __init__(self) -> None:
        self.pool: Any = None
        self.stream: Any = None  # one for all, because a pool returns memory only to its own stream

    def watch(self, function: Callable[[], None]) -> str:
        """Call the function. A function that waits for the GPU, to read or copy a value, cannot be
        recorded."""
        waits = list[str]()

        def note(message: Any, category: Any, filename: str, line: int, *_: Any) -> None:
            if "called a synchronizing" in str(message):
                waits.append(f"{filename}, line {line} waits for the GPU")

        with warnings.catch_warnings():
            before = torch.cuda.get_sync_debug_mode()
            warnings.simplefilter("always")
            warnings.showwarning = note
            torch.cuda.set_sync_debug_mode("warn")
            try:
                function()
            finally:
                torch.cuda.set_sync_debug_mode(before)
        return waits[0] if waits else ""

    def record(self, function: Callable[[], None]) -> Callable[[], None] | str:
        graph = torch.cuda.CUDAGraph()
        try:
            with self._recording(graph):
                function()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            function()  # a failed recording has computed nothing
            return one_line(error)
        self.pool = self.pool or graph.pool()
        graph.replay()
        return graph.replay

    @contextmanager
    def _recording(self, graph: torch.cuda.CUDAGraph) -> Iterator[None]:
        """A context in which kernels are recorded instead of run. It disables garbage collection, because
        freeing memory would end a recording."""
        self.stream = stream = self.stream or torch.cuda.Stream()
        collects = gc.isenabled()
        stream.wait_stream(torch.cuda.current_stream())
        gc.disable()
        try:
            with torch.cuda.stream(stream):
                graph.capture_begin(
                    *(() if self.pool is None else (self.pool,)), capture_error_mode="thread_local"
                )
                try:
                    yield
                except BaseException:
                    # A failed recording cannot be ended; the first error gives the reason.
                    with suppress(RuntimeError):
                        graph.capture_end()
                    raise
                graph.capture_end()
        finally:
            if collects:
                gc.enable()
        torch.cuda.current_stream().wait_stream(stream)
