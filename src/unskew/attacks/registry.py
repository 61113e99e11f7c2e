"""The attacks by name, read from the source of their files so that a list does not load torch."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from unskew.errors import UsageError, suggestion
from unskew.formats import arguments
from unskew.system import python_files

if TYPE_CHECKING:
    from unskew.attacks.attack import Attack

FOLDER = Path(__file__).parent / "kinds"


def names() -> dict[str, str]:
    """The first line of the file of every attack, by name."""
    return {path.stem: python_files.summary(path) for path in python_files.module_files(FOLDER)}


def attacks_on(share: str) -> list[str]:
    """The attacks on the payload with this name in the ledger."""
    return [n for n in names() if share in python_files.constant(FOLDER / f"{n}.py", "READS", ())]


def kind_of(name: str) -> type[Attack]:
    """The class of an attack by name. Raises UsageError (E126) for an unknown name."""
    from unskew.attacks.attack import Attack

    known = names()
    if name not in known:
        near = suggestion(name, known)
        raise UsageError("E126", f"there is no attack '{name}'.{near} Attacks: {', '.join(known)}.")
    module = importlib.import_module(f"unskew.attacks.kinds.{name}")
    return next(
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Attack) and value.name == name
    )


def attack_of(name: str, settings: Mapping[str, object]) -> Attack:
    """The attack with these settings. Raises UsageError (E126) for an unknown name or a wrong setting."""
    kind = kind_of(name)
    return kind(**arguments.check(kind, settings, f"attack '{name}'", "E126"))
