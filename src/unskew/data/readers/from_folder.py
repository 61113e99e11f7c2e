"""A data set from files in folders: images by class, images with masks, sounds by class, or files that a
table lists by name, with labels, sites and further columns.

Each file is decoded once. If the samples do not fit into memory they go to a scratch file.
Letters: N files.
"""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import Annotated

import numpy as np

from unskew.data.files import cells
from unskew.data.files.folder_tree import (
    IMAGE_FOLDERS,
    MASK_FOLDERS,
    MASK_SUFFIXES,
    SOUND_ENDINGS,
    File,
    FolderTree,
    are_classes_below,
    empty_folder_notes,
    has_mask_folders,
    pair_masks,
    read_tree,
)
from unskew.data.files.sheets import Sheet, read_csv
from unskew.data.kinds.column_roles import (
    column_named,
    column_question,
    file_question,
    group_setting,
    label_column_in,
    named_groups,
    part_column,
    site_column_in,
    site_column_of,
)
from unskew.data.kinds.features import encode_inputs, is_row_number
from unskew.data.kinds.images import (
    BitsSetting,
    FitSetting,
    ImageSettings,
    SizeSetting,
    read_each,
)
from unskew.data.kinds.labels import sort_classes
from unskew.data.kinds.masks import as_masks, check_palettes, read_mask
from unskew.data.kinds.media_files import Conversion, decode_paths
from unskew.data.kinds.sounds import format_of, length_of
from unskew.data.readers.from_tables import check_sites, read_label_columns, target_of
from unskew.data.readers.raw_samples import RawSamples
from unskew.data.samples.dataset import Constants, Dataset, Target
from unskew.data.samples.reading_notes import Note, abbreviate, quantity
from unskew.errors import DataError, excerpt
from unskew.formats.specs import split_names

MASK_FOLDERS_HINT = (
    "put images into images/ and their masks into masks/ beside it (or SITE/images/ and SITE/masks/)"
)


