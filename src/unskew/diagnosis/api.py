"""What a program calls: `diagnose`."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from torch import nn

from unskew import config, models
from unskew.data.dataset import Dataset
from unskew.data.federation import Federation
from unskew.data.intake.sites import site_column
from unskew.data.intake.take import GIVEN, settings_of, take
from unskew.diagnosis import COUNTED
from unskew.diagnosis.diagnose import diagnose_run
from unskew.diagnosis.diagnosis import Diagnosis
from unskew.engine import resolve
from unskew.errors import DataError, UsageError


def diagnose(
    data: Any = "digits",
    *,
    label: str = "",
    site: str = "",
    target: str = "",
    model: nn.Module | str | Path = "auto",
    features: bool = False,
    **options: Any,
) -> Diagnosis:
    """Measure how skewed a federation is, and which method to take for it. Nothing is trained.

    data, label, site, target, model: as for `unskew.run`. Own data with a column of sites are divided by it unless a skew is given.
    features: whether sites may share activations of single samples. Other options: the settings of COUNTED, such as skew, clients
    and availability; secure_aggregation="on" where sites demand that nobody sees more than sums of what they send.
    Raises UsageError and DataError as `run` does, UsageError (E101) for a setting that does not count,
    UsageError (E134) where secure aggregation has too few sites, and DataError (E410) for own data that nothing divides,
    and for fewer than two sites with samples. Samples with several inputs need a model of your own, as for `unskew.run`.
    """
    if "method" in options:
        raise UsageError("E101", "a diagnosis takes no method, for it recommends one; leave method out.")
    if idle := sorted({f.name for f in fields(config.Settings)} & options.keys() - {*COUNTED}):
        raise UsageError(
            "E101", f"{', '.join(idle)} would change nothing in a diagnosis, which looks at {', '.join(COUNTED)}."
        )
    taken, stands_for = settings_of(data, label, site, target)
    taken = take(taken)
    module = None if isinstance(model, str | Path) else models.unwrapped(model)
    settings = config.build({**stands_for, **options, "method": "fedavg", "model": GIVEN if module else str(model)})
    if "skew" not in options and "skew" not in stands_for:
        settings = settings.replace(skew=_division(taken, settings.skew))
    return diagnose_run(resolve.resolve(settings, taken, None, module), features)


def _division(data: Dataset | Federation, default: str) -> str:
    """The skew of data for which none was given. Raises DataError (E410) for own data that nothing divides."""
    if isinstance(data, Federation) or not data.intake:
        return default
    if column := site_column(data):
        return f"column:{column}"
    raise DataError(
        "E410",
        f"{data.name}: nothing says which sample is from which site; name the column that does (--site NAME), or give a "
        "skew by which to divide them, such as dirichlet:0.3.",
    )
