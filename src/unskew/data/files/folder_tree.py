"""The files of a folder, and what their paths say: part of the data, site, class, and the mask of an image.

[site/] CLASS/file                        [train|test/] may stand at any depth above the file
CLASS/site/file                           where the inner names differ from class to class
[site/] images/file + masks/file          every name above images/ is part of the site's name
images/site/file + masks/site/file        the first name below images/, where there is none above

Hidden files and those that operating systems leave behind are no data; other files of unknown kind are left
out, with a note.
"""

from __future__ import annotations

import os
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from unskew.data.files.sheets import table_files
from unskew.data.samples.reading_notes import Note, abbreviate, quantity
from unskew.errors import DataError

IMAGE_ENDINGS = frozenset(
    (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".gif", ".webp", ".ppm", ".pgm", ".pbm", ".pnm")
)
SOUND_ENDINGS = frozenset((".wav", ".ogg", ".mp3", ".flac", ".m4a", ".aiff", ".aif"))
VOLUME_ENDINGS = frozenset((".nii", ".nii.gz"))
SYSTEM_FILES = frozenset(("thumbs.db", "desktop.ini", "__macosx", "icon\r"))
PART_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("test", "testing"), "test"),
    **dict.fromkeys(("val", "valid", "validation"), "val"),
}


PARQUET_ENDING = ".parquet"


def is_npy_folder(path: Path) -> bool:
    """Whether a folder holds samples as .npy files."""
    return (path / "x.npy").is_file() or (path / "x_train.npy").is_file()


def content_of(folder: Path) -> str:
    """What a folder holds: "arrays", "volumes", "Parquet", "tables", or "folders" of images or sounds."""
    if is_npy_folder(folder):
        return "arrays"
    has_parquet = False
    for _, _, names in os.walk(folder):
        endings = {file_ending(Path(name)) for name in names if not name.startswith(".")}
        if endings & VOLUME_ENDINGS:
            return "volumes"
        if endings & (IMAGE_ENDINGS | SOUND_ENDINGS):
            return "folders"
        has_parquet = has_parquet or PARQUET_ENDING in endings
    if has_parquet:
        return "Parquet"
    return "tables" if table_files(folder) else "folders"


@dataclass(frozen=True)
class File:
    """A file of data. part: "train", "test" or "val". folders: the names between the root and the file,
    without the part's."""

    path: Path
    part: str
    folders: tuple[str, ...]

    @property
    def kind(self) -> str:
        """The ending, in small letters."""
        return file_ending(self.path)

    @property
    def stem(self) -> str:
        """The name without the ending, in one Unicode form."""
        ending = len(self.kind)
        return unicodedata.normalize("NFC", self.path.name[:-ending] if ending else self.path.name)


@dataclass(frozen=True)
class FolderTree:
    """The files below a root, in the order of their paths.

    folders: every folder, including empty ones, by the names that lead to it, without the names of parts.
    """

    root: Path
    files: tuple[File, ...]
    folders: frozenset[tuple[str, ...]]
    notes: tuple[Note, ...]


def file_ending(path: Path) -> str:
    """The ending of a file's name, in small letters."""
    return ".nii.gz" if path.name.lower().endswith(".nii.gz") else path.suffix.lower()


def read_tree(
    root: Path, kinds: frozenset[str] = IMAGE_ENDINGS | SOUND_ENDINGS, validation: bool = False
) -> FolderTree:
    """The files and folders below a folder. kinds: endings of data files. validation: whether to include
    validation files.

    Raises DataError (E404) for a missing folder.
    """
    if not root.is_dir():
        raise DataError("E404", f"there is no folder {root}.")
    paths, folders, litter = _walk(root)
    split = any(PART_NAMES.get(name.lower()) == "train" for names in folders for name in names)
    files = []
    for path in paths:
        names = _path_names(path, root)[:-1]
        part, outer = split_part(names) if split else ("train", names)
        files.append(File(path, part or "train", outer))
    data_files = tuple(f for f in files if f.kind in kinds)
    other_kinds = Counter(f.kind or "no ending" for f in files if f.kind not in kinds | {".csv"})
    notes: list[Note] = []
    if litter:
        notes.append(("left out", f"{quantity(len(litter), 'hidden or system file')}, such as {litter[0]}"))
    if other_kinds:
        endings = abbreviate([f"{n:,} {ending}" for ending, n in other_kinds.most_common()], 5)
        noun = "no volumes" if kinds == VOLUME_ENDINGS else "neither images nor sounds"
        notes.append(("left out", f"files that are {noun}: {endings}"))
    if (n := sum(f.part == "val" for f in data_files)) and not validation:
        text = (
            f"{quantity(n, 'file')} for validation: scores are on the test set, or on a share of the training"
            " samples"
        )
        notes.append(("left out", f"{text} (validation=0.1)"))
    inner = frozenset(split_part(names)[1] if split else names for names in folders)
    return FolderTree(
        root, tuple(f for f in data_files if validation or f.part != "val"), inner, tuple(notes)
    )


