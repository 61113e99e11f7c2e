"""Lists of operators: what a function computes on a CPU, recorded once and replayed call by call.

A recording is the list of torch's operators that ran, below autograd and vmap. Their results get fixed places
in memory, like those of a CUDA graph, so that views and casts without effect need no call, and most other
operators write into their place (`out=`). Operators without effect and those of constants alone are left out.
The kernels and their order are those of the function itself, and so are all bits.

One operator in the list may be a Python function, see `Operators.untraced`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

ALIGNMENT = 64
"""The addresses of torch's tensors are multiples of this number of bytes; last bits depend on it."""
COPIED_BYTES = 1 << 16
"""A result without a place of its own is copied to one up to this size; a larger one keeps its memory."""
MOST_BYTES = 1 << 27
"""Recordings of functions with more bytes of results are not worth their memory: Python's part in such a
function is small."""
READERS = {Tensor.numpy, Tensor.tolist, Tensor.__array__, Tensor.__dlpack__, Tensor.data_ptr}
"""Ways from a tensor to its values that no operator sees."""
FILLED = {f"aten::{n}" for n in ("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full")}
"""Operators that read the shape of their argument only."""
EMPTY = {f"aten::{n}" for n in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")}
RESIZES = {"aten::set_", "aten::resize_"}
COPIES = {"aten::clone", "aten::_to_copy"}
OPAQUE = {"aten::mkldnn_rnn_layer", "aten::mkldnn_rnn_layer_backward"}
"""Operators whose results depend on the memory in which their arguments lie: an LSTM's."""
VALUES = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.nondeterministic_seeded)


def tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in the arguments or results of an operator, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for v in value:
            yield from tensors(v)
    elif isinstance(value, dict):
        yield from tensors(list(value.values()))


def map_tensors(function: Callable[[Tensor], Any], value: Any) -> Any:
    """The arguments of an operator with another value for each tensor."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, list | tuple):
        return [map_tensors(function, v) for v in value]
    if isinstance(value, dict):
        return {n: map_tensors(function, v) for n, v in value.items()}
    return value


def address(t: Tensor) -> int:
    """The address of a tensor's storage; 0 for an empty one."""
    return t.untyped_storage().data_ptr()


Geometry = tuple[tuple[int, ...], tuple[int, ...], int]
"""The shape, strides and offset of a tensor in its storage."""


def geometry(t: Tensor) -> Geometry:
    """How a tensor lies in its storage."""
    return tuple(t.shape), t.stride(), int(t.storage_offset())


@cache
def _writes(func: Any) -> tuple[tuple[int, str], ...]:
    """The places and names of the arguments that an operator writes to."""
    arguments = enumerate(func._schema.arguments)
    return tuple((i, a.name) for i, a in arguments if a.alias_info is not None and a.alias_info.is_write)


@dataclass
class Call:
    """An operator with its arguments and results.

    reads, writes, makes: the addresses of the storages that it reads or views, changes, and allocates.
    """

    func: Any
    args: Any
    kwargs: dict[str, Any]
    results: list[Tensor]
    reads: set[int] = field(default_factory=set)
    writes: set[int] = field(default_factory=set)
    makes: set[int] = field(default_factory=set)

    @property
    def name(self) -> str:
        """The operator's name in torch's schema; "" for another function."""
        return self.func._schema.name if isinstance(self.func, torch._ops.OpOverload) else ""

    @property
    def kinds(self) -> object:
        """The types of all arguments."""
        return tuple(map(type, self.args)), tuple((n, type(v)) for n, v in self.kwargs.items())


