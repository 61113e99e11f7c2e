"""Folders of DICOM for tests, about people who do not exist and whose names must not be found anywhere
else."""

from __future__ import annotations

from pathlib import Path

import numpy as np

SECRETS = (
    "Zebedee",
    "Quillfeather",
    "MRN77123",
    "19510203",
    "1.2.826.0.1.3680043.77123",
    "StSwithin",
    "Drachenfels",
)
"""In names, identifiers, dates and UIDs of every file, and in the names of the folders that hold them."""
ROOT = SECRETS[4]
LIGHT = "MONOCHROME2"


def instance(values, number=1, patient=0, series=1, **tags):
    """One image of pydicom, whose pixels are these values [R, C] or [F, R, C]. tags: to set in it, None to
    leave out."""
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian

    values = np.asarray(values)
    meta = FileMetaDataset()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    meta.MediaStorageSOPClassUID = tags.get("SOPClassUID") or CTImageStorage
    uid = f"{ROOT}.{patient}.{series}"
    meta.MediaStorageSOPInstanceUID = f"{uid}.{number}"
    bits = 8 * values.dtype.itemsize
    ds = FileDataset("", {}, file_meta=meta, preamble=bytes(128))
    about = {
        "SOPClassUID": meta.MediaStorageSOPClassUID,
        "SOPInstanceUID": f"{uid}.{number}",
        "SeriesInstanceUID": uid,
        "StudyInstanceUID": f"{ROOT}.{patient}",
        "PatientID": f"MRN77123-{patient}",
        "PatientName": "Quillfeather^Zebedee",
        "PatientBirthDate": "19510203",
        "StudyDate": "19510203",
        "InstitutionName": "StSwithin",
        "Modality": "CT",
        "ReferringPhysicianName": "Drachenfels",
        "InstanceNumber": number,
        "Rows": values.shape[-2],
        "Columns": values.shape[-1],
        "SamplesPerPixel": 1,
        "PhotometricInterpretation": LIGHT,
        "BitsAllocated": bits,
        "BitsStored": bits,
        "HighBit": bits - 1,
        "PixelRepresentation": int(values.dtype.kind == "i"),
        "ImagePositionPatient": [0, 0, 2.0 * number],
        "ImageOrientationPatient": [1, 0, 0, 0, 1, 0],
        "PixelSpacing": [1, 1],
        "PixelData": values.tobytes(),
        "RescaleSlope": 1,
        "RescaleIntercept": 0,
    }
    if values.ndim == 3:
        about["NumberOfFrames"] = len(values)
    for keyword, value in {**about, **tags}.items():
        if value is not None:
            setattr(ds, keyword, value)
    return ds


def write(ds, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    ds.save_as(path, enforce_file_format=True)
    return path


def write_series(folder: Path, volume_RCN, patient=0, series=1, names="IM{:04}", **tags) -> list[Path]:
    """A file for each plane, whose names run against their places."""
    planes = np.moveaxis(np.asarray(volume_RCN), 2, 0)
    return [
        write(instance(plane, k + 1, patient, series, **tags), folder / names.format(len(planes) - k))
        for k, plane in enumerate(planes)
    ]


def hospital(root: Path, patients: int = 6, side: int = 8, slices: int = 4) -> Path:
    """CLASS/patient/...: of two classes, `ill` with a bright spot. Mixed with a directory, a report and a
    note."""
    rng = np.random.default_rng(5)
    for i in range(patients):
        body = rng.integers(-50, 50, (side, side, slices)).astype(np.int16)
        if i % 2:
            body[: side // 2, : side // 2] += 900
        folder = root / ("well", "ill")[i % 2] / f"Quillfeather-{i}" / "study" / "1"
        write_series(folder, body, i, names="IM{:04}.dcm" if i % 3 else "{:08}")
    (root / "Drachenfels.txt").write_text("StSwithin")
    report = instance(
        np.zeros((2, 2), np.uint8),
        SOPClassUID="1.2.840.10008.5.1.4.1.1.88.11",
        Rows=None,
        Columns=None,
        PixelData=None,
    )
    write(report, root / "well" / "Quillfeather-0" / "SR")
    directory = instance(
        np.zeros((2, 2), np.uint8),
        SOPClassUID="1.2.840.10008.1.3.10",
        Rows=None,
        Columns=None,
        PixelData=None,
    )
    write(directory, root / "DICOMDIR")
    return root


def told(text: str) -> list[str]:
    """The secrets that a text tells."""
    return [secret for secret in SECRETS if secret.lower() in text.lower()]
