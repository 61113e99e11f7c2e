"""Comparisons of what exists in this process only: models, Parts, losses and clients given as objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import pytest
import torch
from annotated_types import Ge
from torch import nn

import unskew
from tests.cli.calling import call
from unskew.comparison import training, workers
from unskew.comparison.plan import read_plan
from unskew.core import Part
from unskew.errors import StateError, UsageError
from unskew.records import checkpoints

SMALL = {"clients": 3, "samples": 30, "rounds": 2, "epochs": 1, "skew": "iid", "workers": 1}


@dataclass(frozen=True)
class Mine(Part):
    strength: Annotated[float, Ge(0), "how much"] = 0.1
    name = "mine"

    def loss(self, w, out, b, c):
        return self.strength * b.mean(out.logits.square().sum(1))


def squares(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (z - y).square().sum(1)


def hits(y: np.ndarray, p: np.ndarray) -> float:
    return float((p.argmax(1) == y).mean())


def make(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), classes))


def network() -> nn.Module:
    torch.manual_seed(0)
    return make((1, 8, 8), 10)


def compare(folder, methods=("fedavg", Mine()), **options):
    options = {"model": network(), "seeds": 1, "references": False, "name": "c"} | SMALL | options
    return unskew.compare(methods, "digits", folder=folder, **options)


def digests(folder, *names: str) -> list[str]:
    return [checkpoints.digest(checkpoints.read(folder / "c" / n / "model.safetensors")[0]) for n in names]


@pytest.fixture
def trained(monkeypatch):
    """The folders of the runs that train, in order."""
    ran: list[str] = []
    real = workers.train_here
    monkeypatch.setattr(
        workers, "train_here", lambda cell, shown: ran.append(cell.path.name) or real(cell, shown)
    )
    return ran


def test_a_comparison_of_objects_has_the_bits_of_run_and_trains_once(tmp_path, trained):
    watched: list[int] = []
    own = {"loss": squares, "metrics": ["brier", hits]}
    result = compare(tmp_path, seeds=2, watch=lambda cells: watched.append(sum(c.t for c in cells)), **own)
    runs = [f"{method}--s{seed}" for method in ("fedavg", "mine") for seed in (0, 1)]
    assert trained == runs
    assert watched[0] == 1  # a look after every round of every run
    assert watched[-1] == 8
    alone = [
        unskew.run(method, "digits", model=network(), seed=seed, **own, **SMALL).digest
        for method in ("fedavg", Mine())
        for seed in (0, 1)
    ]
    assert digests(tmp_path, *runs) == alone
    assert {row.method for row in result.rows()} == {"fedavg", "mine"}
    assert "own:hits" in {name for row in result.rows() for name in row.further}
    compare(tmp_path, seeds=2, **own)
    compare(tmp_path, seeds=3, **own)
    assert trained == [*runs, "fedavg--s2", "mine--s2"]


def test_a_function_makes_a_model_for_each_seed(tmp_path):
    compare(tmp_path, ["fedavg"], seeds=2, model=make)
    runs = [unskew.run("fedavg", "digits", model=make, seed=seed, **SMALL) for seed in (0, 1)]
    assert digests(tmp_path, "fedavg--s0", "fedavg--s1") == [run.digest for run in runs]
    (tmp_path / "net.py").write_text(
        "import numpy as np\nfrom torch import nn\ndef make(shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), classes))\n"
    )
    torch.manual_seed(7)
    from_file = unskew.run("fedavg", "digits", model=f"{tmp_path / 'net.py'}:make", seed=1, **SMALL)
    assert from_file.digest == runs[1].digest != runs[0].digest

    def fails(shape, classes):
        raise ValueError

    with pytest.raises(UsageError, match=r"E123 fedavg: the function 'fails' fails when called with"):
        compare(tmp_path, ["fedavg"], model=fails, name="d")


@pytest.mark.parametrize(
    "other", [{"model": nn.Sequential(nn.Flatten(), nn.Linear(64, 10))}, {"model": make}]
)
def test_other_objects_do_not_go_on_with_a_comparison(tmp_path, trained, other):
    """Its finished runs would have stood in a table with those of another model."""
    compare(tmp_path, ["fedavg"])
    with pytest.raises(StateError, match="E112 the model given here is not the one"):
        compare(tmp_path, ["fedavg", "fedprox"], **other)
    assert trained == ["fedavg--s0"]


def test_clients_that_are_dealt_out_are_those_of_every_run(tmp_path):
    digits = unskew.data.read("digits")
    rng = np.random.default_rng(0)
    clients = unskew.data.build(digits.standardised(), "classes:2", 4, rng, rng, samples=20)
    options = {"rounds": 1, "epochs": 1, "workers": 1, "model": "mlp"}
    unskew.compare(["fedavg"], clients, seeds=1, folder=tmp_path, name="c", **options)
    assert digests(tmp_path, "fedavg--s0") == [unskew.run("fedavg", clients, **options).digest]


def test_labels_name_rows_and_texts_train_in_processes(tmp_path, trained):
    methods = {"weak": "fedprox(mu=0.001)", "strong": "fedprox(mu=1.0)"}
    result = compare(tmp_path, methods, model="mlp", processes=1)
    assert not trained
    assert [row.method for row in result.rows()] == ["weak", "strong"]
    assert read_plan(tmp_path / "c").texts == methods
    (tmp_path / "c" / "strong--s0" / "model.safetensors").unlink()
    assert call("resume", str(tmp_path / "c")).code == 0
    assert digests(tmp_path, "strong--s0") == [
        unskew.run("fedprox(mu=1.0)", "digits", model="mlp", **SMALL).digest
    ]


def test_two_parts_of_one_name_need_labels(tmp_path):
    with pytest.raises(UsageError, match=r"E109 two of the methods .* are the same.*\{label: method\}"):
        compare(tmp_path, [Mine(), Mine()])
    assert {row.method for row in compare(tmp_path, {"a": Mine(), "b": Mine(1.0)}).rows()} == {"a", "b"}


def test_a_part_of_ones_own_is_tuned(tmp_path, monkeypatch):
    pytest.importorskip("optuna")
    result = compare(tmp_path, [Mine()], tune=2)
    space = result.tuned()["mine"]
    assert set(space) == {"lr", "mine.strength"}
    best = Mine(strength=space["mine.strength"])
    alone = unskew.run(best, "digits", model=network(), **(SMALL | {"lr": space["lr"]}))
    assert digests(tmp_path, "mine--s0") == [alone.digest]
    monkeypatch.setattr(training, "train_all", lambda *_: pytest.fail("something trained"))
    with pytest.raises(StateError, match=r"E112 .*tuned mine with other settings, data or ranges"):
        compare(tmp_path, {"mine": Mine(strength=0.3)}, tune=2)
    with pytest.raises(StateError, match="E112 the model given here is not the one"):
        compare(tmp_path, [Mine()], tune=2, model=make)


def test_what_needs_more_than_this_process_is_refused_before_training(tmp_path, trained):
    refusals = [
        ({"privacy": True}, "E109 attacks open a run from its folder, which has not the model"),
        ({"methods": ["fedavg", Mine()], "model": nn.Linear(64, 10)}, "E123 fedavg: "),
    ]
    for options, says in refusals:
        with pytest.raises(UsageError, match=says):
            compare(tmp_path, **options)
    assert not trained
    assert not [*tmp_path.iterdir()]
    compare(tmp_path)
    (tmp_path / "c" / "mine--s0" / "model.safetensors").unlink()
    done = call("resume", str(tmp_path / "c"))
    assert done.code == 2
    assert "E156" in done.text
    assert "call unskew.compare there again" in done.text


def test_attacks_read_what_a_part_of_ones_own_sends(tmp_path):
    options = SMALL | {"model": "mlp", "seeds": 1, "references": False, "name": "c", "privacy": True}
    (leakage,) = unskew.compare([Mine()], "digits", folder=tmp_path, **options).leakages()
    assert (leakage.method, leakage.leaks[0].attack) == ("mine", "membership")
