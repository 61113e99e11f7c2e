"""Models that were trained on files, outside unskew: what model.json says of a file is enough to make the
sample that they take."""

from __future__ import annotations

import json
import math
import wave

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.signal import resample_poly
from torch import nn

import unskew
from unskew.data import prediction_inputs
from unskew.runs.export.export_folder import describe_files

RNG = np.random.default_rng(0)
SETTINGS = {"rounds": 1, "epochs": 1, "clients": 2, "workers": 1, "skew": "iid", "lanes": "1", "model": "mlp"}


def exported(given, path, **more):
    """(the result, its graph, what model.json says of what it takes)."""
    result = unskew.run("fedavg", given, **SETTINGS | more)
    result.export(path, "torch-export")
    return (
        result,
        torch.export.load(path / "model.pt2").module(),
        json.loads((path / "model.json").read_text())["inputs"],
    )


@pytest.mark.parametrize(
    ("fit", "said"),
    [
        ("pad", "its longer side is 8 and put on the middle of a black square"),
        ("squash", "scaled to 8 x 8, whatever"),
    ],
)
def test_images_are_made_as_the_export_says(tmp_path, fit, said):
    """model.json said that samples are divided by 1: pixels from 0 to 255, as Pillow has them, were answered
    without a word."""
    for label in ("ill", "well"):
        (tmp_path / "set" / label).mkdir(parents=True)
        for i in range(6):
            pixels = RNG.integers(0, 256, (8 + i, 12, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "set" / label / f"{i}.png")
    result, graph, takes = exported(f"{tmp_path}/set(size=8,fit={fit})", tmp_path / "e")
    assert said in takes["from_files"]
    assert "8 bits divided by 255, more by 65,535, floats as they are; [3, H, W]" in takes["from_files"]
    mine = []
    for i in range(6):
        image = Image.open(tmp_path / "set" / "ill" / f"{i}.png")
        longer, square = max(image.size), Image.new("RGB", (8, 8))
        inner = tuple(max(1, round(side * 8 / longer)) for side in image.size) if fit == "pad" else (8, 8)
        square.paste(image.resize(inner, Image.Resampling.BICUBIC), tuple((8 - side) // 2 for side in inner))
        mine.append(np.asarray(square).transpose(2, 0, 1) / 255)
    _, ours = prediction_inputs.read_inputs(tmp_path / "set" / "ill", result.federation.intake.form)
    answer = graph(torch.tensor(np.stack(mine), dtype=torch.float32)).softmax(1).numpy()
    np.testing.assert_allclose(answer, result.predict_proba(ours), atol=1e-6)


def test_sounds_are_made_as_the_export_says(tmp_path):
    """Nothing told of the bands, their scale or the decibels."""
    for label in ("a", "b"):
        (tmp_path / "set" / label).mkdir(parents=True)
        for i in range(6):
            with wave.open(str(tmp_path / "set" / label / f"{i}.wav"), "wb") as file:
                file.setparams((2, 2, 8000 if i else 4000, 0, "NONE", ""))
                file.writeframes(RNG.integers(-9000, 9000, 2 * (3000 + 100 * i)).astype("<i2").tobytes())
    result, graph, takes = exported(str(tmp_path / "set"), tmp_path / "e")
    for said in ("at 8,000 Hz (scipy", "its first 6,000 samples", "periodic Hann window of 256, as large", "64 triangles of height 1", "to 4,000 Hz", "80 below"):  # fmt: skip
        assert said in takes["from_files"]
    mel = np.linspace(0, 2595 * math.log10(1 + 4000 / 700), 66)
    edges, f = 700 * (10 ** (mel / 2595) - 1), np.arange(129) * 8000 / 256
    mine = []
    for i in range(6):
        with wave.open(str(tmp_path / "set" / "a" / f"{i}.wav")) as file:
            sound = np.frombuffer(file.readframes(9000), "<i2").reshape(-1, 2).mean(1) / 32768
        sound = sound if i else resample_poly(sound, 2, 1)
        sound = np.pad(sound, (0, 6000))[:6000]
        framed = np.pad(sound, 128, mode="reflect")
        frames = np.stack([framed[256 * t : 256 * t + 256] for t in range(1 + 6000 // 256)])
        power = np.abs(np.fft.rfft(frames * np.hanning(257)[:256])) ** 2
        rise = (f - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
        fall = (edges[2:, None] - f) / (edges[2:] - edges[1:-1])[:, None]
        decibels = 10 * np.log10(np.maximum(power @ np.maximum(0, np.minimum(rise, fall)).T, 1e-10)).T
        mine.append(np.maximum(decibels - decibels.max() + 80, 0)[None])
    _, ours = prediction_inputs.read_inputs(tmp_path / "set" / "a", result.federation.intake.form)
    np.testing.assert_allclose(np.stack(mine), ours, atol=2e-2)
    answer = graph(torch.tensor(np.stack(mine), dtype=torch.float32)).softmax(1).numpy()
    np.testing.assert_allclose(answer, result.predict_proba(ours), atol=1e-3)


def test_rows_are_made_as_the_export_says(tmp_path):
    lines = [f"{20 + 7 * i % 30 // 2},{'mf'[i % 2]},{'abc'[i % 3]},{i % 2}" for i in range(30)]
    (tmp_path / "t.csv").write_text("\n".join(["age,sex,stage,label", *lines]))
    result, graph, takes = exported(str(tmp_path / "t.csv"), tmp_path / "e")
    how = (
        "'sex', 0 for 'f' and 1 for 'm'; 'stage', a number for each of 'a', 'b', 'c', which is 1 for the one"
        " that is there, else 0"
    )
    assert takes["from_files"] == f"a row of a table, in this order: 'age' as it is; {how}"
    mine = torch.tensor([[20.0, 1, 1, 0, 0], [23.0, 0, 0, 1, 0]])
    _, ours = prediction_inputs.read_inputs(tmp_path / "t.csv", result.federation.intake.form)
    np.testing.assert_allclose(graph(mine).softmax(1).numpy(), result.predict_proba(ours[:2]), atol=1e-6)


class ImageAndAge(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3 * 8 * 8 + 1, 2)

    def forward(self, image, age):
        return self.head(torch.cat([image.flatten(1), age[:, None]], 1))


def test_a_file_and_the_column_beside_it_are_made_as_the_export_says(tmp_path):
    (tmp_path / "set").mkdir()
    for i in range(12):
        Image.fromarray(RNG.integers(0, 256, (8, 8, 3)).astype(np.uint8)).save(tmp_path / "set" / f"{i}.png")
    rows = [f"{i}.png,{20 + 7 * i % 12},{'ab'[i % 2]}" for i in range(12)]
    (tmp_path / "set" / "t.csv").write_text("\n".join(["file,age,label", *rows]))
    _, _, takes = exported(f"{tmp_path}/set(size=8,x='image,age')", tmp_path / "e", model=ImageAndAge())
    made = {each["name"]: each["from_files"] for each in takes}
    assert made["age"] == "'age' as it is"
    assert made["image"].startswith("the first image of a file, in red, green and blue")


def test_each_of_several_inputs_says_how_it_is_made():
    form = {
        "kind": "images",
        "size": 8,
        "fit": "crop",
        "bits": 12,
        "beside": [["age", []], ["sex", ["f", "m"]]],
    }
    assert "cut to the square in its middle and scaled to 8 x 8" in describe_files(form, "image")
    assert "more by 4,095" in describe_files(form, "image")
    assert [describe_files(form, name) for name in ("age", "sex", "else")] == ["'age' as it is", "'sex', 0 for 'f' and 1 for 'm'", ""]  # fmt: skip
    columns = {"kind": "arrays", "layout": "auto", "files": {"scan": form}}
    assert describe_files(columns, "scan") == describe_files(form, "image")
    assert not describe_files({})
    assert not describe_files({"kind": "arrays", "column": "x"})
    assert "cut into coronal slices" in describe_files({"kind": "volumes", "size": 16, "axis": "coronal"})
