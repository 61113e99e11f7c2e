"""`unskew list`: list methods, filtered by their purpose, data sets, models, experiments, attacks and error
codes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from unskew.errors import UsageError, code_pages, excerpt, suggestion

if TYPE_CHECKING:
    from unskew.core.part import Part


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """The options of the command. A filter that is left out accepts every method."""

    kind: Annotated[Literal["methods", "data", "models", "errors", "experiments", "attacks"], "what to list"]
    against: Annotated[
        str | None,
        "for methods: those against labels or features that differ, scarcity of samples, or absence of"
        " clients",
    ] = None
    family: Annotated[str | None, "for methods: those of one family, such as personalised or compression"] = (
        None
    )
    task: Annotated[str | None, "for methods: those that serve this task, such as regression"] = None
    json: Annotated[bool, "print JSON; of methods, all that is known of each"] = False

    @property
    def given(self) -> str:
        """The first filter in use; "" if there is none."""
        return next((name for name in FILTERS if getattr(self, name) is not None), "")

    def check(self) -> None:
        """Raises UsageError (E109) for a filter of other kinds of entries, and for a value that no method
        has."""
        if self.given and self.kind != "methods":
            raise UsageError("E109", f"--{self.given} works for methods only, not for {self.kind}.")
        if not self.given:
            return
        from unskew.core.description import Family, Skew
        from unskew.core.part import Part

        for name, known in zip(FILTERS, (get_args(Skew), [*filter(None, get_args(Family))], Part.tasks)):
            if (word := getattr(self, name)) is not None and word not in known:
                text = f"--{name} is one of {', '.join(known)}; got {excerpt(word)}."
                raise UsageError("E109", text + suggestion(word, known))

    def fits(self, part: Part) -> bool:
        """Whether a method passes every filter."""
        return (
            (self.against is None or self.against in part.against)
            and (self.family is None or self.family == part.family)
            and (self.task is None or self.task in part.tasks)
        )


FILTERS = ("against", "family", "task")


def list_(arguments: Arguments) -> None:
    """List methods, data sets, models, published experiments, attacks or error codes.

    Filters select methods by their purpose.
    """
    import json

    arguments.check()
    entries: dict[str, Any] = _about(arguments.kind)
    if arguments.kind == "methods" and (arguments.given or arguments.json):
        parts = _parts(entries)
        chosen = {name: part for name, part in parts.items() if arguments.fits(part)}
        entries = _profiles(chosen) if arguments.json else {name: entries[name] for name in chosen}
        if not (chosen or arguments.json):
            print("No method passes all of these filters; leave one out.", file=sys.stderr)
    if arguments.json:
        print(json.dumps(entries))
        return
    width = max(map(len, entries), default=0) + 2
    for name, about in entries.items():
        print(f"{name:<{width}}{about}")


def _about(kind: str) -> dict[str, str]:
    """A sentence about each entry of this kind, by name. Only what is listed is imported."""
    match kind:
        case "methods":
            from unskew.methods.registry import names

            return names()
        case "data":
            from unskew import data

            return data.describe()
        case "models":
            from unskew import models

            return models.describe()
        case "errors":
            return code_pages()
        case "attacks":
            from unskew.attacks import registry

            return registry.names()
    return _experiments()


def _parts(names: Iterable[str]) -> dict[str, Part]:
    """The Part of each method."""
    from unskew.core.part import Part
    from unskew.methods import registry

    return {name: next(iter(registry.parse(name).parts), Part()) for name in names}


def _profiles(parts: Mapping[str, Part]) -> dict[str, Any]:
    """All that is known of each method, on the federation of `unskew check` and without training."""
    from unskew.methods import catalogue, registry
    from unskew.report.method_profile import Profile
    from unskew.runs import conformance

    clients, about, known = conformance.small_federation(), registry.names(), catalogue.entries()
    profiles = {}
    for name, part in parts.items():
        summary = known[part.name].summary if part.name in known else about[name]
        fed = conformance.run_for(registry.parse(name), clients).fed
        profiles[name] = Profile(part, fed, summary).as_json()
    return profiles


def _experiments() -> dict[str, str]:
    """Maps each experiment to its title and the number of its rows that have their data on this machine."""
    from unskew.experiments.files import experiment_names, read_experiment
    from unskew.report.analysis.numbers import plural

    entries = {}
    for name in experiment_names():
        experiment = read_experiment(name)
        here = sum(row.has_data for row in experiment.rows)
        rows = f"{here} of {plural(len(experiment.rows), 'row')} can run here"
        entries[name] = f"{experiment.title}; {rows}, {plural(len(experiment.methods), 'method')}"
    return entries
