"""A shortened run: fewer rounds, and everything that is counted in rounds changed so that it ends where a whole run ends.

Of T rounds, S are left. A factor per round on the learning rate becomes its (T - 1) / (S - 1)-th power, rounds in which the
rate falls evenly become that many times fewer, and a Part changes its own schedules (`Part.paced`). What is a share of the
rounds needs no change. Availability is kept: how often clients are absent is the setting, not a schedule.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import fields

from unskew.config import Settings
from unskew.core.method import Method
from unskew.engine.resolve import is_reference
from unskew.methods import registry

LEAST = 2
"""Rounds that are left at least."""


def shortened(settings: Settings, share: float) -> Settings:
    """The settings of a run of this share of the rounds, with the method as text; the same settings for a share of 1."""
    whole, rounds = settings.rounds, max(LEAST, math.ceil(settings.rounds * share))
    if rounds >= whole:
        return settings.replace(rounds=rounds)
    pace = (whole - 1) / (rounds - 1)
    short = settings.replace(rounds=rounds, lr_decay=settings.lr_decay**pace, lr_rounds=settings.lr_rounds / pace)
    if is_reference(settings.method):
        return short
    method = registry.parse(settings.method)
    paced = Method(*(part.paced(whole, rounds) for part in method.parts))
    return short if paced == method else short.replace(method=str(paced))


def changes(whole: Settings, short: Settings) -> list[str]:
    """What shortening has changed beside the number of rounds: `lr_decay 0.98 becomes 0.9201`."""
    each = [(name, getattr(whole, name), getattr(short, name)) for name in ("lr_decay", "lr_rounds")]
    if whole.method != short.method:
        for before, after in zip(registry.parse(whole.method).parts, registry.parse(short.method).parts):
            values = ((f"{before.name}.{f.name}", f.name) for f in fields(before))  # type: ignore[arg-type]
            each += [(text, getattr(before, name), getattr(after, name)) for text, name in values]
    return [f"{name} {before:.4g} becomes {after:.4g}" for name, before, after in each if before != after]


def distinct(pairs: Iterable[tuple[Settings, Settings]]) -> list[str]:
    """The changes of several runs, each once. pairs: the settings of the whole run and of the shortened one."""
    return list(dict.fromkeys(change for whole, short in pairs for change in changes(whole, short)))
