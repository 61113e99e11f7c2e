"""A data set from files in folders: images by class, images with masks, sounds by class, or a CSV's files.

Each file is decoded once. If the samples do not fit into memory they go to a scratch file.
Letters: N files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
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
    Fit,
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
    SoundFormat,
    format_of,
    read_sound,
    sound_notes,
    spectrogram_shape,
)
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
    columns = {
        name: value
        for name, value in {"label": label, "site": site, "x": x, "target": target}.items()
        if value
    }
    tree, group = read_tree(Path(path)), group_setting(group, site)
    if not tree.files:
        raise DataError("E404", f"{tree.root} holds no images and no sounds.{_left_out_notes(tree)}")
    if has_mask_folders(tree):
        _check_columns(tree, columns, "images and masks take none from a table")
        return _read_masks(tree, size, fit, bits, group)
    tree, files = _one_kind(tree)
    sounds = files[0].kind in SOUND_ENDINGS
    inputs = _further_inputs(tree, "sound" if sounds else "image", x)
    listing = find_listing(tree, files, [label, site, *label_names(target), *inputs])
    if listing is None:
        _check_columns(tree, columns, "no CSV below it lists its files")
        labelled = files_by_class(tree, files)
    else:
        labelled = read_listing(listing, (label, site, group), aim, inputs)
    labelled = replace(labelled, group=group)
    return _read_sounds(tree, labelled) if sounds else _read_images(tree, labelled, size, fit, bits)


def _one_kind(tree: FolderTree) -> tuple[FolderTree, Sequence[File]]:
    """(the tree, its sounds, or its images if it has none); images next to sounds are left out, with a
    note."""
    sounds = tuple(f for f in tree.files if f.kind in SOUND_ENDINGS)
    if sounds and len(sounds) < len(tree.files):
        rest = quantity(len(tree.files) - len(sounds), "image")
        tree = FolderTree(
            tree.root, sounds, tree.folders, (*tree.notes, ("left out", f"{rest} beside sounds"))
        )
    return tree, sounds or tree.files


def _check_columns(tree: FolderTree, columns: Mapping[str, str], reason: str) -> None:
    """Raises DataError (E404) if columns are named in a folder that has no table."""
    for setting, name in columns.items():
        raise DataError("E404", f"{tree.root}: {setting}={name} names a column, and {reason}; leave it out.")


def _further_inputs(tree: FolderTree, file: str, x: str) -> tuple[str, ...]:
    """The columns that are inputs next to the files. file: the name of the files among the inputs.

    Raises DataError (E403) unless the file is one of several inputs, each named once.
    """
    names = label_names(x)
    if x and (file not in names or len(names) < 2 or len({*names}) < len(names)):
        text = f"x='{x}' names the inputs of a sample, which are the {file} and columns beside it, each once"
        raise DataError("E403", f"{tree.root}: {text}: x='{file},COLUMN'.")
    return tuple(name for name in names if name != file)


def _left_out_notes(tree: FolderTree) -> str:
    return "".join(f" Left out: {text}." for topic, text in tree.notes if topic == "left out")


def _read_images(tree: FolderTree, labelled: LabelledFiles, size: int, fit: Fit, bits: int) -> Dataset:
    streamed: list[Note] = []
    x, forms = _decode_images(tree, [f.path for f in labelled.files], size, fit, bits, streamed)
    notes = (*tree.notes, *labelled.notes, *size_notes(forms, size, fit, bits), *streamed)
    notes += tuple(depth_warnings(forms, labelled.sites, bits))
    form = {"kind": "images", "size": size, "fit": fit, "bits": bits}
    return _with_form(_dataset_of(tree, labelled, x, notes), form, labelled)


def _decode_images(
    tree: FolderTree, files: Sequence[Path], size: int, fit: Fit, bits: int, notes: list[Note]
) -> tuple[np.ndarray, list[ImageInfo]]:
    """(image files as samples, the format of each)."""
    return decode_files(
        tree.root.name, files, (3, size, size), partial(read_image, size=size, fit=fit, bits=bits), notes
    )


def _read_sounds(tree: FolderTree, labelled: LabelledFiles) -> Dataset:
    """Log-mel spectrograms, in the format of the training files, so that test files cannot change it."""
    format = format_of([f.path for f in labelled.files if f.part == "train"])
    files = [f.path for f in labelled.files]
    streamed: list[Note] = []
    x, sounds = decode_files(
        tree.root.name,
        files,
        (1, *spectrogram_shape(format)),
        partial(_decode_sound, format=format),
        streamed,
    )
    scaled = sound_notes(sounds, format)
    if not labelled.beside:  # each of several inputs is judged by itself
        scaled.append(("scaled", "spectrograms were standardised"))
    dataset = _dataset_of(tree, labelled, x, (*tree.notes, *labelled.notes, *scaled, *streamed))
    dataset = dataset if labelled.beside else dataset.with_constants()
    return _with_form(dataset, {"kind": "sounds", **asdict(format)}, labelled)


def _decode_sound(file: Path, format: SoundFormat) -> tuple[np.ndarray, AudioInfo]:
    """The spectrogram of a file with a channel axis, [1, 64, T], and the file's properties."""
    pixels, info = read_sound(file, format)
    return pixels[None], info


