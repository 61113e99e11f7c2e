"""What users bring is understood or refused: bit depths, masks, layouts, labels and scale."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

import unskew
from unskew import data
from unskew.config import build
from unskew.core.method import Method
from unskew.data.samples.dataset import Dataset
from unskew.errors import DataError
from unskew.runs.resolve import deal_out


def rng(seed=0):
    return np.random.default_rng(seed)


def notes(dataset: Dataset, topic: str = "") -> str:
    assert dataset.intake
    return "; ".join(text for kind, text in dataset.intake.notes if topic in ("", kind))


def save(array: np.ndarray, path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)


def test_sixteen_bits_in_files_are_grey_not_white(tmp_path):
    """D1: 16-bit PNGs keep their greys; float TIFFs stay what they are."""
    ramp = np.linspace(0, 65_535, 64).reshape(8, 8).astype(np.uint16)
    for name, image in (("a", ramp), ("b", ramp[::-1])):
        for i in range(3):
            save(np.ascontiguousarray(image), tmp_path / name / f"{i}.png")
    d = data.folder(tmp_path, size=8)
    for y, image in ((0, ramp), (1, ramp[::-1])):
        np.testing.assert_allclose(d.x[d.y == y][0, 0], image / 65_535, atol=1e-6)
    assert "6 images of 16 bit, divided by 65,535" in notes(d, "scaled")
    save((ramp / 65_535 * 0.5).astype(np.float32), tmp_path / "a" / "0.tif")
    d = data.folder(tmp_path, size=8)
    assert max(float(x.max()) for x in (d.x, d.x_test)) == 1.0
    assert "1 image of float, taken as they are" in notes(d)


@pytest.mark.parametrize(("kind", "top"), [(np.uint8, 255), (np.uint16, 65_535)])
def test_one_rule_scales_whole_numbers_by_their_bits(kind, top):
    """D1: uint16 is divided by 65,535 as uint8 is by 255, and told."""
    x = rng().integers(0, top + 1, (20, 1, 4, 4)).astype(kind)
    d = data.arrays(x, np.arange(20) % 2, x, np.arange(20) % 2)
    np.testing.assert_allclose(d.x, x / top, rtol=1e-6)
    assert f"{8 * x.itemsize}-bit whole numbers were divided by {top:,}" in notes(d, "scaled")
    assert data.arrays(x.astype(np.int32), np.arange(20) % 2).x.max() > 1
    assert d.intake.dtype == x.dtype.name  # type: ignore[union-attr]


def blurred(n=6, side=32) -> np.ndarray:
    """Discs in black and white whose edges are grey, as JPEG and smooth drawing leave them."""
    i, j = np.mgrid[:side, :side]
    edge = 128 + 60 * (10 - np.hypot(i - 16, j - 16))
    noise = rng().integers(0, 9, (n, side, side))
    return np.clip(np.where(edge > 128, edge - noise, edge + noise), 0, 255).astype(np.uint8)


@pytest.mark.parametrize(
    "spoil",
    [lambda y: rng().integers(0, 256, y.shape), lambda y: y, lambda y: y // 4],
)
def test_more_than_twenty_classes_of_masks_need_names(spoil):
    """D2: greys, such as those at the edges of a JPEG, are refused unless their classes are named."""
    y, x = spoil(blurred()).astype(np.uint8), rng().random((6, 1, 32, 32)).astype(np.float32)
    with pytest.raises(DataError, match=r"E404 .*above 20 give classes"):
        data.arrays(x, y)
    assert len(data.arrays(x, y, classes=[str(i) for i in range(256)]).classes) == 256


@pytest.mark.parametrize(
    ("shape", "line"),
    [
        ((20, 32, 32, 3), r"x\.transpose\(0, 3, 1, 2\)"),
        ((20, 32, 32, 2), r"x\.transpose\(0, 3, 1, 2\)"),
        ((20, 16, 24, 1), r"x\.transpose\(0, 3, 1, 2\)"),
        ((20, 28, 28), r"x\[:, None\]"),
        ((20,), r"x\[:, None\]"),
        ((20, 40, 2), r"layout=\.\.\."),
        ((20, 10, 64), r"layout=\.\.\."),
        ((20, 40, 1), r"layout=\.\.\."),
    ],
)
def test_arrays_that_may_have_another_axis_of_channels_are_refused_with_the_line_to_write(shape, line):
    """D3, D9: the axis of channels is asked for, not guessed wrong."""
    x, y = rng().random(shape).astype(np.float32), np.arange(20) % 2
    with pytest.raises(DataError, match=f"E403 .*{line}"):
        unskew.run("fedavg", (x, y))
    if len(shape) > 1:
        assert data.arrays(x, y, layout="channels first").shape == shape[1:]


def test_series_with_time_first_train_and_predict_as_with_their_features_first(tmp_path):
    """Feature 1 is 10,000 times as large as feature 0, which carries the class."""
    y = np.arange(60) % 2
    x = np.stack([rng().normal(size=(60, 12)) + y[:, None], 1e4 * rng(1).normal(size=(60, 12))], axis=2)
    settings = {"clients": 2, "skew": "iid", "rounds": 1, "model": "mlp"}
    expected = unskew.run("fedavg", (x.swapaxes(1, 2), y), **settings)
    np.savez(tmp_path / "a.npz", x=x, y=y)
    sources = [(x, y), f"{tmp_path}/a.npz", torch.utils.data.TensorDataset(*map(torch.tensor, (x, y)))]
    for source in sources:
        result = unskew.run("fedavg", data.take(source, layout="time first"), **settings)
        assert result.digest == expected.digest
        assert np.array_equal(result.predict_proba(x), expected.predict_proba(x.swapaxes(1, 2)))
    clients = [(x[:30], y[:30]), (x[30:], y[30:])]
    result = unskew.run("fedavg", data.take(clients, layout="time first"), rounds=1, model="mlp")
    assert result.predict_proba(x).shape == (60, 2)
    read = data.take((x, y), layout="time first")
    assert data.take([read, (x, y)], layout="time first").shape == (2, 12)
    with pytest.raises(DataError, match=r"E403 .*cannot be read with layout='time first'"):
        data.take((x[:, 0], y), layout="time first")


@pytest.mark.parametrize(
    "shape", [(20, 3, 32, 32), (20, 9, 128), (20, 1, 128, 3), (20, 9, 128, 1), (20, 1, 64, 87), (20, 30)]
)
def test_layouts_that_are_right_are_left_alone(shape):
    """D3: signals, spectrograms and columns keep their shapes."""
    assert data.arrays(rng().random(shape).astype(np.float32), np.arange(20) % 2).shape == shape[1:]


def columns(n=200) -> tuple[np.ndarray, np.ndarray]:
    """Two columns on scales a thousand times apart, of which the small one decides."""
    small, large = rng(1).normal(0, 0.1, n), rng(2).normal(900, 300, n)
    return np.stack([small, large], 1).astype(np.float32), (small > 0).astype(np.int64)


def dealt(dataset: Dataset, **options):
    return deal_out(build({"skew": "iid", "clients": 2, **options}), Method(), dataset)


def test_constants_are_computed_for_own_samples():
    """D4: normalise=dataset standardises own arrays by the mean and standard deviation of the training
    samples."""
    d = data.arrays(
        rng().random((100, 3, 8, 8)).astype(np.float32) * [[[[0.2]], [[0.5]], [[1]]]], np.arange(100) % 2
    )
    plain, scaled = dealt(d), dealt(d, normalise="dataset")
    assert np.array_equal(plain.x, d.x)
    np.testing.assert_allclose(scaled.x.mean((0, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(scaled.x.std((0, 2, 3)), 1, atol=1e-4)
    mean, std = d.x.mean((0, 2, 3), dtype=np.float64), d.x.std((0, 2, 3), dtype=np.float64)
    np.testing.assert_allclose(
        scaled.x_test, (d.x_test - mean[:, None, None]) / std[:, None, None], atol=1e-4
    )


def test_unscaled_columns_are_standardised_and_told():
    """D4: auto standardises columns that could not be trained on as they are, and only those."""
    x, y = columns()
    federation = dealt(data.arrays(x, y))
    np.testing.assert_allclose(federation.x.std(0), 1, atol=1e-3)
    assert "column 1 with mean" in "; ".join(text for _, text in federation.intake.notes)  # type: ignore[union-attr]
    assert dealt(data.arrays(x, y), normalise="none").x.max() > 900
    constant = np.concatenate([x, np.full((len(x), 1), 7, np.float32)], 1)
    assert np.abs(dealt(data.arrays(constant, y)).x[:, 2]).max() < 1e-6
    faint = (rng().random((50, 1, 8, 8)) * 0.01).astype(np.float32)
    assert dealt(data.arrays(faint, np.arange(50) % 2)).x.std() == pytest.approx(1, abs=1e-3)


X = rng().random((30, 4)).astype(np.float32)


@pytest.mark.parametrize(
    ("y", "classes", "says"),
    [
        (
            np.array(["cat", "ant", "dog"] * 10),
            ("ant", "cat", "dog"),
            "labels that are words were numbered in this order: ant, cat, dog",
        ),
        (np.array(["10", "9", "1"] * 10), ("1", "9", "10"), "words"),
        (np.array([1, 2, 3] * 10), ("1", "2", "3"), "labels 1 to 3 were read as classes 0 to 2"),
        (np.array([0.0, 1.0, 2.0] * 10), ("0", "1", "2"), "float64 labels, all whole"),
        (np.eye(3)[[0, 1, 2] * 10], ("0", "1", "2"), "one-hot rows of 3 columns"),
        (np.array([True, False, True] * 10), ("0", "1"), ""),
        (np.array([0, 2, 2] * 10), ("0", "1", "2"), "no training sample of class 1"),
        (np.zeros(30, int), ("0",), "all samples are of one class, 0"),
    ],
)
def test_labels_are_read_in_the_forms_people_keep_them(y, classes, says):
    """D6: words, numbers from 1, whole floats and one-hot rows become classes, and it is told."""
    d = data.arrays(X, y, X, y)
    assert d.classes == classes
    assert d.y.dtype == np.int64
    assert says in notes(d, "labels")
    expected = y.argmax(1) if y.ndim == 2 and y.shape[1] > 1 else y.reshape(-1)
    assert len(set(zip(d.y.tolist(), expected.tolist()))) == len(set(expected.tolist()))


@pytest.mark.parametrize(
    ("y", "says"),
    [
        (rng().random(30), "ask for regression"),
        (np.array(["a", None, "b"] * 10, dtype=object), "sample 1 has no label"),
        (
            np.array([50_000, 50_001, 50_002] * 10),
            r"only 3 different labels, but the largest is 50002.*return_inverse",
        ),
        (
            np.eye(3)[[0, 1, 2] * 10] * (np.arange(30) != 7)[:, None],
            "sample 7 has 0 classes, and 96.7% of all have one",
        ),
        (np.array([f"patient {i}" for i in range(30)] * 1), "30 different labels|such as"),
        (np.array([-1, 1, 1] * 10), "is -1; 2 classes need labels from 0 to 1"),
    ],
)
def test_labels_that_cannot_be_classes_are_refused_with_a_hint(y, says):
    """D6: fractions and gaps are refused in one sentence."""
    if y.dtype.kind == "U":
        x, y = np.concatenate([X, X]), np.array([f"patient {i}" for i in range(60)])
    else:
        x = X
    with pytest.raises(DataError, match=f"E404 .*({says})"):
        data.arrays(x, y)
