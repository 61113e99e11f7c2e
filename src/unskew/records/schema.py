"""The schema of the files in a run's folder: rows, facts, settings, measures.json and privacy.json.

The folder may be damaged or untrusted. Every reader validates files here, so that other code can rely on
their content: numbers are bounded, clients are valid numbers, and names are texts. Other entries are ignored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from unskew.errors import StateError, printable
from unskew.formats import documents
from unskew.records import client_lists
from unskew.scores import MAIN
from unskew.system import disk

Row = dict[str, Any]
MOST_TEXT = 100_000
"""The most characters of a text."""
MOST_CLIENTS = 1 << 24
"""The most clients of a federation; readers allocate some dozen bytes for each."""
MOST_SCORE = 1e100
"""The largest finite score, from which axes of pictures are computed; scores may also be infinite."""
FORM = ConfigDict(strict=True, extra="allow")
Text = Annotated[str, Field(max_length=MOST_TEXT), AfterValidator(printable)]
Round = Annotated[int, Field(ge=0, le=10**9)]
Whole = Annotated[int, Field(ge=0, le=1 << 53)]
Client = Annotated[int, Field(ge=0, lt=client_lists.MOST_CLIENTS)]
Clients = list[Client] | Text
Sizes = list[Whole]
Shape = Annotated[list[Annotated[int, Field(ge=1, le=1 << 31)]], Field(max_length=16)]


class Score(TypedDict):
    """A row of metrics.jsonl."""

    __pydantic_config__ = FORM  # type: ignore[misc]
    t: Round
    scope: Text
    client: Client | None
    metric: Text
    value: float | None


class Bytes(TypedDict):
    """The bytes of many clients if they differ."""

    __pydantic_config__ = FORM  # type: ignore[misc]
    sum: Whole
    most: Whole


class Payload(TypedDict):
    """A row of ledger.jsonl."""

    __pydantic_config__ = FORM  # type: ignore[misc]
    t: Round
    way: Literal["up", "down"]
    share: Text
    clients: Clients
    bytes: Whole | Sizes | Bytes
    reads: NotRequired[Text]
    guarantee: NotRequired[Text]
    shape: NotRequired[Annotated[list[Whole | Text], Field(max_length=16)]]
    kind: NotRequired[Text]
    samples: NotRequired[Whole | Text]
    encoded: NotRequired[Text]
    hands_on: NotRequired[Text]
    sum_of: NotRequired[Client]
    dropped: NotRequired[bool]


class Event(TypedDict):
    """A row of events.jsonl; a row of a round lists the clients that were asked, and whose replies were
    used."""

    __pydantic_config__ = FORM  # type: ignore[misc]
    t: Round
    code: Text
    text: NotRequired[Text]
    asked: NotRequired[Clients]
    answered: NotRequired[Clients]
    received: NotRequired[Whole]
    last: NotRequired[Round]


class Parts(TypedDict):
    """Each client's number of samples for training, validation and testing."""

    __pydantic_config__ = FORM  # type: ignore[misc]
    train: Sizes
    val: NotRequired[Sizes]
    test: Sizes


class RegressionTarget(TypedDict):
    """The target of a regression."""

    __pydantic_config__ = FORM  # type: ignore[misc]
    name: Text
    center: float
    scale: float


class Facts(TypedDict):
    """federation.json."""

    __pydantic_config__ = FORM  # type: ignore[misc]
    name: Text
    classes: list[Text]
    clients: Annotated[int, Field(ge=1, le=MOST_CLIENTS)]
    names: list[Text]
    sizes: Parts
    labels: list[Sizes]
    unit: NotRequired[Literal["samples", "pixels", "tokens"]]
    test: NotRequired[Whole]
    skew: Text
    shape: NotRequired[Shape]
    mean: NotRequired[list[float]]
    std: NotRequired[list[float]]
    task: NotRequired[Literal[tuple(MAIN)]]  # type: ignore[valid-type]
    target: NotRequired[RegressionTarget]
    looked_up: NotRequired[Literal["kept", "sent"]]
    understood: NotRequired[list[Annotated[list[Text], Field(min_length=2, max_length=2)]]]


class RunSettings(TypedDict):
    """The entries of config.yaml that every reader needs."""

    __pydantic_config__ = FORM  # type: ignore[misc]
    method: Text
    seed: NotRequired[Whole]
    rounds: NotRequired[Round]


_ROWS: dict[str, Any] = {"metrics": Score, "ledger": Payload, "events": Event}


def parse_rows(path: Path, lines: Sequence[bytes]) -> list[Row]:
    """The rows of a .jsonl file, one per line. Raises StateError (E111), which names the line, for an invalid
    row."""
    try:  # all rows at once are several times faster
        rows = _rows_adapter(path.stem).validate_json(b"[" + b",".join(lines) + b"]")
        return [_complete_row(path, number, row) for number, row in enumerate(rows, 1)]
    except ValidationError:
        return [parse_row(path, number, line) for number, line in enumerate(lines, 1)]


