"""A set from a user's files in folders: images by class, images with masks, sounds by class, or files named in a CSV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Gt, Le

from unskew.data.dataset import Dataset
from unskew.data.from_arrays import arrays
from unskew.data.intake.decoded import decoded
from unskew.data.intake.drawings import classes_in, mask
from unskew.data.intake.images import Fit, Form, each, mixed_depths, picture, sizes_told
from unskew.data.intake.listing import listed, listing_of
from unskew.data.intake.masks import Origin, as_masks
from unskew.data.intake.notes import Intake, Note, counted
from unskew.data.intake.paired import has_masks, pairs
from unskew.data.intake.roles import Sorted, by_class
from unskew.data.intake.several import names_in
from unskew.data.intake.tables import wished
from unskew.data.intake.tree import SOUNDS, File, Tree, empty_folders, tree_of
from unskew.data.rows import chosen
from unskew.data.wav import Format, Heard, format_of, heard, shape_of, sounds_told
from unskew.errors import DataError


def folder(
    path: str | Path,
    size: Annotated[int, Gt(0), Le(4096), "side to which images are resized, in pixels"] = 64,
    fit: Annotated[
        Literal["pad", "crop", "squash"],
        "images that are not square: padded with black, cut to the middle, or squashed",
    ] = "pad",
    bits: Annotated[int, Ge(9), Le(16), "bits that image files of 16 bits really use, such as 12"] = 16,
    label: Annotated[str, "in a CSV that lists the files: the column of labels"] = "",
    site: Annotated[str, "in a CSV that lists the files: the column that says where they are from"] = "",
    *,
    x: Annotated[str, "in a CSV that lists the files: columns that are inputs beside them, 'image,age'"] = "",
    target: Annotated[
        str, "in a CSV that lists the files: the column to predict as a number, or several labels, 'fever,cough'"
    ] = "",
    center: Annotated[float | None, "what is taken from the target; the training files' mean if left out"] = None,
    scale: Annotated[float | None, "what the target is divided by; the training files' deviation if left out"] = None,
) -> Dataset:
    """The set that lies in `path/`, or in its folders train/ and test/; without the latter a fifth is held out.

    CLASS/*.png          images in class folders, resized to squares of `size` pixels, 8 and 16 bits in [0, 1]
    CLASS/*.wav          sounds in class folders, as log-mel spectrograms (unskew.data.wav)
    SITE/CLASS/*         either of them with a site, which becomes the column `site`
    images/ and masks/   images with masks of equal file names (endings may differ), resized alike; also SITE/images/ ...;
                         see unskew.data.intake.paired for other spellings
    any folders + *.csv  files that a table lists by name, with their labels: see unskew.data.intake.listing

    target: as of a table: a column of numbers to predict, or several of zeros and ones, "fever,cough".
    Raises DataError: E409 for folders without the expected files, E401 for a file that cannot be read; for what a table lists
    also E403, E404 and E405 as `table` does.
    """
    aim = wished(target, label, center, scale)
    columns = {name: value for name, value in {"label": label, "site": site, "x": x, "target": target}.items() if value}
    tree = tree_of(Path(path))
    if not tree.files:
        raise DataError("E409", f"{tree.root} holds no images and no sounds.{_left_out(tree)}")
    if has_masks(tree):
        _check_unnamed(tree, columns, "images and masks take none from a table")
        return _with_masks(tree, size, fit, bits)
    tree, files = _of_one_kind(tree)
    sounds = files[0].kind in SOUNDS
    beside = _beside(tree, "sound" if sounds else "image", x)
    listing = listing_of(tree, files, [label, site, *names_in(target), *beside])
    if listing is None:
        _check_unnamed(tree, columns, "no CSV below it lists its files")
        ordered = by_class(tree, files)
    else:
        ordered = listed(listing, (label, site), aim, beside)
    return _sounds(tree, ordered) if sounds else _images(tree, ordered, size, fit, bits)


def _of_one_kind(tree: Tree) -> tuple[Tree, Sequence[File]]:
    """(the tree, its sounds, or its images where it has none); images beside sounds are left out and told."""
    sounds = tuple(f for f in tree.files if f.kind in SOUNDS)
    if sounds and len(sounds) < len(tree.files):
        rest = counted(len(tree.files) - len(sounds), "image")
        tree = Tree(tree.root, sounds, tree.folders, (*tree.notes, ("left out", f"{rest} beside sounds")))
    return tree, sounds or tree.files


def _check_unnamed(tree: Tree, columns: Mapping[str, str], why: str) -> None:
    """Raises DataError (E409) where columns are named that are not looked for."""
    for setting, name in columns.items():
        raise DataError("E409", f"{tree.root}: {setting}={name} names a column, and {why}; leave it out.")


def _beside(tree: Tree, file: str, x: str) -> tuple[str, ...]:
    """The columns that are inputs beside the files. file: what these are called among them.

    Raises DataError (E403) unless the file is one of several inputs that are named once each.
    """
    names = names_in(x)
    if x and (file not in names or len(names) < 2 or len({*names}) < len(names)):
        text = f"x='{x}' names the inputs of a sample, which are the {file} and columns beside it, each once"
        raise DataError("E403", f"{tree.root}: {text}: x='{file},COLUMN'.")
    return tuple(name for name in names if name != file)


def _left_out(tree: Tree) -> str:
    return "".join(f" Left out: {text}." for topic, text in tree.notes if topic == "left out")


def _images(tree: Tree, ordered: Sorted, size: int, fit: Fit, bits: int) -> Dataset:
    streamed: list[Note] = []
    x, forms = _pictures(tree, [f.path for f in ordered.files], size, fit, bits, streamed)
    notes = (*tree.notes, *ordered.notes, *sizes_told(forms, size, fit, bits), *streamed)
    notes += tuple(mixed_depths(forms, ordered.sites, bits))
    form = {"kind": "images", "size": size, "fit": fit, "bits": bits}
    return _formed(_set(tree, ordered, x, notes), form, ordered)


def _pictures(
    tree: Tree, files: Sequence[Path], size: int, fit: Fit, bits: int, notes: list[Note]
) -> tuple[np.ndarray, list[Form]]:
    """(image files as samples, what each was)."""
    return decoded(tree.root.name, files, (3, size, size), partial(picture, size=size, fit=fit, bits=bits), notes)


def _sounds(tree: Tree, ordered: Sorted) -> Dataset:
    """Log-mel spectrograms, in the format of the training files, so that test files cannot change it."""
    format = format_of([f.path for f in ordered.files if f.part == "train"])
    files = [f.path for f in ordered.files]
    streamed: list[Note] = []
    x, sounds = decoded(tree.root.name, files, (1, *shape_of(format)), partial(_sound, format=format), streamed)
    scaled = sounds_told(sounds, format)
    if not ordered.beside:  # each of several inputs is judged by itself
        scaled.append(("scaled", "spectrograms were standardised"))
    dataset = _set(tree, ordered, x, (*tree.notes, *ordered.notes, *scaled, *streamed))
    dataset = dataset if ordered.beside else dataset.with_constants()
    return _formed(dataset, {"kind": "sounds", **asdict(format)}, ordered)


def _sound(file: Path, format: Format) -> tuple[np.ndarray, Heard]:
    """The spectrogram of a file with a channel, [1, 64, T], and what the file was."""
    pixels, what = heard(file, format)
    return pixels[None], what


def _with_masks(tree: Tree, size: int, fit: Fit, bits: int) -> Dataset:
    paired, left_out = pairs(tree)
    images, drawn = [p.image.path for p in paired], [p.mask.path for p in paired]
    streamed: list[Note] = []
    x, forms = _pictures(tree, images, size, fit, bits, streamed)
    masks = each(drawn, lambda i: mask(drawn[i], size, fit, forms[i]))
    notes = [*tree.notes, *empty_folders(tree), *left_out, *sizes_told(forms, size, fit, bits), *streamed]
    smaller = [i for i, (m, form) in enumerate(zip(masks, forms)) if m.shape != form.shape]
    if smaller:
        i = smaller[0]
        sizes = "{} x {} for {} x {}".format(*masks[i].shape, *forms[i].shape)
        notes.append(
            ("scaled", f"{counted(len(smaller), 'mask')} of another size than the image ({sizes}, {drawn[i]})")
        )
    sites = tuple(p.site for p in paired) if any(p.site for p in paired) else None
    notes += mixed_depths(forms, sites, bits)
    values, seen = classes_in(masks, drawn, tree.root.name)
    notes += seen
    origin = Origin(None if sites is None else np.array(sites), lambda i: str(drawn[i]))
    (y,), classes = as_masks(tree.root.name, [np.stack(values)], None, notes, [origin])
    ordered = Sorted(tuple(p.image for p in paired), classes, y, sites)
    dataset = _set(tree, ordered, x, notes)
    return _formed(dataset, {"kind": "images", "size": size, "fit": fit, "bits": bits}, ordered)


def _formed(dataset: Dataset, form: Mapping[str, Any], ordered: Sorted) -> Dataset:
    """The set with how its files, and the columns beside them, became samples."""
    if ordered.used:
        form = {**form, "beside": [[column, kinds] for column, kinds in ordered.used.items()]}
    return replace(dataset, intake=replace(dataset.intake or Intake(), form=form))


def _set(tree: Tree, ordered: Sorted, x: np.ndarray, notes: Sequence[Note]) -> Dataset:
    """The set of these samples, its test part by the folders, or the table, that name it."""
    test = np.array([f.part == "test" for f in ordered.files], dtype=bool)
    train = ~test
    if not train.any():
        raise DataError("E409", f"{tree.root} holds no training files.")
    columns = {**ordered.facts, **({} if ordered.sites is None else {"site": np.array(ordered.sites)})}
    given: Any = x
    if ordered.beside:
        given = {"sound" if ordered.files[0].kind in SOUNDS else "image": x, **ordered.beside}
    y = ordered.labels
    parts = (_at(given, train), y[train], _at(given, test), y[test]) if test.any() else (given, y)
    return arrays(
        *parts,
        classes=ordered.classes or None,
        columns={n: v[train] for n, v in columns.items()},
        test_columns={n: v[test] for n, v in columns.items()} if test.any() else None,
        name=tree.root.resolve().name,
        notes=notes,
        layout="channels first",
        target=ordered.target,
    )


def _at(given: Any, rows: np.ndarray) -> Any:
    """The samples, of one or of several inputs, where these truth values are true."""
    return {name: chosen(x, rows) for name, x in given.items()} if isinstance(given, dict) else chosen(given, rows)
