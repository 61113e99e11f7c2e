"""The setting `secure_aggregation`: `off`, or `on,clip=8,bits=32,threshold=0.8`, with which the server sees
sums only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Gt, Le

from unskew.errors import UsageError
from unskew.formats import specs

SUM = "sum"
"""The name under which the loss and the count of clipped numbers are summed."""
LEAST_SITES = 3
"""Fewer clients in a sum hide too little: of two, each knows the other's part."""
MOST_FRACTION, LEAST_FRACTION = 32, 12
"""Binary digits after the point: more exceed the precision of float32, fewer spoil small updates."""
EXACT = 52
"""Binary digits of a float64: up to here a number of steps is exact."""


@dataclass(frozen=True)
class SecureAggregation:
    """The number format of the sums, and the share of a round's sites that is needed to open one."""

    clip: Annotated[
        float,
        Ge(1e-3),
        Le(2**20),
        "largest size of a number that enters a sum; larger ones are cut to it, and counted",
    ] = float(2**20)
    bits: Annotated[
        Literal[32, 64], "bits of each masked number; 32 halves what sites send, with a small clip"
    ] = 64
    threshold: Annotated[
        float,
        Gt(0.5),
        Le(1),
        "share of a round's sites that it takes to open the sum; always more than half of them, and 3 sites"
        " or more",
    ] = 0.66
    name: ClassVar[str] = "on"
    value: ClassVar[tuple[str, ...]] = ()
    example: ClassVar[str] = "on,clip=8,bits=32,threshold=0.8"

    def fraction(self, clients: int) -> int:
        """The binary digits after the point with which a sum over `clients` clients stays in range.

        Raises UsageError (E108) if so few are left that small updates would be lost.
        """
        whole, many = math.ceil(math.log2(self.clip)), math.ceil(math.log2(max(2, clients)))
        digits = min(self.bits - 1 - whole - many, EXACT - whole, MOST_FRACTION)
        if digits < LEAST_FRACTION:
            text = (
                f"{self.bits} bits leave steps of {2.0**-digits:g} for numbers up to {self.clip:g} of"
                f" {clients} clients"
            )
            raise UsageError("E108", f"secure_aggregation: {text}; set clip=8, or bits=64.")
        return digits

    def needed(self, sites: int) -> int:
        """The number of sites that is needed to open a sum over `sites` sites."""
        return max(LEAST_SITES, sites // 2 + 1, math.ceil(self.threshold * sites - 1e-9))

    def __str__(self) -> str:
        return f"secure aggregation, {self.bits}-bit numbers up to {self.clip:.10g}"


@dataclass(frozen=True)
class Off:
    """No secure aggregation: the server sees every client's reply."""

    name: ClassVar[str] = "off"
    value: ClassVar[tuple[str, ...]] = ()
    example: ClassVar[str] = "off"


def parse(text: str) -> SecureAggregation | None:
    """The setting as a value; None for `off`. Raises UsageError (E109) for a text that is neither."""
    spec = specs.parse(text, "secure_aggregation", "E109")
    kinds: dict[str, type[SecureAggregation] | type[Off]] = {k.name: k for k in (SecureAggregation, Off)}
    setting = specs.read(spec, kinds, "secure_aggregation", "E109")
    return setting if isinstance(setting, SecureAggregation) else None
