"""`unskew.load`: a finished run's model from its folder, without samples or running anything in it."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from torch import nn

import unskew
from unskew.core.part import Part
from unskew.errors import NothingUsed, StateError, UsageError
from unskew.methods import registry
from unskew.records import checkpoints
from unskew.report.analysis.runs import read_run
from unskew.runs import conformance, resolve

N = 60
RNG = np.random.default_rng(3)
Y = np.array(["red", "green", "blue"])[np.arange(N) % 3]
IMAGES = (RNG.integers(0, 120, size=(N, 3, 8, 8)) + 40 * (np.arange(N) % 3)[:, None, None, None]).astype(
    np.uint8
)
ROWS = (RNG.normal(size=(N, 5)) * 40 + 300 + 60 * (np.arange(N) % 3)[:, None]).astype(np.float32)
SETTINGS = {
    "rounds": 2,
    "epochs": 1,
    "clients": 3,
    "workers": 1,
    "skew": "iid",
    "lanes": "1",
    "eval_every": 2,
}
MODEL = """
from torch import nn
def make(shape, classes, width=4):
    return nn.Sequential(nn.Flatten(), nn.Linear(5, width), nn.ReLU(), nn.Linear(width, classes))
"""


def halves(x: np.ndarray) -> tuple[np.ndarray, ...]:
    return x[:40], Y[:40], x[40:], Y[40:]


def trained(method: str | Part, x: np.ndarray, folder: Path, **more: object) -> unskew.Result:
    return unskew.run(method, halves(x), name="r", folder=folder, **{"model": "mlp", **SETTINGS, **more})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def ours(tmp_path_factory) -> unskew.Result:
    return trained("fedavg", ROWS, tmp_path_factory.mktemp("ours"))


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("fedrdn", {}),
        ("unskew", {}),
        ("fedbn", {"model": "cnn_small(batch_norm=True)"}),
        ("local", {}),
        ("fedproto(aggregate_weights=False)", {}),
    ],
)
def test_a_loaded_run_answers_as_the_run_did(method, more, tmp_path):
    """The global model's and a client's own answers, its scores and its table; scores are the witnesses."""
    ours = trained(method, IMAGES, tmp_path, **more)
    again = unskew.load(tmp_path / "r")
    assert again.table() == ours.table()
    assert again.clients() == ours.clients()
    assert not again.model.training
    x, y = halves(IMAGES)[2:]
    if method not in ("fedbn", "local", "fedproto(aggregate_weights=False)"):
        assert (again.predict_proba(x) == ours.predict_proba(x)).all()
        assert (again.predict(x) == y).mean() == pytest.approx(ours.scores()["last"], abs=1e-6)
    rows = ours.federation.test[1]
    assert (again.predict(x[rows], 1) == y[rows]).mean() == pytest.approx(
        ours.clients()[1]["accuracy"], abs=1e-6
    )
    assert (again.predict_proba(x, "client-1") == ours.predict_proba(x, 1)).all()


def test_a_model_that_needs_its_clients_samples_says_so(tmp_path):
    """Without them FedBABU's head would stay as it is, unnoticed."""
    trained("fedbabu(finetune_epochs=1)", ROWS, tmp_path)
    again = unskew.load(tmp_path / "r")
    assert again.predict(ROWS).shape == (N,)
    with pytest.raises(UsageError, match=r"E131 .*not kept with the run"):
        again.predict(ROWS, 0)


def test_a_run_over_a_network_has_no_clients_own_models(tmp_path):
    trained("unskew", IMAGES, tmp_path)
    (tmp_path / "r" / "sites.json").write_text("{}")
    again = unskew.load(tmp_path / "r")
    assert again.predict(IMAGES).shape == (N,)
    with pytest.raises(UsageError, match="E131 what makes the model of client-0 its own is not in"):
        again.predict(IMAGES, 0)


