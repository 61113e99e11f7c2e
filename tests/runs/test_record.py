"""What a run writes down: scores over all clients and of single ones, and files checkpoints vouch for."""

from __future__ import annotations

import json

import pytest

from unskew.errors import StateError
from unskew.records.record import Record, check, last_round_in


def row(t, value, client=None, scope="global", metric="accuracy"):
    return {"t": t, "scope": scope, "client": client, "metric": metric, "value": value}


@pytest.mark.parametrize("on_disk", [False, True])
def test_scores_of_single_clients_are_no_scores_over_all(tmp_path, on_disk):
    record = Record(tmp_path if on_disk else None)
    record.add("metrics", [row(1, 0.5), row(1, 0.1, client=3), row(2, 0.25), row(2, 0.9, client=0)])
    assert record.series("global", "accuracy") == ([1, 2], [0.5, 0.25])
    assert record.latest("global", "accuracy") == (2, 0.25)
    assert record.latest("global", "loss") is None
    assert record.last_round == 2
    record.add("metrics", [row(3, 0.7, 1, "own", "loss")])
    assert (record.scopes, record.metrics("own"), record.last_round) == (["global"], [], 3)
    assert [r["client"] for r in record.rows_from("metrics", 2)] == [None, 0, 1]
    record.close()


def written(folder, *values):
    """(the record of these scores, the marks of a checkpoint behind them)."""
    record = Record(folder)
    record.add("metrics", [row(t, value) for t, value in enumerate(values, 1)])
    record.keep_measures({})
    return record, record.marks()


def test_what_came_behind_a_checkpoint_is_not_read(tmp_path):
    """A reader sees rounds up to the checkpoint and changes nothing; a resumed run cuts the files there."""
    record, marks = written(tmp_path, 0.5, 0.25)
    record.add("metrics", [row(3, 0.75)])
    record.close()
    before = (tmp_path / "metrics.jsonl").read_bytes()
    read = Record.read(tmp_path, marks)
    assert read.series("global", "accuracy") == ([1, 2], [0.5, 0.25])
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    again = Record(tmp_path, marks)
    again.add("metrics", [row(3, 0.8)])
    assert again.series("global", "accuracy") == ([1, 2, 3], [0.5, 0.25, 0.8])
    later = again.marks()
    again.close()
    check(tmp_path, later)
    assert [json.loads(line)["value"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [
        0.5,
        0.25,
        0.8,
    ]


def test_a_file_that_is_not_what_the_checkpoint_says_is_refused(tmp_path):
    """Rounds before it that were changed, cut off or removed; measures also where something was added."""
    record, marks = written(tmp_path, 0.5, 0.25)
    record.close()
    check(tmp_path, marks)
    for name in ("metrics.jsonl", "measures.json"):
        path = tmp_path / name
        content = path.read_bytes()
        spoilt = [content[:-1], bytes([content[0] ^ 1]) + content[1:], None]
        for other in [*spoilt, *([content + b" "] if name == "measures.json" else [])]:
            path.write_bytes(other) if other is not None else path.unlink()
            for reads in (check, Record.read):
                with pytest.raises(StateError, match=f"E201 {name} is missing, or not as the run wrote it"):
                    reads(tmp_path, marks)
        path.write_bytes(content)


def test_the_last_round_is_the_largest_of_any_file(tmp_path):
    assert last_round_in(tmp_path) == -1
    (tmp_path / "metrics.jsonl").write_text('{"t": 4}\n{"t": 2}\n{"t": 9')
    (tmp_path / "events.jsonl").write_text('{"t": 3}\n[]\n')
    assert last_round_in(tmp_path) == 4
