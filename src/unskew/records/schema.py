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


def form(**fields: Any) -> Any:
    """The type of an object with these entries, which may have others; `NotRequired` ones may be missing."""
    kind: Any = TypedDict("form", fields)  # type: ignore[misc, operator]
    kind.__pydantic_config__ = ConfigDict(strict=True, extra="allow")
    return kind


Text = Annotated[str, Field(max_length=MOST_TEXT), AfterValidator(printable)]
Round = Annotated[int, Field(ge=0, le=10**9)]
Whole = Annotated[int, Field(ge=0, le=1 << 53)]
Client = Annotated[int, Field(ge=0, lt=client_lists.MOST_CLIENTS)]
Clients = list[Client] | Text
Sizes = list[Whole]
Shape = Annotated[list[Annotated[int, Field(ge=1, le=1 << 31)]], Field(max_length=16)]
Names = list[Text]
Numbers = list[float]
Columns = Annotated[int, Field(ge=1, le=10_000)]
Picture = Annotated[str, Field(pattern=r"^[A-Za-z0-9+/=]*$")]
"""A picture's bytes in base64."""

ROWS = {
    "metrics": form(t=Round, scope=Text, client=Client | None, metric=Text, value=float | None),
    "ledger": form(
        t=Round,
        way=Literal["up", "down"],
        share=Text,
        clients=Clients,
        bytes=Whole | Sizes | form(sum=Whole, most=Whole),
        reads=NotRequired[Text],
        guarantee=NotRequired[Text],
        shape=NotRequired[Annotated[list[Whole | Text], Field(max_length=16)]],
        kind=NotRequired[Text],
        samples=NotRequired[Whole | Text],
        encoded=NotRequired[Text],
        hands_on=NotRequired[Text],
        sum_of=NotRequired[Client],
        dropped=NotRequired[bool],
    ),
    "events": form(
        t=Round,
        code=Text,
        text=NotRequired[Text],
        asked=NotRequired[Clients],
        answered=NotRequired[Clients],
        received=NotRequired[Whole],
        last=NotRequired[Round],
    ),
}
"""The rows of metrics.jsonl, ledger.jsonl and events.jsonl; a row of a round lists the clients that were
asked, and whose replies were used."""

FACTS = form(
    name=Text,
    classes=Names,
    clients=Annotated[int, Field(ge=1, le=MOST_CLIENTS)],
    names=Names,
    sizes=form(train=Sizes, val=NotRequired[Sizes], test=Sizes),
    labels=list[Sizes],
    unit=NotRequired[Literal["samples", "pixels", "tokens"]],
    test=NotRequired[Whole],
    test_groups=NotRequired[Whole],
    skew=Text,
    shape=NotRequired[Shape],
    mean=NotRequired[Numbers],
    std=NotRequired[Numbers],
    task=NotRequired[Literal[tuple(MAIN)]],  # type: ignore[valid-type]
    target=NotRequired[form(name=Text, center=float | Numbers, scale=float | Numbers)],
    looked_up=NotRequired[Literal["kept", "sent"]],
    understood=NotRequired[list[Annotated[Names, Field(min_length=2, max_length=2)]]],
)
"""federation.json; each client's number of samples for training, validation and testing."""

SETTINGS = form(method=Text, seed=NotRequired[Whole], rounds=NotRequired[Round])
"""The entries of config.yaml that every reader needs."""

POINTS = form(client=Sizes, label=Sizes, xy=list[Annotated[Numbers, Field(min_length=2, max_length=2)]])
MEASURES = form(
    confusion=NotRequired[form(all=list[Sizes], names=Names, sites=list[list[Sizes]])],
    cross_site=NotRequired[form(names=Names, score=list[list[float | None]], metric=Text)],
    exposure=NotRequired[form(share=float | None, since=list[list[int | None]], names=Names)],
    histograms=NotRequired[
        form(buffer=Numbers, local=list[Numbers], mixed=list[Numbers], names=NotRequired[Names])
    ],
    received=NotRequired[form(classes=Sizes, columns=Columns, png=Picture)],
    tsne=NotRequired[form(names=Names, local=NotRequired[POINTS])],
)
"""measures.json; confusion matrices are [classes, classes], of all test samples and each named client's."""

ACCOUNT = form(release=Text, epsilons=list[form(epsilon=float | None, reading=Text)])
"""The differential privacy of a Part's noisy release: every epsilon with the definition under which it holds,
None without a guarantee."""
FINDING = form(
    command=Text,
    asks=NotRequired[Text],
    scores=list[
        form(
            payload=Text,
            of=Text,
            metric=Text,
            value=float | None,
            low=float | None,
            high=float | None,
            floor=float,
            ceiling=float | None,
            n=Whole | Text,
            main=bool,
        )
    ],
    doubts=NotRequired[Names],
    pictures=NotRequired[
        form(images=NotRequired[dict[Text, form(rows=Names, columns=Columns, png=Picture)]])
    ],
)
"""The results of one attack in privacy.json."""


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _invalid(where: object, problem: str, remedy: str = "copy the folder again") -> StateError:
    return StateError("E111", f"{where} {problem}; {remedy}.")


def parse_rows(path: Path, lines: Sequence[bytes]) -> list[Row]:
    """The rows of a .jsonl file, one per line. Raises StateError (E111), which names the line, for an invalid
    row."""
    try:  # all rows at once are several times faster
        kind = list[ROWS.get(path.stem, dict[str, Any])]  # type: ignore[misc]
        rows = _adapter(kind).validate_json(b"[" + b",".join(lines) + b"]")
        return [_complete_row(path, number, row) for number, row in enumerate(rows, 1)]
    except ValidationError:
        return [parse_row(path, number, line) for number, line in enumerate(lines, 1)]


