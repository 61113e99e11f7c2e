"""GPUs that are pretended: tensors whose numbers lie in this machine's memory, and which obey the rules of a
GPU's.

Operations on tensors of two devices raise, as torch's do; what would make the host wait for the GPU is noted,
or raises in a recorded step. Nothing here says how fast a GPU is, or which last bits its kernels have.

torch without CUDA cannot take gradients of tensors that say they are on `cuda`, its own FakeTensorMode's
neither: it ends the process. So to torch these lie on `meta:N`, whose kernels are never called, while the
package sees `cuda:N`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from unskew import config, data
from unskew.core.method import Method
from unskew.records import checkpoints
from unskew.round import run, trainer
from unskew.round.loop import Loop
from unskew.runs import assemble, resolve
from unskew.runs.run_folder import RunFolder

aten = torch.ops.aten
MEMORY = 8 << 30
CPU = torch.device("cpu")
CUDA = [torch.device("cuda", number) for number in range(8)]
READS = {
    *(aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default, aten.equal.default),
    *(aten.repeat_interleave.Tensor, aten._unique2.default, aten.unique_dim.default, aten.is_nonzero.default),
    *(
        aten.unique_consecutive.default,
        aten.bincount.default,
        aten.histc.default,
        aten._linalg_check_errors.default,
    ),
}
"""Operations whose result depends on values in a way that the host has to wait for."""


class Mixed(RuntimeError):
    """What torch says of tensors on two devices."""


class Waits(RuntimeError):
    """What torch says of an operation that waits, where none may."""


@dataclass
class Notes:
    """What happened on the pretended GPUs. waits: where the host waited. unpinned: copies that did not wait,
    from memory that is not pinned. thread: of each thread, its current GPU and whether a recorded step runs."""

    waits: list[str] = field(default_factory=list)
    unpinned: list[str] = field(default_factory=list)
    used: set[int] = field(default_factory=set)
    thread: threading.local = field(default_factory=threading.local)

    @contextmanager
    def on(self, number: int) -> Iterator[None]:
        """In place of `torch.cuda.device`."""
        before, self.thread.current = getattr(self.thread, "current", 0), number
        try:
            yield
        finally:
            self.thread.current = before

    def wait(self, what: str) -> None:
        at = place()
        if getattr(self.thread, "captures", False):
            raise Waits(f"operation not permitted when stream is capturing: {what} at {at}")
        self.waits.append(f"{at}: {what}")


NOTES = Notes()


def place() -> str:
    """The line of the package that is being run."""
    frame = sys._getframe(1)
    while frame.f_back and "/unskew/" not in frame.f_code.co_filename:
        frame = frame.f_back
    return f"{frame.f_code.co_filename.rpartition('/unskew/')[2]}:{frame.f_lineno}"


def tensors(value: Any) -> list[Tensor]:
    """Those in arguments or results of a kernel, in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (tuple, list)):
        return []
    return [t for v in value for t in tensors(v)]


class Recorder:
    """In place of `CudaGraphs`: a recorded step is computed again, and may not wait."""

    calls_before, exact = 1, False

    def __init__(self) -> None:
        self.recorded = self.replayed = 0

    def watch(self, function: Callable[[], None]) -> str:
        before = len(NOTES.waits)
        function()
        waits = NOTES.waits[before:]
        return f"{waits[0]} waits for the GPU" if waits else ""

    def record(self, function: Callable[[], None]) -> Callable[[], None]:
        def replay() -> None:
            self.replayed += 1
            NOTES.thread.captures = True
            try:
                function()
            finally:
                NOTES.thread.captures = False

        replay()
        self.recorded += 1
        return replay


class Card(Tensor):
    """A tensor on pretended GPU `number`. held: its numbers, on the CPU."""

    held: Tensor
    number: int

    @staticmethod
    def __new__(cls, held: Tensor, number: int) -> Card:
        made = Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype,
            layout=held.layout, device=torch.device("meta", number), requires_grad=held.requires_grad,
        )  # fmt: skip
        made.held, made.number = held, number
        return made

    @property
    def device(self) -> torch.device:
        return CUDA[self.number]

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def __repr__(self, **_: Any) -> str:
        return f"Card({self.number}, {self.held!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return computed(func, args, kwargs or {})


def computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """What an operation gives where its arguments lie. Raises Mixed for several devices at once."""
    given = tensors((args, kwargs))
    cards, hosts = (
        {t.number for t in given if isinstance(t, Card)},
        [t for t in given if not isinstance(t, Card)],
    )
    kwargs = {n: _named(v) for n, v in kwargs.items()}
    to = kwargs.get("device")
    if any(t.is_meta for t in hosts):
        raise Mixed(f"{func}: a tensor without numbers, made where no pretended GPU looked, at {place()}")
    if func in (aten._to_copy.default, aten.copy_.default):
        return _copied(func, args, kwargs)
    if not cards and (to is None or to.type == "cpu"):
        return func(*args, **kwargs)
    targets = cards | ({to.index or 0} if to is not None and to.type == "meta" else set())
    if func is aten.index.Tensor and isinstance(args[0], Card) and hosts:  # indices may lie on the host
        NOTES.wait("indices from the host")
        brought = [
            t if t is None or isinstance(t, Card) else Card(t.clone(), args[0].number) for t in args[1]
        ]
        args, hosts = (args[0], brought), []
    apart = [t for t in hosts if t.dim() or torch.Tag.pointwise not in func.tags]
    if len(targets) > 1 or apart or (to is not None and to.type == "cpu"):
        where = sorted(
            {f"cuda:{n}" for n in targets} | ({"cpu"} if apart or (to and to.type == "cpu") else set())
        )
        raise Mixed(
            f"Expected all tensors to be on the same device, but found {', '.join(where)} in {func}, at"
            f" {place()}"
        )
    if kwargs.get("generator") is not None:
        raise Mixed(f"Expected a 'cuda' device type for generator but found 'cpu' in {func}, at {place()}")
    if func in READS or (func in (aten.index.Tensor, aten.index_put_.default) and _has_mask(args[1])):
        NOTES.wait(str(func))
    return _here(func, args, kwargs, targets.pop())


def _has_mask(indices: Any) -> bool:
    return any(t is not None and t.dtype in (torch.bool, torch.uint8) for t in indices)


def _here(func: Any, args: Any, kwargs: dict[str, Any], number: int) -> Any:
    """Compute on this GPU, and write it on the tape that is recorded."""
    NOTES.used.add(number)
    if "device" in kwargs:
        kwargs = {**kwargs, "device": CPU}
    theirs: dict[int, Card] = {id(t.held): t for t in tensors((args, kwargs)) if isinstance(t, Card)}
    inside = _each(lambda t: t.held if isinstance(t, Card) else t, (args, kwargs))
    if getattr(NOTES.thread, "captures", False) and number != getattr(NOTES.thread, "current", 0):
        raise Waits(f"cuda:{number} computes, and the recording is of another GPU's stream, at {place()}")
    result = func(*inside[0], **inside[1])
    if torch.Tag.inplace_view in func.tags:  # the outside changes its shape, too
        with no_dispatch():
            func(*args, **kwargs)

    def placed(t: Tensor) -> Tensor:
        if isinstance(t, Card):
            return t
        if id(t) in theirs:
            return theirs[id(t)]
        return Card(t, number)

    return _each(placed, result)


def _each(change: Callable[[Tensor], Any], value: Any) -> Any:
    """Arguments or results of a kernel with another value for each tensor."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {n: _each(change, v) for n, v in value.items()}
    return type(value)([_each(change, v) for v in value]) if isinstance(value, (tuple, list)) else value


def _copied(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Between devices. A copy from memory that is not pinned, or to the host, makes the host wait."""
    source = args[1] if func is aten.copy_.default else args[0]
    begins = source.number if isinstance(source, Card) else None
    if func is aten.copy_.default:
        ends = args[0].number if isinstance(args[0], Card) else None
        is_async = bool(args[2]) if len(args) > 2 else bool(kwargs.get("non_blocking"))
    else:
        to = kwargs.get("device")
        ends = begins if to is None else (to.index or 0) if to.type == "meta" else None
        is_async = bool(kwargs.get("non_blocking"))
    if begins == ends is not None:
        return _here(func, args, kwargs, ends)
    if begins is None and ends is None:
        return func(*args, **kwargs)
    if begins is None and not getattr(source, "is_pinned_here", False):
        (NOTES.unpinned.append(place()) if is_async else None)
        NOTES.wait("a copy from the host" if source.dim() else "a number from the host")
    elif begins is None and not is_async:
        NOTES.wait("a copy from the host")
    elif ends is None:
        NOTES.wait("a copy to the host")
    held = source.held if isinstance(source, Card) else source
    if func is aten.copy_.default:
        (args[0].held if isinstance(args[0], Card) else args[0]).copy_(held)
        return args[0]
    plain = {**kwargs, "device": CPU, "non_blocking": False}
    plain.pop("pin_memory", None)
    result = aten._to_copy.default(held, **plain)
    return result if ends is None else Card(result, ends)


