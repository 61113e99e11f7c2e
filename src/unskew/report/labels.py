"""Names for runs of one method that are not repeats of each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from unskew.report.runs import RunData, by_method

NOT_A_CONFIGURATION = ("method", "seed", "workers", "device", "lanes")
"""Settings that make a run a repeat (another seed, another machine) rather than another experiment."""


def distinct(runs: Sequence[RunData]) -> list[RunData]:
    """The runs, each with a label that only its own seeds share.

    Runs of a method that differ in settings are labelled with those settings, `flea (lr 0.1)`; runs that differ in
    nothing at all, not even the seed, with the names of their folders, `flea [runs-1]`.
    """
    labels: dict[int, str] = {}
    for method, group in by_method(runs).items():
        configurations = [_configuration(r) for r in group]
        differing = sorted(
            {k for c in configurations for k, v in c.items() if any(v != other.get(k) for other in configurations)}
        )
        identities = [(r.seed, *(str(c.get(k)) for k in differing)) for r, c in zip(group, configurations)]
        for run, configuration, identity in zip(group, configurations, identities):
            if identities.count(identity) > 1:
                labels[id(run)] = f"{method} [{run.name}]"
            elif differing:
                labels[id(run)] = f"{method} ({', '.join(f'{k} {configuration.get(k)}' for k in differing)})"
    return [replace(r, label=labels[id(r)]) if id(r) in labels else r for r in runs]


def _configuration(run: RunData) -> dict[str, Any]:
    return {k: v for k, v in run.config.items() if k not in NOT_A_CONFIGURATION}
