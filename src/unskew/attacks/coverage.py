"""Which attacks read what a method's clients send."""

from __future__ import annotations

from unskew.attacks import catalogue
from unskew.core.client import Fed
from unskew.core.method import Method


def attacked(method: Method, fed: Fed) -> list[str]:
    """A line on each payload: the attacks that measure what it tells, or that none does."""
    payloads = ["w"] if fed.shared else []
    for part in method.parts:
        declared = [part.shares(fed), *(trip.shares(fed) for trip in part.trips)]
        payloads += [f"{part.name}/{leaf.partition('/')[0]}" for shares in declared for leaf in shares]
    lines = []
    for payload in dict.fromkeys(payloads):
        names = catalogue.reading(payload)
        how = ", ".join(f"unskew {n} RUN" if n == "audit" else f"unskew attack RUN {n}" for n in names)
        lines.append(f"{'weights' if payload == 'w' else payload}: {how or 'no attack'}")
    head = "what it tells       "
    return [(head if i == 0 else " " * len(head)) + line for i, line in enumerate(lines)]
