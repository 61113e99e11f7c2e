"""A table of patients beside their volumes: participants.tsv as BIDS has it, or the one .csv or .tsv of the folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from unskew.data.intake.notes import some
from unskew.data.intake.sheets import Sheet, read_csv
from unskew.data.intake.targets import column_named
from unskew.data.volumes.layout import Layout
from unskew.errors import DataError

NAMES = ("participants.tsv", "patients.csv", "patients.tsv")
"""The tables that are looked for; the first column names patients."""


def with_participants(layout: Layout, root: Path, site: str, label: str) -> Layout:
    """The layout with sites and classes from these columns of the table; "" where a column is not asked for.

    Raises DataError: E402 without a table, E403 for a column or a patient that it lacks, and for classes of volumes that
    have masks.
    """
    if not site and not label:
        return layout
    if label and any(scan.mask for scan in layout.scans):
        raise DataError("E403", f"{root}: label={label} names classes, and these volumes have masks; leave it out.")
    path = next((root / name for name in NAMES if (root / name).is_file()), None)
    if path is None:
        raise DataError("E402", f"{root} holds none of {', '.join(NAMES)}, which site= and label= read; write one.")
    sheet = read_csv(path)
    patients = [str(v) for v in next(iter(sheet.columns.values()))]
    rows = {patient: i for i, patient in reversed(list(enumerate(patients)))}
    lacking = [scan.patient for scan in layout.scans if scan.patient not in rows]
    if lacking:
        who = f"{len(set(lacking)):,} of the patients, by PatientID" if layout.private else some(lacking)
        raise DataError("E403", f"{path} has no line for {who}; its first column names patients.")
    scans = list(layout.scans)
    if site:
        values = _column(sheet, site, path)
        scans = [replace(scan, site=values[rows[scan.patient]]) for scan in scans]
    if not label:
        return replace(layout, scans=tuple(scans))
    values = _column(sheet, label, path)
    classes = tuple(sorted({values[rows[scan.patient]] for scan in scans}))
    labelled = [replace(scan, label=classes.index(values[rows[scan.patient]])) for scan in scans]
    return replace(layout, scans=tuple(labelled), classes=classes)


def _column(sheet: Sheet, name: str, path: Path) -> list[str]:
    """The values of a column. Raises DataError (E403) for one that is not there or lacks values."""
    values = [str(v) for v in sheet.columns[column_named(sheet.columns, name, path.name)]]
    missing = next((i for i, v in enumerate(values) if v.lower() in ("", "n/a", "na", "nan")), None)
    if missing is not None:
        raise DataError(
            "E403", f"{path}: column '{name}' has no value {sheet.where(missing)}; fill it, or remove the patient."
        )
    return values
