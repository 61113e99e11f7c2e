"""The names of the measures that a run can record in addition to its scores; docs/measures.md explains them.

A measure is one file in `runs/measures/`: pure functions of tensors, and a probe that applies them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from unskew.system import python_files

NONE = "none"
NAMES = tuple(path.stem for path in python_files.module_files(Path(__file__).parent / "runs" / "measures"))


def names_in(text: str) -> tuple[str, ...]:
    """The names in a text, without repetition: `diversity, separation` -> ("diversity", "separation").
    Raises KeyError with the first unknown name."""
    normal = (name.strip().lower().replace("-", "_") for name in text.split(",") if name.strip())
    names = tuple(name for name in dict.fromkeys(normal) if name != NONE)
    for name in names:
        if name not in NAMES:
            raise KeyError(name)
    return names


def measures_text(names: Sequence[str]) -> str:
    """The text that `names_in` reads."""
    return ",".join(names) or NONE
