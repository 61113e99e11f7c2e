"""Local training: every client trains alone and sends nothing; the reference row of every comparison.

Differs from the paper: nothing; it has none.
"""

from dataclasses import dataclass

from unskew.core import Fed, Part


@dataclass(frozen=True)
class Local(Part):
    """Keeps every weight on the client."""

    name = "local"
    divides = True
    family = "reference"
    use_when = "As a reference: what clients reach without any federation."

    def keeps(self, name: str, fed: Fed) -> bool:
        return True
