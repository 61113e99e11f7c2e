"""The files of a folder and what their paths say: the part of the data, the site and the class.

    [site/] CLASS/file            [train|test/] may stand at any depth above the file
    CLASS/site/file               where the inner names differ from class to class
    [site/] images/file + masks/file

Hidden files and what operating systems leave behind are no data; other files of unknown kind are left out and told.
"""

from __future__ import annotations

import os
import unicodedata
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from unskew.data.intake.notes import Note, counted, some
from unskew.errors import DataError

IMAGES = frozenset((".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".gif", ".webp", ".ppm", ".pgm", ".pbm", ".pnm"))
SOUNDS = frozenset((".wav", ".ogg", ".mp3", ".flac", ".m4a", ".aiff", ".aif"))
VOLUMES = frozenset((".nii", ".nii.gz"))
LITTER = frozenset(("thumbs.db", "desktop.ini", "__macosx", "icon\r"))
PARTS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("test", "testing"), "test"),
    **dict.fromkeys(("val", "valid", "validation"), "val"),
}


@dataclass(frozen=True)
class File:
    """A file of data. part: "train", "test" or "val"; folders: the names between the root and it, without the part's."""

    path: Path
    part: str
    folders: tuple[str, ...]

    @property
    def kind(self) -> str:
        """Its ending, in small letters."""
        return kind_of(self.path)

    @property
    def stem(self) -> str:
        """Its name without the ending, in one form of Unicode."""
        ending = len(self.kind)
        return unicodedata.normalize("NFC", self.path.name[:-ending] if ending else self.path.name)


@dataclass(frozen=True)
class Tree:
    """The files below a root, in the order of their paths.

    folders: every folder by the names that lead to it, also empty ones, without the names of parts.
    """

    root: Path
    files: tuple[File, ...]
    folders: frozenset[tuple[str, ...]]
    notes: tuple[Note, ...]


def kind_of(path: Path) -> str:
    """The ending of a file's name, in small letters."""
    return ".nii.gz" if path.name.lower().endswith(".nii.gz") else path.suffix.lower()


def tree_of(root: Path, kinds: frozenset[str] = IMAGES | SOUNDS, validation: bool = False) -> Tree:
    """What lies below a folder. kinds: endings of the files that are data; validation: whether files for it are, too.

    Raises DataError (E409) if there is no such folder.
    """
    if not root.is_dir():
        raise DataError("E409", f"there is no folder {root}.")
    paths, folders, litter, circles = _walk(root)
    split = any(PARTS.get(name.lower()) == "train" for names in folders for name in names)
    files = []
    for path in paths:
        names = _names(path, root)[:-1]
        part, others = in_part(names) if split else ("train", names)
        files.append(File(path, part or "train", others))
    known = tuple(f for f in files if f.kind in kinds)
    other = Counter(f.kind or "no ending" for f in files if f.kind not in kinds | {".csv"})
    notes: list[Note] = []
    if litter:
        notes.append(("left out", f"{counted(len(litter), 'hidden or system file')}, such as {litter[0]}"))
    if circles:
        links = counted(len(circles), "link")
        notes.append(
            ("left out", f"{links} to a folder that holds {'them' if circles[1:] else 'it'}, such as {circles[0]}")
        )
    if other:
        endings = some([f"{n:,} {ending}" for ending, n in other.most_common()], 5)
        what = "no volumes" if kinds == VOLUMES else "neither images nor sounds"
        notes.append(("left out", f"files that are {what}: {endings}"))
    if (n := sum(f.part == "val" for f in known)) and not validation:
        text = f"{counted(n, 'file')} for validation: scores are on the test set, or on a share of the training samples"
        notes.append(("left out", f"{text} (validation=0.1)"))
    inner = frozenset(_without_parts(names) if split else names for names in folders)
    return Tree(root, tuple(f for f in known if validation or f.part != "val"), inner, tuple(notes))


def empty_folders(tree: Tree, depth: int = 0) -> list[Note]:
    """A note on folders, at this depth (0: at any), below which no image or sound lies; of nested ones, the outermost."""
    full = {f.folders[:i] for f in tree.files for i in range(len(f.folders) + 1)}
    empty = sorted(d for d in tree.folders - full if d[:-1] in full and depth in (0, len(d)))
    if not empty:
        return []
    return [
        ("left out", f"{counted(len(empty), 'folder')} without images or sounds: {some(['/'.join(d) for d in empty])}")
    ]


def _walk(root: Path) -> tuple[list[Path], list[tuple[str, ...]], list[str], list[str]]:
    """(files in the order of their paths, folders by their names below the root, hidden files and litter by path, links
    to folders that hold them by path). Links to other folders are followed."""
    files: list[Path] = []
    folders: list[tuple[str, ...]] = []
    litter: list[str] = []
    circles: list[str] = []
    for place, below, names in os.walk(root, followlinks=True):
        here = Path(place)
        within = here.resolve()
        circular = [n for n in below if (here / n).is_symlink() and within.is_relative_to((here / n).resolve())]
        circles += [str((here / n).relative_to(root)) for n in circular]
        litter += [str((here / n).relative_to(root)) for n in (*below, *names) if is_litter(n)]
        below[:] = sorted(n for n in below if not is_litter(n) and n not in circular)
        folders += [_names(here / n, root) for n in below]
        files += [here / n for n in names if not is_litter(n)]
    return sorted(files), folders, sorted(litter), sorted(circles)


def _names(path: Path, root: Path) -> tuple[str, ...]:
    """The names between a root and a path, in one form of Unicode, because systems write accents differently."""
    return tuple(unicodedata.normalize("NFC", name) for name in path.relative_to(root).parts)


def is_litter(name: str) -> bool:
    """Whether a name is hidden, or what an operating system leaves behind."""
    return name.startswith(".") or name.lower() in LITTER


def in_part(names: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """(the part of the data that folders name, "" if none does; the other names)."""
    return next((PARTS[n.lower()] for n in names if n.lower() in PARTS), ""), _without_parts(names)


def _without_parts(names: tuple[str, ...]) -> tuple[str, ...]:
    """The names without the first that is a part's."""
    place = next((i for i, n in enumerate(names) if n.lower() in PARTS), None)
    return names if place is None else (*names[:place], *names[place + 1 :])
