"""`unskew predict`: what a run's model says of new samples."""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from unskew.cli.finished import Finished
from unskew.cli.options import with_options
from unskew.errors import DataError, UsageError


@dataclass(frozen=True, kw_only=True)
class Arguments(Finished):
    """The options of the command."""

    input: Annotated[
        Path,
        "samples as the training samples were: an .npy, .npz or .csv file, an image or a sound, or a folder of them",
    ]
    out: Annotated[Path | None, "write the CSV here instead of printing it; masks are written as .npy"] = None


@with_options(Arguments)
def command(arguments: Arguments) -> None:
    """Predict new samples with a run's model: a CSV with each one's class and the probability of every class, or its number.

    Nothing in the run's folder is run, and the samples it was trained on are not needed.
    """
    from unskew.report import predicted

    if arguments.out and arguments.out.exists() and arguments.out.samefile(arguments.input):
        raise UsageError("E109", f"--out {arguments.out} is the input, which would be lost; name another file.")
    result, client = arguments.result(), arguments.whose
    names, x = _samples(arguments, result)
    with warnings.catch_warnings(record=True) as remarks:
        warnings.simplefilter("always", UserWarning)
        if result.federation.masks:
            _write_masks(arguments.out, result, x, client)
            if names != [str(i) for i in range(len(names))]:  # as of an array, whose order is known
                print(predicted.places_as_csv(names), end="")
        elif result.federation.several:
            p = result.predict_proba(x, client)
            _write(arguments.out, predicted.several_as_csv(names, result.federation.classes, p))
        elif result.federation.target:
            _write(
                arguments.out, predicted.numbers_as_csv(names, result.federation.classes[0], result.predict(x, client))
            )
        else:
            p = result.predict_proba(x, client)
            text = predicted.as_csv(names, result.federation.classes, p)
            _write(arguments.out, text)
    for remark in remarks:
        print(f"Warning: {remark.message}", file=sys.stderr)


def _samples(arguments: Arguments, result: Any) -> tuple[list[str], Any]:
    """(names, samples) of the input. Raises DataError as `inputs.read` does."""
    from unskew.data import inputs
    from unskew.engine.disk.reopened import SITES_FILE

    intake, layout = result.federation.intake, result.federation.layout
    try:
        return inputs.read(arguments.input, intake.form if intake else {}, layout)
    except DataError as error:
        if error.code != "E403" or not (arguments.run / SITES_FILE).is_file():
            raise
        text = (
            f"{error.text} How files of the sites became samples is known there alone: unskew predict SITE/runs/NUMBER"
        )
        raise DataError("E403", f"{text} {arguments.input}, at a site.") from None


def _write(out: Path | None, text: str) -> None:
    from unskew import disk

    if out is None:
        print(text, end="")
    else:
        disk.write_output(out, text)


def _write_masks(out: Path | None, result: Any, x: Any, client: int | str | None) -> None:
    import io

    import numpy as np

    from unskew import disk

    if out is None or out.suffix != ".npy":
        raise UsageError("E109", "this run's model predicts masks or tokens, which are no table; give --out FILE.npy.")
    buffer = io.BytesIO()
    np.save(buffer, result.predict(x, client).astype(np.uint8 if result.federation.n_classes <= 256 else np.int64))
    disk.write_output(out, buffer.getvalue())
