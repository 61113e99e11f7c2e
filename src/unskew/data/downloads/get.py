"""The command `unskew data get`: a user's downloaded files become NAME.npz, and NAME.md, its card.

Letters: N samples, C classes.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from unskew.data.downloads.catalogue import OriginalFiles, OriginalSamples, Recipe, recipe_of
from unskew.data.samples.dataset import check_finite, check_labels, check_lengths
from unskew.errors import DataError, UsageError
from unskew.formats.markdown import escape_markdown, table
from unskew.system import disk
from unskew.version import revision

MOST_HASHED = 64
"""Maximal number of files with digests on the card; for a folder of photographs it states their number."""


@dataclass(frozen=True)
class WrittenSet:
    """files: the .npz and its card. remarks: remarks for the user, such as digests without a published
    one."""

    files: tuple[Path, Path]
    samples: OriginalSamples
    remarks: tuple[str, ...]


def get(name: str, origin: Path | None, out: Path, size: int | None = None) -> WrittenSet:
    """Write NAME.npz and NAME.md into a folder. origin: the downloaded archive or folder. size: side to which
    images of different sizes are resized, in pixels (default 64).

    Raises UsageError: E109 for a size if images are not resized, E125 for an unknown name, E161 for a file
    that exists or cannot be written; DataError: E402 for a missing origin, E401 for another set or a refused
    archive, E401 for a digest other than the published one or a damaged archive, and the errors of the
    checks of samples.
    """
    recipe = recipe_of(name)
    if origin is None:
        further = f"; or a folder of {recipe.hub.repository} from Hugging Face's hub" if recipe.hub else ""
        text = (
            f"nothing is downloaded: get {name} from {recipe.source}, then name it: --from PATH"
            f" ({recipe.expects}{further})"
        )
        raise DataError(
            "E401", f"{text}. Sets of torchvision and Hugging Face are also taken in Python as they are."
        )
    if size is not None and not recipe.takes_size:
        raise UsageError("E109", f"the samples of {name} are not resized; leave --size out.")
    path = out / f"{name}.npz"
    if path.exists():
        raise UsageError(
            "E161", f"{path} exists, and nothing is overwritten; remove it, or name another folder: --out."
        )
    if not origin.exists():
        raise DataError("E402", f"there is no {origin}.")
    digests, verified = _digests(origin, recipe)
    samples = recipe.samples(OriginalFiles(origin, name, size or OriginalFiles.size))
    _check_samples(name, samples)
    remarks = (*_set_remarks(name, recipe, samples, digests, verified), *samples.notes)
    content = _archive_bytes(samples)
    try:
        out.mkdir(parents=True, exist_ok=True)
        disk.replace(
            out / f"{name}.md",
            _card_text(name, recipe, samples, digests, verified, hashlib.sha256(content).hexdigest()),
        )
        disk.replace(path, content)
    except OSError as error:
        raise UsageError(
            "E161", f"{out} cannot be written: {error.strerror or error}. Name another folder: --out."
        ) from error
    return WrittenSet((path, out / f"{name}.md"), samples, remarks)


def _digests(origin: Path, recipe: Recipe) -> tuple[dict[str, str], set[str]]:
    """(SHA-256 of the files by name, the names with a matching published digest).

    Raises DataError (E401) for a file with a published name and another digest.
    """
    files = (
        [origin]
        if origin.is_file()
        else sorted(p for p in origin.rglob("*") if p.is_file() and not p.is_symlink())
    )
    published = [p for p in files if p.name in recipe.files]
    hashed = files if len(files) <= MOST_HASHED else published
    digests = {p.name: disk.sha256(p) for p in hashed}
    for name, digest in digests.items():
        if recipe.files.get(name, digest) != digest:
            text = f"{name} has the SHA-256 {digest}, and the published one is {recipe.files[name]}"
            raise DataError("E401", f"{text}; download it again from {recipe.source}.")
    return digests, {p.name for p in published}


def _check_samples(name: str, samples: OriginalSamples) -> None:
    """Raises DataError (E403, E404, E405) for samples that do not fit together."""
    classes, shape = len(samples.classes), samples.x.shape[1:]
    x_test, y_test = samples.x_test, samples.y_test
    check_labels(name, samples.y, samples.y[:0] if y_test is None else y_test, classes, shape)
    for i, (part, x, y) in enumerate((("training", samples.x, samples.y), ("test", x_test, y_test))):
        if x is not None and y is not None:
            columns = {n: v for n, pair in samples.columns.items() if (v := pair[i]) is not None}
            check_lengths(name, part, x, y, columns)
            check_finite(name, part, x)


def _set_remarks(
    name: str, recipe: Recipe, samples: OriginalSamples, digests: Mapping[str, str], verified: set[str]
) -> tuple[str, ...]:
    remarks = []
    if not verified:
        remarks.append(
            f"no SHA-256 of {'these files' if len(digests) != 1 else next(iter(digests))} is published"
            " that we know; the card records it, and it is not compared"
        )
    counts = (len(samples.x), 0 if samples.x_test is None else len(samples.x_test))
    if recipe.sizes and counts != recipe.sizes:
        text = f"the published set has {recipe.sizes[0]:,} and {recipe.sizes[1]:,}"
        remarks.append(f"{name} has {counts[0]:,} training and {counts[1]:,} test samples here; {text}")
    return tuple(remarks)


def _archive_bytes(samples: OriginalSamples) -> bytes:
    """The .npz file, with the usual names: x and y, or x_train, y_train, x_test and y_test."""
    tested = samples.x_test is not None
    part = "_train" if tested else ""
    arrays = {f"x{part}": samples.x, f"y{part}": samples.y}
    arrays |= {f"{name}{part}": values for name, (values, _) in samples.columns.items()}
    if tested:
        arrays |= {"x_test": np.asarray(samples.x_test), "y_test": np.asarray(samples.y_test)}
        arrays |= {f"{name}_test": np.asarray(values) for name, (_, values) in samples.columns.items()}
    buffer = io.BytesIO()
    np.savez(buffer, classes=np.array(samples.classes), **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def _card_text(
    name: str,
    recipe: Recipe,
    samples: OriginalSamples,
    digests: Mapping[str, str],
    verified: set[str],
    sha256: str,
) -> str:
    """The text of NAME.md."""
    tests = 0 if samples.x_test is None else len(samples.x_test)
    split = f"{tests:,} (the set's own)" if tests else "none of its own; a fifth is held out when it is read"
    facts = [
        ("what", recipe.what),
        ("source", recipe.source),
        ("licence", recipe.licence or "none stated where we looked; ask the source"),
        ("one sample", f"{samples.x.dtype} {list(samples.x.shape[1:])}"),
        ("training samples", f"{len(samples.x):,}"),
        ("test samples", split),
        *(
            (f"column {n}", f"{len(np.unique(v)):,} values; `--skew column:{n}`")
            for n, (v, _) in samples.columns.items()
        ),
        *(("left out", note) for note in samples.notes),
        (f"{name}.npz", f"SHA-256 {sha256}"),
        ("made by", f"unskew {revision()}"),
    ]
    kinds = len(samples.classes)
    parts = [np.zeros(0, np.int64) if y is None else y for y in (samples.y, samples.y_test)]
    train, test = (np.bincount(y, minlength=kinds).tolist() for y in parts)
    counts = [(escape_markdown(c), f"{a:,}", f"{b:,}") for c, a, b in zip(samples.classes, train, test)]
    verdict = {True: "equals the published one", False: "not compared: none is published that we know"}
    rows = [(escape_markdown(n), digest, verdict[n in verified]) for n, digest in digests.items()]
    return "\n".join(
        [
            f"# {name}",
            "",
            table(("", ""), [(escape_markdown(a), escape_markdown(b)) for a, b in facts]),
            "",
            "## Original files",
            "",
            table(("file", "SHA-256", "verified"), rows)
            if rows
            else "A folder of many files, whose digests are not recorded.",
            "",
            "## Classes",
            "",
            table(("class", "training", "test"), counts),
            "",
        ]
    )