def parse_row(path: Path, number: int, line: bytes) -> Row:
    """One row, in line `number`, counted from 1. Raises as `parse_rows`."""
    try:
        return _complete_row(path, number, _row_adapter(path.stem).validate_json(line))
    except ValidationError as error:
        where = f"{path}, line {number},"
        raise StateError("E111", f"{where} {problem_text(error)}; copy the folder again.") from None


def parse_federation(path: Path, content: bytes) -> dict[str, Any]:
    """The content of federation.json. Raises StateError (E111) if it is invalid."""
    try:
        federation = _facts_adapter().validate_json(content)
    except ValidationError as error:
        raise StateError("E111", f"{path} {problem_text(error)}; copy the folder again.") from None
    K, C = federation["clients"], len(federation["classes"])
    sizes = federation["sizes"]
    if any(
        len(listed) > K
        for listed in (federation["names"], federation["labels"], sizes["train"], sizes["test"])
    ):
        raise StateError("E111", f"{path} speaks of more clients than the {K} it has; copy the folder again.")
    if any(len(counts) != C for counts in federation["labels"]):
        raise StateError("E111", f"{path} counts other labels than its {C} classes; copy the folder again.")
    return dict(federation)


def parse_settings(path: Path, content: dict[str, Any]) -> dict[str, Any]:
    """The settings of config.yaml, unchanged. Raises StateError (E111) if they lack the method or are
    invalid."""
    try:
        _settings_adapter().validate_python(content)
    except ValidationError as error:
        raise StateError("E111", f"{path} {problem_text(error)}; copy the folder again.") from None
    return content


def _complete_row(path: Path, number: int, row: Row) -> Row:
    """The row, if what depends on what else it says is there, too."""
    if path.stem == "events":
        missing = [
            name
            for name in (("asked", "answered") if row["code"] == "round" else ("text",))
            if name not in row
        ]
        if missing:
            raise StateError("E111", f"{path}, line {number}, has no '{missing[0]}'; copy the folder again.")
    if path.stem == "metrics" and row["value"] is None:
        return {**row, "value": math.nan}
    if path.stem == "metrics" and MOST_SCORE < abs(row["value"]) < math.inf:
        raise StateError(
            "E111", f"{path}, line {number}, has the score {row['value']}; copy the folder again."
        )
    sizes, whose = row.get("bytes"), row.get("clients")
    if (
        path.stem == "ledger"
        and isinstance(sizes, list)
        and isinstance(whose, list)
        and len(sizes) != len(whose)
    ):
        text = (
            f"{path}, line {number}, has {len(sizes)} sizes for {len(whose)} clients; copy the folder again."
        )
        raise StateError("E111", text)
    return row


def problem_text(error: ValidationError) -> str:
    """A validation error in words: "'t' should be a valid integer (it is 'x')"."""
    first = error.errors(include_url=False)[0]
    place = ".".join(
        str(part) for part in first["loc"] if not str(part).startswith(("list[", "function", "lax"))
    )
    message = documents.validation_text(first["msg"]).removeprefix("Input ").rstrip(".")
    given = "" if first["type"] == "missing" else f" (it is {first['input']!r:.60})"
    if first["type"] == "json_invalid":
        return f"is not JSON: {first.get('ctx', {}).get('error', first['msg'])}"
    if first["type"] == "missing":
        return f"has no '{place}'"
    if not place:
        return f"should hold keys and values (it is {first['input']!r:.60})"
    return f"does not say what it should: '{place}' {message[:1].lower()}{message[1:]}{given}"


@cache
def _facts_adapter() -> TypeAdapter[Any]:
    return TypeAdapter(Facts)


@cache
def _settings_adapter() -> TypeAdapter[Any]:
    return TypeAdapter(RunSettings)


@cache
def _row_adapter(kind: str) -> TypeAdapter[Any]:
    return TypeAdapter(_ROWS.get(kind, dict[str, Any]))


@cache
def _rows_adapter(kind: str) -> TypeAdapter[Any]:
    return TypeAdapter(list[_ROWS.get(kind, dict[str, Any])])  # type: ignore[misc]


Names = list[Text]
Numbers = list[float]
Matrix = list[list[float | None]]
Columns = Annotated[int, Field(ge=1, le=10_000)]
Picture = Annotated[str, Field(pattern=r"^[A-Za-z0-9+/=]*$")]
"""A picture's bytes in base64."""


class Site(TypedDict):
    """The model's confidence at one client."""

    __pydantic_config__ = FORM  # type: ignore[misc]
    name: Text
    n: Whole
    ece: float | None
    overconfidence: float | None


class Bins(TypedDict):
    """Predictions by the model's confidence, [bins] each."""

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
    """Confusion matrices [classes, classes] of all test samples, and of each named client's."""

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
    """An epsilon and the definition under which it holds; None without a guarantee."""

    __pydantic_config__ = FORM  # type: ignore[misc]
    epsilon: float | None
    reading: Text


