"""The command `unskew data get`: original files, downloaded here or by the user, become NAME.npz, and
NAME.md, its card.

A download is resumed after a cut, and verified: `NAME.part` is what has arrived, and the file gets its name
when its digest is the published one.

Letters: N samples, C classes.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from unskew.data.downloads.recipes import RECIPES, OriginalSamples, Recipe, file_of
from unskew.data.samples.dataset import Dataset
from unskew.errors import DataError, UsageError, excerpt, suggestion
from unskew.formats.markdown import escape_markdown, table
from unskew.system import disk
from unskew.version import revision

PIECE = 1 << 20
TIMEOUT_S = 60.0
Report = Callable[[str, int, int], None]
"""Receives a file's name, the bytes that have arrived, and the bytes that it has, 0 if unknown."""


@dataclass(frozen=True)
class WrittenSet:
    """files: the .npz and its card. remarks: remarks for the user, such as digests without a published
    one."""

    files: tuple[Path, Path]
    samples: OriginalSamples
    remarks: tuple[str, ...]


def get(
    name: str, origin: Path | None, out: Path, report: Report = lambda *_: None, recipe: Recipe | None = None
) -> WrittenSet:
    """Write NAME.npz and NAME.md into a folder. origin: the archive or folder; None downloads it to
    `out/originals`. report: receives the progress of a download. recipe: by default that of the name.

    Raises UsageError: E125 for an unknown name, E161 for a file that exists or cannot be written; DataError:
    E402 for a missing origin or a download that fails, E401 for another set, a refused archive or a digest
    other than the published one, and the errors of the checks of samples.
    """
    if recipe is None and name not in RECIPES:
        known = f"{suggestion(name, RECIPES)} Known: {', '.join(RECIPES)}"
        raise UsageError("E125", f"unskew data get knows no {excerpt(name)}.{known}.")
    recipe, path, card = recipe or RECIPES[name], out / f"{name}.npz", out / f"{name}.md"
    if path.exists():
        text = f"{path} exists, and nothing is overwritten; remove it, or name another folder: --out"
        raise UsageError("E161", f"{text}.")
    try:
        origin = origin or download(name, recipe, out / "originals", report)
        if not origin.exists():
            raise DataError("E402", f"there is no {origin}.")
        digests = _digests(origin, recipe)
        samples = recipe.read(origin, name)
        tests = {column: test for column, (_, test) in samples.columns.items()}
        columns = {column: train for column, (train, _) in samples.columns.items()}
        Dataset(name, samples.x, samples.y, samples.x_test, samples.y_test, samples.classes, columns, tests)
        content = _archive_bytes(samples)
        out.mkdir(parents=True, exist_ok=True)
        disk.replace(card, _card_text(name, recipe, samples, digests, hashlib.sha256(content).hexdigest()))
        disk.replace(path, content)
    except OSError as error:
        why = f"{error.filename or out} cannot be written or read: {error.strerror or error}"
        raise UsageError("E161", f"{why}. Name another folder: --out.") from error
    remarks = list(samples.notes)
    if not digests.keys() & recipe.digests.keys():
        which = "these files" if len(digests) != 1 else next(iter(digests))
        text = "is published that we know; the card records it, and it is not compared"
        remarks.insert(0, f"no digest of {which} {text}")
    return WrittenSet((path, card), samples, tuple(remarks))


def _digests(origin: Path, recipe: Recipe) -> dict[str, str]:
    """The digest of a file, or of the published ones in a folder, by name. Raises DataError (E401) for a
    file with a published name and another digest."""
    known = recipe.digests
    files = [origin] if origin.is_file() else sorted(p for p in origin.rglob("*") if p.name in known)
    digests = {path.name: _digest(path, known.get(path.name, "")) for path in files}
    for name, digest in digests.items():
        if known.get(name, digest) != digest:
            text = f"{name} has the digest {digest}, and the published one is {known[name]}"
            raise DataError("E401", f"{text}; download it again from {recipe.source}.")
    return digests


