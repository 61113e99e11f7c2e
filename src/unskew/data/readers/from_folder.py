"""A data set from files in folders: images by class, images with masks, sounds by class, or a CSV's files.

Each file is decoded once. If the samples do not fit into memory they go to a scratch file.
Letters: N files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np

from unskew.data.files.tree import (
    SOUND_ENDINGS,
    File,
    FolderTree,
    empty_folder_notes,
    has_mask_folders,
    pair_masks,
    read_tree,
)
from unskew.data.kinds.class_folders import LabelledFiles, files_by_class
from unskew.data.kinds.groups import (
    GROUP_COLUMN,
    INDEPENDENT,
    column_question,
    file_groups,
    file_question,
    group_setting,
)
from unskew.data.kinds.images import (
    BitsSetting,
    FitSetting,
    ImageInfo,
    SizeSetting,
    depth_warnings,
    read_each,
    read_image,
    size_notes,
)
from unskew.data.kinds.labels import label_names
from unskew.data.kinds.masks import MaskOrigin, as_masks, mask_classes, read_mask
from unskew.data.kinds.sounds import (
    AudioInfo,
    format_of,
    read_sound,
    sound_notes,
    spectrogram_shape,
)
from unskew.data.parquet.row_decoding import ImageSettings
from unskew.data.readers.from_arrays import arrays
from unskew.data.readers.from_tables import target_of
from unskew.data.readers.listing import find_listing, read_listing
from unskew.data.samples.dataset import Dataset
from unskew.data.samples.intake import Intake, Note, quantity
from unskew.data.samples.memory_budget import fits_memory
from unskew.data.storage.sample_rows import select_samples
from unskew.data.storage.scratch import ScratchFile, scratch_note
from unskew.errors import DataError

S = TypeVar("S")
Decode = Callable[[Path], tuple[np.ndarray, S]]
"""A function from a file to its sample and what else was noticed about it. Raises DataError for a file
that it cannot read."""


def decode_files(
    name: str, files: Sequence[Path], shape: tuple[int, ...], decode: Decode[S], notes: list[Note]
) -> tuple[np.ndarray, list[S]]:
    """(the samples of files, float32 [N, *shape], or rows that are read from disk; what else was noticed
    about each).

    name: name of the set. All files are decoded here, and a note says where the samples are kept. Raises the
    DataError of `decode`, with all files that cannot be read.
    """
    if fits_memory(len(files), shape):
        x = np.empty((len(files), *shape), np.float32)

        def decode_to_memory(i: int) -> S:
            x[i], info = decode(files[i])
            return info

        return x, read_each(files, decode_to_memory)
    scratch = ScratchFile(name, (len(files), *shape))

    def decode_to_disk(i: int) -> S:
        sample, info = decode(files[i])
        scratch.put(i, sample[None])
        return info

    infos = read_each(files, decode_to_disk)
    notes.append(scratch_note(scratch.shape))
    return scratch.samples(), infos


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
        float | None, "number subtracted from the target; by default the training files' mean"
    ] = None,
    scale: Annotated[
        float | None, "divisor of the target; by default the training files' standard deviation"
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
                         SITE/images/ ...; see unskew.data.files.tree for other spellings
    any folders + *.csv  files that a table lists by name, with labels: see unskew.data.readers.listing

    group: what files of one patient or recording share, which no split separates: a column of the CSV that
    lists them, `site`, or a regular expression; its match in a file's name, or the part of the match in
    brackets, is the group: 'P[0-9]+'. "none" if files are independent.
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
        raise DataError("E404", f"{tree.root} holds no images and no sounds.{left_out}")
    images = ImageSettings(size, fit, bits)
    if has_mask_folders(tree):
        if columns:
            raise DataError("E404", f"{tree.root}: images with masks take no columns; leave out {columns}.")
        return _read_masks(tree, images, group)
    files = tuple(f for f in tree.files if f.kind in SOUND_ENDINGS) or tree.files
    if len(files) < len(tree.files):
        note: Note = ("left out", f"{quantity(len(tree.files) - len(files), 'image')} beside sounds")
        tree = replace(tree, files=files, notes=(*tree.notes, note))
    kind, names = file_input(files), label_names(x)
    if x and (kind not in names or len(names) < 2 or len({*names}) < len(names)):
        fault = f"x='{x}' names the inputs of a sample, which are the {kind} and columns beside it, each once"
        raise DataError("E403", f"{tree.root}: {fault}: x='{kind},COLUMN'.")
    inputs = tuple(name for name in names if name != kind)
    listing = find_listing(tree, files, [label, site, *label_names(target), *inputs])
    if listing:
        labelled = read_listing(listing, (label, site, group), aim, inputs)
    elif columns:
        raise DataError("E404", f"{tree.root}: no CSV below it lists its files; leave out {columns}.")
    else:
        labelled = files_by_class(tree, files)
    labelled = replace(labelled, group=group)
    notes, paths = [*tree.notes, *labelled.notes], [f.path for f in labelled.files]
    if kind == "image":
        x_N, _, image_notes = _read_images(tree, paths, images, labelled.sites)
        return _dataset_of(tree, labelled, x_N, [*notes, *image_notes], {"kind": "images", **asdict(images)})
    # the format is that of the training files, so that test files cannot change it
    format, streamed = format_of([f.path for f in labelled.files if f.part == "train"]), list[Note]()

    def read(file: Path) -> tuple[np.ndarray, AudioInfo]:
        pixels, info = read_sound(file, format)
        return pixels[None], info

    x_N, sounds = decode_files(tree.root.name, paths, (1, *spectrogram_shape(format)), read, streamed)
    notes += sound_notes(sounds, format)
    form = {"kind": "sounds", **asdict(format)}
    if labelled.beside:  # each of several inputs is judged by itself
        return _dataset_of(tree, labelled, x_N, [*notes, *streamed], form)
    notes += [("scaled", "spectrograms were standardised"), *streamed]
    return _dataset_of(tree, labelled, x_N, notes, form).with_constants()


def file_input(files: Sequence[File]) -> str:
    """The name of the files among the inputs of a sample: `image` or `sound`."""
    return "sound" if files[0].kind in SOUND_ENDINGS else "image"


def _read_images(
    tree: FolderTree, files: Sequence[Path], images: ImageSettings, sites: Sequence[str] | None
) -> tuple[np.ndarray, list[ImageInfo], list[Note]]:
    """(image files as samples, the format of each, notes on them)."""
    streamed, (size, fit, bits) = list[Note](), astuple(images)
    read = partial(read_image, size=size, fit=fit, bits=bits)
    x, forms = decode_files(tree.root.name, files, (3, size, size), read, streamed)
    return x, forms, [*size_notes(forms, size, fit, bits), *streamed, *depth_warnings(forms, sites, bits)]


def _read_masks(tree: FolderTree, images: ImageSettings, group: str) -> Dataset:
    pairs, left_out = pair_masks(tree)
    sites = tuple(p.site for p in pairs) if any(p.site for p in pairs) else None
    paths, mask_files = [p.image.path for p in pairs], [p.mask.path for p in pairs]
    x, forms, image_notes = _read_images(tree, paths, images, sites)
    masks = read_each(mask_files, lambda i: read_mask(mask_files[i], images.size, images.fit, forms[i]))
    notes = [*tree.notes, *empty_folder_notes(tree), *left_out, *image_notes]
    values, colour_notes = mask_classes(masks, mask_files, tree.root.name)
    notes += colour_notes
    origin = MaskOrigin(None if sites is None else np.array(sites), lambda i: str(mask_files[i]))
    (y,), classes = as_masks(tree.root.name, [np.stack(values)], None, notes, [origin])
    labelled = LabelledFiles(tuple(p.image for p in pairs), classes, y, sites, group=group)
    return _dataset_of(tree, labelled, x, notes, {"kind": "images", **asdict(images)})


def _dataset_of(
    tree: FolderTree, labelled: LabelledFiles, x: np.ndarray, notes: list[Note], form: Mapping[str, Any]
) -> Dataset:
    """The set of these samples, with the test part that folders or the table name. form: how files became
    samples."""
    test = np.array([f.part == "test" for f in labelled.files], dtype=bool)
    if test.all():
        raise DataError("E404", f"{tree.root} holds no training files.")
    columns = {**labelled.facts, **({} if labelled.sites is None else {"site": np.array(labelled.sites)})}
    names, group, tested = [f.path.name for f in labelled.files], labelled.group, test if test.any() else None
    if not group:
        notes += column_question(columns, tested) or file_question(names, labelled.labels, tested)
        group = INDEPENDENT
    elif group not in columns and group != INDEPENDENT:
        columns[GROUP_COLUMN], group = file_groups(names, group, str(tree.root)), GROUP_COLUMN

    def part(rows: np.ndarray) -> tuple[Any, np.ndarray]:
        inputs = {file_input(labelled.files): x, **labelled.beside}
        chosen = {name: select_samples(values, rows) for name, values in inputs.items()}
        return (chosen if labelled.beside else next(iter(chosen.values()))), labelled.labels[rows]

    beside = {"beside": [[column, kinds] for column, kinds in labelled.used.items()]}
    dataset = arrays(
        *(part(~test) if tested is not None else (part(np.full(len(test), True)))),
        *(part(test) if tested is not None else ()),
        classes=labelled.classes or None,
        columns={n: v[~test] for n, v in columns.items()},
        test_columns={n: v[test] for n, v in columns.items()} if tested is not None else None,
        name=tree.root.resolve().name,
        notes=notes,
        layout="channels first",
        target=labelled.target,
        group=group,
    )
    form = {**form, **(beside if labelled.used else {})}
    return replace(dataset, intake=replace(dataset.intake or Intake(), form=form))
