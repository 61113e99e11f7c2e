"""`unskew predict`: predict new samples with a run's model, as a table with one line per sample.

Letters: N samples, C classes, L labels.
"""

from __future__ import annotations

import csv
import io
import re
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from unskew.cli.options import ModelOptions, with_options
from unskew.errors import DataError, UsageError

FORMULA = re.compile(r"[=+\-@\t\r]")
NUMBER = re.compile(r"[+-]?[0-9.]+(e[+-]?[0-9]+)?", re.I)


def as_csv(names: Sequence[str], classes: Sequence[str], p_NC: np.ndarray) -> str:
    """CSV `input,class,p(CLASS),...`: the name of each sample, its most probable class, and the probability
    of every class."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["input", "class", *(f"p({name})" for name in classes)])
    for name, p_C in zip(names, p_NC):
        rows.writerow([safe_cell(name), safe_cell(classes[int(p_C.argmax())]), *(f"{p:.6f}" for p in p_C)])
    return text.getvalue()


def labels_as_csv(names: Sequence[str], labels: Sequence[str], p_NL: np.ndarray) -> str:
    """CSV `input,labels,p(LABEL),...`: the name of each sample, its labels joined by ";", and the probability
    of every label."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["input", "labels", *(f"p({name})" for name in labels)])
    for name, p_L in zip(names, p_NL):
        there = ";".join(label for label, p in zip(labels, p_L) if p > 0.5)
        rows.writerow([safe_cell(name), safe_cell(there), *(f"{p:.6f}" for p in p_L)])
    return text.getvalue()


def numbers_as_csv(names: Sequence[str], target: str, guess_N: np.ndarray) -> str:
    """CSV `input,TARGET`: the name of each sample, and the predicted number in the unit of the target."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["input", safe_cell(target)])
    rows.writerows([safe_cell(name), f"{value:.7g}"] for name, value in zip(names, guess_N))
    return text.getvalue()


def masks_as_csv(names: Sequence[str]) -> str:
    """CSV `place,input`: the index of each sample in an array of masks, counted from 0, and its name."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["place", "input"])
    rows.writerows([str(place), safe_cell(name)] for place, name in enumerate(names))
    return text.getvalue()


def safe_cell(text: str) -> str:
    """The text, with an apostrophe before it if a spreadsheet would read it as a formula.

    Names of classes and files may come from others.
    """
    return f"'{text}" if FORMULA.match(text) and not NUMBER.fullmatch(text) else text


@dataclass(frozen=True, kw_only=True)
class Arguments(ModelOptions):
    """The options of the command."""

    input: Annotated[
        Path,
        "samples as the training samples were: an .npy, .npz or .csv file, an image or a sound, or a folder"
        " of them",
    ]
    out: Annotated[Path | None, "write the CSV here instead of printing it; masks are written as .npy"] = None


@with_options(Arguments)
def command(arguments: Arguments) -> None:
    """Predict new samples with a run's model: a CSV with the class and all probabilities of each sample, or
    with its predicted number.

    No code in the run's folder is executed, and the training samples are not needed.
    """

    if arguments.out and arguments.out.exists() and arguments.out.samefile(arguments.input):
        raise UsageError(
            "E109", f"--out {arguments.out} is the input, which would be lost; name another file."
        )
    result, client = arguments.result(), arguments.whose
    names, x = _samples(arguments, result)
    with warnings.catch_warnings(record=True) as remarks:
        warnings.simplefilter("always", UserWarning)
        if result.federation.masks:
            _write_masks(arguments.out, result, x, client)
            if names != [str(i) for i in range(len(names))]:  # not just the positions in an array
                print(masks_as_csv(names), end="")
        elif result.federation.several:
            p = result.predict_proba(x, client)
            _write(arguments.out, labels_as_csv(names, result.federation.classes, p))
        elif result.federation.target:
            _write(
                arguments.out, numbers_as_csv(names, result.federation.classes[0], result.predict(x, client))
            )
        else:
            p = result.predict_proba(x, client)
            text = as_csv(names, result.federation.classes, p)
            _write(arguments.out, text)
    for remark in remarks:
        print(f"Warning: {remark.message}", file=sys.stderr)


def _samples(arguments: Arguments, result: Any) -> tuple[list[str], Any]:
    """(names, samples) of the input. Raises DataError as `inputs.read` does."""
    from unskew.data import prediction_inputs
    from unskew.runs.reopen import SITES_FILE

    intake, layout = result.federation.intake, result.federation.layout
    try:
        return prediction_inputs.read_inputs(arguments.input, intake.form if intake else {}, layout)
    except DataError as error:
        if error.code != "E403" or not (arguments.run / SITES_FILE).is_file():
            raise
        text = (
            f"{error.text} How files of the sites became samples is known there alone: unskew predict"
            " SITE/runs/NUMBER"
        )
        raise DataError("E403", f"{text} {arguments.input}, at a site.") from None


def _write(out: Path | None, text: str) -> None:
    from unskew.system import disk

    if out is None:
        print(text, end="")
    else:
        disk.write_output(out, text)


def _write_masks(out: Path | None, result: Any, x: Any, client: int | str | None) -> None:
    import io

    import numpy as np

    from unskew.system import disk

    if out is None or out.suffix != ".npy":
        raise UsageError(
            "E109", "this run's model predicts masks or tokens, which are no table; give --out FILE.npy."
        )
    buffer = io.BytesIO()
    np.save(
        buffer, result.predict(x, client).astype(np.uint8 if result.federation.n_classes <= 256 else np.int64)
    )
    disk.write_output(out, buffer.getvalue())
