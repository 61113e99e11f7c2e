"""What a user should know of a run before round 1, as remarks, each with its code."""

from __future__ import annotations

from unskew.config import Settings
from unskew.core.client import Fed
from unskew.core.method import Method, on_plan
from unskew.privacy.remarks import on_noise

LEAST_RATE = 1e-20
"""Steps of a smaller learning rate move no weight: float32 keeps about seven digits of it."""


def foreseen(settings: Settings, method: Method, fed: Fed) -> tuple[tuple[str, str], ...]:
    """The remarks on a run of this method with these settings."""
    return (*on_noise(method, fed), *on_plan(method, fed, settings.patience), *on_rate(settings))


def on_rate(settings: Settings) -> tuple[tuple[str, str], ...]:
    """A remark (E140) where the learning rate falls so far within the run that later rounds train nothing."""
    idle = next((t for t in range(1, settings.rounds + 1) if settings.lr_in(t) < LEAST_RATE), None)
    if idle is None:
        return ()
    by = f"lr_rounds={settings.lr_rounds:g}" if settings.lr_rounds else f"lr_decay={settings.lr_decay:g}"
    fallen = f"in round {idle} of {settings.rounds} the learning rate has fallen to {settings.lr_in(idle):.3g} ({by}, lr_min={settings.lr_min:g})"
    return (
        (
            "E140",
            f"{fallen}, so no round from there on trains anything; set a larger lr_min, or let it fall more slowly.",
        ),
    )
