"""The command `unskew data get`: original files, downloaded here or by the user, become NAME.npz, and
NAME.md, its card.

Letters: N samples, C classes.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from unskew.data.downloads.download import Report, digest_as, download
from unskew.data.downloads.named_archives import recipe_of
from unskew.data.downloads.original_files import OriginalFiles, OriginalSamples, Recipe
from unskew.data.samples.dataset import Dataset
from unskew.errors import DataError, UsageError
from unskew.formats.markdown import escape_markdown, table
from unskew.system import disk
from unskew.version import revision

MOST_HASHED = 64
"""Maximal number of files with digests on the card, beside those that are published."""


@dataclass(frozen=True)
class WrittenSet:
    """files: the .npz and its card. remarks: remarks for the user, such as digests without a published
    one."""

    files: tuple[Path, Path]
    samples: OriginalSamples
    remarks: tuple[str, ...]


def get(
    name: str,
    origin: Path | None,
    out: Path,
    size: int | None = None,
    report: Report = lambda *_: None,
) -> WrittenSet:
    """Write NAME.npz and NAME.md into a folder. origin: the archive or folder; None downloads it to
    `out/originals`. size: side to which images of different sizes are resized, in pixels (default 64).
    report: receives the progress of a download.

    Raises UsageError: E109 for a size if images are not resized, E125 for an unknown name, E161 for a file
    that exists or cannot be written; DataError: E402 for a missing origin or a download that fails, E401 for
    a set without an address, another set or a refused archive, E401 for a digest other than the published one
    or a damaged archive, and the errors of the checks of samples.
    """
    recipe = recipe_of(name)
    if origin is None and not recipe.addresses:
        text = (
            f"{name} has no address to download from: get it from {recipe.source}, then name it: --from PATH"
        )
        more = "Sets of torchvision and Hugging Face are also taken in Python as they are"
        raise DataError("E401", f"{text} ({recipe.expects}). {more}.")
    if size is not None and not recipe.takes_size:
        raise UsageError("E109", f"the samples of {name} are not resized; leave --size out.")
    path = out / f"{name}.npz"
    if path.exists():
        text = f"{path} exists, and nothing is overwritten; remove it, or name another folder: --out"
        raise UsageError("E161", f"{text}.")
    if origin is None:
        try:
            origin = download(name, recipe, out / "originals", report)
        except OSError as error:
            raise _unwritable(out, error) from error
    if not origin.exists():
        raise DataError("E402", f"there is no {origin}.")
    digests = _digests(origin, recipe)
    samples = recipe.read(OriginalFiles(origin, name, size or OriginalFiles.size))
    _check_samples(name, samples)
    content = _archive_bytes(samples)
    card = _card_text(name, recipe, samples, digests, hashlib.sha256(content).hexdigest())
    try:
        out.mkdir(parents=True, exist_ok=True)
        disk.replace(out / f"{name}.md", card)
        disk.replace(path, content)
    except OSError as error:
        raise _unwritable(out, error) from error
    remarks = []
    if not any(verified for _, verified in digests.values()):
        which = "these files" if len(digests) != 1 else next(iter(digests))
        text = "is published that we know; the card records it, and it is not compared"
        remarks.append(f"no SHA-256 of {which} {text}")
    counts = (len(samples.x), 0 if samples.x_test is None else len(samples.x_test))
    if recipe.sizes and counts != recipe.sizes:
        text = f"the published set has {recipe.sizes[0]:,} and {recipe.sizes[1]:,}"
        remarks.append(f"{name} has {counts[0]:,} training and {counts[1]:,} test samples here; {text}")
    return WrittenSet((path, out / f"{name}.md"), samples, (*remarks, *samples.notes))


def _unwritable(out: Path, error: OSError) -> UsageError:
    return UsageError(
        "E161", f"{out} cannot be written: {error.strerror or error}. Name another folder: --out."
    )


def _digests(origin: Path, recipe: Recipe) -> dict[str, tuple[str, bool]]:
    """(SHA-256, whether it is the published file) by name; of a folder with many files only those published.

    Raises DataError (E401) for a file with a published name and another digest.
    """
    files = [origin] if origin.is_file() else sorted(p for p in origin.rglob("*") if p.is_file())
    if len(files) > MOST_HASHED:
        files = [p for p in files if p.name in recipe.files]
    digests: dict[str, tuple[str, bool]] = {}
    for path in files:
        published, digest = recipe.files.get(path.name, ""), disk.sha256(path)
        verified = bool(published) and digest_as(published, path) == published
        if published and not verified and not published.startswith("md5:"):
            text = f"{path.name} has the SHA-256 {digest}, and the published one is {published}"
            raise DataError("E401", f"{text}; download it again from {recipe.source}.")
        digests[path.name] = digest, verified
    return digests


def _check_samples(name: str, samples: OriginalSamples) -> None:
    """Raises DataError (E403, E404, E405) for samples that do not fit together."""
    x_test = samples.x[:0] if samples.x_test is None else samples.x_test
    y_test = samples.y[:0] if samples.y_test is None else samples.y_test
    columns, test_columns = (
        {n: v for n, p in samples.columns.items() if (v := p[i]) is not None} for i in (0, 1)
    )
    Dataset(name, samples.x, samples.y, x_test, y_test, samples.classes, columns, test_columns)


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
    name: str, recipe: Recipe, samples: OriginalSamples, digests: Mapping[str, tuple[str, bool]], sha256: str
) -> str:
    """The text of NAME.md. sha256: of NAME.npz."""
    tests = 0 if samples.x_test is None else len(samples.x_test)
    facts = {
        "what": recipe.what,
        "source": recipe.source,
        "licence": recipe.licence or "none stated where we looked; ask the source",
        "one sample": f"{samples.x.dtype} {list(samples.x.shape[1:])}",
        "training samples": f"{len(samples.x):,}",
        "test samples": f"{tests:,}" if tests else "none; a fifth is held out when the set is read",
    }
    for column, (values, _) in samples.columns.items():
        facts[f"column {column}"] = f"{len(np.unique(values)):,} values; `--skew column:{column}`"
    if samples.notes:
        facts["left out"] = "; ".join(samples.notes)
    facts |= {f"{name}.npz": f"SHA-256 {sha256}", "made by": f"unskew {revision()}"}
    train, test = (
        np.bincount(y, minlength=len(samples.classes)).tolist()
        for y in (samples.y, samples.y[:0] if samples.y_test is None else samples.y_test)
    )
    counts = [(escape_markdown(c), f"{a:,}", f"{b:,}") for c, a, b in zip(samples.classes, train, test)]
    verdict = {True: "equals the published one", False: "not compared: none is published that we know"}
    rows = [(escape_markdown(n), digest, verdict[verified]) for n, (digest, verified) in digests.items()]
    sections = [
        f"# {name}",
        table(("", ""), [(escape_markdown(a), escape_markdown(b)) for a, b in facts.items()]),
        "## Original files",
        table(("file", "SHA-256", "verified"), rows) if rows else "Many files; no digest is recorded.",
        "## Classes",
        table(("class", "training", "test"), counts),
    ]
    return "\n\n".join(sections) + "\n"