def test_a_client_that_never_took_part_has_no_model(tmp_path):
    (tmp_path / "trace.csv").write_text("round,client\n1,0\n1,1\n2,0\n2,1\n")
    ours = trained("local", ROWS, tmp_path, availability=f" trace:{tmp_path / 'trace.csv'}")
    (tmp_path / "trace.csv").unlink()  # is not needed to predict
    for result in (ours, unskew.load(tmp_path / "r")):
        assert result.predict(ROWS, 0).shape == (N,)
        with pytest.raises(UsageError, match="E131 client-2 never took part"):
            result.predict(ROWS, 2)


def test_an_unfinished_run_is_refused_unless_it_is_asked_for(ours, tmp_path):
    shutil.copytree(ours.path, tmp_path / "r")
    (tmp_path / "r" / "model.safetensors").unlink()
    with pytest.raises(StateError, match=r"E155 .*has not come to its end"):
        unskew.load(tmp_path / "r")
    assert (unskew.load(tmp_path / "r", unfinished=True).predict(ROWS) == ours.predict(ROWS)).all()


def test_code_that_a_folder_names_is_not_run(tmp_path):
    """In a stranger's folder model and method name Python files, in it or anywhere on this machine."""
    bomb = tmp_path / "bomb.py"
    bomb.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    trained("fedavg", ROWS, tmp_path)
    file = tmp_path / "r" / "state.safetensors"
    tree, facts = checkpoints.read(file)
    for changed in ({"model": f"{bomb}:make"}, {"method": f"{bomb}"}, {"method": f"fedprox+{bomb}:P(a='b')"}):
        checkpoints.write(file, tree, {**facts, "settings": {**facts["settings"], **changed}})
        with pytest.raises(StateError, match=r"E156 .*name (yours|the method with your own file)"):
            unskew.load(tmp_path / "r")
    assert not (tmp_path / "ran").exists()


def test_a_model_from_a_file_is_the_file_that_the_caller_names(tmp_path):
    """It may lie elsewhere by now; another file than the one trained with is refused."""
    (net := tmp_path / "net.py").write_text(MODEL)
    ours = trained("fedavg", ROWS, tmp_path, model=f"{net}:make(width=6)")
    (tmp_path / "moved").mkdir()
    moved = Path(shutil.move(net, tmp_path / "moved"))
    again = unskew.load(ours.path, model=f"{moved}:make(width=6)")
    assert (again.predict_proba(ROWS) == ours.predict_proba(ROWS)).all()
    with pytest.raises(StateError, match=r"E156 .*'1.weight' is \[4, 5\], and \[6, 5\] in the checkpoint"):
        unskew.load(ours.path, model=f"{moved}:make")
    moved.write_text(MODEL.replace("ReLU", "Tanh"))
    with pytest.raises(StateError, match=r"E112 .*is not the file with which"):
        unskew.load(ours.path, model=f"{moved}:make(width=6)")


