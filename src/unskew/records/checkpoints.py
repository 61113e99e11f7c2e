"""The server's state and its checkpoint: one safetensors file that is renamed into place; the previous one is
kept.

The metadata of the file hold the facts as JSON and a SHA-256 over everything, so that a damaged file is never
loaded. They have a single key, because several would be written in random order, and equal states give equal
files. A file is written as a list of buffers, its header and views of the tensors, without copies.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from unskew.core.trees import Tree, Weights, align, leaves, nested_tree, tree_map
from unskew.errors import StateError
from unskew.system import disk

TYPES = {
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.float32: "F32",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""The format's names of types, the widest first, which is the order of tensors whose sizes are not
aligned."""
_RANK = {dtype: rank for rank, dtype in enumerate(TYPES)}
_ALIGNMENT = 64
"""In bytes: a tensor whose size is a multiple of it begins at a multiple of it, so that readers need not copy
it (`align` in core/trees.py)."""


class TensorForm(NamedTuple):
    """A tensor as a file's header describes it. nbytes: of its values."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    nbytes: int

    @staticmethod
    def of(tensor: Tensor) -> TensorForm:
        return TensorForm(tensor.dtype, tuple(tensor.shape), math.prod(tensor.shape) * tensor.element_size())


def file_buffers(tensors: Mapping[str, Tensor]) -> list[memoryview]:
    """The buffers of a safetensors file with these contiguous tensors on the CPU.

    The buffers are views of the tensors' memory: write them before a tensor changes. Raises ValueError for a
    type that the format does not have.
    """
    names, head = file_header({name: TensorForm.of(tensor) for name, tensor in tensors.items()})
    return [head, *(tensor_bytes(tensors[name]) for name in names)]


def file_header(
    forms: Mapping[str, TensorForm], facts: Mapping[str, str] | None = None
) -> tuple[list[str], memoryview]:
    """(names in the order of their tensors in the file, the header). Raises ValueError for a type that the
    format does not have."""
    for name, form in forms.items():
        if form.dtype not in TYPES:
            raise ValueError(f"'{name}' is {form.dtype}, which safetensors cannot hold")
    names = sorted(
        forms, key=lambda n: (forms[n].nbytes % _ALIGNMENT != 0, _RANK[forms[n].dtype], n.encode())
    )
    header: dict[str, object] = {"__metadata__": dict(facts)} if facts else {}
    end = 0
    for name in names:
        form = forms[name]
        begin, end = end, end + form.nbytes
        header[name] = {"dtype": TYPES[form.dtype], "shape": list(form.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    head = memoryview(len(text).to_bytes(8, "little") + text)
    return names, head


def tensor_bytes(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the CPU."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().data


LATEST, PREVIOUS = "state.safetensors", "state.previous.safetensors"
MODEL = "model.safetensors"
"""The weights of a finished run."""
KEY = "unskew"
"""The metadata's key; its value is a JSON list of the SHA-256 and the facts as JSON."""
UNREADABLE = (
    *(
        SafetensorError,
        KeyError,
        ValueError,
        TypeError,
        RuntimeError,
        OSError,
        OverflowError,
        UnicodeDecodeError,
    ),
)
"""The exceptions of reading a damaged file."""
Checkpoint = tuple[Tree, dict[str, Any]]
"""Tensors and facts."""


@dataclass
class State:
    """The server's state after round t; with the clients' private state it determines the rest of the run."""

    t: int
    weights: Weights
    slices: dict[str, Tree] = field(default_factory=dict)


def state_in(checkpoint: Checkpoint, device: str | torch.device = "cpu") -> State:
    """The state of a checkpoint, on this device."""
    tree, facts = checkpoint
    w, slices = (tree_map(lambda t: t.to(device), part) for part in (tree["w"], tree.get("slices", {})))
    return State(facts["t"], w, slices)


