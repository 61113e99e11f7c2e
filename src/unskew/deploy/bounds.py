"""The most samples that each site may say it holds, as agreed with it: `unskew federation admit --samples N`.

A site's weight in the merge, and in the mean of scores, follows from numbers that only the site knows. The bound beside
its admitted key keeps a false number from deciding the run.
"""

from __future__ import annotations

from unskew import disk
from unskew.deploy.tickets import Coordinator
from unskew.errors import UsageError


def checked(samples: int | None) -> int | None:
    """The bound as it was given. Raises UsageError (E109) for a number below 1."""
    if samples is not None and samples < 1:
        raise UsageError("E109", f"--samples takes a whole number above 0; got {samples}.")
    return samples


def write(home: Coordinator, site: str, samples: int) -> None:
    """Keep the bound of a site."""
    disk.replace(home.folder / "admitted" / f"{site}.samples", f"{samples}\n")


def read(home: Coordinator) -> dict[str, int]:
    """The bounds by site, of sites that have one. Raises UsageError (E503) for a file that holds no number."""
    paths = {site: home.folder / "admitted" / f"{site}.samples" for site in home.sites}
    return {site: _number(path.read_text(), str(path)) for site, path in paths.items() if path.exists()}


def _number(text: str, path: str) -> int:
    if not text.strip().isdecimal():
        raise UsageError("E503", f"{path} holds no number; admit the site again with --samples N.")
    return int(text)
