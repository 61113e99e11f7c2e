"""An attack: settings with their ranges and meanings, whom it plays, which runs it fits, and one attempt."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, ClassVar

from annotated_types import Ge, Le

from unskew import arguments
from unskew.attacks.scene import Scene
from unskew.attacks.scores import Outcome
from unskew.models.tokens import LookedUp


@dataclass(frozen=True)
class Attack:
    """One way to learn about clients' samples from what they sent.

    A subclass is a frozen dataclass in a file of `attacks/kinds` whose name is the attack's. Its fields are its settings,
    each `Annotated` with range and meaning.
    """

    samples: Annotated[int, Ge(1), Le(1_000_000), "the most samples that are attacked"] = 500
    name: ClassVar[str] = ""
    adversary: ClassVar[str] = ""
    """Whom the attack plays, in words: what this adversary reads and knows."""
    asks: ClassVar[str] = ""
    """What it asks of a payload, as a question for readers who know no attacks."""
    alone: ClassVar[str] = ""
    """Why it is made only if it is named, as the end of a sentence; "" for an attack that is made with all others."""
    on_merged: ClassVar[bool] = False
    """Whether it can do with the merged model, where no round can be computed again."""
    quick: ClassVar[Mapping[str, object]] = {}
    """Settings with which it ends in seconds, for comparisons of many runs; it attacks what was sent, and nothing else."""

    one_input: ClassVar[bool] = True
    """Whether a sample must have one input, because the attack recovers it as a whole, or compares it."""
    lookups: ClassVar[Collection[LookedUp]] = ("", "kept", "sent")
    """With which models it can do, by whether they look whole numbers up and send the table."""

    def refuse(self, scene: Scene) -> str | None:
        """Why it does not fit this run, as the end of a sentence; None if it does. Asked before anything is computed."""
        raise NotImplementedError

    def attempt(self, scene: Scene, seed: int) -> Outcome:
        """The attack with one seed, which decides what the attacker draws; the run itself has the seed it had."""
        raise NotImplementedError

    def __post_init__(self) -> None:
        """Checks and converts every setting. Raises UsageError (E150)."""
        settings = {f.name: getattr(self, f.name) for f in fields(self)}
        for name, value in arguments.check(type(self), settings, f"attack '{self.name}'", "E150").items():
            object.__setattr__(self, name, value)

    def changed(self) -> dict[str, object]:
        """The settings that are not the defaults."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