class Account(TypedDict):
    """The differential privacy of a Part's noisy release."""

    __pydantic_config__ = FORM  # type: ignore[misc]
    release: Text
    epsilons: list[Epsilon]


class AttackScore(TypedDict):
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


class AttackPictures(TypedDict):
    __pydantic_config__ = FORM  # type: ignore[misc]
    roc: NotRequired[list[Curve]]
    images: NotRequired[dict[Text, Sheet]]
    lines: NotRequired[Plot]


class Finding(TypedDict):
    """The results of one attack."""

    __pydantic_config__ = FORM  # type: ignore[misc]
    command: Text
    asks: NotRequired[Text]
    scores: list[AttackScore]
    doubts: NotRequired[list[Text]]
    pictures: NotRequired[AttackPictures]


def parse_measures(path: Path, content: bytes) -> dict[str, Any]:
    """The content of measures.json. Raises StateError (E111) if it is invalid."""
    try:
        content_by_measure = _adapter(Measures).validate_json(content)
    except ValidationError as error:
        raise StateError("E111", f"{path} {problem_text(error)}; copy the folder again.") from None
    if uneven := next((name for name, sizes in _sizes(content_by_measure) if len(set(sizes)) > 1), ""):
        raise StateError(
            "E111", f"{path} holds lists of different lengths under '{uneven}'; copy the folder again."
        )
    return dict(content_by_measure)


def parse_privacy(path: Path, content: bytes, attacks: str) -> dict[str, Any]:
    """The content of privacy.json. attacks: the key of the attacks' results. Raises StateError (E111) if it
    is invalid."""
    try:
        entries = _adapter(dict[str, Any]).validate_json(content)
        findings = _adapter(dict[str, Finding]).validate_python(entries.pop(attacks, {}))
        accounts = _adapter(dict[str, Account]).validate_python(entries)
    except ValidationError as error:
        raise StateError(
            "E111", f"{path} {problem_text(error)}; remove it, and attack the run again."
        ) from None
    pictures = [finding.get("pictures", {}) for finding in findings.values()]
    curves = [(c["fpr"], c["tpr"]) for p in pictures for c in p.get("roc", [])]
    curves += [(c["x"], c["y"]) for p in pictures if "lines" in p for c in p["lines"]["lines"]]
    if any(len(x) != len(y) for x, y in curves):
        raise StateError(
            "E111",
            f"{path} holds a curve whose x and y are not as many; remove it, and attack the run again.",
        )
    return {**accounts, **({attacks: findings} if findings else {})}


def _sizes(measures: Mapping[str, Any]) -> list[tuple[str, list[int]]]:
    """Pairs of a measure and lengths that must be equal."""
    equal: list[tuple[str, list[int]]] = []

    def alike(name: str, *lists: Sequence[Any]) -> None:
        equal.append((name, [len(values) for values in lists]))

    if "calibration" in measures:
        alike("calibration", *(measures["calibration"]["bins"][key] for key in Bins.__required_keys__))
    if "confusion" in measures:
        tables = [measures["confusion"]["all"], *measures["confusion"]["sites"]]
        alike("confusion", *tables, *(row for table in tables for row in table))
        alike("confusion", measures["confusion"]["names"], measures["confusion"]["sites"])
    for name, key in (("cross_site", "score"), ("exposure", "since")):
        if name in measures:
            alike(name, measures[name]["names"], measures[name][key])
            alike(name, *measures[name][key])
    if "histograms" in measures:
        shown = measures["histograms"]
        alike("histograms", shown["buffer"], *shown["local"], *shown["mixed"])
        alike("histograms", shown["local"], shown["mixed"], shown.get("names", shown["local"]))
    for points in (v for v in measures.get("tsne", {}).values() if isinstance(v, Mapping)):
        alike("tsne", *(points.get(key, ()) for key in Points.__required_keys__))
    return equal


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


PRIVACY_FILE, ATTACKS = "privacy.json", "attacks"


def read_privacy(folder: Path) -> dict[str, Any]:
    """The content of privacy.json, {} without one. Raises StateError (E111) if it is damaged."""
    path = folder / PRIVACY_FILE
    if not path.is_file():
        return {}
    return parse_privacy(path, path.read_bytes(), ATTACKS)


def put_releases(folder: Path, releases: Mapping[str, Any]) -> None:
    """Write the differential privacy of the Parts' releases; results of attacks are kept."""
    findings = read_privacy(folder).get(ATTACKS)
    _write_privacy(folder, {**releases, **({ATTACKS: findings} if findings else {})})


def put_attack(folder: Path, name: str, finding: Mapping[str, Any]) -> None:
    """Write the results of an attack in place of its earlier ones; everything else is kept."""
    content = read_privacy(folder)
    _write_privacy(folder, {**content, ATTACKS: {**content.get(ATTACKS, {}), name: finding}})


def _write_privacy(folder: Path, content: Mapping[str, Any]) -> None:
    if content:
        disk.replace(folder / PRIVACY_FILE, json.dumps(content, indent=1, allow_nan=False))
