"""`unskew predict`: a CSV with classes and probabilities, from a run's folder alone."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torch import nn

import unskew
from tests.cli.calling import call

X = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
Y = np.array(["=yes", "no"])[(X[:, 0] > 0).astype(int)]
SETTINGS = {"rounds": 1, "epochs": 1, "clients": 2, "workers": 1, "skew": "iid", "model": "mlp"}


@pytest.fixture(scope="module")
def ours(tmp_path_factory) -> unskew.Result:
    where = tmp_path_factory.mktemp("predict")
    np.save(where / "new.npy", X)
    return unskew.run("fedavg", (X, Y), name="r", folder=where, **SETTINGS)  # type: ignore[arg-type]


def test_classes_and_probabilities_are_those_of_the_result(ours):
    """In a table that no spreadsheet runs: the name of a class may be a formula."""
    done = call("predict", "r", "new.npy", cwd=ours.path.parent)
    assert done.code == 0, done.err
    header, *rows = csv.reader(done.out.splitlines())
    assert header == ["input", "class", "p(=yes)", "p(no)"]
    assert [row[0] for row in rows] == [str(i) for i in range(30)]
    assert [row[1].lstrip("'") for row in rows] == ours.predict(X).tolist()
    assert {row[1] for row in rows} <= {"'=yes", "no"}
    assert np.allclose(np.array([row[2:] for row in rows], float), ours.predict_proba(X), atol=1e-6)
    again = call("predict", "r", "new.npy", "--out", "p.csv", "--client", "1", cwd=ours.path.parent)
    assert (again.code, again.out) == (0, "")
    assert (ours.path.parent / "p.csv").read_text() == done.out


def test_the_columns_of_a_table_keep_their_order_in_the_runs_folder(tmp_path):
    """D12: they came back in alphabetical order, and the model was given the one as the other."""
    rows = [f"{x[0]},{100 * x[1]},{x[2]},{y.strip('=')}" for x, y in zip(X, Y)]
    (tmp_path / "t.csv").write_text("\n".join(["width,area,kind,label", *rows]))
    ours = unskew.run("fedavg", str(tmp_path / "t.csv"), name="r", folder=tmp_path, **SETTINGS)
    done = call("predict", "r", "t.csv", cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    expected = ours.predict_proba((X[:, :3] * [1, 100, 1]).astype(np.float32))
    assert np.allclose(
        [[float(p) for p in row[2:]] for row in list(csv.reader(done.out.splitlines()))[1:]],
        expected,
        atol=1e-5,
    )


def test_a_clients_own_model_predicts_where_it_is_asked_for(tmp_path):
    """Of a method that leaves each client a model of its own."""
    result = unskew.run("fedper", (X, Y), name="r", folder=tmp_path, **SETTINGS)  # type: ignore[arg-type]
    np.save(tmp_path / "new.npy", X)
    texts = {}
    for client in (0, 1):
        texts[client] = call("predict", "r", "new.npy", "--client", str(client), cwd=tmp_path).out
        shown = np.array([row[2:] for row in csv.reader(texts[client].splitlines()[1:])], float)
        assert np.allclose(shown, result.predict_proba(X, client), atol=1e-6)
    assert texts[0] != texts[1]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["r", "nothing.npy"], 2, "E402 there is no nothing.npy"),
        (["q", "new.npy"], 2, "E117 q is no run"),
        (["r", "new.npy", "--client", "9"], 2, "E109 there is no client 9"),
        (["r", "r"], 2, "E403 r holds no samples that are read"),
    ],
)
def test_what_cannot_be_predicted_is_refused_in_a_sentence(ours, arguments, code, says):
    done = call("predict", *arguments, cwd=ours.path.parent)
    assert done.code == code, done.text
    assert done.err.startswith(says), done.err


def test_the_samples_are_not_overwritten_by_their_predictions(ours):
    before = (ours.path.parent / "new.npy").read_bytes()
    for out in ("new.npy", str(ours.path.parent / "new.npy")):
        refused = call("predict", "r", "new.npy", "--out", out, cwd=ours.path.parent)
        assert (refused.code, refused.err[:4]) == (2, "E109")
        assert "is the input" in refused.err
    assert (ours.path.parent / "new.npy").read_bytes() == before


def test_a_model_is_exported_and_nothing_overwritten(ours):
    done = call("export", "r", "e", "--client", "1", cwd=ours.path.parent)
    assert done.code == 0, done.err
    assert done.out.split() == [
        *(f"e/{n}" for n in ("model.pt2", "model.json", "load.py")),
        "next",
        "python",
        "-i",
        "e/load.py",
    ]
    assert json.loads((ours.path.parent / "e" / "model.json").read_text())["client"] == "client-1"
    for arguments, says in (
        (["r", "e"], "E161 e cannot be written, because nothing is overwritten"),
        (["r", "model.pt2"], "E161 model.pt2 cannot be written, because an export is a folder"),
        (["q", "f"], "E117 q is no run"),
    ):
        refused = call("export", *arguments, cwd=ours.path.parent)
        assert refused.code == 2
        assert refused.err.startswith(says), refused.err


def test_masks_are_written_as_an_array(tmp_path):
    x = np.random.default_rng(0).random((12, 1, 8, 8)).astype(np.float32)
    y = (x[:, 0] > 0.5).astype(np.int64)
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.Conv2d(2, 2, 1))
    (tmp_path / "net.py").write_text(
        "from torch import nn\ndef make(shape, classes):\n    return nn.Sequential(nn.Conv2d(1, 2, 1),"
        " nn.Conv2d(2, 2, 1))\n"
    )
    ours = unskew.run("fedavg", (x, y), name="r", folder=tmp_path, **{**SETTINGS, "model": model})  # type: ignore[arg-type]
    np.save(tmp_path / "x.npy", x)
    given = ["predict", "r", "x.npy", "--model", "net.py:make"]
    assert call(*given, cwd=tmp_path).err.startswith("E109 this run's model predicts masks")
    done = call(*given, "--out", "m.npy", cwd=tmp_path)
    assert (done.code, done.out) == (0, "")
    assert (np.load(Path(tmp_path / "m.npy")) == ours.predict(x)).all()


def test_which_file_a_mask_is_of_is_printed(tmp_path):
    """The array holds no names, and a folder's files come in the order of their paths."""
    for kind in ("images", "masks"):
        (tmp_path / "set" / kind).mkdir(parents=True)
    for i in range(8):
        pixels = np.random.default_rng(i).integers(0, 256, (8, 8)).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / "set/images" / f"{i}.png")
        Image.fromarray((pixels > 99).astype(np.uint8)).save(tmp_path / "set/masks" / f"{i}.png")
    settings = {**SETTINGS, "model": "unet(base=2,levels=2)", "clients": 2, "skew": "iid"}
    unskew.run("fedavg", f"{tmp_path}/set(size=8)", name="r", folder=tmp_path, **settings)  # type: ignore[arg-type]
    done = call("predict", "r", "set", "--out", "m.npy", cwd=tmp_path)
    assert done.out.splitlines() == ["place,input", *(f"{i},images/{i}.png" for i in range(8))]
    assert np.load(tmp_path / "m.npy").shape == (8, 8, 8)


def test_predictions_go_into_a_folder_that_is_made_and_not_over_one(ours):
    where = ours.path.parent
    assert call("predict", "r", "new.npy", "--out", "out/p.csv", cwd=where).code == 0
    assert (where / "out" / "p.csv").is_file()
    refused = call("predict", "r", "new.npy", "--out", "out", cwd=where)
    assert refused.code == 2
    assert refused.err.strip() == "E161 out is a folder; name a file, such as one in it."