def folder(
    path: str | Path,
    size: SizeSetting = 64,
    fit: FitSetting = "pad",
    bits: BitsSetting = 16,
    label: Annotated[str, "in a CSV that lists the files: the column of labels"] = "",
    site: Annotated[str, "in a CSV that lists the files: the column of sites"] = "",
    *,
    x: Annotated[str, "in a CSV that lists the files: columns that are further inputs, 'image,age'"] = "",
    target: Annotated[
        str,
        "in a CSV that lists the files: the column to predict as a number, or several labels, 'fever,cough'",
    ] = "",
    center: Annotated[
        Constants | None, "number subtracted from the target; by default the training files' mean"
    ] = None,
    scale: Annotated[
        Constants | None, "divisor of the target; by default the training files' standard deviation"
    ] = None,
    group: Annotated[
        str,
        "files that belong together: a column of the CSV, or a regular expression found in their names",
    ] = "",
) -> Dataset:
    """The set in `path/`, or in its folders train/ and test/; without test/ a fifth is held out.

    CLASS/*.png          images in class folders, resized to squares of `size` pixels, 8 and 16 bits in [0, 1]
    CLASS/*.wav          sounds in class folders, as log-mel spectrograms (unskew.data.kinds.sounds)
    SITE/CLASS/*         either of them with a site, which becomes the column `site`
    images/ and masks/   images with masks of equal file names (endings may differ), resized alike; also
                         SITE/images/ ...; see unskew.data.files.folder_tree for other spellings
    any folders + *.csv  files that a table lists by name, with labels, sites and further columns

    group: what files of one patient or recording share, which no split separates: a column of the CSV that
    lists them, `site`, or a regular expression; its match in a file's name (where not every name has one, in
    its path), or the part of the match in brackets, is the group: 'P[0-9]+'. "none" if files are independent.
    target: as for a table: a column of numbers to predict, or several of zeros and ones, "fever,cough".
    Raises DataError: E404 for folders without the expected files, E401 for a file that cannot be read; for a
    listed table also E403, E404 and E405 as `read_table` does.
    """
    aim = target_of(target, label, center, scale)
    named = {"label": label, "site": site, "x": x, "target": target}
    columns = ", ".join(f"{setting}={name}" for setting, name in named.items() if name)
    tree, group = read_tree(Path(path)), group_setting(group, site)
    if not tree.files:
        left_out = "".join(f" Left out: {text}." for topic, text in tree.notes if topic == "left out")
        hint = " DICOM is read as NIfTI, into which dcm2niix converts it." if ".dcm" in left_out else ""
        hint += " Of Datasets, write Parquet: set.to_parquet(FILE)." if ".arrow" in left_out else ""
        raise DataError("E404", f"{tree.root} holds no images and no sounds.{left_out}{hint}")
    images = ImageSettings(size, fit, bits)
    if has_mask_folders(tree):
        if columns:
            raise DataError("E404", f"{tree.root}: images with masks take no columns; leave out {columns}.")
        return _read_masks(tree, images, group)
    files = tuple(f for f in tree.files if f.kind in SOUND_ENDINGS) or tree.files
    if len(files) < len(tree.files):
        note: Note = ("left out", f"{quantity(len(tree.files) - len(files), 'image')} beside sounds")
        tree = replace(tree, files=files, notes=(*tree.notes, note))
    kind = "sound" if files[0].kind in SOUND_ENDINGS else "image"
    inputs = [name for name in split_names(x) if name != kind]
    if x and (kind not in split_names(x) or not inputs):
        fault = f"x='{x}' names the inputs of a sample, which are the {kind} and columns beside it"
        raise DataError("E403", f"{tree.root}: {fault}: x='{kind},COLUMN'.")
    listed = read_listing(tree, files, (label, site, group), aim, inputs)
    if columns and not listed:
        raise DataError("E404", f"{tree.root}: no CSV below it lists its files; leave out {columns}.")
    chosen, raw = listed or files_by_class(tree, files)
    notes, paths = [*tree.notes, *raw.notes], [f.path for f in chosen]
    into: Conversion = {"kind": "images", **asdict(images)}
    if kind == "sound":  # the format is that of the training files, so that test files cannot change it
        lengths = [length_of(f.path, str(f.path)) for f in chosen if f.part == "train"]
        into = {"kind": "sounds", **asdict(format_of(lengths))}
    standardised = kind == "sound" and not inputs  # each of several inputs is judged by itself
    if standardised:
        notes.append(("scaled", "spectrograms were standardised"))
    x_N, _ = decode_paths(tree.root.name, paths, into, notes)
    samples = {kind: x_N, **raw.x} if inputs else x_N
    raw = replace(raw, x=samples, form={**into, **raw.form}, group=group)
    dataset = _dataset_of(tree, chosen, raw, notes)
    return dataset.with_constants() if standardised else dataset


def _read_masks(tree: FolderTree, images: ImageSettings, group: str) -> Dataset:
    pairs, left_out = pair_masks(tree)
    sites = np.array([p.site for p in pairs]) if any(p.site for p in pairs) else None
    paths, mask_files = [p.image.path for p in pairs], [p.mask.path for p in pairs]
    notes, into = [*tree.notes, *empty_folder_notes(tree), *left_out], {"kind": "images", **asdict(images)}
    x, forms = decode_paths(tree.root.name, paths, into, notes)
    masks = read_each(mask_files, lambda i: read_mask(mask_files[i], images.size, images.fit, forms[i]))
    notes += check_palettes(masks, mask_files)
    values = np.stack([mask.values for mask in masks])
    (y,), classes = as_masks(tree.root.name, [values], None, notes, [lambda i: str(mask_files[i])])
    columns = {} if sites is None else {"site": sites}
    raw = RawSamples(x, y, classes=classes, columns=columns, form=into, group=group)
    return _dataset_of(tree, [p.image for p in pairs], raw, notes)


