"""Medical volumes as sets of slices: layouts, patients that stay together, and files that are wrong or
hostile.

Layouts are tried with files of arrays that are called .nii, so that they need no library; what a NIfTI file
says is tried where nibabel is installed (pip install 'unskew[medical]').
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from unskew import data
from unskew.data import prediction_inputs
from unskew.data.files import archives
from unskew.data.python_objects import take
from unskew.data.readers import from_volumes
from unskew.data.readers.from_volumes import (
    Volume,
    check_fits,
    cut_mask,
    cut_slices,
    hold_out_patients,
    read_nifti,
    volumes,
)
from unskew.data.samples.dataset import validation_of
from unskew.errors import DataError

RNG = np.random.default_rng(3)


def volume(values, affine=None, path="scan.nii", stored="RAS") -> Volume:
    affine = np.eye(4) if affine is None else affine
    spacing = tuple(float(np.linalg.norm(affine[:3, i])) for i in range(3))
    return Volume(Path(path), np.asarray(values, np.float32), affine, spacing, stored)


def put(path: Path, values=None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        np.save(file, RNG.normal(size=(6, 8, 4)) if values is None else values)


def put_pair(image: Path, mask: Path) -> None:
    labels = np.zeros((6, 8, 4))
    labels[2:4, 3:6, 1:3] = 1
    put(image)
    put(mask, labels)


@pytest.fixture
def plain(monkeypatch):
    """Files that are called .nii hold a plain array."""

    def read(path):
        with open(path, "rb") as file:
            return volume(np.load(file), path=path)

    monkeypatch.setattr(from_volumes, "read_nifti", read)


def patients(dataset):
    names = np.array(dataset.labels["patient"])
    return {
        part: set(names[columns["patient"]])
        for part, columns in (("train", dataset.columns), ("test", dataset.test_columns))
    }


def decathlon(root, n=6):
    for i in range(n):
        put_pair(root / "imagesTr" / f"case_{i}_0000.nii.gz", root / "labelsTr" / f"case_{i}.nii.gz")


def sites(root):
    for site in ("oslo", "lyon"):
        for i in range(3):
            put_pair(root / site / f"p{i}" / f"p{i}_flair.nii", root / site / f"p{i}" / f"p{i}_seg.nii")


def bids(root):
    for i in range(4):
        sub = f"sub-{i}"
        put_pair(
            root / sub / "anat" / f"{sub}_T1w.nii.gz", root / "derivatives" / "m" / sub / f"{sub}_dseg.nii.gz"
        )
        put(root / sub / "anat" / f"{sub}_FLAIR.nii.gz")
    lines = ["participant_id\tcentre", *(f"sub-{i}\t{'ab'[i % 2]}" for i in range(4))]
    (root / "participants.tsv").write_text("\n".join(lines))


def visits(root, name, number, each):
    """Files of this name for every visit of so many patients: with a mask, or in the folder of a class."""
    for i in range(number * each):
        p = i // each
        facts = {"patient": f"p{p:02}", "visit": i % each, "site": "ab"[p // 2 % 2]}
        text = name.format(kind=("ill", "well")[p % 2], **facts)
        if "kind" in name:
            put(root / f"{text}.nii")
        else:
            mask = text.replace("images", "masks") if "images" in name else f"{text}_seg"
            put_pair(root / f"{text}.nii", root / f"{mask}.nii")


@pytest.mark.parametrize(
    ("lay", "options", "scans", "named"),
    [
        (decathlon, "", 6, ()),
        (sites, "", 6, ("lyon", "oslo")),
        (bids, "image=T1w,site=centre", 4, ("a", "b")),
    ],
)
def test_layouts_are_read_and_no_patient_is_on_both_sides(tmp_path, plain, lay, options, scans, named):
    lay(tmp_path)
    dataset = data.read(f"{tmp_path}(size=8,{options})".replace(",)", ")"))
    both = patients(dataset)
    assert dataset.x.shape[1:] == (1, 8, 8)
    assert len(dataset.x) + len(dataset.x_test) == 4 * scans
    assert dataset.classes == ("background", "foreground")
    assert dataset.labels.get("site", ()) == named
    assert both["test"]
    assert not both["train"] & both["test"]
    assert len(both["train"] | both["test"]) == scans  # where two hospitals have a p0, they are two people
    for columns, x in ((dataset.columns, dataset.x), (dataset.test_columns, dataset.x_test)):
        keys = np.stack(list(columns.values()), 1)
        assert (np.unique(keys, axis=0, return_counts=True)[1] == 4).all()  # whole volumes
        assert len(keys) == len(x)


def test_a_patients_scans_go_together_into_tests_and_into_validation(tmp_path, plain):
    for i in range(8):
        for session in "12":
            name = f"sub-{i}_ses-{session}"
            put_pair(tmp_path / "images" / f"{name}_T1w.nii", tmp_path / "masks" / f"{name}_T1w.nii")
    dataset = volumes(tmp_path, size=8)
    both = patients(dataset)
    assert len(both["test"]) == 2
    assert not both["train"] & both["test"]
    divided = patients(validation_of(dataset, 0.3))
    assert divided["test"]
    assert not divided["train"] & divided["test"]


@pytest.mark.parametrize(
    ("name", "site"),
    [
        ("{site}/{patient}/scan{visit}", True),
        ("{patient}/scan{visit}", False),
        ("{site}/images/{patient}/scan{visit}", True),
    ],
)
def test_the_folder_below_the_site_is_the_patient(tmp_path, plain, name, site):
    visits(tmp_path, name, 8, 3)
    dataset = volumes(tmp_path, size=8)
    both = patients(dataset)
    assert both["train"] | both["test"] == {f"p{i:02}" for i in range(8)}
    assert not both["train"] & both["test"]
    assert dataset.labels.get("site", ()) == (("a", "b") if site else ())
    assert not [text for topic, text in dataset.intake.notes if topic == "warning"]


@pytest.mark.parametrize(
    "name",
    [
        "{kind}/{patient}_v{visit}",
        "{site}/{kind}/{patient}_v{visit}",
        "{patient}_v{visit}",
        "{site}/{patient}_v{visit}",
        "{patient}-v{visit}/t1",
        "{patient}/v{visit}/t1",
        "images/{patient}/v{visit}",
    ],
)
def test_what_looks_like_several_files_of_one_patient_is_asked_about(tmp_path, plain, name):
    visits(tmp_path, name, 12, 2)
    (question,) = (text for topic, text in volumes(tmp_path, size=8).intake.notes if topic == "warning")
    assert question.startswith("24 files have 12 different ")
    choice = question.partition("say group=")[2].partition(", or group=none")[0]
    dataset = data.read(f"{tmp_path}(size=8,group={choice})")
    both = patients(dataset)
    assert len(both["train"] | both["test"]) == 12
    assert not both["train"] & both["test"]
    for answer in ("patient", "none"):
        notes = data.read(f"{tmp_path}(size=8,group={answer})").intake.notes
        assert not [text for topic, text in notes if topic == "warning"]


def test_every_site_holds_patients_out_and_none_loses_all():
    kinds = np.array(["a"] * 10 + ["b"] * 5 + ["c"])
    held = hold_out_patients(kinds, 0.2)
    assert [int(held[kinds == k].sum()) for k in "abc"] == [2, 1, 0]
    assert hold_out_patients(np.array(["a", "b"]), 0.2).sum() == 1
    assert hold_out_patients(np.array([f"site{i}" for i in range(20)]), 0.2).sum() == 4


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("{kind}/{patient}/v{visit}", ()),
        ("{patient}/v{visit}/t1", ()),
        ("images/{patient}/v{visit}", ()),
        ("{site}/{patient}/v{visit}/t1", ("a", "b")),
    ],
)
def test_the_folder_of_one_patient_is_no_site_where_group_names_patients(tmp_path, plain, name, named):
    visits(tmp_path, name, 24, 2)
    dataset = volumes(tmp_path, size=8, group="p[0-9]+")
    both = patients(dataset)
    assert both["train"] | both["test"] == {f"p{i:02}" for i in range(24)}
    assert not both["train"] & both["test"]
    assert len(both["test"]) == 5
    assert dataset.labels.get("site", ()) == named
    if named:
        assert set(dataset.test_columns["site"].tolist()) == {0, 1}
    if "kind" in name:
        assert set(dataset.y_test.tolist()) == {0, 1}
        assert ("sites", "folders were read as class/patient") in dataset.intake.notes


def test_a_site_of_one_patient_is_a_site_beside_those_of_several(tmp_path, plain):
    for i in range(12):
        text = f"{'abc'[min(i // 5, 2)]}/p{i // 2 if i < 10 else 5}_v{i}"
        put_pair(tmp_path / f"{text}.nii", tmp_path / f"{text}_seg.nii")
    assert volumes(tmp_path, size=8, group="p[0-9]+").labels["site"] == ("a", "b", "c")


def test_folders_and_tables_name_the_classes_of_volumes(tmp_path, plain):
    for c in ("ill", "well"):
        for i in range(3):
            put(tmp_path / "by-folder" / c / f"{c}{i}.nii")
            put(tmp_path / "by-table" / f"{c}{i}.nii")
    lines = ["patient,state", *(f"{c}{i},{c}" for c in ("ill", "well") for i in range(3))]
    (tmp_path / "by-table" / "patients.csv").write_text("\n".join(lines))
    one, other = (
        volumes(tmp_path / "by-folder", size=8),
        volumes(tmp_path / "by-table", size=8, label="state"),
    )
    assert one.classes == other.classes == ("ill", "well")
    np.testing.assert_array_equal(np.bincount(one.y), np.bincount(other.y))
    with pytest.raises(DataError, match="no column 'stat'"):
        volumes(tmp_path / "by-table", size=8, label="stat")


def test_slices_are_upright_in_proportion_and_their_masks_with_them():
    """Voxels of 1 x 1 x 2 mm: an axial slice of 4 x 2 voxels takes the square's height, half of its width."""
    values = np.zeros((2, 4, 3))
    values[1, 3, 2] = 5  # right, front, head
    body = volume(values, np.diag([1, 1, 2, 1.0]))
    axial = cut_slices(body, "axial", 4)
    assert axial.shape == (3, 4, 4)
    assert axial[2, 0, 2] == 5
    assert np.count_nonzero(axial) == 1
    coronal = cut_slices(body, "coronal", 6)
    assert coronal.shape == (4, 6, 6)
    assert coronal[3, 0, 3] == 5
    sagittal = cut_mask(body, "sagittal", 6)
    assert sagittal.shape == (2, 6, 6)
    assert sagittal[1, 0, 4] == 5
    assert sagittal.dtype == np.int64
    dark = cut_slices(volume(values - 1000), "axial", 8)
    assert dark[0, 0, 0] == -1000  # air around a CT, not water