def empty_folder_notes(tree: FolderTree, depth: int = 0) -> list[Note]:
    """A note on folders without images or sounds below them, at this depth (0: at any); of nested ones,
    the outermost."""
    full = {f.folders[:i] for f in tree.files for i in range(len(f.folders) + 1)}
    empty = sorted(d for d in tree.folders - full if d[:-1] in full and depth in (0, len(d)))
    names = abbreviate(["/".join(d) for d in empty])
    return (
        [("left out", f"{quantity(len(empty), 'folder')} without images or sounds: {names}")] if empty else []
    )


def _walk(root: Path) -> tuple[list[Path], list[tuple[str, ...]], list[str]]:
    """(files in the order of their paths, folders by their names below the root, hidden and system files by
    path). Links are followed, but for those to a folder above them."""
    files: list[Path] = []
    folders: list[tuple[str, ...]] = []
    litter: list[str] = []
    for place, below, names in os.walk(root, followlinks=True):
        folder = Path(place)
        within = folder.resolve()
        circular = [
            n for n in below if (folder / n).is_symlink() and within.is_relative_to((folder / n).resolve())
        ]
        litter += [str((folder / n).relative_to(root)) for n in (*below, *names) if is_system_file(n)]
        below[:] = sorted(n for n in below if not is_system_file(n) and n not in circular)
        folders += [_path_names(folder / n, root) for n in below]
        files += [folder / n for n in names if not is_system_file(n)]
    return sorted(files), folders, sorted(litter)


def _path_names(path: Path, root: Path) -> tuple[str, ...]:
    """The names between a root and a path, in one Unicode form, because systems store accents differently."""
    return tuple(unicodedata.normalize("NFC", name) for name in path.relative_to(root).parts)


def is_system_file(name: str) -> bool:
    """Whether a name is hidden, or one that an operating system leaves behind."""
    return name.startswith(".") or name.lower() in SYSTEM_FILES


