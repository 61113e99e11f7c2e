"""Amounts as people read them."""

from __future__ import annotations


def size(bytes_: float) -> str:
    """A number of bytes with three significant digits and its unit: `512 B`, `1.23 MB`."""
    for unit in ("B", "KB", "MB"):
        if bytes_ < 1000:
            return f"{bytes_:.3g} {unit}"
        bytes_ /= 1000
    return f"{bytes_:.3g} GB"
