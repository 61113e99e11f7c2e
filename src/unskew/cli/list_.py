"""`unskew list`: list methods, data sets, models, experiments, attacks and error codes.

Methods are filtered by their purpose and by what may leave a site, in the words of `policy.yaml`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from annotated_types import Ge

from unskew.errors import UsageError, code_pages, excerpt, suggestion

if TYPE_CHECKING:
    from unskew.report.method_profile import Profile


@dataclass(frozen=True, kw_only=True)
class Filters:
    """The conditions that a listed method must meet; a filter that is left out accepts every method."""

    against: Annotated[
        str | None,
        "for methods: those against labels or features that differ, scarcity of samples, or absence of"
        " clients",
    ] = None
    family: Annotated[str | None, "for methods: those of one family, such as personalised or compression"] = (
        None
    )
    task: Annotated[str | None, "for methods: those that serve this task, such as regression"] = None
    shares: Annotated[
        str | None,
        "for methods: those that send nothing but these kinds, such as weights or sums,statistics: weights,"
        " sums, statistics, features, labels, inputs",
    ] = None
    least_samples: Annotated[
        int | None, Ge(1), "for methods: those with at least so many samples behind every number that leaves"
    ] = None
    secure_aggregation: Annotated[
        Literal["optional", "required"], "for methods: required: those that need only sums over clients"
    ] = "optional"
    handing_on: Annotated[
        Literal["allowed", "refused"],
        "for methods: refused: those that send nobody what is made of another's model",
    ] = "allowed"

    @property
    def given(self) -> str:
        """The option of the first filter in use; "" if there is none."""
        return next((_option(f.name) for f in fields(Filters) if getattr(self, f.name) != f.default), "")

    @property
    def kinds(self) -> list[str]:
        """The kinds of payload that may leave a site."""
        from unskew.core.shares import Kind

        if self.shares is None:
            return list(get_args(Kind))
        return [kind.strip() for kind in self.shares.split(",")]

    def check(self) -> None:
        """Raises UsageError (E109) for a value that no method can have."""
        from unskew.core.description import Family, Skew
        from unskew.core.part import Part
        from unskew.core.shares import Kind

        for name, words, known in (
            ("against", [self.against], get_args(Skew)),
            ("family", [self.family], [family for family in get_args(Family) if family]),
            ("task", [self.task], Part.tasks),
            ("shares", self.kinds, get_args(Kind)),
        ):
            for word in words:
                if word is not None and word not in known:
                    text = f"{_option(name)} is one of {', '.join(known)}; got {excerpt(word)}."
                    raise UsageError("E109", text + suggestion(word, known))

    def fits(self, profile: Profile) -> bool:
        """Whether a method passes every filter."""
        part, fewest = profile.part, profile.fewest
        return (
            (self.against is None or self.against in part.against)
            and (self.family is None or self.family == part.family)
            and (self.task is None or self.task in part.tasks)
            and profile.leaves <= set(self.kinds)
            and (self.least_samples is None or fewest is None or fewest >= self.least_samples)
            and (self.secure_aggregation == "optional" or profile.summed)
            and (self.handing_on == "allowed" or not profile.hands_on)
        )


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


@dataclass(frozen=True, kw_only=True)
class Arguments(Filters):
    """The options of the command."""

    kind: Annotated[Literal["methods", "data", "models", "errors", "experiments", "attacks"], "what to list"]
    json: Annotated[bool, "print JSON; of methods, all that is known of each"] = False


def list_(arguments: Arguments) -> None:
    """List methods, data sets, models, published experiments, attacks or error codes.

    Filters select methods by their purpose and by what may leave a site, in the words of a site's policy.
    """
    import json

    kind = arguments.kind
    if arguments.given and kind != "methods":
        raise UsageError("E109", f"{arguments.given} works for methods only, not for {kind}.")
    entries: dict[str, Any]
    if kind == "methods" and (arguments.given or arguments.json):
        arguments.check()
        chosen = {name: profile for name, profile in _profiles() if arguments.fits(profile)}
        known = _about("methods")
        entries = {n: p.as_json() if arguments.json else known[n] for n, p in chosen.items()}
        if not (chosen or arguments.json):
            print("No method passes all of these filters; leave one out.", file=sys.stderr)
    else:
        entries = _about(kind)
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


def _profiles() -> Iterator[tuple[str, Profile]]:
    """Yield (name, profile) of every method on the federation of `unskew check`, without training."""
    from unskew.core.part import Part
    from unskew.methods import catalogue, registry
    from unskew.report.method_profile import Profile
    from unskew.runs import conformance

    clients = conformance.small_federation()
    for name, about in registry.names().items():
        method = registry.parse(name)
        part = method.parts[0] if method.parts else Part()
        entry = catalogue.entries().get(part.name)
        yield name, Profile(part, conformance.run_for(method, clients).fed, entry.summary if entry else about)


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
