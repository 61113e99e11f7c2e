"""The models that this package has: one for each file in `networks/`, whose source says what it is.

No file is imported, so that models can be listed before torch is loaded.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from unskew import sources

FOLDER = Path(__file__).parent / "networks"


@cache
def files() -> dict[str, Path]:
    """The file of every model by the model's own name, in the order of names."""
    return {path.stem: path for path in sources.files(FOLDER)}


@cache
def aliases() -> dict[str, str]:
    """The own name of each model that has another name, by that other name."""
    return {alias: name for name, path in files().items() for alias in sources.constant(path, "ALIASES", ())}


def names() -> tuple[str, ...]:
    """Every name that a model can be called by, in alphabetical order."""
    return tuple(sorted([*files(), *aliases()]))


def describe() -> dict[str, str]:
    """What each model is and which arguments it takes, in one line, by name."""
    lines = {name: _described(name, path) for name, path in files().items()}
    lines |= {alias: f"another name for {name}" for alias, name in aliases().items()}
    return dict(sorted(lines.items()))


def _described(name: str, path: Path) -> str:
    return "; ".join(filter(None, (sources.summary(path), ", ".join(sources.defaults(path, name)))))
