"""Several inputs in an archive: `x.scan` and `x.age` in place of `x`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unskew.data.layout import Layout
from unskew.errors import DataError, excerpt


def inputs_in(archive: Mapping[str, Any], name: str, path: object) -> dict[str, Any]:
    """The inputs that stand under a name, `x`, `x_train` or `x_test`, by their own; {} where none do.

    Raises DataError (E401) where samples stand under the name itself, too: one of both would be left out.
    """
    inputs = {key.removeprefix(f"{name}."): values for key, values in archive.items() if key.startswith(f"{name}.")}
    if inputs and name in archive:
        text = f"{path} holds samples twice, as '{name}' and as {excerpt(f'{name}.{next(iter(inputs))}')}"
        raise DataError("E401", f"{text}; keep '{name}' for one input, or {name}.NAME for several.")
    return inputs


def inputs_for(layout: Layout, archive: Mapping[str, Any], path: object) -> Mapping[str, Any]:
    """The inputs of a model that takes them by name: `x.NAME` as in training, or `x_test.NAME`, or the arrays as they are.

    Raises DataError: E401 as `inputs_in`, E403 for an input that stands there under both of its names.
    """
    dotted = inputs_in(archive, "x", path) or inputs_in(archive, "x_test", path)
    if not dotted:
        return archive
    if twice := [each.name for each in layout.inputs if each.name in archive]:
        text = f"{path} holds input '{twice[0]}' twice, as '{twice[0]}' and behind 'x.'"
        raise DataError("E403", f"{text}; keep one of them.")
    return dotted
