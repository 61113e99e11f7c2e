"""Sets of photographs in folders, DOMAIN/CLASS/file: Office-Caltech-10, PACS, DomainNet, Digits-5."""

from __future__ import annotations

import numpy as np

from unskew.data.downloads.original_files import OriginalFiles, OriginalSamples, Recipe
from unskew.data.files.tree import IMAGE_ENDINGS, read_tree
from unskew.data.kinds.images import read_each, read_image
from unskew.data.readers.from_folder import files_by_class
from unskew.errors import DataError

LARGEST_SET = 4 << 30
"""Maximal size of images in memory, in bytes."""


def domains(origin: OriginalFiles) -> OriginalSamples:
    """Images squashed to squares, uint8 [N, 3, size, size], with the column `domain`. Files in test/
    folders are the test part."""
    if not origin.path.is_dir():
        text = f"{origin.path} is no folder; unpack the archive, and give {_EXPECTS}"
        raise DataError("E401", f"{text}.")
    tree = read_tree(origin.path)
    images = files_by_class(tree, [f for f in tree.files if f.kind in IMAGE_ENDINGS])
    if images.sites is None:
        text = f"{origin.path} holds CLASS/; put them into one folder for each domain, DOMAIN/CLASS/"
        raise DataError("E401", f"{text}.")
    paths = [f.path for f in images.files]
    if (size := 3 * origin.size**2 * len(paths)) > LARGEST_SET:
        text = (
            f"{len(paths):,} images of {origin.size} x {origin.size} take {size:,} bytes, which is too much"
        )
        remedy = f"take a smaller --size, or train from the folder itself: --data {origin.path}"
        raise DataError("E401", f"{text}; {remedy}.")

    def pixels(i: int) -> np.ndarray:
        return np.rint(read_image(paths[i], origin.size, "squash")[0].clip(0, 1) * 255).astype(np.uint8)

    x = np.stack(read_each(paths, pixels))
    y = np.array(images.labels, np.int64)
    domain = np.array(images.sites)
    test = np.array([f.part == "test" for f in images.files])
    if not test.any() or test.all():
        return OriginalSamples(x, y, None, None, images.classes, {"domain": (domain, None)})
    return OriginalSamples(
        x[~test], y[~test], x[test], y[test], images.classes, {"domain": (domain[~test], domain[test])}
    )


_WHAT = {
    "office_caltech10": (
        "photographs of ten objects in four domains (Gong et al., 2012)",
        "github.com/redhat12345/OfficeCaltechDomainAdaptation",
    ),
    "pacs": (
        "9,991 images of seven classes in four styles (Li et al., 2017)",
        "domaingeneralization.github.io",
    ),
    "domainnet": ("images of 345 classes in six styles (Peng et al., 2019)", "ai.bu.edu/M3SDA"),
    "digits5": ("digits of five sources: MNIST, MNIST-M, SVHN, SynthDigits and USPS", "ai.bu.edu/M3SDA"),
}
_EXPECTS = "a folder with one folder for each domain, and in it one for each class"
SETS = {
    name: Recipe(what, source, "", _EXPECTS, domains, takes_size=True)
    for name, (what, source) in _WHAT.items()
}
