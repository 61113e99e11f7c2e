"""What the rows and facts in a run's folder must be. The folder may be damaged, or a stranger's.

Every reader asks here, so that nothing beyond relies on what a file claims: a number is a number and not enormous, a
client is one, and a text is one line, whose control characters are escaped. What a file holds beside what is listed here is let through.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from unskew import documents, many
from unskew.errors import StateError, printable
from unskew.scores import MAIN

Row = dict[str, Any]
MOST_TEXT = 100_000
"""Characters of a text."""
MOST_CLIENTS = 1 << 24
"""Of a federation: its readers set aside some dozen bytes for each that it claims to have."""
MOST_SCORE = 1e100
"""A finite score; it may be infinite, too. The axes of pictures are computed with it."""
FORM = ConfigDict(strict=True, extra="allow")
Text = Annotated[str, Field(max_length=MOST_TEXT), AfterValidator(printable)]
Round = Annotated[int, Field(ge=0, le=10**9)]
Whole = Annotated[int, Field(ge=0, le=1 << 53)]
Client = Annotated[int, Field(ge=0, lt=many.MOST)]
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
    """The bytes of many clients, which differ."""

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
    """A row of events.jsonl; one of a round says who was asked and whose replies were used."""

    __pydantic_config__ = FORM  # type: ignore[misc]
    t: Round
    code: Text
    text: NotRequired[Text]
    asked: NotRequired[Clients]
    answered: NotRequired[Clients]
    received: NotRequired[Whole]
    last: NotRequired[Round]


class Parts(TypedDict):
    """How many samples each client has for training, for choosing and for testing."""

    __pydantic_config__ = FORM  # type: ignore[misc]
    train: Sizes
    val: NotRequired[Sizes]
    test: Sizes


class Aim(TypedDict):
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
    target: NotRequired[Aim]
    looked_up: NotRequired[Literal["kept", "sent"]]
    understood: NotRequired[list[Annotated[list[Text], Field(min_length=2, max_length=2)]]]


class Asked(TypedDict):
    """What every reader needs of config.yaml."""

    __pydantic_config__ = FORM  # type: ignore[misc]
    method: Text
    seed: NotRequired[Whole]
    rounds: NotRequired[Round]


_ROWS: dict[str, Any] = {"metrics": Score, "ledger": Payload, "events": Event}


def rows(path: Path, lines: Sequence[bytes]) -> list[Row]:
    """The rows of a .jsonl file, one a line. Raises StateError (E111), naming the line, if one is not what it should be."""
    try:
        read = _many(path.stem).validate_json(b"[" + b",".join(lines) + b"]")  # all at once is several times faster
        return [_told(path, number, each) for number, each in enumerate(read, 1)]
    except ValidationError:
        return [row(path, number, line) for number, line in enumerate(lines, 1)]


def row(path: Path, number: int, line: bytes) -> Row:
    """One row, in line `number`, counted from 1. Raises: as `rows` does."""
    try:
        return _told(path, number, _one(path.stem).validate_json(line))
    except ValidationError as error:
        where = f"{path}, line {number},"
        raise StateError("E111", f"{where} {problem(error)}; copy the folder again.") from None


def facts(path: Path, content: bytes) -> dict[str, Any]:
    """What federation.json holds. Raises StateError (E111) if it is not what it should be."""
    try:
        federation = _facts().validate_json(content)
    except ValidationError as error:
        raise StateError("E111", f"{path} {problem(error)}; copy the folder again.") from None
    K, C = federation["clients"], len(federation["classes"])
    sizes = federation["sizes"]
    if any(len(listed) > K for listed in (federation["names"], federation["labels"], sizes["train"], sizes["test"])):
        raise StateError("E111", f"{path} speaks of more clients than the {K} it has; copy the folder again.")
    if any(len(counts) != C for counts in federation["labels"]):
        raise StateError("E111", f"{path} counts other labels than its {C} classes; copy the folder again.")
    return dict(federation)


def settings(path: Path, content: dict[str, Any]) -> dict[str, Any]:
    """The settings of config.yaml, as they are. Raises StateError (E111) where they do not say what was trained."""
    try:
        _asked().validate_python(content)
    except ValidationError as error:
        raise StateError("E111", f"{path} {problem(error)}; copy the folder again.") from None
    return content


def _told(path: Path, number: int, row: Row) -> Row:
    """The row, if what depends on what else it says is there, too."""
    if path.stem == "events":
        missing = [name for name in (("asked", "answered") if row["code"] == "round" else ("text",)) if name not in row]
        if missing:
            raise StateError("E111", f"{path}, line {number}, has no '{missing[0]}'; copy the folder again.")
    if path.stem == "metrics" and row["value"] is None:
        return {**row, "value": math.nan}
    if path.stem == "metrics" and MOST_SCORE < abs(row["value"]) < math.inf:
        raise StateError("E111", f"{path}, line {number}, has the score {row['value']}; copy the folder again.")
    sizes, whose = row.get("bytes"), row.get("clients")
    if path.stem == "ledger" and isinstance(sizes, list) and isinstance(whose, list) and len(sizes) != len(whose):
        text = f"{path}, line {number}, has {len(sizes)} sizes for {len(whose)} clients; copy the folder again."
        raise StateError("E111", text)
    return row


def problem(error: ValidationError) -> str:
    """What is wrong, in words: "'t' should be a valid integer (it is 'x')"."""
    first = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"] if not str(part).startswith(("list[", "function", "lax")))
    message = documents.in_words(first["msg"]).removeprefix("Input ").rstrip(".")
    given = "" if first["type"] == "missing" else f" (it is {first['input']!r:.60})"
    if first["type"] == "json_invalid":
        return f"is not JSON: {first.get('ctx', {}).get('error', first['msg'])}"
    if first["type"] == "missing":
        return f"has no '{place}'"
    if not place:
        return f"should hold keys and values (it is {first['input']!r:.60})"
    return f"does not say what it should: '{place}' {message[:1].lower()}{message[1:]}{given}"


@cache
def _facts() -> TypeAdapter[Any]:
    return TypeAdapter(Facts)


@cache
def _asked() -> TypeAdapter[Any]:
    return TypeAdapter(Asked)


@cache
def _one(kind: str) -> TypeAdapter[Any]:
    return TypeAdapter(_ROWS.get(kind, dict[str, Any]))


@cache
def _many(kind: str) -> TypeAdapter[Any]:
    return TypeAdapter(list[_ROWS.get(kind, dict[str, Any])])  # type: ignore[misc]
