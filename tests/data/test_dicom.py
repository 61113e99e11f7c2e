"""DICOM as sets of slices: nothing of whom it is about gets out, it is what NIfTI gives, and what is wrong is
refused.

Skipped where pydicom is not installed (pip install 'unskew[medical]').
"""

from __future__ import annotations

import itertools
import logging
import sys
import warnings
import zipfile

import numpy as np
import pytest

from tests.cli.calling import call
from tests.data.dicoms import SECRETS, hospital, instance, told, write, write_series
from unskew.data import prediction_inputs
from unskew.data.readers.from_volumes import volumes
from unskew.data.samples.dataset import validation_of
from unskew.data.volumes import volume as dicom
from unskew.data.volumes.scans import find_series
from unskew.data.volumes.volume import read_nifti, stack_series
from unskew.errors import DataError
from unskew.federation.site_data import load

EXTRA = "DICOM needs the extra: pip install 'unskew[medical]'"
pydicom = pytest.importorskip("pydicom", reason=EXTRA)
nibabel = pytest.importorskip("nibabel", reason=EXTRA)

RNG = np.random.default_rng(11)


def volume(path):
    """The only series below a path, as a volume."""
    (one,), _ = find_series(path)
    return stack_series(one.series)


def contents(root):
    """Every byte below a folder, also of what is packed in it, and every path."""
    for path in root.rglob("*"):
        yield str(path.relative_to(root)).encode()
        if path.is_file():
            yield path.read_bytes()
            if zipfile.is_zipfile(path):
                with zipfile.ZipFile(path) as archive:
                    yield from (archive.read(name) for name in archive.namelist())


