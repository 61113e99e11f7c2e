"""One message on the wire: a JSON header, its signature, and tensors in safetensors format.

The header holds the SHA-256 of the tensors' bytes and the signature covers the header, so neither can be changed or
combined with another message's. Nothing is parsed before its size, signature and digest are checked, and nothing is
ever unpickled.

Header of a request: run, serial (grows with every request to a site), site, kind ("hello", "setup", "train", "visit",
"score"), t (the round). Header of a reply: the same, and `re`, the SHA-256 of the request's header, so that a reply
answers one request only.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from unskew.core.trees import Tree, flat, nested
from unskew.deploy.identity import Private, Public
from unskew.deploy.sealed import Sealed
from unskew.engine.disk.state import apart

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


def seal(header: Mapping[str, Any], tree: Mapping[str, Any], key: Private) -> Sealed:
    """Pack and sign a message. Numbers that are not finite become null, because JSON has no word for them."""
    tensors = {n: t.detach().cpu() for n, t in flat(tree).items()}
    axes = {n: order for n, t in tensors.items() if (order := _axes(t))}
    in_order = {n: (t.permute(axes[n]) if n in axes else t).contiguous() for n, t in tensors.items()}
    blob = save(apart(in_order)) if in_order else b""
    whole = {n: _finite(v) for n, v in header.items()} | {"sha256": hashlib.sha256(blob).hexdigest()}
    whole |= {"axes": axes} if axes else {}
    text = json.dumps(whole, sort_keys=True, allow_nan=False)
    return Sealed(text, key.sign(text.encode()), blob)


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
    if header.get("sha256") != hashlib.sha256(sealed.blob).hexdigest():
        raise WireError("E310", "the tensors do not have the SHA-256 that was signed.")
    return Packet(header, _tensors(sealed.blob, limits, header.get("axes", {})) if sealed.blob else {})


def _header(text: str) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise WireError("E310", "the header is not a JSON object.")
    return header


def _tensors(blob: bytes, limits: Limits, axes: Any) -> Tree:
    if int.from_bytes(blob[:8], "little") > limits.names:
        raise WireError("E304", f"the message lists more than the {limits.tensors} tensors expected.")
    try:
        tensors = load(blob)
    except (SafetensorError, ValueError, KeyError, RuntimeError, OverflowError, TypeError) as error:
        raise WireError("E310", f"the tensors cannot be read ({type(error).__name__}).") from error
    if len(tensors) > limits.tensors:
        raise WireError("E304", f"the message holds {len(tensors)} tensors; at most {limits.tensors} are expected.")
    if any(path.count("/") >= MOST_LEVELS for path in tensors):
        raise WireError("E310", f"a tensor's name has more than {MOST_LEVELS} levels.")
    try:
        for name, order in dict(axes).items():
            tensors[name] = tensors[name].permute([order.index(i) for i in range(tensors[name].dim())])
        if any(path[:i] in tensors for path in tensors for i, character in enumerate(path) if character == "/"):
            raise KeyError
        return nested(tensors)
    except (AttributeError, KeyError, TypeError, ValueError, IndexError, RuntimeError):
        raise WireError("E310", "the tensors' names or axes do not fit together.") from None


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
