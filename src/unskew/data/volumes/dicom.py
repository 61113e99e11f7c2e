"""One DICOM file, read so that nothing of whom it is about gets out (the DICOM standard, PS3.10; read by pydicom).

Messages of pydicom quote the values of tags, names and identifiers among them, and paths often hold names of patients. So
what pydicom says is dropped, and messages here call a file by its number in the order of paths.
"""

from __future__ import annotations

import importlib
import logging
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unskew.errors import DataError

MOST = 1 << 30
"""Bytes of one file, packed or unpacked."""
NAME = "dicom"
"""What every set and folder of DICOM is called, because people call folders after patients."""
MAGIC = b"DICM"
"""Behind the 128 bytes that begin a file of DICOM, whatever its name."""
HEAD = ("PatientID", "SeriesInstanceUID", "SeriesDescription", "SOPClassUID", "Rows", "Columns")
"""What says whose image a file holds and which others belong to it."""
_DEFLATED = "1.2.840.10008.1.2.1.99"
_NO_IMAGES = ("Segmentation Storage", "RT Dose Storage", "Surface Segmentation Storage")
"""Kinds of objects that have rows and columns and yet are no images: labels and doses."""


@dataclass(frozen=True)
class Item:
    """A file. name: what messages call it, which is never its path."""

    path: Path
    name: str


def is_dicom(path: Path) -> bool:
    """Whether a file begins as DICOM does; False for one that cannot be opened."""
    try:
        with open(path, "rb") as file:
            return file.read(132)[128:] == MAGIC
    except OSError:
        return False


@contextmanager
def discreetly(item: Item) -> Iterator[Any]:
    """pydicom, of whose warnings, logs and errors nothing gets out.

    Raises DataError: E401 for whatever goes wrong within, E403 where pydicom is not installed.
    """
    try:
        library = importlib.import_module("pydicom")
    except ImportError:
        raise DataError("E403", f"reading {item.name} needs pydicom; pip install 'unskew[medical]'.") from None
    log = logging.getLogger("pydicom")
    was = log.disabled
    try:
        log.disabled = True
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield library
    except DataError:
        raise
    except Exception as error:  # pydicom raises many kinds of error for damaged files, and their text quotes tags
        raise damaged(item, f"it is cut off or damaged ({type(error).__name__})") from None
    finally:
        log.disabled = was


def damaged(item: Item, why: str) -> DataError:
    """The error for a file that cannot be read. why: half a sentence without values of tags."""
    return DataError("E401", f"{item.name} cannot be read as DICOM: {why}. Copy or export it again.")


def head(item: Item) -> Any | None:
    """The tags of HEAD of a file that holds an image, None for other objects (reports, directories, segmentations).

    Raises DataError: E401 for a file that is damaged or too large.
    """
    with discreetly(item) as pydicom:
        _check_size(item, pydicom)
        tags = pydicom.dcmread(item.path, stop_before_pixels=True, specific_tags=list(HEAD))
        # a file that is cut off, or noise, has none; to leave it out would lose a slice unseen
        if not tags.get("SOPClassUID"):
            raise damaged(item, "it is cut off, or has no SOPClassUID")
        name = pydicom.uid.UID(tags.SOPClassUID).name
        sized = "Rows" in tags and "Columns" in tags
        if "Image Storage" not in name and (not sized or name in _NO_IMAGES):
            return None
        for keyword in ("SeriesInstanceUID", "Rows", "Columns"):
            if not tags.get(keyword):
                raise damaged(item, f"it has no {keyword}")
        return tags


def whole(item: Item) -> Any:
    """All of a file, its pixels not yet decoded. Raises DataError (E401)."""
    with discreetly(item) as pydicom:
        _check_size(item, pydicom)
        return pydicom.dcmread(item.path)


def _check_size(item: Item, pydicom: Any) -> None:
    """Raises DataError (E401) for a file that has, or unpacks to, more bytes than may be held."""
    if item.path.stat().st_size > MOST:
        raise damaged(item, f"it has more than {MOST:,} bytes")
    meta = pydicom.filereader.read_file_meta_info(item.path)
    if meta.get("TransferSyntaxUID") != _DEFLATED:
        return
    with open(item.path, "rb") as file:
        file.seek(144 + int(meta.FileMetaInformationGroupLength))  # 128 bytes, the magic, and the length itself
        content = file.read()
    if len(zlib.decompressobj(-zlib.MAX_WBITS).decompress(content, MOST + 1)) > MOST:
        raise damaged(item, f"it unpacks to more than {MOST:,} bytes")
