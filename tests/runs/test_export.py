"""`Result.export`: the model outside unskew answers as the run's does, and gives nothing else away."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import unskew
from tests.samples import EVERYTHING
from unskew.errors import UsageError
from unskew.runs import export
from unskew.runs.export import export_model, input_scaling
from unskew.system import disk

N = 45
RNG = np.random.default_rng(3)
Y = np.array(["red", "green", '"""; import os'])[np.arange(N) % 3]
IMAGES = (RNG.integers(0, 120, size=(N, 3, 8, 8)) + 40 * (np.arange(N) % 3)[:, None, None, None]).astype(
    np.uint8
)
ROWS = (RNG.normal(size=(N, 5)) * 40 + 300 + 60 * (np.arange(N) % 3)[:, None]).astype(np.float32)
TOKENS = RNG.integers(0, 9, size=(N, 6))
SETTINGS = {"rounds": 1, "epochs": 1, "clients": 3, "workers": 1, "skew": "iid", "lanes": "1"}


def trained(method: str, x: np.ndarray, **more: Any) -> unskew.Result:
    return unskew.run(method, (x, Y), **{"model": "mlp", **SETTINGS, **more})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def fedrdn(tmp_path_factory) -> unskew.Result:
    return trained("fedrdn", IMAGES, name="r", folder=tmp_path_factory.mktemp("fedrdn"), keep_best=True)


def answers(path: Path, x: np.ndarray) -> np.ndarray:
    """The logits of samples by the export's own load.py; its weights are constants."""
    spec = importlib.util.spec_from_file_location("load", path / "load.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    facts = json.loads((path / "model.json").read_text())
    return module.load()(torch.as_tensor(x.astype(facts["inputs"]["dtype"]))).numpy()


@pytest.mark.parametrize("client", [None, "client-1"])
def test_a_folder_alone_answers_as_the_run_does(client, fedrdn, tmp_path):
    """With its classes, for one sample and for many, from images as they were given; and it says no more than
    it must.

    FedRDN's table of all sites was a constant of the graph, and every operation named the file it is in.
    """
    paths = fedrdn.export(tmp_path / "e", client)
    ours = fedrdn.trained.outputs(IMAGES, client).numpy()
    assert np.allclose(answers(tmp_path / "e", IMAGES), ours, atol=1e-5)
    assert np.allclose(answers(tmp_path / "e", IMAGES[:1]), ours[:1], atol=1e-5)
    facts = json.loads((tmp_path / "e" / "model.json").read_text())
    assert (facts["client"], facts["classes"]) == (client, list(fedrdn.federation.classes))
    assert (np.array(facts["classes"])[ours.argmax(1)] == fedrdn.predict(IMAGES, client)).all()
    table = fedrdn.trained.end.down["fedrdn"]["mu"]
    for content in (path.read_bytes() for path in paths):
        assert all(row.numpy().tobytes() not in content for row in table)
        assert str(Path(unskew.__file__).parent).encode() not in content
        assert str(Path(torch.__file__).parent).encode() not in content


@pytest.mark.parametrize(
    ("method", "x", "client", "more"),
    [
        ("unskew", IMAGES, 2, {}),
        ("fedbn", IMAGES, 0, {"model": "cnn_small(batch_norm=True)"}),
        ("fedproto(aggregate_weights=False)", IMAGES, 0, {}),
        ("fedem", ROWS, 1, {"model": "mlp"}),
        ("fedetf", ROWS, None, {}),
        (
            "fedavg",
            TOKENS,
            None,
            {"model": nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(24, 3))},
        ),
        ("fedavg", IMAGES.astype(np.uint16) * 250, None, {}),
    ],
)
def test_what_is_exported_does_what_each_method_does_when_it_predicts(method, x, client, more, tmp_path):
    """The module that becomes a graph; with `make matrix` the graph, too."""
    ours = trained(method, x, **more)
    z = ours.trained.outputs(x, client).numpy()
    with torch.no_grad():
        assert np.allclose(export_model(ours.trained, client)(torch.as_tensor(x)), z, atol=1e-5)
    if EVERYTHING and "fedproto" not in method:  # torch cannot follow its distances for any number of samples
        ours.export(tmp_path / "e", client)
        assert np.allclose(answers(tmp_path / "e", x), z, atol=1e-5)


