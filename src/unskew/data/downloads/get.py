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
from urllib.parse import unquote, urlsplit

import numpy as np

from unskew.data.downloads.original_files import OriginalFiles, OriginalSamples, Recipe, recipe_of
from unskew.data.samples.dataset import Dataset
from unskew.errors import DataError, UsageError
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
    name: str,
    origin: Path | None,
    out: Path,
    report: Report = lambda *_: None,
) -> WrittenSet:
    """Write NAME.npz and NAME.md into a folder. origin: the archive or folder; None downloads it to
    `out/originals`.
    report: receives the progress of a download.

    Raises UsageError: E125 for an unknown name, E161 for a file
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
    samples = recipe.read(OriginalFiles(origin, name))
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
    return WrittenSet((path, out / f"{name}.md"), samples, (*remarks, *samples.notes))


def _unwritable(out: Path, error: OSError) -> UsageError:
    return UsageError(
        "E161", f"{out} cannot be written: {error.strerror or error}. Name another folder: --out."
    )


def _digests(origin: Path, recipe: Recipe) -> dict[str, tuple[str, bool]]:
    """(SHA-256, whether it is the published file) by name; of a folder only those published.

    Raises DataError (E401) for a file with a published name and another digest.
    """
    files = [origin] if origin.is_file() else sorted(p for p in origin.rglob("*") if p.name in recipe.files)
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


def download(name: str, recipe: Recipe, folder: Path, report: Report = lambda *_: None) -> Path:
    """Download the files of a set that are not in `folder` yet; returns the file, or the folder of several.

    Raises DataError: E402 if a server does not answer or breaks off, E401 for a file with another digest.
    """
    several = len(recipe.addresses) > 1
    place = folder / name if several else folder
    place.mkdir(parents=True, exist_ok=True)
    paths = [place / file_of(address) for address in recipe.addresses]
    for address, path in zip(recipe.addresses, paths):
        if not path.exists():
            _fetch(address, path, recipe.files[path.name], report)
    return place if several else paths[0]


def file_of(address: str) -> str:
    """The name of the file at an address."""
    return unquote(urlsplit(address).path).rpartition("/")[2]


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
    if (digest := digest_as(published, part)) != published:
        refused = part.replace(path.with_name(path.name + ".refused"))
        text = f"{address} is not the published file: its digest is {digest}, and {published} is published"
        raise DataError("E401", f"{text}. It is kept as {refused}; the same command downloads it again.")
    part.replace(path)


def digest_as(published: str, path: Path) -> str:
    """The digest of a file, of the kind of a published one: SHA-256, or MD5 if it begins with `md5:`."""
    kind, colon, _ = published.rpartition(":")
    with open(path, "rb") as file:
        return kind + colon + hashlib.file_digest(file, kind or "sha256").hexdigest()


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
    with response, open(part, "ab" if response.status == http.client.PARTIAL_CONTENT else "wb") as file:
        arrived = file.tell()
        total = arrived + int(response.headers.get("Content-Length", 0))
        while piece := response.read(PIECE):
            arrived += file.write(piece)
            report(arrived, total)
    if arrived < total:
        raise ConnectionError(f"the server broke off after {arrived:,} of {total:,} bytes")