def test_nothing_of_whom_the_files_are_about_is_written_or_printed(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    scans = hospital(tmp_path / "in" / "scans")
    out = tmp_path / "out"
    out.mkdir()
    spec = f"../in/{scans.name}/(size=16)"
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        said = [
            call("data", "check", spec, cwd=out),
            call(
                "run",
                "fedavg",
                "--data",
                spec,
                "--rounds",
                "1",
                "--skew",
                "column:patient",
                "--name",
                "one",
                cwd=out,
            ),
            call(
                "predict",
                "runs/one",
                f"../in/{scans.name}/ill/Quillfeather-1",
                "--out",
                "answers.csv",
                cwd=out,
            ),
        ]
    assert [s.code for s in said] == [0, 0, 0], "".join(s.text for s in said)
    text = "".join(s.text for s in said) + caplog.text + "".join(str(w.message) for w in warned)
    assert not told(text)
    held = b"\n".join(contents(out)).lower()
    assert b"dicom, series 1 of 1 slice 0" in held
    assert b"classes" in held  # the run's own files were read, too
    assert [s for s in SECRETS if s.lower().encode() in held] == []


def test_the_set_itself_names_nobody(tmp_path):
    """Nor does it at a site, whose operator called the folder after somebody."""
    dataset = load(f"{hospital(tmp_path / 'Quillfeather')}(size=8)", ("ill", "well"))
    assert dataset.classes == ("ill", "well")
    assert dataset.labels["patient"] == tuple(f"patient {i}" for i in range(1, 7))
    assert not told(repr(vars(dataset)))
    assert dataset.intake
    left = [text for topic, text in dataset.intake.notes if topic == "left out"]
    assert left == ["2 imageless DICOM objects", "1 non-DICOM file"]


def people(dataset):
    names = np.array(dataset.labels["patient"])
    return set(names[dataset.columns["patient"]]), set(names[dataset.test_columns["patient"]])


def test_no_patient_is_on_both_sides_whatever_their_folders(tmp_path):
    """Six patients with two series each, which lie in folders that do not say so."""
    for i, series in itertools.product(range(6), (1, 2)):
        body = RNG.integers(0, 99, (8, 8, 3)).astype(np.uint8)
        write_series(tmp_path / ("a", "b")[i % 2] / f"{series}-{i}", body, i, series)
    dataset = volumes(tmp_path, size=8)
    train, test = people(dataset)
    assert len(train) + len(test) == 6
    assert test
    assert not train & test
    train, held = people(validation_of(dataset, 0.3))
    assert held
    assert not train & held
    assert len(dataset.x) + len(dataset.x_test) == 36


def spoken():
    with dicom.quiet_pydicom("dicom, file 1 of 2"):
        warnings.warn("Zebedee", stacklevel=1)
        logging.getLogger("pydicom").error("Zebedee")
        raise ValueError("Zebedee")


def test_what_pydicom_says_is_dropped(tmp_path, caplog):
    """Its warnings quote tags, as an identifier that breaks the rules does here; its logs and errors
    could."""
    write_series(tmp_path / "Zebedee", np.ones((8, 8, 2), np.uint8))
    for path in (tmp_path / "Zebedee").iterdir():
        path.write_bytes(
            path.read_bytes().replace(
                f"{SECRETS[4]}.0.1".encode(), b"Drachenfels".ljust(99, b"x")[: len(SECRETS[4]) + 4]
            )
        )
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        volume(tmp_path)
        with pytest.raises(DataError) as caught:
            spoken()
    assert not warned
    assert not caplog.records
    assert not told(str(caught.value))
    assert caught.value.__cause__ is None
    logging.getLogger("pydicom").error("heard again")
    assert caplog.records


STORED = {
    "u1": (np.uint8, 1, 0), "i1": (np.int8, 1, 0), "u2": (np.uint16, 1, -1024), "i2": (np.int16, 2.5, -3),
    "i4": (np.int32, 1, 0),
}  # fmt: skip


@pytest.mark.parametrize("kind", STORED)
@pytest.mark.parametrize("tilted", [False, True])
def test_a_series_is_what_nifti_gives_of_the_same_volume(tmp_path, kind, tilted):
    dtype, slope, intercept = STORED[kind]
    limits = np.iinfo(dtype)
    stored_RCN = RNG.integers(max(limits.min, -9000), min(limits.max, 9000), (5, 4, 3)).astype(dtype)
    across, down = np.array([0, 1.0, 0]), np.array([0, 0, -1.0])  # sagittal: to the back, to the feet
    if tilted:
        angle = 0.2
        down = np.array([np.sin(angle), 0, -np.cos(angle)])
    normal = np.cross(across, down)
    begin = np.array([10, -20, 30.0])
    for k in range(3):
        tags = {
            "ImagePositionPatient": list(begin + 3 * k * normal),
            "ImageOrientationPatient": [*across, *down],
            "PixelSpacing": [0.5, 2],
            "RescaleSlope": slope,
            "RescaleIntercept": intercept,
            "InstanceNumber": 3 - k,
        }
        write(instance(stored_RCN[..., k], k + 1, **tags), tmp_path / f"{(2 * k) % 3}")
    affine = np.eye(4)
    affine[:3] = np.stack([across * 2, down * 0.5, normal * 3, begin], 1)
    affine = np.diag([-1, -1, 1, 1]) @ affine
    scaled = nibabel.Nifti1Image(
        stored_RCN.transpose(1, 0, 2) * np.float32(slope) + np.float32(intercept), affine
    )
    nibabel.save(scaled, tmp_path / "same.nii")
    expected, ours = read_nifti(tmp_path / "same.nii"), volume(tmp_path)
    np.testing.assert_array_equal(ours.values, expected.values)
    np.testing.assert_allclose(ours.affine, expected.affine, atol=1e-5)
    np.testing.assert_allclose(ours.spacing, expected.spacing, rtol=1e-6)
    assert ours.stored == expected.stored


def test_frames_of_one_file_lie_where_their_groups_say(tmp_path):
    from pydicom.dataset import Dataset
    from pydicom.uid import EnhancedCTImageStorage

    def group(name, **tags):
        outer, inner = Dataset(), Dataset()
        for keyword, value in tags.items():
            setattr(inner, keyword, value)
        setattr(outer, name, [inner])
        return outer

    body = RNG.integers(0, 99, (4, 5, 3)).astype(np.int16)
    write_series(tmp_path / "one", body, RescaleSlope=2)
    shared = group("PixelMeasuresSequence", PixelSpacing=[1, 1])
    shared.update(group("PlaneOrientationSequence", ImageOrientationPatient=[1, 0, 0, 0, 1, 0]))
    shared.update(group("PixelValueTransformationSequence", RescaleSlope=2, RescaleIntercept=0))
    order = [2, 0, 1]
    frames = [group("PlanePositionSequence", ImagePositionPatient=[0, 0, 2.0 * (k + 1)]) for k in order]
    ds = instance(
        np.moveaxis(body, 2, 0)[order],
        SOPClassUID=EnhancedCTImageStorage,
        ImagePositionPatient=None,
        RescaleSlope=None,
        ImageOrientationPatient=None,
        PixelSpacing=None,
        RescaleIntercept=None,
        SharedFunctionalGroupsSequence=[shared],
        PerFrameFunctionalGroupsSequence=frames,
    )
    write(ds, tmp_path / "many" / "x")
    one, many = volume(tmp_path / "one"), volume(tmp_path / "many")
    np.testing.assert_array_equal(one.values, many.values)
    np.testing.assert_array_equal(one.affine, many.affine)


@pytest.mark.parametrize(("dtype", "total"), [(np.uint8, 255), (np.int16, -1), (np.uint16, 4095)])
def test_what_means_dark_by_high_numbers_is_inverted(tmp_path, dtype, total):
    body = RNG.integers(0, 120, (4, 4, 2)).astype(dtype)
    used = {"BitsStored": 12, "HighBit": 11} if total == 4095 else {}
    write_series(tmp_path / "plain", body)
    write_series(tmp_path / "dark", body, PhotometricInterpretation="MONOCHROME1", **used)
    np.testing.assert_array_equal(volume(tmp_path / "dark").values, total - volume(tmp_path / "plain").values)


def test_masks_are_found_as_those_of_nifti_are(tmp_path):
    for i in range(4):
        body = RNG.integers(0, 99, (8, 8, 3)).astype(np.uint8)
        label = (body > 50).astype(np.uint8)
        write_series(tmp_path / "a" / "images" / f"Zebedee{i}", body, i, 1)
        write_series(tmp_path / "a" / "masks" / f"Zebedee{i}", label, i, 2)
        write_series(tmp_path / "b" / f"Zebedee{i}" / "t1", body, i, 1)
        write_series(tmp_path / "b" / f"Zebedee{i}" / "t1_seg", label, i, 2)
    sets = [volumes(tmp_path / name, size=8) for name in "ab"]
    for dataset in sets:
        assert dataset.classes == ("background", "foreground")
        assert "site" not in dataset.labels  # folders of one patient each
        assert not told(repr(dataset.intake) + repr(dataset.labels))
    np.testing.assert_array_equal(sets[0].x, sets[1].x)
    np.testing.assert_array_equal(sets[0].y, sets[1].y)
    assert sets[0].y.any()


def test_sites_are_folders_of_several_patients_and_tables_name_patients_by_their_identifier(tmp_path):
    lines = ["patient,state,place"]
    for i in range(8):
        place, state = ("oslo", "lyon")[i % 2], ("ill", "well")[i // 2 % 2]
        body = RNG.integers(0, 99, (8, 8, 2)).astype(np.uint8)
        write_series(tmp_path / "folders" / place / state / f"p{i}", body, i)
        write_series(tmp_path / "table" / f"{i}" / "x", body, i)
        lines.append(f"MRN77123-{i},{state},{place}")
    (tmp_path / "table" / "patients.csv").write_text("\n".join(lines))
    one = volumes(tmp_path / "folders", size=8)
    other = volumes(tmp_path / "table", size=8, label="state", site="place")
    assert one.classes == other.classes == ("ill", "well")
    assert one.labels["site"] == other.labels["site"] == ("lyon", "oslo")
    np.testing.assert_array_equal(np.bincount(one.y), np.bincount(other.y))
    (tmp_path / "table" / "patients.csv").write_text("\n".join(lines[:-1]))
    (tmp_path / "table").rename(tmp_path / "Zebedee")
    for table, text in (
        ("\n".join(lines[:-1]), "1 of the patients"),
        ("patient,x\na,1", "no line"),
        ('"', "no rows"),
    ):
        (tmp_path / "Zebedee" / "patients.csv").write_text(table)
        with pytest.raises(DataError, match=text) as caught:
            volumes(tmp_path / "Zebedee", size=8, label="state")
        assert not told(str(caught.value))
        assert str(tmp_path) not in str(caught.value)


def test_the_kind_of_image_is_chosen_by_its_description(tmp_path):
    for i in range(4):
        for series, title in ((1, "scout"), (2, "axial T1")):
            body = np.full((8, 8, series), i + 10 * series, np.uint8)
            write_series(
                tmp_path / "ab"[i % 2] / f"p{i}",
                body,
                i,
                series,
                SeriesDescription=title,
                names=f"{series}-{{}}",
            )
    dataset = volumes(tmp_path, size=8, image="T1")
    assert len(dataset.x) + len(dataset.x_test) == 8


def test_new_scans_are_answered_by_the_number_of_their_series(tmp_path):
    write_series(tmp_path / "Zebedee", RNG.integers(0, 9, (8, 8, 2)).astype(np.uint8))
    form = {"kind": "volumes", "axis": "axial", "size": 8}
    names, x = prediction_inputs.read_inputs(tmp_path, form)
    assert names == [f"dicom, series 1 of 1 slice {i}" for i in range(2)]
    alone, one = prediction_inputs.read_inputs(tmp_path / "Zebedee" / "IM0002", form)
    assert alone == ["dicom, series 1 of 1 slice 0"]
    assert not told(str(alone))
    np.testing.assert_array_equal(one, x[:1])


def test_links_are_not_followed(tmp_path):
    hospital(tmp_path / "scans", 4)
    write_series(tmp_path / "elsewhere", np.ones((8, 8, 2), np.uint8), 9)
    before = len(find_series(tmp_path / "scans")[0])
    (tmp_path / "scans" / "ill" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "scans" / "ill" / "one").symlink_to(tmp_path / "elsewhere" / "IM0001")
    assert len(find_series(tmp_path / "scans")[0]) == before


def test_without_the_library_the_extra_is_named(tmp_path, monkeypatch):
    hospital(tmp_path / "scans", 2)
    monkeypatch.setitem(sys.modules, "pydicom", None)
    result = call("data", "check", str(tmp_path / "scans"))
    assert result.code == 3
    assert "unskew[medical]" in result.err
    assert not told(result.text)
