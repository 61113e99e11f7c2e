"""The files of experiments: those of the papers, by name, and a user's own, by path."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from unskew import documents
from unskew.errors import UsageError, suggestion
from unskew.experiments.checking import check_experiment
from unskew.experiments.experiment import Experiment
from unskew.experiments.parsing import parse_experiment

PACKAGE = "unskew.experiments"


def experiment_names() -> list[str]:
    """The names of all experiments that come with unskew, in alphabetical order."""
    files = resources.files(PACKAGE).iterdir()
    return sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml"))


def read_experiment(name: str) -> Experiment:
    """An experiment by name, or from a user's own .yaml file, in which case every setting of every run is checked.

    Raises UsageError: E126 for an unknown name or an inconsistent file, E111 for a missing file, and whatever a method
    or a setting in the file is refused for.
    """
    if name.endswith((".yaml", ".yml")):
        experiment = parse_experiment(Path(name).stem, documents.text_of(Path(name)), name)
        check_experiment(experiment, name)
        return experiment
    names = experiment_names()
    if name not in names:
        hint = "`unskew list experiments` shows all of them; a file of your own ends in .yaml."
        raise UsageError("E126", f"unknown experiment '{name}'.{suggestion(name, names)} {hint}")
    return parse_experiment(name, (resources.files(PACKAGE) / f"{name}.yaml").read_text())