def split_part(names: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """(the part of the data that folders name, "" without one; the other names)."""
    for i, name in enumerate(names):
        if part := PART_NAMES.get(name.lower()):
            return part, (*names[:i], *names[i + 1 :])
    return "", names


def are_classes_below(folders: Sequence[tuple[str, ...]]) -> bool:
    """Whether b names the class in paths a/b: its names then recur below most of a."""
    below: dict[str, set[str]] = {}
    for outer, inner, *_ in folders:
        below.setdefault(outer, set()).add(inner)
    total, names = sum(map(len, below.values())), set().union(*below.values())
    return 2 * (total - len(names)) >= total / len(below)


IMAGE_FOLDERS = frozenset(
    (
        *("images", "image", "imgs", "img", "scans", "scan", "slices", "pictures", "photos"),
        *("imagestr", "images_tr"),
    )
)
MASK_FOLDERS = frozenset(
    (
        *("masks", "mask", "labels", "label", "annotations", "annotation", "contours", "contour"),
        *("segmentations", "segmentation", "segs", "seg", "gt", "ground_truth", "groundtruth", "manual"),
        *("labelstr", "labels_tr"),
    )
)
MASK_SUFFIXES = ("_mask", "_masks", "_seg", "_segmentation", "_label", "_gt", "-mask", "-seg")
CHANNEL_SUFFIX = "_0000"
"""The suffix of an image's first channel in nnU-Net; masks lack it."""


@dataclass(frozen=True)
class Pair:
    """An image and its mask. site: "" if no folder names a site."""

    image: File
    mask: File
    site: str


def plain_name(name: str) -> str:
    """A folder's name in small letters without surrounding spaces."""
    return name.strip().lower()


def has_mask_folders(tree: FolderTree) -> bool:
    """Whether images/ and masks/ (or labels/ ...) are next to each other, at the root or at every site."""
    names = {plain_name(folders[-1]) for folders in tree.folders if folders}
    return bool(names & IMAGE_FOLDERS and names & MASK_FOLDERS)


def pair_masks(tree: FolderTree) -> tuple[list[Pair], list[Note]]:
    """(images with their masks and sites, in the order of images; notes on omissions).

    Raises DataError (E404) for images without a mask or with two, and if only some images have a site.
    """
    images: dict[tuple[object, ...], File] = {}
    masks: dict[tuple[object, ...], list[File]] = {}
    unplaced: list[File] = []
    for file in tree.files:
        kind, *place = _mask_place(file)
        key = (file.part, *place, file.stem)
        if not kind:
            unplaced.append(file)
        elif kind in MASK_FOLDERS:
            masks.setdefault(key, []).append(file)
        elif images.setdefault(key, file) is not file:
            raise DataError("E404", f"{images[key].path} and {file.path} would share one mask; keep one.")
    if not images:
        raise DataError("E404", f"{tree.root} holds no images in images/.")
    chosen, bare = list[File](), list[str]()
    for (*place, stem), file in images.items():
        variants = [f"{stem}{suffix}" for suffix in MASK_SUFFIXES] + [f"mask_{stem}"]
        if file.stem.endswith(CHANNEL_SUFFIX):
            variants.append(file.stem.removesuffix(CHANNEL_SUFFIX))
        names = [stem, *(name for name in variants if (*place, name) not in images)]
        of_image = [mask for name in names for mask in masks.get((*place, name), ())]
        if len(of_image) > 1:
            both = f"{of_image[0].path} and {of_image[1].path}"
            raise DataError("E404", f"{both} are masks of one image; keep one of them.")
        chosen += of_image
        bare += [] if of_image else [str(file.path)]
    if bare:
        fault = f"{bare[0]} has no mask: nothing of its name is in masks/ beside its folder"
        fault += f"; {len(bare):,} of {len(images):,} images have none" if bare[1:] else ""
        fault += f"; {unplaced[0].path} lies in neither images/ nor masks/" if unplaced else ""
        raise DataError("E404", f"{fault}.")
    pairs = [Pair(*pair) for pair in zip(images.values(), chosen, _pair_sites(list(images.values())))]
    paired = {pair.mask.path for pair in pairs}
    idle = [file for files in masks.values() for file in files if file.path not in paired]
    notes: list[Note] = []
    for files, noun, reason in (
        (unplaced, "image", "in neither images/ nor masks/"),
        (idle, "mask", "without an image"),
    ):
        if files:
            example = files[0].path.relative_to(tree.root)
            notes.append(("left out", f"{quantity(len(files), noun)} {reason}, such as {example}"))
    return pairs, notes


def _mask_place(file: File) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """(the plain name of the last folder of images or masks above a file, "" without one; the folders on
    either side of it)."""
    for i in reversed(range(len(file.folders))):
        if (kind := plain_name(file.folders[i])) in IMAGE_FOLDERS | MASK_FOLDERS:
            return kind, file.folders[:i], file.folders[i + 1 :]
    return "", file.folders, ()


def folders_below_site(image: File) -> tuple[str, ...]:
    """The folders below images/ that do not name a site; the first one does if there is none above."""
    _, above, below = _mask_place(image)
    return below if above else below[1:]


def _pair_sites(images: Sequence[File]) -> list[str]:
    """The site of each image, "" if no image has one. Raises DataError (E404) if only some have one."""
    places = [_mask_place(file)[1:] for file in images]
    above = any(place[0] for place in places)
    names = [place[0] if above else place[1][:1] for place in places]
    if any(names) and not all(names):
        first, without = images[list(map(bool, names)).index(True)], images[names.index(())]
        fault = f"{first.path} lies in the folder of a site, {without.path} does not"
        raise DataError("E404", f"{fault}; put all images into SITE/images/, or none.")
    while all(len(name) > 1 for name in names) and len({name[0] for name in names}) == 1:
        names = [name[1:] for name in names]
    return ["/".join(name) for name in names]
