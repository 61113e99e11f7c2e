"""Folders with a Hugging Face model: the files that are read, and checks before any library reads them.

A folder may come from a stranger, so only config.json and *.safetensors files with their index are read.
Pickles, Python files and adapters are never opened, and references to code in config.json are removed. This
module does not import torch.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from unskew.errors import UsageError
from unskew.formats import calls

NAME = "hf"
"""The name of the model that reads such folders."""
CONFIG, INDEX = "config.json", "model.safetensors.index.json"
MOST_BYTES = 1 << 22
"""The most bytes of a JSON file."""
IGNORED_KEYS = (
    "auto_map",
    "attn_implementation",
    "_attn_implementation",
    "_attn_implementation_internal",
    "_name_or_path",
    "dtype",
    "torch_dtype",
    "peft_type",
)
"""Keys of config.json that could name code, kernels or other places; they are removed."""


def folder_in(text: str) -> str:
    """The folder in a model's text, `hf(path='models/tiny')` -> "models/tiny"; "" if there is none."""
    if not text.lstrip().startswith(NAME):
        return ""
    call = calls.parse(text, "model", "E104")
    return str(call.arguments.get("path", "")) if call.name == NAME else ""


def is_folder_model(text: str) -> bool:
    """Whether a model's text is of the form `hf(...)`, even without a path."""
    return text.split("(")[0].strip() == NAME


def is_on_disk(text: str) -> bool:
    """Whether a model's text names a user's file or folder. Raises UsageError (E104) for an invalid text."""
    return bool(calls.parse(text, "model", "E104").file) or is_folder_model(text)


def digests(text: str) -> dict[str, str]:
    """The digest of the model's files in the folder of a model's text, by folder; {} if there are none."""
    path = folder_in(text)
    folder = Path(path).expanduser()
    files = [folder / CONFIG, folder / INDEX, *sorted(folder.glob("*.safetensors"))] if path else []
    files = [file for file in files if file.is_file()]
    seen = tuple((str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files)
    return {path: _digest(seen)} if seen else {}


def config(path: str) -> dict[str, Any]:
    """The content of config.json without IGNORED_KEYS. Raises UsageError (E104) for a folder without a
    model."""
    folder = Path(path).expanduser()
    if not path or not folder.is_dir():
        raise UsageError("E104", f"there is no folder {path or '(none given)'}; write {NAME}(path='FOLDER').")
    facts = _json(folder / CONFIG, path)
    return {key: value for key, value in facts.items() if key not in IGNORED_KEYS}


def weights(path: str) -> list[Path]:
    """The files with the weights. Raises UsageError (E104) without any, or for an index of other folders."""
    folder = Path(path).expanduser()
    if (folder / INDEX).exists():
        shards = _json(folder / INDEX, path).get("weight_map")
        names = sorted(set(map(str, shards.values()))) if isinstance(shards, dict) else []
    else:
        names = ["model.safetensors"]
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise UsageError(
                "E104", f"{path}: {INDEX} names '{name}', which is no .safetensors file of the folder."
            )
    files = [folder / name for name in names]
    missing = [file.name for file in files if not file.is_file()]
    if not files or missing:
        pickled = sorted(
            file.name for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt") for file in folder.glob(pattern)
        )
        text = f"{path} has no {missing[0] if missing else 'model.safetensors'}"
        if pickled:
            text += f"; {pickled[0]} is a pickle, which could run code and is never opened"
        raise UsageError(
            "E104", f"{text}; save the model with save_pretrained(..., safe_serialization=True)."
        )
    return files


@lru_cache(maxsize=16)
def _digest(seen: tuple[tuple[str, int, int], ...]) -> str:
    """16 hexadecimal digits of the SHA-256 of names and contents. seen: (file, size, time of change) of
    each."""
    sha = hashlib.sha256()
    for file, size, _ in seen:
        sha.update(f"\n{Path(file).name} {size}\n".encode())
        with Path(file).open("rb") as content:
            while piece := content.read(1 << 22):
                sha.update(piece)
    return sha.hexdigest()[:16]


def _json(file: Path, path: str) -> dict[str, Any]:
    """The JSON object in a file. Raises UsageError (E104) for another content."""
    try:
        if file.stat().st_size > MOST_BYTES:
            raise ValueError(f"it has {file.stat().st_size:,} bytes")
        facts = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(facts, dict):
            raise ValueError("it holds no keys")
    except FileNotFoundError:
        raise UsageError(
            "E104", f"{path} has no {file.name}, so it is no folder of a Hugging Face model."
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(
            "E104", f"{file} cannot be read as JSON ({type(error).__name__}: {error})."
        ) from None
    return facts
