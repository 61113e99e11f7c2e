"""The data sets that `unskew data get` makes, by name, from the files in `recipes/`."""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path

from unskew import sources
from unskew.data.getting.recipe import Recipe
from unskew.errors import UsageError, excerpt, suggestion

FOLDER = Path(__file__).parent / "recipes"


@cache
def recipes() -> dict[str, Recipe]:
    """The recipe of every set, in the order of names."""
    rooms = [importlib.import_module(f"unskew.data.getting.recipes.{path.stem}") for path in sources.files(FOLDER)]
    return dict(sorted((name, recipe) for room in rooms for name, recipe in room.SETS.items()))


def recipe_of(name: str) -> Recipe:
    """The recipe of a set. Raises UsageError (E125) for an unknown name."""
    known = recipes()
    if name not in known:
        text = f"unskew data get knows no {excerpt(name)}.{suggestion(name, known)} Known: {', '.join(known)}."
        raise UsageError("E125", text)
    return known[name]
