"""The most samples that each site may say it holds, as agreed with it: `unskew federation admit --samples N`.

A site's weight in the merge, and in the mean of scores, follows from numbers that only the site knows. The bound beside
its admitted key keeps a false number from deciding the run.
"""

from __future__ import annotations

from collections.abc import Sequence

from unskew import disk
from unskew.deploy.tickets import Coordinator
from unskew.errors import UsageError, suggestion


def parse(text: str, sites: Sequence[str]) -> dict[str, int]:
    """The bounds by site in `6000`, which is for each of these sites, or in `a=6000,b=800`; none in "".

    Raises UsageError (E109) for a number below 1, or a site that is not among them.
    """
    if "=" not in text:
        return dict.fromkeys(sites, _above_zero(text)) if text else {}
    given: dict[str, int] = {}
    for pair in text.split(","):
        site, _, number = (part.strip() for part in pair.partition("="))
        if site not in sites or site in given:
            what = "names twice" if site in given else "names no site whose key is here:"
            raise UsageError("E109", f"--samples {what} '{site}'.{suggestion(site, set(sites) - set(given))}")
        given[site] = _above_zero(number)
    return given


def _above_zero(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise UsageError("E109", f"--samples takes a whole number above 0, or SITE=NUMBER,...; got '{text}'.")
    return int(text)


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
