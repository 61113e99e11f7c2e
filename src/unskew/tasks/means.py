"""Means of scores over clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def mean(shares: Sequence[float], scores: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """metric -> its mean over clients. shares: of each client's rows among all, which add up to 1."""
    return {m: float(sum(s * v[m] for s, v in zip(shares, scores, strict=True))) for m in scores[0]}
