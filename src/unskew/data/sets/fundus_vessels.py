"""88 grey fundus photographs of three sites with vessel masks: DRIVE, CHASE_DB1 and STARE.

Staal et al., 2004; Fraz et al., 2012; Hoover et al., 2000. `image` uint8 [N, 320, 320], grey; `mask` 0 and 1;
`site` (0 DRIVE, 1 CHASE_DB1, 2 STARE), `split` (1: test). Below 320 pixels an image's pixel is the mean over
its area, a mask's pixel the nearest one. `--skew domain` makes one client of each site.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Le

from unskew.data.files.archives import open_archive
from unskew.data.kinds.images import resize_images, resize_masks
from unskew.data.samples.conversion import unit_interval
from unskew.data.samples.dataset import Dataset

SOURCE = "github.com/juntang-zhuang/LadderNet and github.com/mipple1986/data (no licence stated)"
SITES = ("DRIVE", "CHASE_DB1", "STARE")


def fundus_vessels(
    size: Annotated[int, Ge(16), Le(320), "side of the images, in pixels"] = 320,
    channels: Annotated[Literal[1, 3], "3 repeats the grey channel"] = 1,
) -> Dataset:
    """54 images of shape (channels, size, size) to train and 34 to test, in [0, 1], each with a mask (size,
    size)."""
    archive = open_archive("fundus_vessels", SOURCE)
    x = np.repeat(resize_images(unit_interval(archive["image"][:, None])[:], size), channels, axis=1)
    y, test = resize_masks(archive["mask"], size), archive["split"] == 1
    sites = {"domain": archive["site"], "site": archive["site"]}
    columns, test_columns = ({name: values[rows] for name, values in sites.items()} for rows in (~test, test))
    return Dataset(
        "fundus_vessels",
        x[~test],
        y[~test],
        x[test],
        y[test],
        ("background", "vessel"),
        columns,
        test_columns,
        dict.fromkeys(sites, SITES),
        mean=(0.3143,) * channels,
        std=(0.2442,) * channels,
        source=SOURCE,
    )
