"""Images and their masks in folders side by side: which mask belongs to which image, and to which site both.

[site/] images/file + masks/file          every name above images/ is part of the site's
images/site/file + masks/site/file        the first name below it, where there is none above
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unskew.data.intake.notes import Note, counted, some
from unskew.data.intake.tree import File, Tree
from unskew.errors import DataError

IMAGES = frozenset(
    ("images", "image", "imgs", "img", "scans", "scan", "slices", "pictures", "photos", "imagestr", "images_tr")
)
MASKS = frozenset(
    (
        *(
            "masks",
            "mask",
            "labels",
            "label",
            "annotations",
            "annotation",
            "segmentations",
            "segmentation",
            "segs",
            "seg",
        ),
        *("contours", "contour", "gt", "ground_truth", "groundtruth", "manual", "labelstr", "labels_tr"),
    )
)
SUFFIXES = ("_mask", "_masks", "_seg", "_segmentation", "_label", "_gt", "-mask", "-seg")
CHANNEL = "_0000"
"""Behind the name of an image's first channel, as nnU-Net writes it; masks lack it."""


@dataclass(frozen=True)
class Pair:
    """An image and its mask. site: "" where the folders name none."""

    image: File
    mask: File
    site: str


@dataclass(frozen=True)
class _Place:
    """Where a file lies. above, below: the folders on either side of images/ or masks/."""

    file: File
    kind: str
    above: tuple[str, ...]
    below: tuple[str, ...]

    def key(self, stem: str) -> tuple[str, tuple[str, ...], tuple[str, ...], str]:
        return self.file.part, self.above, self.below, stem


def plain(name: str) -> str:
    """A folder's name in small letters without spaces around it."""
    return name.strip().lower()


def has_masks(tree: Tree) -> bool:
    """Whether images/ and masks/ (or labels/ ...) lie side by side, at the root or at every site."""
    names = {plain(folders[-1]) for folders in tree.folders if folders}
    return bool(names & IMAGES and names & MASKS)


def pairs(tree: Tree) -> tuple[list[Pair], list[Note]]:
    """(images with their masks and sites, in the order of images; what was left out).

    Raises DataError (E409) for images without a mask or with two, and for images of which only some lie at a site.
    """
    places = [_place(file) for file in tree.files]
    images = [p for p in places if plain(p.kind) in IMAGES]
    masks: dict[object, list[_Place]] = {}
    for p in places:
        if plain(p.kind) in MASKS:
            masks.setdefault(p.key(p.file.stem), []).append(p)
    stray = [p.file for p in places if not p.kind]
    if not images:
        raise DataError("E409", f"{tree.root} holds no images in images/.")
    stems: dict[object, _Place] = {}
    for p in images:
        twin = stems.setdefault(p.key(p.file.stem), p)
        if twin is not p:
            raise DataError("E409", f"{twin.file.path} and {p.file.path} would share one mask; keep one of them.")
    drawn = [_masks_of(p, masks, stems) for p in images]
    _check_each_has_one(images, drawn, stray)
    sites = _sites(images)
    paired = [Pair(p.file, ms[0].file, site) for p, ms, site in zip(images, drawn, sites)]
    used = {pair.mask.path for pair in paired}
    idle = [p.file for ms in masks.values() for p in ms if p.file.path not in used]
    notes: list[Note] = []
    for files, noun, why in ((stray, "image", "in neither images/ nor masks/"), (idle, "mask", "without an image")):
        if files:
            where = files[0].path.relative_to(tree.root)
            notes.append(("left out", f"{counted(len(files), noun)} {why}, such as {where}"))
    return paired, notes


def _place(file: File) -> _Place:
    at = next((i for i in reversed(range(len(file.folders))) if plain(file.folders[i]) in IMAGES | MASKS), None)
    if at is None:
        return _Place(file, "", file.folders, ())
    return _Place(file, file.folders[at], file.folders[:at], file.folders[at + 1 :])


def _masks_of(image: _Place, masks: dict[object, list[_Place]], images: dict[object, _Place]) -> list[_Place]:
    """The masks of an image's name, or of its name with a usual suffix unless that is another image's."""
    stem = image.file.stem
    others = [stem + suffix for suffix in SUFFIXES] + [f"mask_{stem}"]
    if stem.endswith(CHANNEL):
        others.append(stem.removesuffix(CHANNEL))
    names = [stem, *(name for name in others if image.key(name) not in images)]
    return [mask for name in names for mask in masks.get(image.key(name), ())]


def _check_each_has_one(images: Sequence[_Place], drawn: Sequence[Sequence[_Place]], stray: Sequence[File]) -> None:
    """Raises DataError (E409) for images with no mask or several."""
    bare = [p.file.path for p, masks in zip(images, drawn) if not masks]
    if bare:
        text = f"{bare[0]} has no mask: there is no {bare[0].stem} with any ending in masks/ beside {bare[0].parent.name}/."
        if bare[1:]:
            text += f" {len(bare):,} of {len(images):,} images have none, also {some(list(map(str, bare[1:])))}."
        if stray:
            text += f" {stray[0].path} lies in neither images/ nor masks/; does its folder have another name?"
        raise DataError("E409", text)
    twice = next((masks for masks in drawn if len(masks) > 1), None)
    if twice:
        raise DataError(
            "E409", f"{twice[0].file.path} and {twice[1].file.path} are masks of one image; keep one of them."
        )


def _sites(images: Sequence[_Place]) -> list[str]:
    """The site of each image, "" where none has one. Raises DataError (E409) where only some have one."""
    above = any(p.above for p in images)
    names = [p.above if above else p.below[:1] for p in images]
    without = next((p for p, name in zip(images, names) if not name), None)
    if without and any(names):
        other = next(p for p, name in zip(images, names) if name)
        raise DataError(
            "E409",
            f"{other.file.path} lies in the folder of a site, {without.file.path} does not; put all images into "
            "SITE/images/, or none.",
        )
    while all(len(name) > 1 for name in names) and len({name[0] for name in names}) == 1:
        names = [name[1:] for name in names]
    return ["/".join(name) for name in names]