def digest(tree: Mapping[str, Any], meta: str = "") -> str:
    """SHA-256 over names, dtypes, shapes and bytes of every tensor, and the metadata."""
    sha = hashlib.sha256(meta.encode())
    for path, tensor in leaves(tree):  # one after another, since they may lie in a file
        data = tensor.detach().contiguous().cpu()
        sha.update(f"\n{path} {data.dtype} {list(data.shape)}\n".encode())
        sha.update(data.reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()


def write(path: Path, tree: Mapping[str, Any], meta: Mapping[str, Any], keep: Path | None = None) -> None:
    """Write a tree and its metadata as one file, which is replaced atomically. keep: a path for the old file.

    Raises Paused (E203) if the disk is full; the old file remains.
    """
    text = json.dumps(meta, sort_keys=True)
    write_with_digest(path, tree, text, digest(tree, text), keep)


def write_with_digest(
    path: Path,
    tree: Mapping[str, Any],
    facts: str,
    sha256: str,
    keep: Path | None = None,
    sync: bool = True,
) -> None:
    """As `write`, with facts as JSON and the caller's own digest, which readers check. sync: wait until the
    file is on the disk."""
    forms = {n: TensorForm.of(t) for n, t in leaves(tree)}
    names, head = file_header(forms, {KEY: json.dumps([sha256, facts])})
    places = _tensor_readers(tree)
    pieces = (tensor_bytes(places[name]().detach().contiguous().cpu()) for name in names)
    disk.replace_piecewise(
        path, chain([head], pieces), len(head) + sum(form.nbytes for form in forms.values()), keep, sync
    )


def _tensor_readers(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Callable[[], Tensor]]:
    """By path, a function that reads a tensor of a tree, which may be in a file."""
    places: dict[str, Callable[[], Tensor]] = {}
    for name in tree:
        value = tree[name]
        if isinstance(value, Mapping):
            places |= _tensor_readers(value, f"{prefix}{name}/")
        else:
            places[f"{prefix}{name}"] = partial(tree.__getitem__, name)
    return places


def file_facts(metadata: Mapping[str, str] | None) -> tuple[str, str]:
    """(SHA-256, facts as JSON) in a file's metadata. Raises ValueError or TypeError for other metadata."""
    sha256, facts = json.loads((metadata or {})[KEY])
    return sha256, facts


def read(path: Path) -> Checkpoint:
    """The tree and facts of a file. Raises StateError (E201) if it is damaged, FileNotFoundError, or
    PermissionError."""
    try:
        open(path, "rb").close()  # safetensors reports an unreadable file as missing
        with safe_open(str(path), "pt") as file:
            sha256, text = file_facts(file.metadata())
            tensors: dict[str, Tensor] = {n: align(file.get_tensor(n)) for n in file.keys()}
        if digest(tensors, text) != sha256:
            raise StateError("E201", f"{path.name} fails its SHA-256.")
        return nested_tree(tensors), json.loads(text)
    except (FileNotFoundError, PermissionError):
        raise
    except UNREADABLE as error:
        raise StateError("E201", f"{path.name} cannot be read ({type(error).__name__}).") from error


def latest_facts(folder: Path) -> dict[str, Any]:
    """The facts of the newest checkpoint, without reading its tensors; {} if there is none or it is
    damaged."""
    try:
        with safe_open(str(folder / LATEST), "pt") as file:
            return dict(json.loads(file_facts(file.metadata())[1]))
    except UNREADABLE:
        return {}


def latest(
    folder: Path, check: Callable[[Checkpoint], None], say: Callable[[str], None]
) -> Checkpoint | None:
    """The newest intact checkpoint; None before the first. A damaged newer one is renamed to `.bad`.

    check: raises StateError if a file that a checkpoint refers to is damaged. say: prints a sentence on each
    damaged one. Raises StateError, E201 or the code of the damaged file, if there are checkpoints and none is
    intact; then none is renamed.
    """
    failures: dict[Path, StateError] = {}
    for path in (folder / LATEST, folder / PREVIOUS):
        try:
            checkpoint = read(path)
            check(checkpoint)
        except FileNotFoundError:
            failures[path] = StateError("E201", f"{path.name} is missing.")
            continue
        except StateError as error:
            failures[path] = error
            continue
        for worse, error in failures.items():
            say(f"{error}{_set_aside(worse)} Going on from the checkpoint before it.")
        return checkpoint
    damaged = [error for path, error in failures.items() if path.exists()]
    if not damaged:
        return None
    why = " ".join(str(error) for error in damaged)
    raise StateError(
        damaged[-1].code,
        f"no checkpoint in {folder} is whole: {why} Start the run again under another --name.",
    )


def _set_aside(path: Path) -> str:
    if not path.exists():
        return ""
    path.rename(bad := path.with_suffix(".bad"))
    return f" Kept as {bad.name}."