def _read_masks(tree: FolderTree, size: int, fit: Fit, bits: int, group: str) -> Dataset:
    pairs, left_out = pair_masks(tree)
    images, mask_files = [p.image.path for p in pairs], [p.mask.path for p in pairs]
    streamed: list[Note] = []
    x, forms = _decode_images(tree, images, size, fit, bits, streamed)
    masks = read_each(mask_files, lambda i: read_mask(mask_files[i], size, fit, forms[i]))
    notes = [
        *tree.notes,
        *empty_folder_notes(tree),
        *left_out,
        *size_notes(forms, size, fit, bits),
        *streamed,
    ]
    smaller = [i for i, (m, form) in enumerate(zip(masks, forms)) if m.shape != form.shape]
    if smaller:
        i = smaller[0]
        sizes = "{} x {} for {} x {}".format(*masks[i].shape, *forms[i].shape)
        notes.append(
            (
                "scaled",
                f"{quantity(len(smaller), 'mask')} of another size than the image ({sizes}, {mask_files[i]})",
            )
        )
    sites = tuple(p.site for p in pairs) if any(p.site for p in pairs) else None
    notes += depth_warnings(forms, sites, bits)
    values, colour_notes = mask_classes(masks, mask_files, tree.root.name)
    notes += colour_notes
    origin = MaskOrigin(None if sites is None else np.array(sites), lambda i: str(mask_files[i]))
    (y,), classes = as_masks(tree.root.name, [np.stack(values)], None, notes, [origin])
    labelled = LabelledFiles(tuple(p.image for p in pairs), classes, y, sites, group=group)
    dataset = _dataset_of(tree, labelled, x, notes)
    return _with_form(dataset, {"kind": "images", "size": size, "fit": fit, "bits": bits}, labelled)


def _with_form(dataset: Dataset, form: Mapping[str, Any], labelled: LabelledFiles) -> Dataset:
    """The set with a record of how its files, and the columns next to them, became samples."""
    if labelled.used:
        form = {**form, "beside": [[column, kinds] for column, kinds in labelled.used.items()]}
    return replace(dataset, intake=replace(dataset.intake or Intake(), form=form))


def _dataset_of(tree: FolderTree, labelled: LabelledFiles, x: np.ndarray, notes: Sequence[Note]) -> Dataset:
    """The set of these samples, with the test part that folders or the table name."""
    test = np.array([f.part == "test" for f in labelled.files], dtype=bool)
    train = ~test
    if not train.any():
        raise DataError("E404", f"{tree.root} holds no training files.")
    columns = {**labelled.facts, **({} if labelled.sites is None else {"site": np.array(labelled.sites)})}
    group, notes = _add_groups(tree, labelled, columns, notes)
    samples: Any = x
    if labelled.beside:
        samples = {"sound" if labelled.files[0].kind in SOUND_ENDINGS else "image": x, **labelled.beside}
    y = labelled.labels
    parts = (
        (_select(samples, train), y[train], _select(samples, test), y[test]) if test.any() else (samples, y)
    )
    return arrays(
        *parts,
        classes=labelled.classes or None,
        columns={n: v[train] for n, v in columns.items()},
        test_columns={n: v[test] for n, v in columns.items()} if test.any() else None,
        name=tree.root.resolve().name,
        notes=notes,
        layout="channels first",
        target=labelled.target,
        group=group,
    )


def _add_groups(
    tree: FolderTree, labelled: LabelledFiles, columns: dict[str, np.ndarray], notes: Sequence[Note]
) -> tuple[str, Sequence[Note]]:
    """(the column of groups, or `none`; the notes, with the question whether files belong together); adds
    groups by file name to the columns, [N] each."""
    names, group = [file.path.name for file in labelled.files], labelled.group
    if not group:
        test = np.array([file.part == "test" for file in labelled.files], dtype=bool)
        part = test if test.any() else None
        question = column_question(columns, part) or file_question(names, labelled.labels, part)
        return INDEPENDENT, [*notes, *question]
    if group in columns or group == INDEPENDENT:
        return group, notes
    columns[GROUP_COLUMN] = file_groups(names, group, str(tree.root))
    return GROUP_COLUMN, notes


def _select(samples: Any, rows: np.ndarray) -> Any:
    """The samples, of one or of several inputs, at these rows, bool [N]."""
    return (
        {name: select_samples(x, rows) for name, x in samples.items()}
        if isinstance(samples, dict)
        else select_samples(samples, rows)
    )
