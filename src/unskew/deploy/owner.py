"""Whose a file in a site's folder is: of which run, of which site, and of which method.

Files of two sites, or of two runs of one site, have the same names and often the same form. What was copied into the wrong
folder would be trained on or predicted with as if it were this site's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from unskew.core.trees import Tree
from unskew.engine.disk import state
from unskew.errors import StateError

KEY = "owner"
"""Of a file's facts."""


@dataclass(frozen=True)
class Owner:
    """run: its number. method: its text."""

    run: str
    site: str
    method: str

    @property
    def facts(self) -> dict[str, dict[str, str]]:
        """What a file of this owner's says beside everything else."""
        return {KEY: asdict(self)}

    def of(self, file: Path) -> Tree:
        """The tensors of this owner's file. Raises StateError: E204 as `check` does, E201 for a damaged file."""
        tree, facts = state.read(file)
        self.check(file, facts)
        return tree

    def check(self, file: Path, facts: Mapping[str, Any]) -> None:
        """Raises StateError (E204) for a file that says it is another's, or does not say whose it is."""
        said = said_of(facts)
        wrong = [name for name, value in asdict(self).items() if said.get(name) != value]
        if wrong:
            text = f"is of another {wrong[0]}" if said else "does not say whose it is"
            text = f"{file.name} in the folder of run {self.run} at site {self.site} {text}"
            raise StateError("E204", f"{text}; put back the file that this site wrote in this run.")


def said_of(facts: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a file's facts say of its owner; {} where they do not."""
    said = facts.get(KEY)
    return said if isinstance(said, Mapping) else {}