def _dataset_of(tree: FolderTree, files: Sequence[File], raw: RawSamples, notes: list[Note]) -> Dataset:
    """The set of these samples, with the test part that folders or the table name. raw: the samples of these
    files, with what the user said of groups."""
    test = np.array([f.part == "test" for f in files], dtype=bool)
    if test.all():
        raise DataError("E404", f"{tree.root} holds no training files.")
    columns, paths = dict(raw.columns), ["/".join((*f.folders, f.path.name)) for f in files]
    tested = test if test.any() else None
    group, groups_N = named_groups(columns, raw.group, paths, str(tree.root))
    if groups_N is not None:
        columns[group] = groups_N
    elif not group:
        questions = column_question(columns, tested)
        notes += questions or file_question(paths, raw.y, tested, columns.get("site"))
    raw = replace(raw, columns=columns, notes=tuple(notes), group=group, layout="channels first")
    return raw.divided(tested).dataset(tree.root.resolve().name)


LabelledFiles = tuple[list[File], RawSamples]
"""(files, the label and further facts of each, whose samples are not yet read)."""


def files_by_class(tree: FolderTree, files: Sequence[File]) -> LabelledFiles:
    """Files sorted by the folders that name their class, with those that name their site.

    Raises DataError (E404) for fewer than two classes, for files at different depths and for masks among the
    files.
    """
    remedy = "put all files into CLASS/, or into SITE/CLASS/"
    depths = {len(f.folders): f for f in files}
    if len(depths) > 1:
        first, second = (f.path for f in list(depths.values())[:2])
        raise DataError("E404", f"{tree.root}: {first} and {second} lie at different depths; {remedy}.")
    depth = next(iter(depths), 1)
    if depth == 0 or depth > 2:
        position = "directly in it" if depth == 0 else f"{depth} folders deep, such as {files[0].path}"
        raise DataError("E404", f"{tree.root} holds its files {position}; {remedy}.")
    inner = depth == 2 and (
        len({f.folders[0] for f in files}) == 1 or are_classes_below([f.folders for f in files])
    )
    place = 1 if inner else 0
    names = {f.folders[place] for f in files} | {d[place] for d in tree.folders if len(d) == depth}
    classes = tuple(sorted(names))
    if len(classes) < 2:
        fault = f"{tree.root} holds {quantity(len(classes), 'class folder')}"
        remedy = f"put files into {tree.root}/CLASS/, at least two"
        remedy += " (an empty folder for one of which there are no samples)"
        masks = f"images with masks into {tree.root}/images/ and {tree.root}/masks/"
        raise DataError("E404", f"{fault}; {remedy}, and {masks}.")
    _check_no_masks(files)
    number = {name: i for i, name in enumerate(classes)}
    sorted_files = sorted(files, key=lambda f: (number[f.folders[place]], f.path))
    labels = np.array([number[f.folders[place]] for f in sorted_files], dtype=np.int64)
    raw = RawSamples(None, labels, classes=classes)
    if depth == 1:
        return sorted_files, raw
    note: Note = ("sites", f"folders were read as {'site/class' if inner else 'class/site'}")
    sites = np.array([f.folders[1 - place] for f in sorted_files])
    return sorted_files, replace(raw, columns={"site": sites}, notes=(note, *empty_folder_notes(tree, 1)))


def _check_no_masks(files: Sequence[File]) -> None:
    """Raises DataError (E404) for files called like the masks of others in their folder, x_mask.png next to
    x.png: a model that is trained on masks as on images learns nothing and scores well."""
    known = {(file.path.parent, file.stem.lower()): file.path for file in files}
    for file in files:
        stem = file.stem.lower()
        names = IMAGE_FOLDERS if stem in MASK_FOLDERS else ()
        names = (*names, *(stem.removesuffix(s) for s in MASK_SUFFIXES if stem.endswith(s)))
        if image := next((known[file.path.parent, n] for n in names if (file.path.parent, n) in known), None):
            raise DataError("E404", f"{file.path} looks like the mask of {image}; {MASK_FOLDERS_HINT}.")


LISTED_SHARE = 0.5
"""The share of a column's values that must be names of files for the column to count as file names."""


