"""Local only: every client trains alone and nothing leaves it (the reference row of every comparison).

Differs from the paper: nothing; it has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from unskew.core.client import Fed
from unskew.core.part import Part


@dataclass(frozen=True)
class Local(Part):
    """Keeps every weight on the client."""

    name: ClassVar[str] = "local"

    def keeps(self, name: str, fed: Fed) -> bool:
        return True
