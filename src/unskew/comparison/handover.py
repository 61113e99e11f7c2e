"""What worker processes can be handed: text, and data that are written to a file beside the runs.

A comparison trains each run in a process of its own, which reads everything from files, so that it can be resumed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import nn

from unskew.core.method import Method
from unskew.core.part import Part
from unskew.data.federation import Federation
from unskew.data.intake.kept import keep
from unskew.data.intake.take import settings_of, take
from unskew.engine import given, resolve
from unskew.errors import UnskewError, UsageError, excerpt

FILE = "data.npz"


def methods_as_text(methods: Iterable[Method | Part | str | os.PathLike[str]]) -> list[str]:
    """The texts of methods. Raises UsageError (E109) for a Part that no other process can find by its name."""
    if isinstance(methods, str | os.PathLike | Method | Part):
        raise UsageError(
            "E109", f"compare takes a list of methods, such as ['fedavg', 'fedprox']; got {excerpt(methods)}."
        )
    return [_method(m) for m in methods]


def _method(method: Method | Part | str | os.PathLike[str]) -> str:
    if isinstance(method, str | os.PathLike):
        return os.fspath(method)
    given.check_method(method)
    parts = method.parts if isinstance(method, Method) else (method,)
    text = str(Method(*parts)) if parts else "fedavg"
    try:
        again = resolve.parts_of(text).parts
    except UnskewError:
        again = ()
    if again != parts:
        raise UsageError(
            "E109",
            f"{excerpt(text)} is a Part of this process alone, and each run of a comparison has a process of its own; put "
            "the Part into a file and name that: compare(['my_part.py', ...]).",
        )
    return text


def model_as_text(model: Any) -> str:
    """The text of a model. Raises UsageError (E109) for a module, which only this process has."""
    if isinstance(model, nn.Module):
        raise UsageError(
            "E109",
            f"a {type(model).__name__} was given as model, and each run of a comparison has a process of its own; put the "
            "function that builds it into a file and name that: model='my_model.py:function'.",
        )
    return os.fspath(model)


def data_as_text(data: Any, parent: Path, label: str, site: str, target: str = "") -> dict[str, str]:
    """The settings that stand for data: their text and, where they came divided, the skew.

    What is no text is written to `data.npz` in the comparison's folder. Raises UsageError (E109) for a Federation, and
    as `take` does.
    """
    if isinstance(data, str | os.PathLike):
        return settings_of(data, label, site, target)[1]
    dataset = take(data, label=label, site=site, target=target)
    if isinstance(dataset, Federation):
        raise UsageError(
            "E109",
            "a Federation is dealt out already, and each run of a comparison deals out for itself; give the Dataset and a "
            "skew, or a list of the clients' sets.",
        )
    keep(dataset, parent / FILE)
    return {**settings_of(dataset, "", site)[1], "data": str(parent / FILE)}