class _Mode(TorchDispatchMode):
    """A dispatch mode that does not import torch.compile, which takes seconds."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class Tape(_Mode):
    """The calls of a function while it runs. problem: why they cannot be repeated; "" if they can."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.problem, self.paused = "", False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not self.paused:
            self._note(func, args, kwargs, result)
        return result

    def _note(self, func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        by_mask = func.overloadpacket is torch.ops.aten.index and any(
            t is not None and t.dtype in (torch.bool, torch.uint8) for t in args[1]
        )
        tagged = func.overloadpacket is not torch.ops.aten.index and any(tag in func.tags for tag in VALUES)
        if by_mask or tagged or func._schema.name in RESIZES:
            self.problem = self.problem or f"{func._schema.name} reads or draws a value, or changes a size"
        if func._schema.name in OPAQUE:
            self.problem = self.problem or f"{func._schema.name} gives other bits in other memory"
        if torch.Tag.inplace_view in func.tags:
            return  # the following calls have the tensor in its new shape
        call = Call(func, args, kwargs, list(tensors(result)))
        written = [kwargs.get(name) if i >= len(args) else args[i] for i, name in _writes(func)]
        self.add(call, written)

    def add(self, call: Call, written: Any) -> None:
        """Append a call. written: the arguments that it changes."""
        given = [*tensors(call.args), *tensors(call.kwargs)]
        if any(t.layout != torch.strided or t.is_conj() or t.is_neg() for t in (*given, *call.results)):
            self.problem = self.problem or "a tensor is not an ordinary one"
            return
        shapes_only = call.name in FILLED | EMPTY
        call.reads = set() if shapes_only else {address(t) for t in given}
        call.writes = {address(t) for t in tensors(written)}
        call.makes = {address(t) for t in call.results} - call.reads
        # aliases, because a later call may change the shape of these very tensors
        call.args, call.kwargs, call.results = (
            map_tensors(Tensor.detach, v) for v in (call.args, call.kwargs, call.results)
        )
        self.calls.append(call)


class _Reads(TorchFunctionMode):
    """Notes where values of tensors are read outside operators."""

    def __init__(self, tape: Tape):
        super().__init__()
        self.tape = tape

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in READERS:
            self.tape.problem = self.tape.problem or f"Tensor.{func.__name__} reads a value"
        before = self.tape.problem
        result = func(*args, **(kwargs or {}))
        if func is F.one_hot and (kwargs or args[1:]):  # it reads values only to check them
            self.tape.problem = before
        return result


class Operators:
    """A recorder of functions on a CPU. Each thread has its own memory for intermediate results, which all
    its recordings share, because none keeps data in it between calls.

    calls_before: the number of calls after which a function is recorded: the gain of some three replays pays
    for a recording. exact: a replay must equal a call to the bit.
    """

    calls_before, exact = 2, True

    def __init__(self) -> None:
        self._thread = threading.local()

    def watch(self, function: Callable[[], None]) -> str:
        """Call the function. Returns the reason why it cannot be recorded; "" if none is known."""
        function()
        return ""

    def record(self, function: Callable[[], None]) -> Callable[[], None] | str:
        """Call the function. Returns a function that computes the same again, or the reason why it cannot be
        recorded; "" if a recording would not pay."""
        tape = self._thread.tape = Tape()
        try:
            with _Reads(tape), tape:
                function()
        finally:
            self._thread.tape = None
        if tape.problem:
            return tape.problem
        calls = essential_calls(tape.calls)
        places = Places(calls)
        if places.nbytes > MOST_BYTES:
            return ""
        return Replay(calls, places, self._memory(places.nbytes))

    def untraced(self, function: Callable[..., None], changed: Any, *others: Any) -> None:
        """Call function(changed, *others), which changes tensors of `changed` only. A recording contains the
        call itself instead of its operators, because it reads numbers that replays must read again."""
        tape: Tape | None = getattr(self._thread, "tape", None)
        if tape is None:
            function(changed, *others)
            return
        tape.paused = True
        function(changed, *others)
        tape.add(Call(function, [changed, *others], {}, []), changed)
        tape.paused = False

    def _memory(self, nbytes: int) -> Tensor:
        """This thread's memory, of at least this size."""
        memory: Tensor | None = getattr(self._thread, "memory", None)
        if memory is None or len(memory) < nbytes:
            memory = self._thread.memory = torch.empty(nbytes, dtype=torch.uint8)
        return memory


def essential_calls(calls: Sequence[Call]) -> list[Call]:
    """The calls with results that reach a tensor from before, without views and sums of constants."""
    made = set[int]().union(*(c.makes for c in calls)) - {0}
    outer = set[int]().union(*(c.reads for c in calls)) - made
    changed = set[int]().union(*(c.writes for c in calls))
    constant, working = {0}, list[Call]()
    for call in calls:
        if not call.writes and not call.makes - {0}:
            continue  # a view: its memory stays where it is
        if call.name not in EMPTY and not call.writes and call.reads <= constant and not call.makes & changed:
            constant |= call.makes
            continue
        working.append(call)
    needed, kept = set(outer), list[Call]()
    for call in reversed(working):
        if (call.makes | call.writes) & needed:
            needed |= call.reads
            kept.append(call)
    return kept[::-1]


class Places:
    """Places for the storages that calls make, in one piece of memory. nbytes: its size.

    loose: storages without a place, because their operators return memory of their own and copying it would
    take long. last: by storage, the last call that uses it.
    """

    def __init__(self, calls: Sequence[Call]):
        self.loose = {
            address(t)
            for call in calls
            for t in call.results
            if t.untyped_storage().nbytes() > COPIED_BYTES
            and address(t) in call.makes
            and call.name not in COPIES | EMPTY
            and writing_form(call) is None
        }
        sizes = {
            address(t): t.untyped_storage().nbytes()
            for c in calls
            for t in (*tensors(c.args), *tensors(c.kwargs), *c.results)
        }
        self.last = {p: i for i, c in enumerate(calls) for p in (*c.reads, *c.writes, *c.makes)}
        self.offsets, self.nbytes = dict[int, int](), 0
        for pointer in (p for call in calls for p in call.makes - self.loose if p):
            if pointer not in self.offsets:
                self.offsets[pointer] = self.nbytes
                self.nbytes += math.ceil(sizes[pointer] / ALIGNMENT) * ALIGNMENT


class _Named(_Mode):
    """Notes the operators that a call would run, without running them."""

    def __init__(self, results: Any):
        super().__init__()
        self.results, self.funcs = results, list[Any]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.funcs.append(func)
        return self.results


def writing_form(call: Call) -> Callable[..., Any] | None:
    """torch's function of this operator that writes into `out`; None if it has none of its own."""
    if not call.name or call.writes or not call.results:
        return None
    kinds = call.func, call.kinds, len(call.results)
    if kinds not in _FORMS:
        _FORMS[kinds] = _writing_form(call)
    return _FORMS[kinds]


_FORMS: dict[object, Callable[..., Any] | None] = {}
"""By operator and kinds of its arguments, the functions that `writing_form` and `method_form` found."""


def _rectified(x: Tensor, out: Tensor) -> Tensor:
    return torch.clamp_min(x, 0, out=out)  # the kernel of relu


def _masked_fill(x: Tensor, mask: Tensor, value: Any, out: Tensor) -> Tensor:
    return out.copy_(x).masked_fill_(mask, value)


OTHER_FORMS = {"aten::relu": _rectified, "aten::masked_fill": _masked_fill}
"""By operator without a form that writes into `out`, another function with its bits."""


def _writing_form(call: Call) -> Callable[..., Any] | None:
    if call.name in OTHER_FORMS:
        return OTHER_FORMS[call.name]
    out = call.results[0] if len(call.results) == 1 else tuple(call.results)
    for function in _writing_candidates(call):
        with suppress(TypeError, RuntimeError), torch.no_grad(), _Named(out) as mode:
            function(*call.args, **call.kwargs, out=out)
            same = len(mode.funcs) == 1 and mode.funcs[0]._schema.name == call.name
            if same and torch.Tag.generated not in mode.funcs[0].tags:
                return function
    return None


def _writing_candidates(call: Call) -> Iterator[Callable[..., Any]]:
    """torch's function of this name, and the operator's overloads, which may call their results otherwise."""
    if function := getattr(torch, call.name.removeprefix("aten::"), None):
        yield function
    packet = call.func.overloadpacket
    for overload in (getattr(packet, name) for name in packet.overloads()):
        names = [a.name for a in overload._schema.arguments if a.is_out]
        if len(names) == len(call.results):
            yield partial(_with_out, overload, names)


def _with_out(overload: Any, names: Sequence[str], *args: Any, out: Any, **kwargs: Any) -> Any:
    return overload(*args, **kwargs, **dict(zip(names, tensors(out))))


def method_form(call: Call) -> Callable[..., Any] | None:
    """torch's function of an operator that changes its arguments; None if it has none."""
    kinds = call.func, call.kinds, 0
    if kinds not in _FORMS:
        _FORMS[kinds] = _method_form(call)
    return _FORMS[kinds]


def _method_form(call: Call) -> Callable[..., Any] | None:
    name = call.name.removeprefix("aten::")
    function = getattr(Tensor, name, None) or getattr(torch, name, None)
    if function is None:
        return None
    try:
        with torch.no_grad(), _Named(call.args[0]) as mode:
            function(*call.args, **call.kwargs)
    except (TypeError, RuntimeError):
        return None
    return function if mode.funcs == [call.func] else None


class Replay:
    """A function that repeats calls."""

    def __init__(self, calls: Sequence[Call], places: Places, memory: Tensor):
        self.places, self.storage = places, memory.untyped_storage()
        self.loose: dict[int, dict[Geometry, Tensor]] = {}
        self.views: dict[int, set[Geometry]] = {}
        self.cache: dict[object, Tensor] = {}
        for call in calls:
            for t in tensors([call.args, call.kwargs, call.results]):
                if address(t) in places.loose:
                    self.views.setdefault(address(t), set()).add(geometry(t))
        ends: dict[int, list[int]] = {}
        for pointer in self.views:
            ends.setdefault(places.last[pointer], []).append(pointer)
        self.runs = [
            self._run(call, ends.get(i, [])) for i, call in enumerate(calls) if call.name not in EMPTY
        ]
        self.cache.clear()

    def __call__(self) -> None:
        with torch.no_grad():
            for run in self.runs:
                run()

    def _placed(self, t: Tensor) -> Any:
        """The tensor at its place; for a loose one how to find it."""
        pointer = address(t)
        if pointer in self.places.loose:
            return _Loose(pointer, geometry(t))
        if pointer not in self.places.offsets:
            return t
        key = (pointer, t.dtype, geometry(t))
        if key not in self.cache:
            start = self.places.offsets[pointer] // t.element_size() + t.storage_offset()
            placed = torch.empty(0, dtype=t.dtype)
            self.cache[key] = placed.set_(self.storage, start, t.shape, t.stride())  # type: ignore[call-overload]
        return self.cache[key]

    def _run(self, call: Call, ends: Sequence[int]) -> Callable[[], Any]:
        """A function that makes the call."""
        args, kwargs = (map_tensors(self._placed, v) for v in (call.args, call.kwargs))
        results: list[Any] = [self._placed(t) if address(t) in call.makes else None for t in call.results]
        fixed = not any(address(t) in self.places.loose for t in tensors([call.args, call.kwargs]))
        if not call.makes:
            run = self._bound((method_form(call) if call.name else None) or call.func, args, kwargs, fixed)
        elif call.writes or any(isinstance(r, _Loose) for r in results):
            run = partial(self._keep, self._bound(call.func, args, kwargs, fixed), results)
        elif call.name in COPIES:
            run = self._bound(results[0].copy_, args[:1], {}, fixed)
        elif function := writing_form(call):
            out = results[0] if len(results) == 1 else tuple(results)
            run = self._bound(function, args, {**kwargs, "out": out}, fixed)
        else:
            run = partial(self._copy, self._bound(call.func, args, kwargs, fixed), results)
        return partial(self._and_drop, run, ends) if ends else run

    def _bound(self, function: Callable[..., Any], args: Any, kwargs: Any, fixed: bool) -> Callable[[], Any]:
        if fixed:
            return partial(function, *args, **kwargs)
        return lambda: function(*self._found(args), **self._found(kwargs))

    def _found(self, value: Any) -> Any:
        if isinstance(value, _Loose):
            return self.loose[value.pointer][value.geometry]
        if isinstance(value, list):
            return [self._found(v) for v in value]
        return {n: self._found(v) for n, v in value.items()} if isinstance(value, dict) else value

    def _and_drop(self, run: Callable[[], Any], ends: Sequence[int]) -> None:
        run()
        for pointer in ends:
            self.loose.pop(pointer, None)

    def _keep(self, run: Callable[[], Any], results: Sequence[Any]) -> None:
        """Keep the results of a call, and all views of them that later calls read."""
        for place, value in zip(results, tensors(run())):
            if isinstance(place, _Loose):
                views = self.views[place.pointer]
                self.loose[place.pointer] = {
                    g: value if g == place.geometry else value.as_strided(*g) for g in views
                }
            elif place is not None:
                place.copy_(value)

    @staticmethod
    def _copy(run: Callable[[], Any], results: Sequence[Tensor]) -> None:
        for place, value in zip(results, tensors(run())):
            place.copy_(value)


@dataclass(frozen=True)
class _Loose:
    """In place of a tensor, where it is in `Replay.loose`."""

    pointer: int
    geometry: Geometry
