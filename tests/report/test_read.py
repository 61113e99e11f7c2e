"""A run is read back as it was written; a torn end is tolerated, damage elsewhere is named."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.report.fake_runs import fake_comparison, fake_run
from unskew.errors import StateError
from unskew.records import client_lists
from unskew.report.analysis.runs import read_comparison, read_run, read_runs, traffic_of


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_rows_of_a_round_are_added_up():
    """Two clients of 10 bytes and one of 7 in round 1, in a sum of three and one of two."""
    row = {"t": 1, "way": "up", "share": "w", "clients": [0, 1], "bytes": 10, "sum_of": 3}
    (traffic,) = traffic_of([row, row | {"clients": [2], "bytes": 7, "sum_of": 2}, row | {"t": 2}], 3)
    assert traffic.bytes.tolist() == [27, 20]
    assert (traffic.most, traffic.sum_of, traffic.total) == (10, 2, 47)


def test_series_clients_and_bytes_are_what_the_rows_say(tmp_path):
    run = read_run(fake_run(tmp_path / "r", "flea", clients=6, rounds=5))
    rows = lines(tmp_path / "r" / "metrics.jsonl")
    t, v = run.series("global", "accuracy")
    assert t.tolist() == [0, 1, 2, 3, 4, 5]
    wanted = [r["value"] for r in rows if r["scope"] == "global" and r["metric"] == "accuracy"]
    assert v.tolist() == wanted
    last = {
        r["client"]: r["value"]
        for r in rows
        if r["scope"] == "global@client" and r["t"] == 5 and r["client"] is not None
    }
    assert run.per_client() == last
    assert len(last) == 6
    up = sum(
        sum(r["bytes"]) if isinstance(r["bytes"], list) else r["bytes"] * len(r["clients"])
        for r in lines(tmp_path / "r" / "ledger.jsonl")
        if r["way"] == "up"
    )
    assert run.bytes_by_round("up")[1][-1] == up
    assert np.all(np.diff(run.bytes_by_round("down")[1]) > 0)
    assert run.bytes_by_round()[1][-1] == up + run.bytes_by_round("down")[1][-1]


@pytest.mark.parametrize(
    ("name", "key"), [("events.jsonl", "asked"), ("events.jsonl", "answered"), ("ledger.jsonl", "clients")]
)
def test_a_list_that_names_more_clients_than_the_run_has_is_one_sentence(tmp_path, name, key):
    """A compressed one could stand for any number of them."""
    path = fake_run(tmp_path / "r", clients=4, rounds=2)
    rows = lines(path / name)
    rows[-1] |= {key: client_lists.encode_clients([*range(1001)])} | (
        {"bytes": 5} if key == "clients" else {}
    )
    (path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(StateError, match=r"E111 .*which clients of the 4 that it has took part"):
        _ = read_run(path).attendance


def test_a_torn_last_line_is_left_out(tmp_path):
    path = fake_run(tmp_path / "r", clients=4, rounds=3)
    whole = read_run(path).series("global", "accuracy")[1]
    for name in ("metrics", "ledger", "events"):
        with open(path / f"{name}.jsonl", "a") as file:
            file.write('{"t":4,"scope":"glo')
    assert read_run(path).series("global", "accuracy")[1].tolist() == whole.tolist()


def test_damage_in_the_middle_is_named_with_its_line(tmp_path):
    path = fake_run(tmp_path / "r", clients=4, rounds=3)
    rows = (path / "metrics.jsonl").read_text().splitlines()
    rows[4] = rows[4][:20]
    (path / "metrics.jsonl").write_text("\n".join(rows) + "\n")
    with pytest.raises(StateError, match=r"E111.*metrics\.jsonl, line 5"):
        read_run(path)


def test_a_round_written_twice_counts_once(tmp_path):
    path = fake_run(tmp_path / "r", clients=4, rounds=3)
    again = {"t": 2, "scope": "global", "client": None, "metric": "accuracy", "value": 0.123}
    with open(path / "metrics.jsonl", "a") as file:
        file.write(json.dumps(again) + "\n")
    t, v = read_run(path).series("global", "accuracy")
    assert t.tolist() == [0, 1, 2, 3]
    assert v[2] == 0.123


def test_runs_without_a_ledger_or_federation_can_be_read(tmp_path):
    path = fake_run(tmp_path / "r", clients=4, rounds=3)
    for name in ("ledger.jsonl", "events.jsonl", "federation.json", "env.json"):
        (path / name).unlink()
    run = read_run(path)
    assert (run.traffic, run.events, run.federation, run.attendance) == ((), [], {}, [])
    assert len(run.bytes_by_round()[0]) == 0


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(StateError, match=r"E117.*config\.yaml"):
        read_run(tmp_path)
    with pytest.raises(StateError, match=r"E117.*compare\.yaml"):
        read_comparison(tmp_path)
    path = fake_run(tmp_path / "r", clients=4, rounds=1)
    (path / "config.yaml").write_text("just words")
    with pytest.raises(StateError, match=r"E111.*keys and values"):
        read_run(path)


def test_a_comparison_keeps_the_order_of_its_methods_and_their_names(tmp_path):
    path = fake_comparison(tmp_path / "c", ["rebafl", "fedprox(mu=0.01)", "local"], 2, clients=4, rounds=2)
    (path / "rebafl--s7").mkdir()  # not begun
    config = path / "fedprox-mu-0.01--s0" / "config.yaml"
    # as the engine resolves it
    config.write_text(config.read_text().replace("fedprox(mu=0.01)", "fedprox(mu=0.010)"))
    runs = read_comparison(path)
    found = [(r.method, r.seed) for r in runs]
    assert found == [(m, s) for m in ("rebafl", "fedprox(mu=0.01)", "local") for s in (0, 1)]


def test_runs_that_differ_in_a_setting_are_no_repeats_of_each_other(tmp_path):
    a = fake_run(tmp_path / "a", "flea", clients=4, rounds=2)
    b = fake_run(tmp_path / "b", "flea", clients=4, rounds=2, lr=0.1)
    same = fake_run(tmp_path / "same", "flea", clients=4, rounds=2)
    seeds = fake_run(tmp_path / "seed", "flea", 1, clients=4, rounds=2)
    assert [r.method for r in read_runs([a, b])] == ["flea (lr 0.05)", "flea (lr 0.1)"]
    assert [r.method for r in read_runs([a, seeds])] == ["flea", "flea"]
    assert [r.method for r in read_runs([a, same])] == ["flea [a]", "flea [same]"]