class Dispatching(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return computed(func, args, kwargs or {})


class Naming(TorchFunctionMode):
    """`cuda:N` is `meta:N` to torch; pinned memory is marked."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.pin_memory:
            pinned = args[0].clone()
            pinned.is_pinned_here = True
            return pinned
        if func is torch.device:
            return func(*args, **(kwargs or {}))
        named, kwargs = [_named(a) for a in args], {n: _named(v) for n, v in (kwargs or {}).items()}
        to = kwargs.get("device")
        if func in (torch.tensor, torch.as_tensor) and isinstance(to, torch.device) and to.type == "meta":
            return func(*named, **{**kwargs, "device": CPU}).to(to)
        if func in (Tensor.__getitem__, Tensor.__setitem__) and isinstance(named[0], Card):
            named[1:] = _indexed(*named)
        return func(*named, **kwargs)


def _indexed(t: Tensor, index: Any, *value: Any) -> list[Any]:
    """Index and value of `t[index] = value`, which torch would make tensors of where it takes `t` to lie."""
    to = torch.device("meta", t.number)

    def there(i: Any) -> Any:
        return torch.as_tensor(i).to(to) if isinstance(i, (list, np.ndarray)) else i

    index = tuple(map(there, index)) if isinstance(index, tuple) else there(index)
    return [
        index,
        *(v if isinstance(v, Tensor) else torch.full((), v, dtype=t.dtype, device=to) for v in value),
    ]


def _named(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("cuda"):
        value = torch.device(value)
    return (
        torch.device("meta", value.index or 0)
        if isinstance(value, torch.device) and value.type == "cuda"
        else value
    )


@contextmanager
def looking() -> Iterator[None]:
    """Within it this thread's new tensors lie where they are asked for."""
    with Naming(), Dispatching():
        yield


def _settle(device: torch.device, settle: Callable[[torch.device], None] = trainer.prepare_thread) -> None:
    """In a thread of a trainer, for good, beside what the package does there itself."""
    Naming().__enter__()
    Dispatching().__enter__()
    settle(device)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Notes]]:
    """Called with a number, pretends that so many GPUs are there, for this thread and those of trainers."""
    with ExitStack() as stack:

        def pretend(count: int = 1) -> Notes:
            monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
            monkeypatch.setattr(torch.cuda, "device", NOTES.on)
            monkeypatch.setattr(
                torch.cuda, "set_device", lambda device: setattr(NOTES.thread, "current", device.index)
            )
            monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)
            monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
            monkeypatch.setattr(
                torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=MEMORY)
            )
            monkeypatch.setattr("unskew.round.trainer.CudaGraphs", Recorder)
            monkeypatch.setattr(trainer, "prepare_thread", _settle)
            stack.enter_context(looking())
            return NOTES

        for name, value in vars(Notes()).items():
            setattr(NOTES, name, value)
        yield pretend


Pretend = Callable[[int], Notes]
SHAPE = (3, 8, 8)
TINY: dict[str, Any] = {
    **{"rounds": 2, "epochs": 1, "batch": 4, "clients": 3, "samples": 10, "workers": 1, "lanes": "2"},
    **{"model": "cnn_small", "device": "cuda"},
}


class Stopped(Exception):
    """A run that is killed after a round."""


def run_of(method: str | Method, **given: Any) -> run.Run:
    rng = np.random.default_rng(3)
    y, y_test = rng.integers(0, 3, 120), rng.integers(0, 3, 12)
    x, x_test = rng.random((120, *SHAPE), np.float32), rng.random((12, *SHAPE), np.float32)
    model = "cnn_small(batch_norm=True)" if method == "fedbn" else TINY["model"]
    named = {"method": method} if isinstance(method, str) else {}
    settings = config.build({**TINY, "model": model, **named, **given})
    return resolve.resolve(settings, data.arrays(x, y, x_test, y_test), None if named else method)


def gone(run: run.Run, path: Path, until: int = 99) -> Loop:
    """The run in its folder, begun or resumed; killed after round `until`."""

    def shown(now: checkpoints.State, _: object) -> None:
        if now.t == until:
            raise Stopped

    return RunFolder(path, run).go(lambda _: None, shown)[0]


def weights(path: Path) -> dict[str, Tensor]:
    return checkpoints.read(path / "state.safetensors")[0]["w"]


def rounds_of(run: run.Run, rounds: int = 2) -> tuple[dict[str, Tensor], Loop]:
    """(weights after some rounds in memory, the loop)."""
    loop = assemble.loop_of(run)
    now = loop.begin()
    for t in range(1, rounds + 1):
        now, _ = loop.round(now, t)
    return {n: t.cpu() for n, t in now.weights.items()}, loop
