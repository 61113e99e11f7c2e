"""What a shell completes: names of methods, data sets, models, attacks and tables, read without torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

Completion = Callable[[str], list[str]]


def of(argument: str) -> Completion | None:
    """The function that completes an argument of a command; None for the shell, which names files."""
    return _COMPLETIONS.get(argument)


def methods(incomplete: str) -> list[str]:
    """Names of methods; after a +, the whole text with each name at its end."""
    from unskew.methods import catalogue

    before, plus, name = incomplete.rpartition("+")
    known = ("fedavg", *catalogue.entries(), *catalogue.presets())
    return [f"{before}{plus}{each}" for each in _beginning_with(name, known)]


def data_sets(incomplete: str) -> list[str]:
    from unskew.data import registry

    return _beginning_with(incomplete, registry.names())


def models(incomplete: str) -> list[str]:
    from unskew.models import catalogue

    return _beginning_with(incomplete, ("auto", *catalogue.names()))


def attacks(incomplete: str) -> list[str]:
    from unskew.attacks import catalogue

    return _beginning_with(incomplete, catalogue.names())


def tables(incomplete: str) -> list[str]:
    from unskew import experiments

    return _beginning_with(
        incomplete, (path.stem for path in Path(experiments.__file__).parent.glob("*.yaml"))
    )


def _beginning_with(start: str, names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if name.startswith(start))


_COMPLETIONS: dict[str, Completion] = {
    "method": methods,
    "methods": methods,
    "data": data_sets,
    "model": models,
    "attack": attacks,
    "table": tables,
}
