"""Memory and files do not grow with rounds and clients more than they must."""

from __future__ import annotations

import base64
import gc
import json
import tracemalloc
import zlib
from functools import cache

import numpy as np
import pytest

from unskew.data.clients.availability import Availability
from unskew.errors import StateError
from unskew.records import client_lists
from unskew.records.record import Record

ROUNDS, CLIENTS = 300, 20


def rows_of_a_round(t: int, K: int, answered: list[int]) -> list[tuple[str, list[dict]]]:
    """What a round of one Part with shares adds to a record."""
    clients = client_lists.encode_clients(list(range(K)))
    came = client_lists.encode_clients(answered)
    ledger = [
        {"t": t, "way": "down", "share": "w", "clients": clients, "bytes": 153_000, "reads": "sum", "guarantee": "none"},
        {"t": t, "way": "up", "share": "w", "clients": came, "bytes": 153_000, "reads": "sum", "guarantee": "none"},
        {"t": t, "way": "up", "share": "p/x", "clients": came, "bytes": client_lists.encode_bytes([t + k for k in answered]), "reads": "each", "guarantee": "none"},
    ]  # fmt: skip
    scores = [
        ("global", "accuracy"), ("global", "macro_f1"), ("global@client", "mean"), ("global@client", "worst"),
    ]  # fmt: skip
    metrics = [
        {"t": t, "scope": s, "client": None, "metric": m, "value": round(t / 7 % 1, 6)} for s, m in scores
    ]
    own = range(min(K, 200) if K <= 200 else 0)
    metrics += [
        {"t": t, "scope": "global@client", "client": k, "metric": "accuracy", "value": 0.123456} for k in own
    ]
    return [
        ("ledger", ledger),
        ("metrics", metrics),
        ("events", [{"t": t, "code": "round", "asked": clients, "answered": came}]),
    ]


def test_a_record_of_many_rounds_needs_little_memory():
    """R5: 8.6 KiB of memory a round at 20 clients; now below 1 KB, and nothing is lost."""
    record = Record(None)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for t in range(1, ROUNDS + 1):
            for kind, rows in rows_of_a_round(t, CLIENTS, list(range(CLIENTS))):
                record.add(kind, rows)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 300_000, grown
    assert record.series("global", "accuracy")[0] == list(range(1, ROUNDS + 1))
    assert record.latest("global", "accuracy") == (ROUNDS, round(ROUNDS / 7 % 1, 6))
    assert len(record.rows["metrics"]) == ROUNDS * (4 + CLIENTS)
    assert record.rows["events"][-1] == {
        "t": ROUNDS,
        "code": "round",
        "asked": [*range(20)],
        "answered": [*range(20)],
    }
    assert [row["t"] for row in record.rows_from("ledger", 3 * ROUNDS - 2)] == [ROUNDS, ROUNDS]
    record.close()


def test_a_hundred_thousand_clients_write_little(tmp_path):
    """R5: bernoulli over 100,000 clients wrote 1.2 MB a round; now below 100 KB."""
    K = 100_000
    attendance = Availability.parse("bernoulli:0.3").who(1, K, lambda t: np.random.default_rng(t))
    record = Record(tmp_path)
    for kind, rows in rows_of_a_round(1, K, attendance.answered.tolist()):
        record.add(kind, rows)
    record.close()
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 100_000
    (event,) = record.rows["events"]
    assert client_lists.clients_in(event["answered"]) == attendance.answered.tolist()
    assert client_lists.clients_in(event["asked"]) == list(range(K))
    up = record.rows["ledger"][2]
    assert client_lists.count(up["clients"]) == len(attendance.answered)
    assert client_lists.total_bytes(up) == sum(1 + k for k in attendance.answered.tolist())
    assert client_lists.most_bytes(up) == 1 + attendance.answered[-1]
    assert client_lists.total_bytes(record.rows["ledger"][0]) == 153_000 * K


@pytest.mark.parametrize(
    "clients", [[], [0], [3, 5, 8], [*range(1000)], [*range(1001)], [*range(7, 9000, 4)]]
)
def test_sets_of_clients_are_read_as_they_were_written(clients):
    """R5: above 1,000 clients a text, which JSON keeps; below, the list that people read."""
    value = json.loads(json.dumps(client_lists.encode_clients(clients)))
    assert isinstance(value, str) == (len(clients) > 1000)
    assert client_lists.clients_in(value) == clients
    assert client_lists.count(value) == len(clients)


@cache
def bomb() -> str:
    """A set of a few kilobytes that stands for 800 million clients."""
    return base64.b64encode(zlib.compress(bytes(100 << 20))).decode()


@pytest.mark.parametrize(
    ("clients", "megabytes"), [(5000, 1), (client_lists.MOST_CLIENTS, 4 * client_lists.MOST_CLIENTS >> 23)]
)
@pytest.mark.parametrize("read", [client_lists.clients_in, client_lists.count])
def test_a_set_is_inflated_no_further_than_the_run_has_clients(read, clients, megabytes):
    text = bomb()
    tracemalloc.start()
    try:
        with pytest.raises(StateError, match="E111 a record of this run does not say which clients"):
            read(text, clients)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < megabytes << 20


@pytest.mark.parametrize("last", [4992, 4999, 5000])
def test_the_last_client_of_a_run_is_in_a_set_and_the_one_after_it_is_not(last):
    """5,000 clients fill 625 bytes, 4,993 fill all but the last seven bits."""
    text = client_lists.encode_clients([*range(2000), last])
    assert client_lists.clients_in(text, last + 1)[-1] == last
    assert client_lists.count(text, last + 1) == 2001
    for read in (client_lists.clients_in, client_lists.count):
        with pytest.raises(StateError, match="E111"):
            read(text, last)


@pytest.mark.parametrize(
    "value", ["xx", "é", client_lists.encode_clients(list(range(1500)))[:-8], [0, -1], [3], [True], None]
)
def test_what_is_no_set_of_clients_is_one_sentence(value):
    for read in (client_lists.clients_in, client_lists.count):
        with pytest.raises(StateError, match="E111 a record of this run does not say which clients"):
            read(value, 3)
