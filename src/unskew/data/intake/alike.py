"""Names that are likely meant to be one: `Yes` and `yes` are two classes to a program, and nobody may have wanted that."""

from __future__ import annotations

from collections.abc import Sequence

from unskew.data.dataset import Dataset
from unskew.data.federation import Federation
from unskew.data.intake.sites import site_column
from unskew.errors import excerpt


def alike(dataset: Dataset | Federation) -> list[str]:
    """A warning for the classes and for the sites of which some differ in capitals and spaces alone."""
    names: dict[str, Sequence[str]] = {} if dataset.target else {"classes": dataset.classes}
    if isinstance(dataset, Dataset) and (column := site_column(dataset)):
        names["sites"] = dataset.labels.get(column, ())
    groups = {what: _alike(each) for what, each in names.items()}
    return [
        f"{what} {' and '.join(excerpt(name, 40) for name in group)} differ in capitals or spaces alone and count as "
        f"{len(group)}; if they are one, give them one name"
        for what, group in groups.items()
        if group
    ]


def _alike(names: Sequence[str]) -> list[str]:
    """The first names that are one without their capitals and spaces; none if all differ."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault("".join(str(name).casefold().split()), []).append(str(name))
    return next((group for group in groups.values() if len(group) > 1), [])
