"""What measures.json and privacy.json must hold: pictures of what was measured, epsilon, and what attacks found.

As for rows and facts (`shapes.py`), every reader asks here. Measures and findings that are not listed are let through,
for nothing reads them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NotRequired

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from unskew.engine.disk.shapes import FORM, Text, Whole, problem
from unskew.errors import StateError

Names = list[Text]
Numbers = list[float]
Matrix = list[list[float | None]]
Columns = Annotated[int, Field(ge=1, le=10_000)]
Picture = Annotated[str, Field(pattern=r"^[A-Za-z0-9+/=]*$")]
"""A picture's bytes in base64."""


class Site(TypedDict):
    """How sure the model is at one client."""

    __pydantic_config__ = FORM  # type: ignore[misc]
    name: Text
    n: Whole
    ece: float | None
    overconfidence: float | None


class Bins(TypedDict):
    """Answers by how sure the model was, [bins] each."""

    __pydantic_config__ = FORM  # type: ignore[misc]
    count: list[Whole]
    confidence: Numbers
    accuracy: Numbers


class Calibration(TypedDict):
    __pydantic_config__ = FORM  # type: ignore[misc]
    bins: Bins
    ece: float | None
    sites: list[Site]


class Confusion(TypedDict):
    """Tables [classes, classes] of what was taken for what: of all test samples, and of each named client's."""

    __pydantic_config__ = FORM  # type: ignore[misc]
    all: list[list[Whole]]
    names: Names
    sites: list[list[list[Whole]]]


class CrossSite(TypedDict):
    __pydantic_config__ = FORM  # type: ignore[misc]
    names: Names
    score: Matrix
    metric: Text


class Exposure(TypedDict):
    __pydantic_config__ = FORM  # type: ignore[misc]
    share: float | None
    since: list[list[int | None]]
    names: Names


class Histograms(TypedDict):
    __pydantic_config__ = FORM  # type: ignore[misc]
    buffer: Numbers
    local: list[Numbers]
    mixed: list[Numbers]
    names: NotRequired[Names]


class Received(TypedDict):
    __pydantic_config__ = FORM  # type: ignore[misc]
    classes: list[Whole]
    columns: Columns
    png: Picture


class Points(TypedDict):
    """[N] clients, [N] labels and [N, 2] places."""

    __pydantic_config__ = FORM  # type: ignore[misc]
    client: list[Whole]
    label: list[Whole]
    xy: list[Annotated[Numbers, Field(min_length=2, max_length=2)]]


class Map(TypedDict):
    __pydantic_config__ = FORM  # type: ignore[misc]
    names: Names
    local: NotRequired[Points]


class Measures(TypedDict):
    """measures.json."""

    __pydantic_config__ = FORM  # type: ignore[misc]
    calibration: NotRequired[Calibration]
    confusion: NotRequired[Confusion]
    cross_site: NotRequired[CrossSite]
    exposure: NotRequired[Exposure]
    histograms: NotRequired[Histograms]
    received: NotRequired[Received]
    tsne: NotRequired[Map]


class Epsilon(TypedDict):
    """One reading of what noise amounts to; None where nothing is guaranteed."""

    __pydantic_config__ = FORM  # type: ignore[misc]
    epsilon: float | None
    reading: Text


class Account(TypedDict):
    """What a Part's noisy release amounts to."""

    __pydantic_config__ = FORM  # type: ignore[misc]
    release: Text
    epsilons: list[Epsilon]


class Found(TypedDict):
    """A score of an attack on one payload."""

    __pydantic_config__ = FORM  # type: ignore[misc]
    payload: Text
    of: Text
    metric: Text
    value: float | None
    low: float | None
    high: float | None
    floor: float
    ceiling: float | None
    n: Whole | Text
    main: bool


class Curve(TypedDict):
    __pydantic_config__ = FORM  # type: ignore[misc]
    name: Text
    fpr: Numbers
    tpr: Numbers