class FileNames:
    """Files by the names that a table may use: name or path, with or without the ending, in any case if
    that is unique."""

    def __init__(self, files: Sequence[File]):
        self.count, self._known = len(files), defaultdict[str, list[File]](list)
        for file in files:
            for name in {file.path.name, file.path.stem}:
                self._known[_plain_path(name)].append(file)

    def matches(self, text: str, folder: Path) -> list[File]:
        """The files that a text may name, of which those that fit best. folder: the table's folder."""
        parts = PurePosixPath(_plain_path(text)).parts
        matches = self._known.get(parts[-1], []) if parts else []
        text = unicodedata.normalize("NFC", text)
        fits: tuple[Callable[[File], int], ...] = (
            lambda file: _common_folders(file.path.parent, parts[:-1]),
            lambda file: _plain_path(file.path.name) == parts[-1],
            lambda file: text.endswith(unicodedata.normalize("NFC", file.path.name)),
            lambda file: file.path.is_relative_to(folder),
        )
        for fit in fits:
            if len(matches) > 1:
                best = max(map(fit, matches))
                matches = [file for file in matches if fit(file) == best]
        return matches


def _common_folders(folder: Path, names: tuple[str, ...]) -> int:
    """The number of these names, counted from the last, that equal the folder and the folders above it."""
    pairs = zip(reversed(folder.parts), reversed(names))
    return sum(1 for _ in takewhile(lambda pair: _plain_path(pair[0]) == pair[1], pairs))


def _plain_path(name: str) -> str:
    return unicodedata.normalize("NFC", name).replace("\\", "/").lower()


def file_column(sheet: Sheet, names: FileNames, excluded: set[str], folder: Path) -> str:
    """The column that names the most files, "" if none does. excluded: columns with another purpose."""
    largest, key = 0, ""
    for column, values in sheet.columns.items():
        paths = [file.path for v in values.tolist() for file in names.matches(v, folder)[:1]]
        if column not in excluded and len(paths) >= LISTED_SHARE * len(values) and len({*paths}) > largest:
            largest, key = len({*paths}), column
    return key


@dataclass(frozen=True)
class Listing:
    """A table that lists files by name. key: its column of names. file_of: the file of each row that has
    one."""

    path: Path
    sheet: Sheet
    key: str
    file_of: Mapping[int, File]

    def by_path(self, rows: Iterable[int]) -> list[int]:
        """These rows in the order of the files' paths."""
        return sorted(rows, key=lambda row: (self.file_of[row].path, row))

    def rows(self, rows: Sequence[int], without: str = "") -> Sheet:
        """These rows of the table, without the column of names and another one."""
        sheet = self.sheet
        values = {n: column[rows] for n, column in sheet.columns.items() if n not in (self.key, without)}
        return replace(sheet, columns=values, places=[sheet.places[row] for row in rows])


def find_listing(tree: FolderTree, files: Sequence[File], named: set[str]) -> Listing | None:
    """The CSV below the folder that lists the files; None without one. If several list files,
    it is the one with all named columns.

    Raises DataError (E404) if several CSVs are possible, for a name that may be that of several files, and
    for a file in two rows.
    """
    names, listings = FileNames(files), list[tuple[Path, Sheet, str]]()
    for path in sorted(tree.root.rglob("*.csv")):
        sheet = read_csv(path)
        excluded = {*named, label_column_in(sheet.columns), site_column_in(sheet.columns)}
        if key := file_column(sheet, names, excluded, path.parent):
            listings.append((path, sheet, key))
    listings = [listing for listing in listings if named <= listing[1].columns.keys()] or listings
    if not listings:
        return None
    if len(listings) > 1:
        remedy = "put their rows into one table, with a column split of train and test where they are parts"
        raise DataError("E404", f"both {listings[0][0]} and {listings[1][0]} list files; {remedy}.")
    path, sheet, key = listings[0]
    return Listing(path, sheet, key, _files_of_rows(path, sheet, key, names))


