"""The estimated energy of the simulation, for runs with `track: codecarbon`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge, Le
from pydantic import AllowInfNan, BaseModel, NonNegativeInt, ValidationError, model_validator

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
    try:
        rows = [_Row.model_validate(row) for row in read_records(path)]
    except ValidationError:
        text = f"{path} does not hold what a run was measured to draw"
        raise StateError("E111", f"{text}; remove it to have the report without.") from None
    if not rows:
        return None
    carbon = [row.kg_co2 for row in rows if row.kg_co2 is not None]
    return EnergyUse(
        rounds=sum(row.to - row.after for row in rows),
        kwh=sum(row.kwh for row in rows),
        co2=sum(carbon) if len(carbon) == len(rows) else None,
        countries=tuple(sorted({row.country[:3] for row in rows if row.country})),
    )


class _Row(BaseModel, strict=True):
    """A row of the file: rounds after `after` up to `to` drew `kwh`."""

    after: NonNegativeInt
    to: Annotated[int, Le(1 << 40)]
    kwh: Annotated[float, Ge(0), AllowInfNan(False)]
    kg_co2: Annotated[float, Ge(0), AllowInfNan(False)] | None = None
    country: str = ""

    @model_validator(mode="after")
    def _forward(self) -> _Row:
        if self.to < self.after:
            raise ValueError("it ends before it begins")
        return self