def parse_row(path: Path, number: int, line: bytes) -> Row:
    """One row, in line `number`, counted from 1. Raises as `parse_rows`."""
    try:
        row = _adapter(ROWS.get(path.stem, dict[str, Any])).validate_json(line)
    except ValidationError as error:
        raise _invalid(f"{path}, line {number},", problem_text(error)) from None
    return _complete_row(path, number, row)


def _complete_row(path: Path, number: int, row: Row) -> Row:
    """The row, if entries that depend on each other fit."""
    problem = ""
    if path.stem == "metrics":
        if row["value"] is None:
            return {**row, "value": math.nan}
        if MOST_SCORE < abs(row["value"]) < math.inf:
            problem = f"has the score {row['value']}"
    elif path.stem == "events":
        needed = ("asked", "answered") if row["code"] == "round" else ("text",)
        problem = next((f"has no '{name}'" for name in needed if name not in row), "")
    elif path.stem == "ledger" and isinstance(row["bytes"], list) and isinstance(row["clients"], list):
        sizes, clients = len(row["bytes"]), len(row["clients"])
        problem = f"has {sizes} sizes for {clients} clients" if sizes != clients else ""
    if problem:
        raise _invalid(f"{path}, line {number},", problem)
    return row


def parse_federation(path: Path, content: bytes) -> dict[str, Any]:
    """The content of federation.json. Raises StateError (E111) if it is invalid."""
    try:
        federation = _adapter(FACTS).validate_json(content)
    except ValidationError as error:
        raise _invalid(path, problem_text(error)) from None
    K, C, sizes = federation["clients"], len(federation["classes"]), federation["sizes"]
    lists = (federation["names"], federation["labels"], sizes["train"], sizes["test"])
    if any(len(values) > K for values in lists):
        raise _invalid(path, f"speaks of more clients than the {K} it has")
    if any(len(counts) != C for counts in federation["labels"]):
        raise _invalid(path, f"counts other labels than its {C} classes")
    return dict(federation)


def parse_settings(path: Path, content: dict[str, Any]) -> dict[str, Any]:
    """The settings of config.yaml, unchanged. Raises StateError (E111) if they lack the method or are
    invalid."""
    try:
        _adapter(SETTINGS).validate_python(content)
    except ValidationError as error:
        raise _invalid(path, problem_text(error)) from None
    return content


def problem_text(error: ValidationError) -> str:
    """A validation error in words: "'t' should be a valid integer (it is 'x')"."""
    first = error.errors(include_url=False)[0]
    place = ".".join(
        str(part) for part in first["loc"] if not str(part).startswith(("list[", "function", "lax"))
    )
    if first["type"] == "json_invalid":
        return f"is not JSON: {first.get('ctx', {}).get('error', first['msg'])}"
    if first["type"] == "missing":
        return f"has no '{place}'"
    if not place:
        return f"should hold keys and values (it is {first['input']!r:.60})"
    message = documents.validation_text(first["msg"]).removeprefix("Input ").rstrip(".")
    problem = f"'{place}' {message[:1].lower()}{message[1:]} (it is {first['input']!r:.60})"
    return f"does not say what it should: {problem}"


def parse_measures(path: Path, content: bytes) -> dict[str, Any]:
    """The content of measures.json. Raises StateError (E111) if it is invalid."""
    try:
        measures = _adapter(MEASURES).validate_json(content)
    except ValidationError as error:
        raise _invalid(path, problem_text(error)) from None
    for name, lists in _equal_lists(measures):
        if len({len(values) for values in lists}) > 1:
            raise _invalid(path, f"holds lists of different lengths under '{name}'")
    return dict(measures)


def _equal_lists(measures: Mapping[str, Any]) -> list[tuple[str, list[Sequence[Any]]]]:
    """Pairs of a measure and lists that must be equally long."""
    equal: list[tuple[str, list[Sequence[Any]]]] = []
    if confusion := measures.get("confusion"):
        tables = [confusion["all"], *confusion["sites"]]
        equal.append(("confusion", [*tables, *(row for table in tables for row in table)]))
        equal.append(("confusion", [confusion["names"], confusion["sites"]]))
    for name, key in (("cross_site", "score"), ("exposure", "since")):
        if name in measures:
            equal.append((name, [measures[name]["names"], measures[name][key]]))
            equal.append((name, measures[name][key]))
    if shown := measures.get("histograms"):
        equal.append(("histograms", [shown["buffer"], *shown["local"], *shown["mixed"]]))
        equal.append(("histograms", [shown["local"], shown["mixed"], shown.get("names", shown["local"])]))
    for points in (v for v in measures.get("tsne", {}).values() if isinstance(v, Mapping)):
        equal.append(("tsne", [points.get(key, ()) for key in POINTS.__annotations__]))
    return equal


PRIVACY_FILE, ATTACKS = "privacy.json", "attacks"


def parse_privacy(path: Path, content: bytes) -> dict[str, Any]:
    """The content of privacy.json. Raises StateError (E111) if it is invalid."""
    remedy = "remove it, and attack the run again"
    try:
        entries = _adapter(dict[str, Any]).validate_json(content)
        findings = _adapter(dict[str, FINDING]).validate_python(entries.pop(ATTACKS, {}))
        accounts = _adapter(dict[str, ACCOUNT]).validate_python(entries)
    except ValidationError as error:
        raise _invalid(path, problem_text(error), remedy) from None
    return {**accounts, **({ATTACKS: findings} if findings else {})}


def read_privacy(folder: Path) -> dict[str, Any]:
    """The content of privacy.json, {} without one. Raises StateError (E111) if it is damaged."""
    path = folder / PRIVACY_FILE
    return parse_privacy(path, path.read_bytes()) if path.is_file() else {}


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
