"""What is read of a run's folder is what it should be, or one sentence says what is not.

Likely mistakes: a file half copied, one of another run, one edited by hand. Worst intents: numbers so large
that readers set aside all memory, texts that become part of a page, lists that do not fit together.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from unskew.errors import StateError
from unskew.records import schema

SCORE = {"t": 1, "scope": "global", "client": None, "metric": "accuracy", "value": 0.5}
SENT = {"t": 1, "way": "up", "share": "w", "clients": [0, 1], "bytes": [4, 5], "shape": ["rows", 3]}
ROUND = {"t": 1, "code": "round", "asked": [0, 1], "answered": [1], "received": 1}
FACTS = {
    "name": "d", "classes": ["a", "b"], "clients": 2, "names": ["k", "l"], "skew": "iid", "shape": [1, 8, 8],
    "sizes": {"train": [3, 4], "val": [], "test": [1, 1]}, "labels": [[1, 2], [2, 2]], "unit": "samples",
}  # fmt: skip
RIGHT = {"metrics": SCORE, "ledger": SENT, "events": ROUND}


@pytest.mark.parametrize("kind", RIGHT)
def test_rows_are_read_as_they_were_written(kind):
    lines = [json.dumps({**RIGHT[kind], "further": [1]}).encode()] * 3
    assert schema.parse_rows(Path(f"{kind}.jsonl"), lines) == [{**RIGHT[kind], "further": [1]}] * 3


@pytest.mark.parametrize(
    ("kind", "change", "told"),
    [
        ("metrics", {"t": True}, "'t' should be a valid integer"),
        ("metrics", {"value": 1e308}, "has the score 1e"),
        ("metrics", {"client": 1 << 40}, "'client' should be less than"),
        ("metrics", {"metric": "m" * 200_000}, "'metric' string should have at most 100000 characters"),
        ("ledger", {"way": "out"}, "'way' should be 'up' or 'down'"),
        ("ledger", {"bytes": [4]}, "has 1 sizes for 2 clients"),
        ("ledger", {"clients": [0, None]}, "'clients"),
        ("events", {"code": "E301"}, "has no 'text'"),
    ],
)
def test_rows_of_something_else_are_one_sentence(kind, change, told):
    path, good = Path(f"r/{kind}.jsonl"), RIGHT[kind]
    lines = [json.dumps(row).encode() for row in (good, {**good, **change})]
    with pytest.raises(StateError) as raised:
        schema.parse_rows(path, lines)
    assert raised.value.code == "E111"
    assert raised.value.text.startswith(f"r/{kind}.jsonl, line 2,")
    assert told in raised.value.text
    assert raised.value.text.endswith("copy the folder again.")


@pytest.mark.parametrize("line", [b"[]", b"3", b"null", b"{", b"[" * 200_000, b'{"t": 1}', b"\xff"])
def test_lines_that_are_no_rows_are_one_sentence(line):
    with pytest.raises(StateError, match=r"^E111 metrics\.jsonl, line 1, .*\.$"):
        schema.parse_rows(Path("metrics.jsonl"), [line])


def test_scores_may_be_infinite_or_no_number():
    lines = [json.dumps({**SCORE, "value": value}).encode() for value in (float("nan"), float("inf"), None)]
    values = [row["value"] for row in schema.parse_rows(Path("metrics.jsonl"), lines)]
    assert [str(value) for value in values] == [
        "nan",
        "inf",
        "nan",
    ]  # null is one, too, which nobody has to ask for


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"clients": 5 * 10**9}, "'clients' should be less than or equal to"),
        ({"clients": 1}, "speaks of more clients than the 1 it has"),
        ({"labels": [[1, 2, 3]]}, "counts other labels than its 2 classes"),
        ({"sizes": {"train": [1, "2"], "test": []}}, "'sizes.train.1' should be a valid integer"),
        ({"unit": "people"}, "'unit' should be 'samples', 'pixels' or 'tokens'"),
        ({"shape": [0]}, "'shape.0' should be greater than or equal to 1"),
    ],
)
def test_facts_of_something_else_are_one_sentence(change, told):
    with pytest.raises(StateError) as raised:
        schema.parse_federation(Path("federation.json"), json.dumps({**FACTS, **change}).encode())
    assert raised.value.text.startswith("federation.json ")
    assert told in raised.value.text


@pytest.mark.parametrize(
    ("held", "told"),
    [
        ({"received": {"classes": [0], "columns": 2, "png": 'x"><script>'}}, "'received.png' string"),
        ({"received": {"classes": [0], "columns": 10**9, "png": ""}}, "'received.columns' should be less"),
        ({"confusion": {"all": [[1, 2], [3]], "names": [], "sites": []}}, "lengths under 'confusion'"),
        ({"tsne": {"names": [], "local": {"client": [1], "label": [], "xy": []}}}, "lengths under 'tsne'"),
        ({"exposure": {"share": 1.0, "since": [[1], [1, 2]], "names": ["a", "b"]}}, "under 'exposure'"),
        ([], "should hold keys and values"),
    ],
)
def test_measures_of_something_else_are_one_sentence(held, told):
    with pytest.raises(StateError) as raised:
        schema.parse_measures(Path("measures.json"), json.dumps(held).encode())
    assert told in raised.value.text


@pytest.mark.parametrize(
    ("held", "told"),
    [
        ({"dp": {"release": "r", "epsilons": 3}}, "'dp.epsilons' should be a"),
        ({"dp": {"release": "r", "epsilons": [{"epsilon": {}, "reading": ""}]}}, "'dp.epsilons.0.epsilon' should be a"),
        ({"attacks": {"labels": {"command": "c"}}}, "has no 'labels.scores'"),
        ({"attacks": []}, "should hold keys and values"),
    ],
)  # fmt: skip
def test_privacy_of_something_else_is_one_sentence(held, told):
    with pytest.raises(StateError) as raised:
        schema.parse_privacy(Path("privacy.json"), json.dumps(held).encode())
    assert told in raised.value.text