MISTAKES = {
    "no mask": (lambda r: (decathlon(r), (r / "labelsTr" / "case_2.nii.gz").unlink()), "E404", "has no mask"),
    "two kinds": (bids, "E404", "would share the mask.*image=T1w"),
    "one patient": (lambda r: decathlon(r, 1), "E403", "one patient"),
    "both parts": (
        lambda r: [
            put_pair(r / p / "images" / f"sub-1_{p}.nii", r / p / "masks" / f"sub-1_{p}.nii")
            for p in ("train", "test")
        ],
        "E404",
        "in train/ and in test/",
    ),
    "no such site": (lambda r: decathlon(r), "E402", "participants.tsv"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_users_mistakes_end_in_one_sentence(tmp_path, plain, mistake):
    lay, code, text = MISTAKES[mistake]
    lay(tmp_path)
    with pytest.raises(DataError, match=text) as caught:
        volumes(tmp_path, size=8, site="centre" if mistake == "no such site" else "")
    assert caught.value.code == code
    assert "\n" not in str(caught.value)


def test_masks_that_do_not_fit_their_images_are_refused():
    image, moved = volume(np.ones((2, 3, 4))), np.eye(4)
    moved[0, 3] = 3
    for mask, code, text in (
        (volume(np.ones((2, 3, 5))), "E404", "2 x 3 x 5, its image"),
        (volume(np.ones((2, 3, 4)), moved), "E404", "3 mm from its image"),
        (volume(np.full((2, 3, 4), 0.5)), "E404", "such as 0.5"),
        (volume(np.full((2, 3, 4), -1.0)), "E404", "such as -1"),
    ):
        with pytest.raises(DataError, match=text) as caught:
            check_fits(image, mask)
        assert caught.value.code == code
    check_fits(image, image)


def save(path, values, affine=None, slope=None, dtype=np.int16):
    nib = pytest.importorskip("nibabel", reason="volumes need the extra: pip install 'unskew[medical]'")
    path.parent.mkdir(parents=True, exist_ok=True)
    image = nib.Nifti1Image(np.asarray(values, dtype), np.eye(4) if affine is None else affine)
    if slope:
        image.header.set_slope_inter(*slope)
    nib.save(image, path)
    return path


def test_a_file_is_turned_and_its_slope_applied(tmp_path):
    stored = np.arange(24).reshape(2, 3, 4)
    lps = np.diag([-1, -2, 3, 1.0])
    read = read_nifti(save(tmp_path / "a.nii.gz", stored, lps, (2, -10)))
    np.testing.assert_array_equal(read.values, 2.0 * stored[::-1, ::-1] - 10)
    assert (read.stored, read.spacing) == ("LPS", (1, 2, 3))
    names, x = prediction_inputs.read_inputs(
        tmp_path / "a.nii.gz", {"kind": "volumes", "axis": "axial", "size": 8}
    )
    assert names == [f"a.nii.gz slice {i}" for i in range(4)]
    assert x.shape == (4, 1, 8, 8)


@pytest.mark.parametrize("shape", [(2, 2, 2, 3), (4, 4)])
def test_files_that_are_no_single_volume_are_refused(tmp_path, shape):
    with pytest.raises(DataError, match=f"{len(shape)}-D") as caught:
        read_nifti(save(tmp_path / "a.nii", np.zeros(shape)))
    assert caught.value.code == "E403"


def test_a_volume_of_far_more_voxels_than_its_size_makes_likely_is_refused_unread(tmp_path, monkeypatch):
    path = save(tmp_path / "a.nii.gz", np.zeros((64, 64, 64)))
    monkeypatch.setattr(archives, "SMALL_SIZE", 2 * 64**3)
    monkeypatch.setattr(archives, "MOST_RATIO", 1)
    assert read_nifti(path).values.shape == (64, 64, 64)
    monkeypatch.setattr(archives, "SMALL_SIZE", 2 * 64**3 - 1)
    with pytest.raises(DataError, match=r"E401 .*a\.nii\.gz: its .* bytes announce 64 x 64 x 64 voxels"):
        read_nifti(path)


def test_a_folder_of_files_is_read(tmp_path):
    for i in range(3):
        for kind in ("images", "masks"):
            save(tmp_path / kind / f"p{i}.nii.gz", RNG.integers(0, 2, (16, 16, 2)))
    assert data.read(f"{tmp_path}(size=16)").y.shape == (4, 16, 16)


@pytest.mark.parametrize("given", ["clients", "train"])
def test_patients_stay_together_also_where_sets_of_volumes_are_given_by_client(tmp_path, plain, given):
    decathlon(tmp_path)
    one = data.read(f"{tmp_path}(size=8)")
    sets = {"a": one, "b": one} if given == "clients" else {"train": one}
    held = validation_of(take(sets), 0.3)
    people, those_held = (set(columns["patient"].tolist()) for columns in (held.columns, held.test_columns))
    assert those_held
    assert not people & those_held
