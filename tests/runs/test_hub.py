"""The format hub: the folder alone gives the run's bits elsewhere, and a stranger's folder does nothing but
fail in a sentence."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from torch import nn

import unskew
from tests.cli.calling import call
from unskew.errors import UnskewError, UsageError
from unskew.results import PublishedModel

N = 30
RNG = np.random.default_rng(3)
Y = np.array(["red", "green", "blue"])[np.arange(N) % 3]
IMAGES = RNG.integers(0, 255, size=(N, 3, 8, 8)).astype(np.uint8)
ROWS = (RNG.normal(size=(N, 5)) * 40 + 300).astype(np.float32)
SETTINGS = {"rounds": 1, "epochs": 1, "clients": 3, "workers": 1, "skew": "iid", "lanes": "1"}


def trained(method: str, x: np.ndarray, y: np.ndarray = Y, **more: Any) -> unskew.Result:
    return unskew.run(method, (x, y), **{"model": "mlp", **SETTINGS, **more})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def ours(tmp_path_factory) -> unskew.Result:
    return trained("fedavg", ROWS, name="r", folder=tmp_path_factory.mktemp("hub"))


@pytest.fixture
def folder(ours, tmp_path) -> Path:
    ours.export(tmp_path / "e", "hub", license="MIT")
    return tmp_path / "e"


@pytest.mark.parametrize(
    ("method", "x", "y", "more"),
    [
        ("fedprox", ROWS, Y, {"model": "mlp(hidden=[7])"}),
        ("fedavg", IMAGES, Y, {"model": "auto"}),
        ("scaffold", IMAGES, Y, {"model": "cnn_small(batch_norm=True)", "normalise": "dataset"}),
        (
            "fedavg",
            IMAGES[:, :1],
            Y,
            {"model": "cnn_small"},
        ),  # grey: its weights have an axis whose stride means nothing
        ("fedavg", ROWS, ROWS[:, 0] * 7 - 500, {"target": "price"}),
        ("fedavg", ROWS, RNG.random((N, 3)) > 0.5, {"target": "a,b,c"}),
        ("fedavg", IMAGES, (IMAGES[:, 0] > 99).astype(int), {"model": "unet(base=4, levels=2)"}),
    ],
)
def test_the_folder_alone_gives_the_bits_of_the_run(method, x, y, more, tmp_path):
    ours = trained(method, x, y, **more)
    files = ours.export(tmp_path / "e", "hub")
    assert {file.name for file in files} == {"README.md", "config.json", "model.safetensors"}
    shutil.move(tmp_path / "e", tmp_path / "elsewhere")
    theirs = unskew.load(tmp_path / "elsewhere")
    assert isinstance(theirs, PublishedModel)
    assert torch.equal(theirs.trained.outputs(x), ours.trained.outputs(x))
    assert np.array_equal(theirs.predict(x), ours.predict(x))


def test_the_command_predicts_from_it_as_from_the_run(ours, folder):
    np.save(folder.parent / "x.npy", ROWS)
    assert ours.path
    runs = call("predict", str(ours.path), "x.npy", cwd=folder.parent)
    hubs = call("predict", "e", "x.npy", cwd=folder.parent)
    assert (runs.code, hubs.code, hubs.err) == (0, 0, "")
    assert hubs.out == runs.out
    for option, code in ((("--best",), "E109"), (("--client", "0"), "E131")):
        refused = call("predict", "e", "x.npy", *option, cwd=folder.parent)
        assert (refused.code, code in refused.err) == (2, True)
    refused = call("export", "e", "f", cwd=folder.parent)
    assert (refused.code, "E160" in refused.err) == (2, True)


def test_the_card_says_what_the_hub_reads(ours, folder):
    _, front, body = (folder / "README.md").read_text().split("---\n", 2)
    facts = yaml.safe_load(front)
    assert (facts["license"], facts["library_name"]) == ("mit", "unskew")
    (result,) = facts["model-index"][0]["results"]
    values = {m["name"]: m["value"] for m in result["metrics"]}
    assert values["accuracy, global"] == ours.scores()["last"]
    assert facts["metrics"] == ["accuracy", "macro_f1", "worst_class"]
    assert values["worst accuracy, global@client"] == ours.scores("global@client", "worst")["last"]
    assert "fedavg on" in body
    assert "has not said under which licence" not in body
    unsaid = trained("fedavg", ROWS)
    unsaid.export(folder.parent / "g", "hub")
    text = (folder.parent / "g" / "README.md").read_text()
    assert "license: unknown\n" in text
    assert "has not said under which licence" in text


@pytest.mark.parametrize(
    ("method", "more", "client", "license", "says"),
    [
        ("fedavg", {}, None, "m t", "E109"),
        ("fedavg", {}, 0, "", "E160 .*what client-0 alone has"),
        ("fedavg", {"model": nn.Sequential(nn.Linear(5, 3))}, None, "", "E160 .*code of your own"),
        ("fedetf", {}, None, "", "E160 'fedetf' changes the model's layers"),
        ("local", {}, None, "", "E131"),
    ],
)
def test_what_cannot_be_handed_on_is_refused_by_name(method, more, client, license, says, tmp_path):
    with pytest.raises(UsageError, match=says):
        trained(method, ROWS, **more).export(tmp_path / "e", "hub", client, license)
    assert not (tmp_path / "e").exists()


def test_a_licence_for_another_format_is_refused(ours, tmp_path):
    with pytest.raises(UsageError, match="E109 license"):
        ours.export(tmp_path / "e", license="mit")


def test_inputs_that_a_part_scales_are_refused_where_their_bits_would_differ(tmp_path):
    with pytest.raises(UsageError, match=r"E160 .*'fedrdn'"):
        trained("fedrdn", IMAGES).export(tmp_path / "e", "hub")
    assert not (tmp_path / "e").exists()


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, "null", "x" * (5 << 20), "\udcff"])
def test_a_config_that_is_none_is_named(text, folder):
    (folder / "config.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UnskewError, match=r"E111 .*config\.json"):
        unskew.load(folder)


@pytest.mark.parametrize("how", ["extra", "missing", "shape", "cut", "type"])
def test_other_weights_are_refused(how, folder):
    """Also where their SHA-256 was written into config.json."""
    path = folder / "model.safetensors"
    w = load_file(path)
    name = max(w, key=lambda n: w[n].dim())
    if how == "extra":
        w["more"] = torch.zeros(1)
    elif how == "missing":
        del w[name]
    elif how == "shape":
        w[name] = w[name].reshape(-1)
    elif how == "type":
        w[name] = w[name].to(torch.float64)
    save_file(w, path)
    if how == "cut":
        path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(UnskewError, match=r"E201 .*SHA-256"):
        unskew.load(folder)
    config = json.loads((folder / "config.json").read_text())
    config["weights"]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnskewError, match="E201" if how == "cut" else "E156"):
        unskew.load(folder)


WRONG = (
    None,
    True,
    0,
    -1,
    1.5,
    float("nan"),
    "",
    "float32,(",
    "O",
    [],
    [1],
    ["a"],
    {},
    {"a": 1},
    10**30,
    [[1]],
    [1e308],
)


def places(tree: Any) -> list[tuple[Any, Any]]:
    """(what holds it, its key) of every value in what JSON gives."""
    keys = list(tree) if isinstance(tree, dict) else list(range(len(tree))) if isinstance(tree, list) else []
    return [(tree, k) for k in keys] + [place for k in keys for place in places(tree[k])]


@pytest.mark.parametrize("y", [Y, ROWS[:, 0]], ids=["classes", "price"])
def test_whatever_stands_anywhere_in_a_config_is_read_or_refused_in_a_sentence(y, tmp_path):
    """What is read is a model that predicts: nothing of another type gets as far as that."""
    more = {} if y is Y else {"target": "price"}
    x = IMAGES[:, :1] if y is Y else ROWS
    trained("fedavg", x, y, normalise="dataset", **more).export(tmp_path / "e", "hub")
    file = tmp_path / "e" / "config.json"
    config = json.loads(file.read_text())
    read, refused = 0, 0
    for holder, key in places(config):
        was = holder[key]
        for value in WRONG:
            holder[key] = value
            file.write_text(json.dumps(config))
            try:
                unskew.load(tmp_path / "e").predict(x[:2])
                read += 1
            except UnskewError:
                refused += 1
        holder[key] = was
    assert refused > 3 * read > 0


def test_a_card_names_a_part_of_the_users_own_without_its_folder(tmp_path):
    """Folders may be called as people and projects are."""
    (tmp_path / "of_anna").mkdir()
    (tmp_path / "of_anna" / "mine.py").write_text(
        "from dataclasses import dataclass\n\nfrom unskew.core import Part\n\n\n"
        "@dataclass(frozen=True)\nclass Mine(Part):\n    name = 'mine'\n"
    )
    trained(f"{tmp_path}/of_anna/mine.py", ROWS).export(tmp_path / "e", "hub")
    text = (tmp_path / "e" / "README.md").read_text()
    assert "name: mine.py on " in text
    for file in (tmp_path / "e").iterdir():
        assert b"of_anna" not in file.read_bytes()
