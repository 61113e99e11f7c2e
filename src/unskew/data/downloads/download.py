"""Downloads of original files from the addresses that a recipe names: resumed after a cut, and verified.

`NAME.part` is what has arrived; the file gets its name when its digest is the published one.
"""

from __future__ import annotations

import hashlib
import http.client
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from unskew.data.downloads.original_files import Recipe
from unskew.errors import DataError

PIECE = 1 << 20
TIMEOUT_S = 60.0
Report = Callable[[str, int, int], None]
"""Receives a file's name, the bytes that have arrived, and the bytes that it has, 0 if unknown."""


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
