"""`unskew data`: check how unskew reads data, and build data sets from their original archives;
`unskew diagnose`: measure the skew of a federation, and recommend a method."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from unskew.cli.options import FromSettings, Json, Option
from unskew.diagnosis import RELEVANT_SETTINGS

Data = Annotated[str, "a path, or a data set by name; arguments in brackets: scans/(size=128)"]
Label = Annotated[str, "in a table: the column of labels"]
Target = Annotated[
    str,
    "the number to predict: a table's column, or what y is called; or several numbers or labels, joined by"
    " commas",
]


def check(
    data: Data,
    label: Label = "",
    site: Annotated[str, "the column that says where a sample is from"] = "",
    target: Target = "",
    group: Annotated[
        str, "samples that no split separates: a column, such as patient, or a pattern of files"
    ] = "",
) -> None:
    """Print how unskew reads the data: samples, values, classes, sites, and what it would change or leave
    out."""
    from unskew.data import read
    from unskew.data.data_overview import table
    from unskew.data.standardisation import standardise

    roles = {"label": label, "site": site, "target": target, "group": group}
    dataset = read(data, **{name: value for name, value in roles.items() if value})
    scaled = standardise(dataset, always=False)
    if scaled.intake and dataset.intake and scaled.intake != dataset.intake:
        dataset = dataset.with_notes(*scaled.intake.notes)
    print(table(dataset))


def get(
    name: Annotated[str, "the data set: cifar10, pathmnist, ...; a wrong name lists all"],
    origin: Annotated[
        Path | None, Option("--from"), "the archive or folder, if you have downloaded it"
    ] = None,
    out: Annotated[Path | None, "the folder to write to [default: UNSKEW_DATA, or data]"] = None,
) -> None:
    """Build a data set of the field, NAME.npz, from its original files.

    Without --from the files are downloaded from their original address to OUT/originals and verified; the
    same command resumes a download that broke off. Nothing is unpacked to a disk, and nothing is unpickled
    unsafely.
    """
    from unskew.data import downloads

    usual = os.environ.get("UNSKEW_DATA")
    folder = out or Path(usual or "data")
    with _download_progress() as report:
        path, remarks = downloads.get(name, origin, folder, report)
    print(path)
    for remark in remarks:
        print(f"note  {remark}")
    by_name = usual and Path(usual).resolve() == folder.resolve()
    print(f"next  unskew data check {name if by_name else path}")


@contextmanager
def _download_progress() -> Iterator[Callable[[str, int, int], None]]:
    """A function that shows the progress of downloads on a terminal's standard error."""
    from rich.console import Console
    from rich.progress import DownloadColumn, Progress, TransferSpeedColumn

    from unskew.cli.plain_output import raw_stream

    columns = (*Progress.get_default_columns(), DownloadColumn(), TransferSpeedColumn())
    console = Console(file=raw_stream(sys.stderr))
    with Progress(*columns, console=console, disable=not sys.stderr.isatty()) as progress:
        tasks: dict[str, Any] = {}

        def report(file: str, arrived: int, total: int) -> None:
            if file not in tasks:
                tasks[file] = progress.add_task(file)
            progress.update(tasks[file], completed=arrived, total=total or None)

        yield report


def diagnose(
    data: Data,
    given: Annotated[dict[str, Any], FromSettings(RELEVANT_SETTINGS)],
    label: Label = "",
    target: Target = "",
    site: Annotated[str, "the column that says where a sample is from; each of its values is a site"] = "",
    group: Annotated[
        str, "samples that belong together: a column, such as patient, or a pattern of files"
    ] = "",
    features: Annotated[bool, "sites may share activations of single samples, so advise methods that do"] = (
        False
    ),
    as_json: Json = False,
) -> None:
    """Measure the skew of a federation, and recommend a method with its expected gain."""
    from unskew.cli.screen import json_of
    from unskew.diagnosis.diagnose import diagnose

    named = {"label": label, "site": site, "target": target, "group": group, "features": features}
    diagnosis = diagnose(data, **named, **given)
    print(json_of(diagnosis.as_dict()) if as_json else diagnosis.table())
