"""The checkpoint: one file, one rename, the one before kept.

A safetensors file whose metadata holds the rest as JSON and a SHA-256 over everything, so that damage is noticed and
never loaded. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from unskew import disk
from unskew.core.trees import Tree, Weights, flat, nested
from unskew.errors import StateError

LATEST, PREVIOUS = "state.safetensors", "state.previous.safetensors"


@dataclass
class State:
    """All a server knows after round t; with the clients' private state it determines the rest of the run."""

    t: int
    weights: Weights
    slices: dict[str, Tree] = field(default_factory=dict)


def digest(tree: Mapping[str, Any], meta: str = "") -> str:
    """SHA-256 over names, dtypes, shapes and bytes of every tensor, and the metadata."""
    sha = hashlib.sha256(meta.encode())
    for path, tensor in flat(tree).items():
        data = tensor.detach().contiguous().cpu()
        sha.update(f"\n{path} {data.dtype} {list(data.shape)}\n".encode())
        sha.update(memoryview(data.reshape(-1).view(torch.uint8).numpy()))
    return sha.hexdigest()


def write(path: Path, tree: Mapping[str, Any], meta: Mapping[str, Any], keep: Path | None = None) -> None:
    """Write a tree and its metadata as one file, which is replaced as a whole. keep: where the old file remains.

    Raises Paused (E203) when the disk is full; the old file stays.
    """
    text = json.dumps(meta, sort_keys=True)
    tensors = apart({n: t.detach().contiguous().cpu() for n, t in flat(tree).items()})
    disk.replace(path, save(tensors, {"meta": text, "sha256": digest(tensors, text)}), keep)


def apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """No two of them in the same memory, which the format refuses and a Part may well hand over."""
    seen: set[int] = set()
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        if place in seen and tensor.numel():
            tensors[name] = tensor.clone()
        seen.add(place)
    return tensors


def read(path: Path) -> tuple[Tree, dict[str, Any]]:
    """The tree and metadata of a file. Raises StateError (E201) if it is damaged, FileNotFoundError if not there."""
    try:
        with safe_open(str(path), "pt") as file:
            metadata = file.metadata() or {}
            tensors: dict[str, Tensor] = {n: file.get_tensor(n) for n in file.keys()}
        text = metadata["meta"]
        if digest(tensors, text) != metadata["sha256"]:
            raise StateError("E201", f"{path.name} fails its SHA-256.")
        return nested(tensors), json.loads(text)
    except FileNotFoundError:
        raise
    except (SafetensorError, KeyError, ValueError, RuntimeError, OSError, OverflowError, UnicodeDecodeError) as error:
        raise StateError("E201", f"{path.name} cannot be read ({type(error).__name__}).") from error


def latest(folder: Path, say: Callable[[str], None]) -> tuple[Tree, dict[str, Any]] | None:
    """The newest checkpoint that is whole; a damaged one is set aside as `.bad` and said."""
    damaged = False
    for name in (LATEST, PREVIOUS):
        path = folder / name
        try:
            checkpoint = read(path)
        except FileNotFoundError:
            continue
        except StateError as error:
            bad = path.with_suffix(".bad")
            path.rename(bad)
            say(f"{error} Kept as {bad.name}; trying the checkpoint before it.")
            damaged = True
            continue
        return checkpoint
    if damaged:
        raise StateError("E202", f"no checkpoint in {folder} is whole. Start the run again under another --name.")
    return None
