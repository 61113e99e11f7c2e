"""An experiment: one table or figure, as its YAML file describes it.

The file names the settings common to all rows, the methods (the paper's name and ours), the rows with their own settings
and the published numbers, the claims to test, and what the paper leaves open together with our choice. A file of a
user's own needs only methods and rows.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, Literal

from unskew import config, data
from unskew.config import Settings
from unskew.core.part import Part
from unskew.engine.resolve import is_reference
from unskew.errors import UsageError, suggestion
from unskew.experiments.claims import Claim, Trend
from unskew.experiments.shortening import shortened
from unskew.methods import registry
from unskew.methods.registry import meant_for


@dataclass(frozen=True)
class Leak:
    """The score of an attack that a row reports: which attack with which settings, of what (`of`), and in which unit.

    of, metric: as `unskew attack` prints them, such as "linear decoder" and "MSE".
    """

    name: str
    of: str
    metric: str
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        """The same for all rows that read scores of one attack with the same settings."""
        text = json.dumps(self.settings, sort_keys=True, default=str)
        return f"{self.name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


@dataclass(frozen=True)
class Log:
    """What a published log says of one run: the score after every round from the first, in the table's unit, and its source."""

    source: str
    values: tuple[float, ...]


@dataclass(frozen=True)
class TableRow:
    """One row of a table: a setting in which every method runs.

    settings: all settings of the row, including those common to all rows.
    published: the paper's numbers by the paper's names of the methods, in the table's unit.
    metric, scope: the quantity to report, where it is not the table's; at: the round after which to read it (0: the last).
    x, panel: the row's position on the experiment's `axis`, and the picture in which it is drawn.
    attack: what to report of an attack on the finished runs, instead of a score of their training.
    logs: published logs of this setting, by the paper's names of the methods.
    """

    name: str
    settings: dict[str, Any]
    published: dict[str, float] = field(default_factory=dict)
    note: str = ""
    metric: str = ""
    scope: str = ""
    at: int = 0
    x: float | None = None
    panel: str = ""
    attack: Leak | None = None
    logs: dict[str, Log] = field(default_factory=dict)

    @property
    def has_data(self) -> bool:
        """Whether the row's data set is on this machine."""
        return data.at_hand(self.data)

    @property
    def data(self) -> str:
        """The data set's name or path."""
        return self.settings.get("data", Settings.data)


@dataclass(frozen=True)
class Experiment:
    """A table or figure of a paper, or of a user's own.

    methods: the paper's name of each method, and the text that `unskew run` takes for it.
    measure: which score of a run the table reports; metric, scope: of which quantity; unit: percent, or a plain number.
    axis: what varies from row to row, where the paper draws the score against it.
    finding: what running the table showed where it differs from the paper, and what explains it.
    grids: the values to try when tuning, by Part and argument. overrides: settings that hold for one method only.
    factors: what tuning multiplies the learning rate of a method by. overrides and factors go by the paper's names.
    """

    name: str
    methods: dict[str, str]
    rows: tuple[TableRow, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    title: str = ""
    paper: str = ""
    measure: Literal["best", "last", "mean10"] = "mean10"
    claims: tuple[Claim | Trend, ...] = ()
    open: tuple[str, ...] = ()
    metric: str = "accuracy"
    scope: str = "global"
    unit: Literal["percent", "number"] = "percent"
    axis: str = ""
    finding: str = ""
    grids: dict[str, dict[str, list[Any]]] = field(default_factory=dict)
    overrides: dict[str, dict[str, Any]] = field(default_factory=dict)
    factors: dict[str, float] = field(default_factory=dict)

    def row(self, name: str) -> TableRow:
        """The row of this name. Raises UsageError (E126) if there is none."""
        for row in self.rows:
            if row.name == name:
                return row
        known = [row.name for row in self.rows]
        raise UsageError(
            "E126", f"'{self.name}' has no row '{name}'.{suggestion(name, known)} Rows: {', '.join(known)}."
        )

    def parts(self, method: str) -> tuple[Part, ...]:
        """The Parts of one of its methods, by the paper's name; a reference (local, centralised) has none to set."""
        text = self.methods[method]
        return () if is_reference(text) else tuple(registry.parse(text).parts)

    def settings_of(self, row: TableRow, method: str, scale: float = 1.0) -> Settings:
        """The settings of the runs of one method in one row, apart from the seed.

        scale: the share of the rounds to run, of which at least two remain; what is counted in rounds is shortened, too.
        Arguments that the row sets for a Part reach the methods that have this Part and no others, so that the other
        methods' runs stay the same runs.
        """
        overrides = self.overrides.get(method, {})
        settings = config.build({**row.settings, **overrides, "method": self.methods[method]})
        settings = settings.replace(lr=settings.lr * self.factors.get(method, 1.0))
        if not is_reference(settings.method):
            arguments = meant_for(settings.method, settings.set)
            settings = settings.replace(method=str(registry.parse(settings.method, arguments)), set={})
        return shortened(settings, scale)