def _digest(path: Path, published: str) -> str:
    """The MD5 of a file if that is what is published, else its SHA-256."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "md5" if len(published) == 32 else "sha256").hexdigest()


def _archive_bytes(samples: OriginalSamples) -> bytes:
    """The .npz file, with the usual names."""
    arrays = {
        "x_train": samples.x,
        "y_train": samples.y,
        "x_test": samples.x_test,
        "y_test": samples.y_test,
        "classes": np.array(samples.classes),
    }
    for name, (train, test) in samples.columns.items():
        arrays |= {f"{name}_train": train, f"{name}_test": test}
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def _card_text(
    name: str, recipe: Recipe, samples: OriginalSamples, digests: Mapping[str, str], sha256: str
) -> str:
    """The text of NAME.md. sha256: of NAME.npz."""
    facts = {
        "what": recipe.what,
        "source": recipe.source,
        "licence": recipe.licence or "none stated where we looked; ask the source",
        "one sample": f"{samples.x.dtype} {list(samples.x.shape[1:])}",
        "training samples": f"{len(samples.x):,}",
        "test samples": f"{len(samples.x_test):,}",
    }
    for column, (values, _) in samples.columns.items():
        facts[f"column {column}"] = f"{len(np.unique(values)):,} values; `--skew column:{column}`"
    if samples.notes:
        facts["left out"] = "; ".join(samples.notes)
    facts |= {f"{name}.npz": f"SHA-256 {sha256}", "made by": f"unskew {revision()}"}
    train, test = (
        np.bincount(y, minlength=len(samples.classes)).tolist() for y in (samples.y, samples.y_test)
    )
    counts = [(escape_markdown(c), f"{a:,}", f"{b:,}") for c, a, b in zip(samples.classes, train, test)]
    verdict = {True: "equals the published one", False: "not compared: none is published that we know"}
    rows = [(escape_markdown(n), digest, verdict[n in recipe.digests]) for n, digest in digests.items()]
    sections = [
        f"# {name}",
        table(("", ""), [(escape_markdown(a), escape_markdown(b)) for a, b in facts.items()]),
        "## Original files",
        table(("file", "digest", "verified"), rows) if rows else "Many files; no digest is recorded.",
        "## Classes",
        table(("class", "training", "test"), counts),
    ]
    return "\n\n".join(sections) + "\n"


def download(name: str, recipe: Recipe, folder: Path, report: Report = lambda *_: None) -> Path:
    """Download the files of a set that are not in `folder` yet; returns the file, or the folder of several.

    Raises DataError: E402 if a server does not answer or breaks off, E401 for a file with another digest.
    """
    several = len(recipe.originals) > 1
    place = folder / name if several else folder
    place.mkdir(parents=True, exist_ok=True)
    paths = [place / file_of(address) for address in recipe.originals]
    for path, (address, published) in zip(paths, recipe.originals.items()):
        if not path.exists():
            _fetch(address, path, published, report)
    return place if several else paths[0]


def _fetch(address: str, path: Path, published: str, report: Report) -> None:
    """Download one file into PATH.part, from where an earlier download ended, and verify it."""
    part = path.with_name(path.name + ".part")
    try:
        _append(address, part, lambda arrived, total: report(path.name, arrived, total))
    except (OSError, http.client.HTTPException) as error:
        arrived = part.stat().st_size if part.exists() else 0
        kept = (
            f"; {arrived:,} bytes are in {part}, and the same command goes on from there" if arrived else ""
        )
        reason = " ".join(str(getattr(error, "reason", error)).split()) or type(error).__name__
        text = (
            f"{address} could not be downloaded: {reason}{kept}. Or download it yourself, and name it: --from"
        )
        raise DataError("E402", f"{text}.") from error
    if (digest := _digest(part, published)) != published:
        refused = part.replace(path.with_name(path.name + ".refused"))
        text = f"{address} is not the published file: its digest is {digest}, and {published} is published"
        raise DataError("E401", f"{text}. It is kept as {refused}; the same command downloads it again.")
    part.replace(path)


def _append(address: str, part: Path, report: Callable[[int, int], None]) -> None:
    """Download what `part` lacks. Raises OSError or HTTPException if the server refuses or breaks off."""
    begin = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "unskew", **({"Range": f"bytes={begin}-"} if begin else {})}
    try:
        response = urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        if begin and error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # all of it has arrived; the digest decides
        raise
    mode = "ab" if response.status == http.client.PARTIAL_CONTENT else "wb"
    with response, open(part, mode, opener=disk.refuse_link) as file:
        arrived = file.tell()
        total = arrived + int(response.headers.get("Content-Length", 0))
        while piece := response.read(PIECE):
            arrived += file.write(piece)
            report(arrived, total)
    if arrived < total:
        raise ConnectionError(f"the server broke off after {arrived:,} of {total:,} bytes")
