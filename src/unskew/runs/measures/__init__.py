"""The probes: each applies pure measures to the results of a round. docs/measures.md describes them.

A probe is one file, called like the measure, with one class.
"""

from __future__ import annotations

import importlib

from unskew.errors import UsageError
from unskew.measures import names_in
from unskew.round.probes import Measures, Probe, RunInspector


def measures_of(text: str, lens: RunInspector) -> Measures | None:
    """The measures that the setting `measure` names; None for "none".

    Raises UsageError (E126) for a measure that does not apply to this run.
    """
    probes = {name: probe_class(name)(lens) for name in names_in(text)}
    for name, probe in probes.items():
        if reason := probe.refuse():
            raise UsageError("E126", f"'{name}' cannot be measured of {lens.trainer.method} here: {reason}.")
    return Measures(probes) if probes else None


def probe_class(name: str) -> type[Probe]:
    """The class of a measure's probe."""
    module = importlib.import_module(f"unskew.runs.measures.{name}")
    own = (kind for kind in vars(module).values() if getattr(kind, "__module__", "") == module.__name__)
    return next(kind for kind in own if isinstance(kind, type) and issubclass(kind, Probe))
