"""codecarbon: the estimated energy use of the training processes, one row each in `RUN/energy.jsonl`.

It needs no network. CODECARBON_COUNTRY_ISO_CODE, the country of the electricity, determines CO2; without it
only energy is recorded.
"""

from __future__ import annotations

import json
import os
from typing import Any

from unskew.round.callback import Callback, Progress
from unskew.runs.trackers.tracker import folder_of, package
from unskew.system import disk

FILE = "energy.jsonl"
COUNTRY = "CODECARBON_COUNTRY_ISO_CODE"
ANY_COUNTRY = "SWE"
"""codecarbon requires a country; results that depend on it are left out."""


class Tracker(Callback):
    """Estimates this process alone; other processes, such as other runs of a comparison, record their own
    energy."""

    name = "codecarbon"

    def __init__(self) -> None:
        self._codecarbon: Any = package("codecarbon", "codecarbon")

    def begun(self, run: Progress) -> None:
        self._rows, self._after = folder_of(run) / FILE, run.t
        self._country = os.environ.get(COUNTRY, "").strip().upper()
        self._meter = self._codecarbon.OfflineEmissionsTracker(
            country_iso_code=self._country or ANY_COUNTRY,
            tracking_mode="process",
            save_to_file=False,
            allow_multiple_runs=True,
            log_level="critical",
        )
        self._meter.start()

    def ended(self, run: Progress, why: str) -> None:
        if not hasattr(self, "_meter"):
            return
        emissions = self._meter.stop()
        used = self._meter.final_emissions_data
        row = {"after": self._after, "to": run.t, "kwh": used.energy_consumed, "seconds": used.duration}
        if self._country and emissions is not None:
            row |= {"kg_co2": emissions, "country": self._country}
        rows = disk.AppendFile(self._rows)
        try:
            rows.add(json.dumps(row) + "\n")
        finally:
            rows.close()