def test_a_model_that_was_an_object_is_given_again(tmp_path):
    module = nn.Sequential(nn.Flatten(), nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
    ours = trained("fedavg", ROWS, tmp_path, model=module)
    with pytest.raises(StateError, match=r"E156 .*name yours"):
        unskew.load(ours.path)
    fresh = nn.Sequential(nn.Flatten(), nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
    assert (unskew.load(ours.path, model=fresh).predict(ROWS) == ours.predict(ROWS)).all()


def test_all_code_that_a_folder_lacks_is_named_in_one_error(tmp_path):
    @dataclass(frozen=True)
    class Mine(Part):
        name = "mine"

    module = nn.Sequential(nn.Flatten(), nn.Linear(5, 3))
    ours = trained(Mine(), ROWS, tmp_path, model=module)
    with pytest.raises(StateError, match=r"E156 .*method=.*; the model of .*: model="):
        unskew.load(ours.path)
    again = unskew.load(ours.path, method=Mine(), model=nn.Sequential(nn.Flatten(), nn.Linear(5, 3)))
    assert (again.predict(ROWS) == ours.predict(ROWS)).all()


def test_a_checkpoint_of_another_version_is_told(ours, tmp_path):
    shutil.copytree(ours.path, tmp_path / "r")
    tree, facts = checkpoints.read(ours.path / "state.safetensors")
    checkpoints.write(
        tmp_path / "r" / "state.safetensors", tree, {**facts, "settings": {**facts["settings"], "new": 1}}
    )
    with pytest.raises(StateError, match=r"E156 .*unknown key 'new'.*the version that trained"):
        unskew.load(tmp_path / "r")


def test_a_model_far_larger_than_the_weights_is_not_built(ours, tmp_path):
    """A folder of 108 kB whose settings name a model of gigabytes took them before it was refused."""
    shutil.copytree(ours.path, tmp_path / "r")
    tree, facts = checkpoints.read(ours.path / "state.safetensors")
    settings = {**facts["settings"], "model": "mlp(hidden=[30000000000])"}
    checkpoints.write(tmp_path / "r" / "state.safetensors", tree, {**facts, "settings": settings})
    with pytest.raises(StateError, match=r"E156 .* has 1,080,000,000,012 bytes of weights"):
        unskew.load(tmp_path / "r")


def test_weights_of_a_part_far_larger_than_the_checkpoint_are_not_made(ours, tmp_path):
    """A checkpoint of 4 kB whose method adds a terabyte to the model took them before it was refused."""
    shutil.copytree(ours.path, tmp_path / "r")
    tree, facts = checkpoints.read(ours.path / "state.safetensors")
    settings = {**facts["settings"], "method": f"fedbr(widths=[{'16384,' * 999}16384])"}
    checkpoints.write(tmp_path / "r" / "state.safetensors", tree, {**facts, "settings": settings})
    with pytest.raises(StateError, match=r"E156 the method of .* has 1,07\d,\d{3},\d{3},\d{3} bytes"):
        unskew.load(tmp_path / "r")


@pytest.mark.parametrize("name", ["fedbr", "fedem", "feddpms", "floco", "fml", "gpfl"])
def test_the_weights_of_parts_are_measured_as_they_are_made(name):
    run = conformance.run_for(registry.parse(name))
    made = [t for part in run.method.parts for t in part.weights(run.fed).values()]
    assert resolve.added_bytes(run.method, run.fed) == sum(t.nbytes for t in made) > 0


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda r: (r / "state.safetensors").unlink(), "E117 .*is no run"),
        (lambda r: (r / "state.safetensors").write_bytes(b"\x80\x04pickle"), "E201 .*cannot be read.*resume"),
        (lambda r: (r / "metrics.jsonl").write_text('{"t": 9}\n'), "E201 metrics.jsonl is missing"),
        (lambda r: (r / "federation.json").write_text("[]"), "E111 .*federation.json should hold keys"),
    ],
)
def test_damaged_folders_are_refused(ours, damage, says, tmp_path):
    shutil.copytree(ours.path, tmp_path / "r")
    damage(tmp_path / "r")
    with pytest.raises(StateError, match=says):
        unskew.load(tmp_path / "r")


def test_a_run_that_nobody_trained_does_not_predict(tmp_path):
    with pytest.raises(NothingUsed):
        trained("fedavg", ROWS, tmp_path, lr=1e38, normalise="none", epochs=3)
    with pytest.raises(NothingUsed, match="E316"):
        unskew.load(tmp_path / "r")


def test_the_order_of_classes_is_the_checkpoints(ours, tmp_path):
    """federation.json, which nothing vouches for, does not decide what an answer is called."""
    shutil.copytree(ours.path, tmp_path / "r")
    summary = json.loads((tmp_path / "r" / "federation.json").read_text())
    summary["classes"].reverse()
    (tmp_path / "r" / "federation.json").write_text(json.dumps(summary))
    assert (unskew.load(tmp_path / "r").predict(ROWS) == ours.predict(ROWS)).all()


def test_a_folder_that_holds_runs_names_one_of_them(ours, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number in ("r1", "r2", "r3"):
        (tmp_path / "site" / "runs" / number).mkdir(parents=True)
        (tmp_path / "site" / "runs" / number / "setup.safetensors").write_bytes(b"")
    for folder in ("site", "site/runs"):
        with pytest.raises(StateError, match=rf"E117 {folder} is no run: .* 3 runs; .* site/runs/r1\.$"):
            unskew.load(folder)
    with pytest.raises(StateError, match=r"E117 site/runs/r1 is no run: .*unskew predict"):
        read_run("site/runs/r1")