class Sheet(TypedDict):
    """Rows of samples in one picture."""

    __pydantic_config__ = FORM  # type: ignore[misc]
    rows: Names
    columns: Columns
    png: Picture


class Line(TypedDict):
    __pydantic_config__ = FORM  # type: ignore[misc]
    name: Text
    x: Numbers
    y: Numbers


class Plot(TypedDict):
    __pydantic_config__ = FORM  # type: ignore[misc]
    x: Text
    y: Text
    lines: list[Line]


class Drawn(TypedDict):
    __pydantic_config__ = FORM  # type: ignore[misc]
    roc: NotRequired[list[Curve]]
    images: NotRequired[dict[Text, Sheet]]
    lines: NotRequired[Plot]


class Finding(TypedDict):
    """What one attack measured."""

    __pydantic_config__ = FORM  # type: ignore[misc]
    command: Text
    asks: NotRequired[Text]
    scores: list[Found]
    doubts: NotRequired[list[Text]]
    pictures: NotRequired[Drawn]


def measures(path: Path, content: bytes) -> dict[str, Any]:
    """measures.json. Raises StateError (E111) if it is not what it should be."""
    try:
        held = _adapter(Measures).validate_json(content)
    except ValidationError as error:
        raise StateError("E111", f"{path} {problem(error)}; copy the folder again.") from None
    if uneven := next((name for name, sizes in _sizes(held) if len(set(sizes)) > 1), ""):
        raise StateError("E111", f"{path} holds lists of different lengths under '{uneven}'; copy the folder again.")
    return dict(held)


def privacy(path: Path, content: bytes, attacks: str) -> dict[str, Any]:
    """privacy.json. attacks: the name under which what attacks found stands. Raises StateError (E111), likewise."""
    try:
        held = _adapter(dict[str, Any]).validate_json(content)
        attacked = _adapter(dict[str, Finding]).validate_python(held.get(attacks, {}))
        accounts = _adapter(dict[str, Account]).validate_python({n: v for n, v in held.items() if n != attacks})
    except ValidationError as error:
        raise StateError("E111", f"{path} {problem(error)}; remove it, and attack the run again.") from None
    drawn = [finding.get("pictures", {}) for finding in attacked.values()]
    curves = [(c["fpr"], c["tpr"]) for d in drawn for c in d.get("roc", [])]
    curves += [(c["x"], c["y"]) for d in drawn if "lines" in d for c in d["lines"]["lines"]]
    if any(len(x) != len(y) for x, y in curves):
        raise StateError(
            "E111", f"{path} holds a curve whose x and y are not as many; remove it, and attack the run again."
        )
    return {**accounts, **({attacks: attacked} if attacked else {})}


def _sizes(held: Mapping[str, Any]) -> list[tuple[str, list[int]]]:
    """By measure, lengths that must be equal."""
    equal: list[tuple[str, list[int]]] = []

    def alike(name: str, *lists: Sequence[Any]) -> None:
        equal.append((name, [len(values) for values in lists]))

    if "calibration" in held:
        alike("calibration", *(held["calibration"]["bins"][key] for key in Bins.__required_keys__))
    if "confusion" in held:
        tables = [held["confusion"]["all"], *held["confusion"]["sites"]]
        alike("confusion", *tables, *(row for table in tables for row in table))
        alike("confusion", held["confusion"]["names"], held["confusion"]["sites"])
    for name, key in (("cross_site", "score"), ("exposure", "since")):
        if name in held:
            alike(name, held[name]["names"], held[name][key])
            alike(name, *held[name][key])
    if "histograms" in held:
        shown = held["histograms"]
        alike("histograms", shown["buffer"], *shown["local"], *shown["mixed"])
        alike("histograms", shown["local"], shown["mixed"], shown.get("names", shown["local"]))
    for points in (v for v in held.get("tsne", {}).values() if isinstance(v, Mapping)):
        alike("tsne", *(points.get(key, ()) for key in Points.__required_keys__))
    return equal


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
