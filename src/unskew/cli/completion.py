"""What a shell completes: names of methods, data sets, models, attacks and tables, read without torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path


def of(argument: str) -> Callable[[str], list[str]] | None:
    """The function that completes an argument of a command; None for the shell, which names files."""
    if argument in ("method", "methods"):
        return methods
    if argument not in ("data", "model", "attack", "table"):
        return None
    return lambda incomplete: sorted(name for name in _names(argument) if name.startswith(incomplete))


def methods(incomplete: str) -> list[str]:
    """Names of methods; after a +, the whole text with each name at its end."""
    from unskew.methods import catalogue

    before, plus, name = incomplete.rpartition("+")
    known = ("fedavg", *catalogue.entries(), *catalogue.presets())
    return sorted(f"{before}{plus}{each}" for each in known if each.startswith(name))


def _names(argument: str) -> Iterable[str]:
    match argument:
        case "data":
            from unskew.data import registry

            return registry.names()
        case "model":
            from unskew.models import registry

            return ("auto", *registry.names())
        case "attack":
            from unskew.attacks import registry

            return registry.names()
    from unskew import experiments

    return [path.stem for path in Path(experiments.__file__).parent.glob("*.yaml")]
