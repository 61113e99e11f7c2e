"""Files that hold a sample each, and sets of several clients, which are too many for memory: decoded when
they are wanted.
"""

import wave

import numpy as np
import pytest
from PIL import Image

import unskew
from unskew import data
from unskew.data.readers import from_npz
from unskew.data.storage.rows_on_disk import is_streamed, survey_rows
from unskew.errors import DataError

SETTINGS = {"clients": 3, "rounds": 1, "epochs": 1, "batch": 8, "lanes": "1"}


def images(root, n=12, sites=("",)):
    rng = np.random.default_rng(0)
    for site in sites:
        for label in ("a", "b"):
            (root / site / label).mkdir(parents=True)
            for i in range(n):
                pixels = rng.integers(0, 256, (8, 8 + i % 2, 3)).astype(np.uint8)
                Image.fromarray(pixels).save(root / site / label / f"{i}.png")
    return f"{root}(size=8)"


def sounds(root, n=6):
    rng = np.random.default_rng(0)
    for label in ("a", "b"):
        (root / label).mkdir(parents=True)
        for i in range(n):
            with wave.open(str(root / label / f"{i}.wav"), "wb") as file:
                file.setparams((1, 2, 4000 if i else 8000, 0, "NONE", ""))
                file.writeframes(rng.integers(-9000, 9000, 900 + i).astype("<i2").tobytes())
    return str(root)


@pytest.fixture
def little(monkeypatch):
    """Memory into which nothing fits, from when it is called."""
    return lambda: monkeypatch.setattr("unskew.data.storage.rows_on_disk.usable_memory", lambda: 1000)


@pytest.mark.parametrize(
    ("make", "more"),
    [
        (images, {"skew": "iid"}),
        (
            lambda root: images(root, 6, ("x", "y")),
            {"skew": "column:site", "clients": 2, "normalise": "dataset"},
        ),
        (sounds, {"skew": "iid", "clients": 2}),
    ],
)
def test_files_that_do_not_fit_into_memory_are_decoded_once_and_train_to_the_same_bits(
    tmp_path, little, make, more
):
    """D8: folders were decoded into memory as a whole, whatever their size."""
    text = make(tmp_path / "set")
    whole = data.read(text)
    one = unskew.run("fedavg", text, **SETTINGS | more)
    little()
    read = data.read(text)
    assert is_streamed(read.x)
    assert not is_streamed(whole.x)
    assert np.array_equal(read.x_test[:], whole.x_test)
    assert (read.mean, read.std, read.classes) == (whole.mean, whole.std, whole.classes)
    assert "; from a file without a name in " in read.intake.notes[-1][1]
    source, found = read.x.source, read.x.source.survey
    assert all(
        np.array_equal(getattr(survey_rows(source.shape, source.read), n), getattr(found, n))
        for n in vars(found)
    )
    notes = [
        note
        for note in read.intake.notes
        if "read when they are wanted: together they would take" not in note[1]
    ]
    assert (notes, len(read.intake.notes)) == (list(whole.intake.notes), len(notes) + 1)
    other = unskew.run("fedavg", text, **SETTINGS | more)
    assert (other.digest, other.scores()) == (one.digest, one.scores())
    from_npz.save_dataset(read, tmp_path / "data.npz")
    assert np.array_equal(data.read(tmp_path / "data.npz").x[:], whole.x)


def test_all_files_that_cannot_be_read_are_named_before_anything_trains(tmp_path, little):
    little()
    text = images(tmp_path / "set")
    for i in (2, 3):
        (tmp_path / f"set/b/{i}.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"E401 .*2\.png .* 2 of 24 files cannot be read; also .*3\.png"):
        data.read(text)
