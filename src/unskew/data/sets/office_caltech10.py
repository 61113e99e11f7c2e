"""2,533 photographs of ten objects in four domains (Office-Caltech-10, Gong et al., 2012).

`x64_webp` and `x128_jpeg`: strips of 100 images, which `x64_off` and `x128_off` divide; `y`, `domain`,
`split` (1: test); `classes`
"""

from __future__ import annotations

from typing import Annotated, Literal

from unskew.data.files.archives import open_archive
from unskew.data.samples.conversion import unit_interval
from unskew.data.samples.dataset import Dataset

SOURCE = "github.com/redhat12345/OfficeCaltechDomainAdaptation (no licence stated)"
DOMAINS = ("amazon", "caltech", "dslr", "webcam")


def office_caltech10(size: Annotated[Literal[64, 128], "side of the images, in pixels"] = 64) -> Dataset:
    """1,773 samples of shape (3, size, size) to train and 760 to test, in [0, 1]; `--skew domain`: a
    client a domain."""
    archive = open_archive("office_caltech10", SOURCE)
    x = unit_interval(archive.pictures("x64_webp" if size == 64 else "x128_jpeg", size))
    return archive.split(x, archive["split"] == 1, ("domain",), labels={"domain": DOMAINS})
