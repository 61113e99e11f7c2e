"""A site's refusal of what its policy does not allow."""

from __future__ import annotations

from unskew.errors import UsageError


def refusal(text: str) -> UsageError:
    """What both ends read when the policy does not allow something (E520)."""
    return UsageError("E520", f"the site's policy does not allow it: {text}.")