def test_masks_are_answered_pixel_by_pixel(tmp_path):
    x = RNG.random((12, 1, 8, 8)).astype(np.float32)
    net = nn.Sequential(nn.Conv2d(1, 2, 1), nn.Conv2d(2, 2, 1))
    ours = unskew.run("fedavg", (x, (x[:, 0] > 0.5).astype(int)), model=net, **SETTINGS)  # type: ignore[arg-type]
    ours.export(tmp_path / "e")
    assert np.allclose(answers(tmp_path / "e", x), ours.trained.outputs(x), atol=1e-5)
    assert json.loads((tmp_path / "e" / "model.json").read_text())["outputs"]["shape"] == ["N", 2, 8, 8]


def test_nothing_is_overwritten_and_nothing_is_left_behind(fedrdn, tmp_path, monkeypatch):
    (tmp_path / "e").mkdir()
    for out in (tmp_path / "e", tmp_path / "m.pt2"):
        with pytest.raises(UsageError, match="E161"):
            fedrdn.export(out)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"E161 .*file/e cannot be written"):
        fedrdn.export(tmp_path / "file" / "e")

    def full(*_: Any) -> None:
        raise OSError(13, "no permission")

    monkeypatch.setattr(disk, "replace", full)
    with pytest.raises(UsageError, match=r"E161 .*no permission"):
        fedrdn.export(tmp_path / "f")
    assert {p.name for p in tmp_path.iterdir()} == {"e", "file"}
    assert not list((tmp_path / "e").iterdir())


def test_a_model_that_answers_otherwise_is_not_written(fedrdn, tmp_path, monkeypatch):
    forward = export.ExportedModel.forward
    monkeypatch.setattr(export.ExportedModel, "forward", lambda whole, x: forward(whole, x) + 0.01)
    with pytest.raises(UsageError, match=r"E160 .*differ by up to 0.01"):
        fedrdn.export(tmp_path / "e")
    assert not (tmp_path / "e").exists()


def test_samples_with_several_inputs_are_refused(tmp_path):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(6, 3)

        def forward(self, row, age):
            return self.head(torch.cat([row, age[:, None]], 1))

    given = {"row": ROWS, "age": ROWS[:, 0]}, Y
    with pytest.raises(UsageError, match="E160 samples have several inputs"):
        unskew.run("fedavg", given, model=Net(), **SETTINGS).export(tmp_path / "e")


@pytest.mark.parametrize(
    ("method", "client", "says"),
    [
        ("local", None, "E131 .*every client keeps weights"),
        ("local", "client-9", "E109 there is no client 'client-9'"),
        ("knn_per", 0, "E160 the own model of client-0 holds 'knn_per.h'"),
    ],
)
def test_what_cannot_be_exported_is_refused_in_a_sentence(method, client, says, tmp_path):
    with pytest.raises(UsageError, match=says):
        trained(method, ROWS).export(tmp_path / "e", client)
    assert not (tmp_path / "e").exists()


def test_folders_of_the_machine_stay_out_of_an_export(tmp_path):
    home = tmp_path / "marked home"
    home.mkdir()
    np.savez(home / "rows.npz", x=ROWS, y=np.arange(N) % 3)
    ours = unskew.run("fedavg", str(home / "rows.npz"), folder=home, name="r", model="mlp", **SETTINGS)  # type: ignore[arg-type]
    ours.export(tmp_path / "e")
    assert all(b"marked" not in file.read_bytes() for file in (tmp_path / "e").iterdir())


def test_inputs_that_are_changed_by_more_than_a_scale_are_refused():
    for odd in (torch.sin, lambda x: x + torch.arange(4.0).reshape(1, 1, 2, 2), lambda x: 0 * x):
        with pytest.raises(UsageError, match="E160"):
            input_scaling(odd, (3, 2, 2), 1)
    ours = input_scaling(lambda x: (x - 3) / 2, (3, 2, 2), 255)
    assert torch.allclose(ours.mean, torch.full((3,), 3.0).double())
    assert torch.allclose(ours.std, torch.full((3,), 2.0).double())
