"""A site's own data, from where its operator says: whatever `unskew.data.read` reads, or a few lines of Python.

The site's operator names the loader on the site's own command line; a coordinator cannot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from unskew import data, own
from unskew.data.dataset import Dataset
from unskew.data.intake.take import take
from unskew.data.parquet.places import is_pattern
from unskew.deploy.naming import renamed
from unskew.errors import DataError, UnskewError, UsageError, excerpt


def load(text: str, classes: Sequence[str] = ()) -> Dataset:
    """`folder/`, `file.npz`, `file.csv`, `shards/*.parquet` or `file.py:function`, which returns whatever `unskew.data.take` understands.

    classes: all class names, in the order on which the sites have agreed; a site need not hold samples of each.
    Raises DataError for data that cannot be trained on, UsageError (E111) for a loader that does not exist.
    """
    if ".py:" in text:
        dataset = _from_python(text)
    elif (place := Path(text.partition("(")[0])).exists() or is_pattern(str(place)):
        dataset = data.read(text)
    else:
        raise UsageError(
            "E111",
            f"--data takes a folder, an .npz, .csv or .parquet file, or FILE.py:FUNCTION that exists; got {excerpt(text)}.",
        )
    if dataset.several and classes and tuple(classes) != dataset.classes:
        named, held = ",".join(classes), ",".join(dataset.classes)
        raise DataError(
            "E404", f"{text} has the labels {held}, in this order, and --classes names {named}; name the same."
        )
    if dataset.target or dataset.several:
        return dataset if dataset.several else _check_target(dataset, text, classes)
    if not classes and len(dataset.classes) < 2:
        text = f"{text} holds samples of one class; name all classes of the study, as every site does: --classes a,b"
        raise DataError("E404", f"{text} (in an .npz: the array 'classes').")
    return renamed(dataset, tuple(classes), text) if classes else dataset


def at_site(given: Any, classes: Sequence[str] = ()) -> Dataset:
    """A site's own set, given in Python or as `load` takes it. Raises as that does, and DataError (E403) for what is no one set."""
    if isinstance(given, Path | str):
        return load(str(given), classes)
    taken = take(given)
    if not isinstance(taken, Dataset):
        raise DataError("E403", "a Federation was given; a site is one client, so give its own set.")
    return renamed(taken, tuple(classes), "the data") if classes else taken


def _check_target(dataset: Dataset, text: str, classes: Sequence[str]) -> Dataset:
    """A set with a target, for which all sites have agreed on one center and scale. Raises DataError (E404) otherwise."""
    assert dataset.target
    if classes:
        raise DataError("E404", f"{text} has a number to predict, and --classes names classes; leave --classes out.")
    if not dataset.target.given:
        raise DataError(
            "E404",
            f"{text}: every site learns (y - center) / scale with the same two numbers, which this one does not name; agree on "
            f"them, such as target={dataset.target.name},center=100,scale=50 in the brackets behind the path.",
        )
    return dataset


def _from_python(text: str) -> Dataset:
    file, _, name = text.rpartition(":")
    function = getattr(own.module(file), name, None)
    if not callable(function):
        raise UsageError("E111", f"{file} has no function '{name}'.")
    try:
        samples = function()
    except UnskewError:
        raise
    except Exception as error:  # whatever a loader raises, its operator reads one sentence
        raise DataError("E401", f"{text} failed{own.line(file, error)}: {type(error).__name__}: {error}") from error
    if isinstance(samples, str | list):
        raise DataError("E403", f"{text} should return a Dataset, (x, y) or (x, y, x_test, y_test).")
    taken = take(samples)
    if not isinstance(taken, Dataset):
        raise DataError("E403", f"{text} returned a Federation; a site is one client, so return its own set.")
    return replace(taken, name=Path(file).stem)
