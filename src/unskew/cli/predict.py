"""`unskew predict`: predict new samples with a run's model, as a table with one line per sample;
`unskew export`: the model for use without unskew.

Letters: N samples, C classes or labels.
"""

from __future__ import annotations

import csv
import io
import re
import shlex
import sys
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from unskew.errors import DataError, UsageError
from unskew.system import disk

if TYPE_CHECKING:
    from unskew.results import Result, SitePredictor

FORMULA = re.compile(r"[=+\-@\t\r]")
NUMBER = re.compile(r"[+-]?[0-9.]+(e[+-]?[0-9]+)?", re.I)


def as_csv(names: Sequence[str], classes: Sequence[str], p_NC: np.ndarray, several: bool = False) -> str:
    """CSV `input,class,p(CLASS),...`: the name of each sample, its most probable class, and the probability
    of every class; with several labels, those above one half, joined by ";"."""
    head = ["input", "labels" if several else "class", *(f"p({name})" for name in classes)]
    lines = []
    for name, p_C in zip(names, p_NC):
        chosen = [classes[int(p_C.argmax())]]
        if several:
            chosen = [label for label, p in zip(classes, p_C) if p > 0.5]
        lines.append([safe_cell(name), safe_cell(";".join(chosen)), *(f"{p:.6f}" for p in p_C)])
    return _csv(head, lines)


def _csv(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([head, *lines])
    return text.getvalue()


def safe_cell(text: str) -> str:
    """The text, with an apostrophe before it if a spreadsheet would read it as a formula.

    Names of classes and files may come from others.
    """
    return f"'{text}" if FORMULA.match(text) and not NUMBER.fullmatch(text) else text


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The options that select a model."""

    run: Annotated[Path, "folder of a finished run, or of a run at a site (SITE/runs/NUMBER)"]
    client: Annotated[str | None, "take this client's own model, by name or number"] = None
    model: Annotated[str | None, "FILE.py:FUNCTION of a run whose model is in a Python file"] = None
    method: Annotated[
        str | None, "the method of a run of which a Part is in a Python file, with your own file"
    ] = None
    best: Annotated[bool, "take the model of the best round, which a run with --set keep_best=true keeps"] = (
        False
    )
    unfinished: Annotated[bool, "also take the model of a run that has not come to its end"] = False
    data: Annotated[
        str, "at a site, whose model some methods make with its samples: its data, as it took part with them"
    ] = ""
    classes: Annotated[str, "of these data all class names, in the order on which the sites agreed"] = ""

    def result(self) -> Result | SitePredictor:
        """The run as `unskew.load` reads it; raises UsageError as `load` does, and StateError (E117) for a
        comparison and a table."""
        from unskew import api
        from unskew.experiments.pages import KeptTable
        from unskew.formats.specs import split_names
        from unskew.records.checkpoints import LATEST
        from unskew.results import Comparison, SitePredictor

        own = {"data": self.data or None, "classes": split_names(self.classes)}
        code = {"model": self.model, "method": self.method}
        result = api.load(self.run, **code, unfinished=self.unfinished, best=self.best, **own)
        if isinstance(result, Comparison | KeptTable):
            raise disk.no_run(self.run, LATEST)
        # A site's weights may be from an earlier round than the coordinator's.
        if isinstance(result, SitePredictor):
            print(result, file=sys.stderr)
        return result

    @property
    def client_key(self) -> int | str | None:
        """The client's number or name; None for the global model."""
        return int(self.client) if self.client and self.client.isdecimal() else self.client


@dataclass(frozen=True, kw_only=True)
class Arguments(ModelOptions):
    """The options of `unskew predict`."""

    input: Annotated[
        Path,
        "samples as the training samples were: an .npy, .npz or .csv file, an image or a sound, or a folder"
        " of them",
    ]
    out: Annotated[Path | None, "write the CSV here instead of printing it; masks are written as .npy"] = None


def predict(arguments: Arguments) -> None:
    """Predict new samples with a run's model: a CSV with the class and all probabilities of each sample, or
    with its predicted number.

    No code in the run's folder is executed, and the training samples are not needed.
    """
    out, client = arguments.out, arguments.client_key
    if out and out.exists() and out.samefile(arguments.input):
        raise UsageError("E109", f"--out {out} is the input, which would be lost; name another file.")
    result = arguments.result()
    federation = result.federation
    with warnings.catch_warnings(record=True) as remarks:
        warnings.simplefilter("always", UserWarning)
        names, x = _samples(arguments, result)
        if federation.masks:
            _write_masks(out, result, x, client)
            if names != [str(i) for i in range(len(names))]:  # not just the positions in an array
                rows = ([str(place), safe_cell(name)] for place, name in enumerate(names))
                print(_csv(["place", "input"], rows), end="")
        elif federation.target and not federation.several:
            guesses = zip(names, result.predict(x, client))
            rows = (
                [safe_cell(name), *(f"{v:.7g}" for v in np.atleast_1d(values))] for name, values in guesses
            )
            _write(out, _csv(["input", *map(safe_cell, federation.classes)], rows))
        else:
            p = result.predict_proba(x, client)
            _write(out, as_csv(names, federation.classes, p, bool(federation.several)))
    for remark in remarks:
        print(f"Warning: {remark.message}", file=sys.stderr)


def _samples(arguments: Arguments, result: Any) -> tuple[list[str], Any]:
    """(names, samples) of the input. Raises DataError as `read_inputs` does."""
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
    if out is None:
        print(text, end="")
    else:
        disk.write_output(out, text)


def _write_masks(out: Path | None, result: Any, x: Any, client: int | str | None) -> None:
    if out is None or out.suffix != ".npy":
        raise UsageError(
            "E109", "this run's model predicts masks or tokens, which are no table; give --out FILE.npy."
        )
    buffer = io.BytesIO()
    kind = np.uint8 if result.federation.n_classes <= 256 else np.int64
    np.save(buffer, result.predict(x, client).astype(kind))
    disk.write_output(out, buffer.getvalue())


@dataclass(frozen=True, kw_only=True)
class ExportArguments(ModelOptions):
    """The options of `unskew export`."""

    out: Annotated[Path, "the new folder to write"]


def export(arguments: ExportArguments) -> None:
    """Write a run's model as a folder that can be used without unskew: a graph for PyTorch, model.json, and
    how to load it.

    No code in the run's folder is executed, and the training samples are not needed.
    """
    for path in arguments.result().export(arguments.out, arguments.client_key):
        print(path)
    print(f"next  python -i {shlex.quote(str(arguments.out / 'load.py'))}")
