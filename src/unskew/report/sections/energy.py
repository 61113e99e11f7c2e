"""The estimated energy of the simulation, for runs with `track: codecarbon`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unskew.errors import StateError
from unskew.report.analysis.runs import RunData, read_records
from unskew.report.sections import Context, Section, render
from unskew.runs.trackers.codecarbon import FILE
from unskew.scores import significant

ORDER = 45
NOTE = (
    "Estimated by codecarbon, from counters of the hardware or from the processor's model. It is what the"
    " processes that simulated all clients drew, evaluation included, and not what real sites would use."
)


@dataclass(frozen=True)
class EnergyUse:
    """The energy of all processes of a run.

    rounds: the number of measured rounds; a repeated round counts twice. kwh: in kWh. co2: in kg, None
    without a country. countries: their codes.
    """

    rounds: int
    kwh: float
    co2: float | None
    countries: tuple[str, ...]


def build(context: Context) -> Section | None:
    """A row for each method with a measured run; None without any."""
    rows = []
    for method, group in context.methods.items():
        if used := [u for run in group if (u := energy_use(run.path))]:
            rows.append((method, *_row(group, used)))
    if not rows:
        return None
    html = render("energy.html.j2", rows=rows, co2=any(row[-1] for row in rows))
    return Section("Energy", "energy", html, note=NOTE, link="Energy")


def _row(group: Sequence[RunData], used: Sequence[EnergyUse]) -> tuple[str, str, str, str, str]:
    """(runs, rounds a run, kWh a run, Wh a round, kg CO2 a run with its country or "")."""
    rounds = sum(u.rounds for u in used)
    kwh = sum(u.kwh for u in used)
    countries = ", ".join(sorted({code for u in used for code in u.countries}))
    known = [u.co2 for u in used if u.co2 is not None]
    co2 = f"{significant(sum(known) / len(known), 3)} ({countries})" if len(known) == len(used) else ""
    a_round = significant(1000 * kwh / rounds, 3) if rounds else "–"
    runs = f"{len(used)} of {len(group)}"
    return runs, significant(rounds / len(used), 3), significant(kwh / len(used), 3), a_round, co2


def energy_use(run: Path) -> EnergyUse | None:
    """The energy in a run's file; None without one. Raises StateError (E111) for an invalid file."""
    path = run / FILE
    rows = read_records(path)
    if not rows:
        return None
    try:
        rounds = sum(_whole(row["to"]) - _whole(row["after"]) for row in rows)
        kwh = sum(_amount(row["kwh"]) for row in rows)
        co2 = sum(_amount(row["kg_co2"]) for row in rows) if all("kg_co2" in row for row in rows) else None
        countries = {str(row["country"])[:3] for row in rows if "country" in row}
        if rounds < 0:
            raise ValueError(rounds)
    except (KeyError, TypeError, ValueError) as error:
        text = f"{path} does not hold what a run was measured to draw ({type(error).__name__})"
        raise StateError("E111", f"{text}; remove it to have the report without.") from None
    return EnergyUse(rounds, kwh, co2, tuple(sorted(countries)))


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 40:
        raise ValueError(value)
    return value


def _amount(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
        raise ValueError(value)
    return float(value)
