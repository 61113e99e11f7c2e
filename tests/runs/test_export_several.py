"""Models of samples with several inputs outside unskew: by name or one after another, with the run's
answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import unskew
from tests.round.test_several_inputs import AGES, SCANS, WORDS, Scans, Words, trained
from tests.runs.test_export import loaded, needs_onnx
from unskew.runs.export import exported_model

LEVELS = (SCANS / SCANS.max() * 255).astype(np.uint8)
BY_NAME = {"scan": LEVELS, "age": AGES}


class Placed(Scans):
    """Takes the age first, and a truth value after the scan."""

    def forward(self, age: Tensor, scan: Tensor, seen: Tensor) -> Tensor:
        assert seen.dtype is torch.bool
        return super().forward(scan, torch.where(seen, age, -age))


BY_PLACE = (AGES, LEVELS, AGES > 0.5)
GIVEN = {"name": (BY_NAME, Scans), "place": (BY_PLACE, Placed), "words": (WORDS, Words)}


@pytest.fixture(scope="module")
def results() -> dict[str, unskew.Result]:
    return {name: trained(given=given, model=model()) for name, (given, model) in GIVEN.items()}


def answers(path: Path, given: Any, model: nn.Module, n: int) -> np.ndarray:
    """The logits of the first n samples by an exported folder alone, called as its card says."""
    card = json.loads((path / "model.json").read_text())
    arrays = list(given.values()) if isinstance(given, dict) else list(given)
    if isinstance(given, dict):
        arrays = [given[way["name"]] for way in card["inputs"]]
    assert card["passed"] == ("by name" if isinstance(given, dict) else "one after another")
    arrays = [a[:n].astype(way["dtype"]) for a, way in zip(arrays, card["inputs"])]
    if card["format"] != "onnx":
        arrays = [torch.as_tensor(a) for a in arrays]
    function = loaded(path, *[model] * (card["format"] == "safetensors"))
    named = {way["name"]: a for way, a in zip(card["inputs"], arrays)}
    with torch.no_grad():
        said = function(**dict(reversed(named.items()))) if isinstance(given, dict) else function(*arrays)
    return np.asarray(said)


@pytest.mark.parametrize("kind", ["safetensors", "torch-export", pytest.param("onnx", marks=needs_onnx)])
@pytest.mark.parametrize("how", GIVEN)
def test_a_folder_alone_answers_as_the_run_does(kind, how, results, tmp_path):
    given, model = GIVEN[how]
    results[how].export(tmp_path / "e", kind)
    ours = results[how].trained.outputs(given).numpy()
    for n in (len(ours), 1):
        assert np.allclose(answers(tmp_path / "e", given, model(), n), ours[:n], atol=1e-5)
    assert "one sample" in (tmp_path / "e" / "model.md").read_text()


@pytest.mark.parametrize(("method", "client"), [("unskew", 2), ("fedrep", "client-1"), ("fedproto", 1)])
def test_one_clients_own_model_and_answers_that_a_part_changes_are_exported(method, client, tmp_path):
    result = trained(method, BY_NAME)
    result.export(tmp_path / "e", "torch-export", client)
    ours = result.trained.outputs(BY_NAME, client).numpy()
    assert np.allclose(answers(tmp_path / "e", BY_NAME, Scans(), len(ours)), ours, atol=1e-5)


def test_model_json_says_how_each_input_is_called_and_given(results, tmp_path):
    for how, expected in {
        "name": [("age", "float32", ["N"], 1), ("scan", "uint8", ["N", 1, 8, 8], 255)],
        "place": [("input_1", "float32", ["N"], 1), ("input_2", "uint8", ["N", 1, 8, 8], 255), ("input_3", "bool", ["N"], 1)],
        "words": [("attention_mask", "bool", ["N", 6], 1), ("input_ids", "int64", ["N", 6], 1)],
    }.items():  # fmt: skip
        results[how].export(tmp_path / how)
        ways = json.loads((tmp_path / how / "model.json").read_text())["inputs"]
        assert [(w["name"], w["dtype"], w["shape"], w["divided_by"]) for w in ways] == expected


def test_samples_that_are_tried_are_of_every_type_that_was_given(results):
    for how, (given, _) in GIVEN.items():
        layout = results[how].federation.layout
        assert layout
        drawn = exported_model.example_of_several(layout, 40, None, 3)
        came = [given[n] for n in sorted(given)] if isinstance(given, dict) else given
        assert [t.numpy().dtype for t in drawn.values()] == [a.dtype for a in came]
        assert [tuple(t.shape[1:]) for t in drawn.values()] == [a.shape[1:] for a in came]
        assert all(len(t.unique()) > 1 for t in drawn.values())
