"""What a result says of its record: scores, clients, bytes and the table, from rows written by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from unskew.core.method import Method
from unskew.records.record import Record
from unskew.results import Result
from unskew.tasks.task import Classification

ACCURACY = [0.99, *(0.01 * t for t in range(1, 13)), 0.05]
"""Of the rounds 0 to 13: the untrained model's is the best of all, and the last round's is not the best of
those trained."""


def score(t: int, scope: str, metric: str, value: float, client: int | None = None) -> dict[str, Any]:
    return {"t": t, "scope": scope, "client": client, "metric": metric, "value": value}


def result_with(*rows: dict[str, Any]) -> Result:
    """A result of three clients, of which the second has a name, with these rows of metrics."""
    record = Record()
    record.add("metrics", rows)
    record.add("ledger", [{"t": 1, "way": "up", "share": "w", "clients": [0, 2], "bytes": 1000}])
    record.add(
        "ledger", [{"t": 1, "way": "down", "share": "w", "clients": [0, 1, 2], "bytes": [70_000, 10_000, 0]}]
    )
    federation = SimpleNamespace(
        clients=3,
        name_of=("client-0", "lung", "client-2").__getitem__,
        sizes=np.array([5, 6, 7]),
        test_sizes=np.array([1, 2, 0]),
    )
    settings = SimpleNamespace(metrics="none", seed=4, secure_aggregation="none", validation=0.0, rounds=13)
    run: Any = SimpleNamespace(
        federation=federation, task=Classification(), settings=settings, method=Method()
    )
    trained: Any = SimpleNamespace(end=SimpleNamespace(t=13))
    model: Any = None
    return Result(run, record, {}, model, trained)


def test_scores_leave_out_the_untrained_model_and_average_the_last_ten_rounds():
    """Rounds 4 to 13 are the last ten: 0.04 to 0.12, and 0.05."""
    scores = result_with(*(score(t, "global", "accuracy", v) for t, v in enumerate(ACCURACY))).scores()
    assert scores == {"last": 0.05, "best": 0.12, "mean10": pytest.approx((sum(range(4, 13)) + 5) / 1000)}
    assert result_with(score(0, "global", "accuracy", 0.9)).scores() == {}


def test_rounds_that_were_not_evaluated_count_among_the_last_ten():
    every_five = result_with(*(score(t, "global", "accuracy", t / 100) for t in (5, 10, 15, 20)))
    assert every_five.scores()["mean10"] == pytest.approx(0.175)  # rounds 15 and 20; 10 is ten rounds back


def test_a_client_has_its_last_score_and_its_own_model_comes_before_the_global_one():
    shared = [score(t, "global@client", "accuracy", v, 0) for t, v in ((1, 0.1), (2, 0.2))]
    means = [score(2, "global@client", "mean", 0.2)]
    assert result_with(*shared, *means).clients() == [
        {"client": 0, "name": "client-0", "train": 5, "test": 1, "accuracy": 0.2},
        {"client": 1, "name": "lung", "train": 6, "test": 2, "accuracy": None},
        {"client": 2, "name": "client-2", "train": 7, "test": 0, "accuracy": None},
    ]
    own = [score(2, "personal@client", "accuracy", 0.7, 1), score(2, "personal@client", "loss", 3.0, 1)]
    assert [client["accuracy"] for client in result_with(*own, *shared).clients()] == [None, 0.7, None]


def test_the_table_says_which_way_bytes_went():
    result = result_with(*(score(t, "global", "accuracy", v) for t, v in enumerate(ACCURACY)))
    assert (result.bytes("up"), result.bytes("down")) == (2000, 80_000)
    lines = result.table().splitlines()
    assert lines[0] == "fedavg  13 rounds, 3 clients, seed 4"
    assert lines[2].split() == ["global", "5.0%", "12.0%", "7.7%"]
    assert lines[-1] == "sent by clients 2 KB, received 80 KB"
