"""`unskew federation admit`: admit sites by their public keys after their fingerprints were compared."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from unskew.federation.tickets import Coordinator

FOLDER = Path("federations")
Where = Annotated[Path, typer.Option("--folder", help="where federations are kept")]


def command(
    name: Annotated[str, typer.Argument(help="the federation's name")],
    keys: Annotated[list[Path], typer.Argument(help="the public keys that sites have sent: a.pub b.pub")],
    site: Annotated[
        str | None, typer.Option(help="the site of a single key (default: the file's name)")
    ] = None,
    samples: Annotated[
        str,
        typer.Option(
            help="the most samples a site may say it holds, training and test: 6000, or a=6000,b=800"
        ),
    ] = "",
    compared: Annotated[
        bool,
        typer.Option("--compared", help="do not ask: the fingerprints were compared (a script must say so)"),
    ] = False,
    folder: Where = FOLDER,
) -> None:
    """Admit sites to a federation: all of these keys, or none of them. First compare the fingerprints with
    those that the sites read out."""
    from unskew.errors import UsageError
    from unskew.federation import admission, journal
    from unskew.federation.tickets import Coordinator

    home = Coordinator.open(folder / name)
    texts = _texts(keys, site)
    most = admission.parse_bounds(samples, list(texts))
    publics = admission.applicants(home, texts)
    for one, public in publics.items():
        bound = most.get(one) or admission.read_bounds(home).get(one)
        words = f"at most {bound:,} samples" if bound else "no bound on its samples; set one with --samples"
        print(f"key       {one:<20} fingerprint {public.fingerprint}  {words}")
    if not (compared or _is_interactive()):
        text = (
            "nobody is at a terminal to confirm these fingerprints; compare them with what the sites read out"
        )
        raise UsageError("E503", f"nobody was admitted to {name}: {text}, and add --compared.")
    if not (compared or _confirm(list(publics))):
        raise UsageError("E503", f"nobody was admitted to {name}: the fingerprints were not confirmed.")
    for one, text in texts.items():
        if one in most:
            admission.write_bound(home, one, most[one])
        public = admission.admit(home, one, text)
        journal.record_events(home, [("admitted", {"site": one, "key": public.fingerprint})])
        print(f"admitted  {one}")
    _print_next(home, name)


def _texts(keys: list[Path], site: str | None) -> dict[str, str]:
    """Maps each site to the text of its key file.

    Raises UsageError: E111 for a missing file, E109 for unclear or repeated names.
    """
    from unskew.errors import UsageError

    if site and len(keys) > 1:
        raise UsageError("E109", f"--site is for a single key; got {len(keys)} of them.")
    names = [site or key.stem for key in keys]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError("E109", f"two of these files are called {twice[0]}.pub; a site has one key.")
    for key in keys:
        if not key.is_file():
            raise UsageError("E111", f"there is no file {key}.")
    return {name: key.read_text(errors="replace") for name, key in zip(names, keys)}


def _confirm(sites: list[str]) -> bool:
    """Whether a person at the terminal confirms that the fingerprints match."""
    each = sites[0] if len(sites) == 1 else "every site"
    return typer.confirm(f"Has {each} read out this fingerprint, over the telephone or in person?")


def _is_interactive() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _print_next(home: Coordinator, name: str) -> None:
    missing = [one for one in home.sites if one not in home.admitted()]
    print(f"missing   {', '.join(missing)}" if missing else f"next      unskew run STUDY.yaml --on {name}")
