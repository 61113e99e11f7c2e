"""The runs that an experiment takes. Every run lies in a folder named by its settings, so that none is done twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from unskew.comparison.watch import Cell
from unskew.config import Settings
from unskew.experiments.experiment import Experiment
from unskew.experiments.selection import Selection


@dataclass(frozen=True)
class Key:
    """Which run of a table: its row, its method by the paper's name, and its seed."""

    row: str
    method: str
    seed: int


def plan_runs(
    experiment: Experiment, selection: Selection, seeds: Sequence[int], scale: float, folder: Path
) -> dict[Key, Cell]:
    """Every run of the selected rows and methods. Where settings are equal, several keys share one run.

    scale: the share of the rounds to run. folder: where all tables keep their runs.
    """
    runs: dict[Key, Cell] = {}
    by_path: dict[Path, Cell] = {}
    for seed in seeds:
        for row in selection.rows:
            for method in selection.methods:
                settings = experiment.settings_of(row, method, scale).replace(seed=seed)
                path = path_of(folder, settings)
                cell = by_path.setdefault(path, Cell(f"{row.name} {method}", seed, path, settings))
                runs[Key(row.name, method, seed)] = cell
    return runs


def path_of(folder: Path, settings: Settings) -> Path:
    """The folder of a run with these settings."""
    return folder / "cells" / settings.fingerprint()[:20]


def distinct(runs: Mapping[Key, Cell]) -> list[Cell]:
    """Each run once, in order."""
    return list({cell.path: cell for cell in runs.values()}.values())
