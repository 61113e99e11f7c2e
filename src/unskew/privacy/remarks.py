"""What to know of a method's noise before round 1, each remark with its code."""

from __future__ import annotations

from unskew.core.client import Fed
from unskew.core.method import Method
from unskew.privacy import dp, dpsgd


def on_noise(method: Method, fed: Fed) -> tuple[tuple[str, str], ...]:
    """Of every Part that protects, whether its settings suit this method and these clients."""
    return (*dp.remarks(method, fed), *dpsgd.remarks(method, fed))
