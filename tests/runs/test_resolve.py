"""Settings become one value, and what the two references of a comparison are is known to `resolve` alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from unskew import data
from unskew.config import Settings
from unskew.core.method import Method
from unskew.errors import DataError, UsageError
from unskew.merge.median import Median
from unskew.methods.local import Local
from unskew.round import run
from unskew.runs import conformance, resolve
from unskew.system import machine

SMALL = {"data": "digits", "clients": 4, "samples": 60, "rounds": 2, "epochs": 1, "workers": 1, "skew": "iid"}


def settings(**changes):
    return Settings(**{**SMALL, **changes})


def test_a_run_is_what_its_settings_say():
    run = resolve.resolve(settings(method="fedprox+fedlc", batch=16, lr=0.1, momentum=0.5, lanes="3", seed=4))
    assert [p.name for p in run.method.parts] == ["fedprox", "fedlc"]
    assert run.federation.clients == run.fed.clients == 4
    assert (run.fed.batch, run.fed.lr, run.fed.momentum, run.fed.rounds, run.fed.seed) == (16, 0.1, 0.5, 2, 4)
    assert (run.lanes, run.device, run.task.name, run.reference) == (3, "cpu", "classification", False)
    assert run.fed.shared == run.fed.net.trainable
    same = resolve.resolve(settings(method="fedprox+fedlc", seed=4)).fed.net.weights()
    other = resolve.resolve(settings(method="fedprox+fedlc", seed=5)).fed.net.weights()
    assert all(torch.equal(v, same[n]) for n, v in run.fed.net.weights().items())
    assert not all(torch.equal(v, other[n]) for n, v in same.items())


def test_objects_given_in_python_take_the_place_of_names():
    federation, model = (
        conformance.small_federation(),
        torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 3)),
    )
    run = resolve.resolve(settings(method="scaffold"), federation, Local(), model)
    assert run.method == Method(Local())
    assert run.federation is federation
    assert set(run.fed.net.weights()) == set(dict(model.named_parameters()))
    assert run.fed.shared == ()
    x, y = np.zeros((40, 1, 4, 4), np.float32), np.arange(40) % 2
    assert resolve.resolve(settings(samples=None), data.arrays(x, y, x[:4], y[:4]), Method()).fed.classes == 2
    assert resolve.resolve(settings(samples=None), data.arrays(x, y, x, y)).fed.shape == (1, 4, 4)


def test_centralised_is_fedavg_on_one_client_that_holds_all_training_samples():
    run, others = (resolve.resolve(settings(method=m)) for m in ("centralised", "fedavg"))
    assert run.reference
    assert not others.reference
    assert run.method == Method()
    assert run.federation.clients == 1
    assert run.federation.train[0].tolist() == sorted(others.federation.train.rows)
    given = resolve.resolve(settings(method="centralised"), others.federation).federation
    assert given.train[0].tolist() == run.federation.train[0].tolist()


def test_a_reference_is_written_and_read_like_a_method():
    assert resolve.parts_of("centralised", {"flea": {"alpha": 1}}) == Method()
    assert resolve.parts_of("fedprox", {"fedprox": {"mu": 0.5}}).parts[0].mu == 0.5
    assert [resolve.method_text(m) for m in ("centralised", "local", "FedProx")] == [
        "centralised",
        "local",
        "fedprox",
    ]
    assert resolve.arguments_for("centralised", {"fedprox": {"mu": 1}}) == {}
    assert resolve.arguments_for("fedprox", {"fedprox": {"mu": 1}, "flea": {}}) == {"fedprox": {"mu": 1}}
    assert [run.is_reference(m) for m in ("local", "centralised", "local+fedprox", "fedavg")] == [
        True,
        True,
        False,
        False,
    ]
    assert [resolve.sends_weights(resolve.parts_of(m)) for m in ("local+fedprox", "fedbn", "fedavg")] == [
        False,
        True,
        True,
    ]


def test_what_cannot_work_is_refused_by_name(monkeypatch):
    federation = conformance.small_federation()
    refused = {
        "E109 validation": lambda: resolve.resolve(settings(validation=0.2), federation),
        "E109 test_samples": lambda: resolve.resolve(settings(test_samples=20), federation),
        "E109 lanes": lambda: resolve.resolve(settings(lanes="0"), federation),
        "E108 .*clients keep every weight": lambda: resolve.resolve(
            settings(), federation, Method(Local(), Median())
        ),
        "E124": lambda: resolve.resolve(settings(availability="maybe")),
        "E108 .*its server would hold": lambda: resolve.resolve(settings(method="ccvr")),
    }
    monkeypatch.setattr(machine.os, "sysconf", lambda name: 1)
    for says, act in refused.items():
        with pytest.raises(UsageError, match=says):
            act()
    with pytest.raises(DataError, match="E103"):
        resolve.resolve(settings(skew="classes:20"))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("1,1\n2,4\n", r"t.csv names client 4 in round 2, and the run has the clients 0 to 3"),
        ("1,0\n1,3\n", r"t.csv ends with round 1 of 2, so nobody would answer after it; set rounds=1"),
    ],
)
def test_a_trace_of_other_clients_or_rounds_is_refused(tmp_path, rows, message):
    """Clients counted from 1 each answered as their neighbour, the last one never, and nothing said so."""
    (tmp_path / "t.csv").write_text(f"round,client\n{rows}")
    with pytest.raises(DataError, match=f"^E124 .*{message}"):
        resolve.resolve(settings(availability=f"trace:{tmp_path / 't.csv'}"))
