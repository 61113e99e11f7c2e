"""One message on the wire: a JSON header, its signature, and tensors in safetensors format.

The header holds the SHA-256 of the tensors' bytes and the signature covers the header, so neither can be changed or
combined with another message's. Nothing is parsed before its size, signature and digest are checked, and nothing is
ever unpickled.

Header of a request: run, serial (grows with every request to a site), site, kind ("hello", "setup", "train", "visit",
"score", "share", "mask", "agree", "open"), t (the round). Header of a reply: the same, and `re`, the SHA-256 of the request's
header, so that a reply answers one request only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from unskew.core.trees import Tree, aligned, flat, nested
from unskew.deploy.bulk import SMALL, Bulk, Stored, Views, sha256, whole
from unskew.deploy.identity import Private, Public
from unskew.deploy.sealed import Sealed
from unskew.deploy.shelf import in_shape, names, shelved
from unskew.engine.disk.layout import layout

MOST_HEADER = 1 << 20
"""Bytes of JSON; the settings and names of ten thousand sites fit."""
PER_TENSOR = 512
"""Bytes of the safetensors header that one tensor may take: its name, type, shape and offsets."""


MOST_LEVELS = 16
"""How deep a message's tree may be: what walks through it calls itself at every level."""


class WireError(Exception):
    """A message that is refused. text: the end of a sentence that begins with the sender's name."""

    def __init__(self, code: str, text: str):
        super().__init__(text)
        self.code, self.text = code, text


@dataclass(frozen=True)
class Limits:
    """The most an honest message holds: bytes of tensors, and how many of them."""

    bytes: int
    tensors: int

    def __add__(self, other: Limits) -> Limits:
        return Limits(self.bytes + other.bytes, self.tensors + other.tensors)

    @property
    def blob(self) -> int:
        """Bytes of the tensors with their safetensors header."""
        return self.bytes + self.names

    @property
    def names(self) -> int:
        """Bytes of the safetensors header."""
        return PER_TENSOR * (self.tensors + 1)


@dataclass(frozen=True)
class Packet:
    """A message that was checked."""

    header: dict[str, Any]
    tree: Tree = field(default_factory=dict)


@dataclass(frozen=True)
class Packed:
    """A tree as it travels. facts: what the header must say of it."""

    blob: bytes | Bulk
    facts: Mapping[str, Any]


def pack(tree: Mapping[str, Any]) -> Packed:
    """Lay out a tree, of which nothing must change until it was sent: many bytes are not copied."""
    tensors = {n: t.detach().cpu() for n, t in flat(tree).items()}
    axes = {n: order for n, t in tensors.items() if (order := _axes(t))}
    in_order = {n: (t.permute(axes[n]) if n in axes else t).contiguous() for n, t in tensors.items()}
    views = Views(layout(in_order) if in_order else [])
    blob = views if len(views) > SMALL else views.read(0, SMALL)
    return Packed(blob, {"sha256": sha256(blob)} | ({"axes": axes} if axes else {}))


def seal(header: Mapping[str, Any], tree: Mapping[str, Any] | Packed, key: Private) -> Sealed:
    """Pack and sign a message. Numbers that are not finite become null, because JSON has no word for them."""
    packed = tree if isinstance(tree, Packed) else pack(tree)
    text = json.dumps({n: _finite(v) for n, v in header.items()} | dict(packed.facts), sort_keys=True, allow_nan=False)
    return Sealed(text, key.sign(text.encode()), packed.blob)


def unseal(sealed: Sealed, key: Public, limits: Limits) -> Packet:
    """Check and unpack a message that `key` should have signed.

    Raises WireError: E304 if it is too large, E310 if it was changed, cut off or not signed by this key.
    """
    if len(sealed.blob) > limits.blob or len(sealed.text) > MOST_HEADER:
        size, most = f"{len(sealed.blob):,} and {len(sealed.text):,}", f"{limits.blob:,} and {MOST_HEADER:,}"
        raise WireError("E304", f"its tensors and header have {size} bytes; at most {most} are expected.")
    if not key.signed(sealed.text.encode(), sealed.signature):
        raise WireError("E310", "the signature does not match: the message was changed, or sent by somebody else.")
    header = _header(sealed.text)
    if header.get("sha256") != sha256(sealed.blob):
        raise WireError("E310", "the tensors do not have the SHA-256 that was signed.")
    return Packet(header, _tensors(sealed.blob, limits, header.get("axes", {})) if len(sealed.blob) else {})


def _header(text: str) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise WireError("E310", "the header is not a JSON object.")
    return header


def _tensors(blob: bytes | Bulk, limits: Limits, axes: Any) -> Tree:
    start = blob[:8] if isinstance(blob, bytes) else blob.read(0, 8)
    if int.from_bytes(start, "little") > limits.names:
        raise WireError("E304", f"the message lists more than the {limits.tensors} tensors expected.")
    try:
        tensors = dict.fromkeys(names(blob)) if isinstance(blob, Stored) else _loaded(blob)
    except (SafetensorError, ValueError, KeyError, RuntimeError, OverflowError, TypeError) as error:
        raise WireError("E310", f"the tensors cannot be read ({type(error).__name__}).") from error
    if len(tensors) > limits.tensors:
        raise WireError("E304", f"the message holds {len(tensors)} tensors; at most {limits.tensors} are expected.")
    if any(path.count("/") >= MOST_LEVELS for path in tensors):
        raise WireError("E310", f"a tensor's name has more than {MOST_LEVELS} levels.")
    try:
        if any(path[:i] in tensors for path in tensors for i, character in enumerate(path) if character == "/"):
            raise KeyError
        return _tree(blob, tensors, dict(axes))
    except (AttributeError, KeyError, TypeError, ValueError, IndexError, RuntimeError, SafetensorError):
        raise WireError("E310", "the tensors' names or axes do not fit together.") from None


def _loaded(blob: bytes | Bulk) -> dict[str, Tensor]:
    """The tensors of a file's bytes. Bytes and tensors are let go one after the other, before and while others are made."""
    tensors = load(whole(blob))
    return {name: aligned(tensors.pop(name)) for name in sorted(tensors)}


def _tree(blob: bytes | Bulk, tensors: Mapping[str, Any], orders: Mapping[str, list[int]]) -> Tree:
    """The tensors by name, each in its shape; those of a file stay there."""
    if isinstance(blob, Stored):
        return shelved(blob, list(tensors), orders)
    return nested(dict(tensors) | {path: in_shape(tensors[path], order) for path, order in orders.items()})


def _axes(t: Tensor) -> list[int] | None:
    """The order of a tensor's axes in memory, which sums over it follow, so the receiver restores it.

    None for tensors that are contiguous, or have gaps; those are sent in the order of their shape.
    """
    if t.is_contiguous():
        return None
    order = sorted(range(t.dim()), key=lambda i: -t.stride(i))
    return order if t.permute(order).is_contiguous() else None


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
