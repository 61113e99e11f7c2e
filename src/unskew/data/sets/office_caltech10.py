"""2,533 photographs of ten objects in four domains (Office-Caltech-10, Gong et al., 2012).

`x64_webp` and `x128_jpeg`: strips of 100 images, which `x64_off` and `x128_off` divide; `y`, `domain`,
`split` (1: test); `classes`. `unskew data get` writes `x`, `y` and `domain` instead, at one size
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from unskew.data.downloads.named_archives import NamedArchive, open_archive
from unskew.data.readers.from_npz import npz
from unskew.data.samples.conversion import unit_interval
from unskew.data.samples.dataset import Dataset
from unskew.errors import DataError

SOURCE = "github.com/redhat12345/OfficeCaltechDomainAdaptation (no licence stated)"
DOMAINS = ("amazon", "caltech", "dslr", "webcam")


def office_caltech10(size: Annotated[Literal[64, 128], "side of the images, in pixels"] = 64) -> Dataset:
    """1,773 samples of shape (3, size, size) to train and 760 to test, in [0, 1]; `--skew domain`: a
    client a domain."""
    archive = open_archive("office_caltech10", SOURCE)
    if "x64_webp" not in archive:
        return _from_archive(archive, size)
    x = unit_interval(archive.pictures("x64_webp" if size == 64 else "x128_jpeg", size))
    return archive.split(x, archive["split"] == 1, ("domain",), labels={"domain": DOMAINS})


def _from_archive(archive: NamedArchive, size: int) -> Dataset:
    """The set as `unskew data get` writes it, at one size. Raises DataError (E403) for another size."""
    dataset = npz(archive.path)
    if dataset.shape[-1] != size:
        side = dataset.shape[-1]
        raise DataError(
            "E403",
            f"{archive.path} holds images of {side} x {side}; give its path as --data, or get it again.",
        )
    return replace(dataset, source=archive.source)
