"""DICOM that is damaged, hostile or laid out in a way that cannot be read: each ends in one sentence that
names nobody.

Skipped where pydicom is not installed (pip install 'unskew[medical]').
"""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path

import numpy as np
import pytest

from tests.data.dicoms import hospital, told, write_series
from unskew.data.readers.from_volumes import volumes
from unskew.errors import DataError

EXTRA = "DICOM needs the extra: pip install 'unskew[medical]'"
pydicom = pytest.importorskip("pydicom", reason=EXTRA)
pytest.importorskip("nibabel", reason=EXTRA)

RNG = np.random.default_rng(11)


def spoilt(root: Path, change, n=4) -> None:
    """A hospital whose first ill patient has a series with one file changed."""
    hospital(root, n)
    change(sorted((root / "ill").rglob("*.dcm"))[1])


def tagged(**tags):
    def change(path):
        ds = pydicom.dcmread(path)
        for keyword, value in tags.items():
            if value is None:
                delattr(ds, keyword)
            else:
                setattr(ds, keyword, value)
        ds.save_as(path)

    return change


def packed(syntax):
    def change(path):
        ds = pydicom.dcmread(path)
        ds.PixelData = pydicom.encaps.encapsulate([bytes(100)])
        ds["PixelData"].VR = "OB"
        ds["PixelData"].is_undefined_length = True
        ds.file_meta.TransferSyntaxUID = syntax
        ds.save_as(path)

    return change


def raw(keyword, value):
    """A tag with text that pydicom would not write."""

    def change(path):
        content = path.read_bytes()
        old = pydicom.dcmread(path)[keyword]
        text = value.encode().ljust(len(value) + len(value) % 2)
        head = old.tag.group.to_bytes(2, "little") + old.tag.element.to_bytes(2, "little") + b"DS"
        at = content.index(head)
        length = int.from_bytes(content[at + 6 : at + 8], "little")
        new = head + len(text).to_bytes(2, "little") + text
        path.write_bytes(content[:at] + new + content[at + 8 + length :])

    return change


def halves(share):
    return lambda p: p.write_bytes(p.read_bytes()[: int(len(p.read_bytes()) * share)])


def colours(light):
    def change(path):
        values = np.zeros((8, 8, 3), np.uint8)
        tagged(
            SamplesPerPixel=3,
            PhotometricInterpretation=light,
            PlanarConfiguration=0,
            BitsAllocated=8,
            BitsStored=8,
            HighBit=7,
            PixelRepresentation=0,
            PixelData=values.tobytes(),
        )(path)

    return change


DANGERS = {
    "more frames than bytes": (tagged(NumberOfFrames=9), "E401", "cut off or damaged"),
    "a missing slice": (lambda p: p.unlink(), "E401", "lacks images"),
    "one place twice": (tagged(ImagePositionPatient=[0, 0, 2.0]), "E404", "two images in one place"),
    "beside the others": (tagged(ImagePositionPatient=[9, 0, 6.0]), "E401", "off the line"),
    "another size": (tagged(Rows=4, Columns=16), "E404", "images of 8 x 8 and of 4 x 16"),
    "half of a file": (halves(0.9), "E401", "cut off"),
    "a cut header": (halves(0.4), "E401", "cannot be read as DICOM"),
    "nothing": (lambda p: p.write_bytes(b""), "E401", "is not DICOM"),
    "noise": (
        lambda p: p.write_bytes(bytes(128) + b"DICM" + RNG.bytes(500)),
        "E401",
        "cannot be read as DICOM",
    ),
    "no patient": (tagged(PatientID=None), "E404", "several patients"),
    "no series": (tagged(SeriesInstanceUID=None), "E401", "no SeriesInstanceUID"),
    "no pixels": (tagged(PixelData=None), "E401", "cut off or damaged"),
    "colours": (colours("RGB"), "E403", "holds colours"),
    "a slope without end": (tagged(RescaleSlope="1e300"), "E401", "values are not finite"),
    "a name for a number": (raw("RescaleIntercept", "Zebedee"), "E401", "cut off or damaged"),
    "packed as JPEG-LS": (packed("1.2.840.10008.1.2.4.80"), "E403", "JPEG-LS.*pip install pylibjpeg"),
}


@pytest.mark.parametrize("danger", DANGERS)
def test_what_is_wrong_ends_in_one_sentence_that_names_nobody(tmp_path, caplog, danger):
    change, code, text = DANGERS[danger]
    spoilt(tmp_path / "Quillfeather", change)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with pytest.raises(DataError, match=text) as caught:
            volumes(tmp_path / "Quillfeather", size=8)
    assert caught.value.code in code.split("|")
    assert "\n" not in str(caught.value)
    assert not told(
        f"{caught.value} {caught.value.__cause__} {caplog.text} {[str(w.message) for w in warned]}"
    )
    assert str(tmp_path) not in str(caught.value)


def without_identifier(root):
    for i in range(4):
        write_series(root / "ab"[i % 2] / str(i), np.ones((8, 8, 2), np.uint8), i, PatientID=None)


def one_for_all(root):
    for i in range(4):
        write_series(root / "ab"[i % 2] / str(i), np.ones((8, 8, 2), np.uint8), i, PatientID="ANON")


def folders_of_people(root):
    for i in range(4):
        write_series(root / f"Zebedee{i}" / "a", np.ones((8, 8, 2), np.uint8), i)


def no_mask(root):
    folders_of_people(root / "images")
    write_series(root / "masks" / "Quillfeather", np.ones((8, 8, 2), np.uint8), 9)


def on_both_sides(root):
    for i, part in itertools.product(range(2), ("train", "test")):
        write_series(root / part / "ab"[i] / "x", np.ones((8, 8, 2), np.uint8), 3, ord(part[1]) + i)
        write_series(root / part / "ab"[i] / "y", np.ones((8, 8, 2), np.uint8), 10 * (i + 1) + len(part), 3)


def only_reports(root):
    hospital(root, 2)
    for path in [p for p in root.rglob("*") if p.name.startswith(("IM", "0"))]:
        path.unlink()


MISTAKES = {
    "no PatientID": (without_identifier, "E404", "without|have no PatientID"),
    "one PatientID for all": (one_for_all, "E403|E404", "one patient"),
    "folders of people": (folders_of_people, "E404", "those of one patient each are patients'"),
    "an image without a mask": (no_mask, "E404", "not every series of images has one mask"),
    "one patient in train and test": (on_both_sides, "E404", "patient 1 is in train/ and in test/"),
    "reports only": (only_reports, "E404", "no image of DICOM"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_users_mistakes_end_in_one_sentence_that_names_nobody(tmp_path, mistake):
    lay, code, text = MISTAKES[mistake]
    lay(tmp_path / "Quillfeather")
    with pytest.raises(DataError, match=text) as caught:
        volumes(tmp_path / "Quillfeather", size=8)
    assert caught.value.code in code.split("|")
    assert "\n" not in str(caught.value)
    assert not told(str(caught.value))