def read_listing(
    tree: FolderTree,
    files: Sequence[File],
    roles: tuple[str, str, str],
    aim: Target | None = None,
    inputs: Sequence[str] = (),
) -> LabelledFiles | None:
    """The files that a CSV below the folder lists, in the order of their paths, with their labels, sites and
    further facts; None without such a CSV.

    roles: the columns of labels and sites, "" to search for usual names, and of groups. aim: the target, if
    one is named. inputs: columns that are inputs next to the file, which become the samples' x.
    Raises DataError as `find_listing` does, E404 if the labels cannot be identified, E403 for columns that do
    not exist and for missing sites, E405 for inputs with missing values.
    """
    label, site, group = roles
    named = {label, site, *split_names(aim.name if aim else ""), *inputs} - {""}
    listing = find_listing(tree, files, named)
    if not listing:
        return None
    path, sheet, key, file_of = listing.path, listing.sheet, listing.key, listing.file_of
    if not (label or aim or label_column_in(sheet.columns)):
        fault = "lists files, and no column is called label, class, category or target"
        columns = abbreviate([c for c in sheet.columns if c != key], 12)
        raise DataError("E404", f"{path} {fault}; it has: {columns}. Name it: label=COLUMN.")
    notes = list[Note]()
    split, parts = part_column(sheet.columns, {label}, sheet.name)
    parts = {row: file.part if parts is None else str(parts[row]) for row, file in file_of.items()}
    rows = listing.by_path(row for row in file_of if parts[row] != "val")
    for number, what in (
        (len(sheet.places) - len(file_of), "row{} in {} without a file"),
        (len(files) - len({file.path for file in file_of.values()}), "file{} that {} does not list"),
        (len(file_of) - len(rows), "file{} for validation in {}"),
    ):
        if number:
            notes.append(("left out", f"{number:,} {what.format('' if number == 1 else 's', path.name)}"))
    notes.append(("labels", f"{path.name} lists the files, by '{key}'"))
    sheet = replace(listing.rows(rows, split), test=np.array([parts[row] == "test" for row in rows]))
    labels, y = read_label_columns(sheet, label, None, aim, notes)
    remaining = [column for column in sheet.columns if column not in labels]
    site = site_column_of(sheet, remaining, site, group)
    x, used = encode_inputs(sheet, [column_named(remaining, name, sheet.name) for name in inputs], notes)
    form = {"beside": [[column, kinds] for column, kinds in used.items()]} if used else {}
    # clients can be formed by columns that have no missing values and do not number the files
    facts = {
        column: sheet.columns[column]
        for column in remaining
        if column == group
        or not (cells.missing(sheet.columns[column]).any() or is_row_number(column, sheet.columns[column]))
    }
    facts |= {"site": check_sites(sheet, site).astype(str)} if site else {}
    classes = None
    if y.dtype.kind in "OUS":
        classes = sort_classes(set(map(str, y.tolist())))
        y = np.array([classes.index(str(word)) for word in y.tolist()], dtype=np.int64)
    chosen = [File(file_of[row].path, parts[row], file_of[row].folders) for row in rows]
    raw = RawSamples(
        x, y, classes=classes, columns=facts, notes=tuple(notes), target=aim, form=form
    )  # fmt: skip
    return chosen, raw


def _files_of_rows(path: Path, sheet: Sheet, key: str, names: FileNames) -> dict[int, File]:
    """The file of each row of a listing that has one. Raises DataError (E404) for a name that may be that of
    several files, and for a file in two rows."""
    file_of: dict[int, File] = {}
    first: dict[Path, int] = {}
    for row, text in enumerate(sheet.columns[key].tolist()):
        matches = names.matches(text, path.parent)
        if len(matches) > 1:
            fault = f"{excerpt(text, 60)} {sheet.where(row)} of {path} may be {matches[0].path} or"
            remedy = f"write the path of each file, from {path.parent} on"
            raise DataError("E404", f"{fault} {matches[1].path}; {remedy}.")
        for file in matches:
            file_of[row] = file
            if (before := first.setdefault(file.path, row)) != row:
                both = f"{sheet.where(before)} and {sheet.where(row)}"
                raise DataError("E404", f"{path} lists {file.path.name} {both}; keep one of them.")
    return file_of
