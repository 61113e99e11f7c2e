"""A site's answers in the ClientApp of somebody's Flower federation."""

# pyright: reportMissingImports=false
# Flower lives in an environment of its own, and types are checked in the one without it.

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from unskew.data.samples.dataset import Dataset
from unskew.errors import MissingPackage, UnskewError
from unskew.federation.programs import echo_timed
from unskew.federation.site.guard import Approve, answerable
from unskew.federation.site.site import Site, SiteIdentity
from unskew.federation.site.site_folder import SiteFolder
from unskew.federation.site_data import load
from unskew.records.run_lock import RunLock
from unskew.system import disk, python_files

try:
    from flwr.app import Message

    from unskew.federation.protocol.flower_messages import pack_message, unpack_message
except ImportError as error:  # the extra is not installed, or in a version that has other names
    raise MissingPackage(f"a federation ({error})", "Flower 1.41", "flower") from error


@disk.private_files()
def answer(
    message: Message,
    site: Path | str,
    data: str,
    *,
    classes: Sequence[str] = (),
    model: str | None = None,
    device: str = "cpu",
    approve: Approve = "ask",
) -> Message:
    """The site's reply to a message of `run_study`; call this in a ClientApp's function for queries.

    site: the site's folder, of `unskew join`. The others are the options of `unskew site run`. The site is
    opened for each message, as after a restart, because Flower may answer each in another process.
    Raises UnskewError with a code alone, because Flower sends its text to the ServerApp; this process prints
    the rest: E503 for a folder of no site, E110 while another process runs the site, E4xx for data that
    cannot be read.
    """
    try:
        joined = SiteFolder.open(Path(site))
        with RunLock(joined.folder), python_files.restrict(data, model or ""):
            member = SiteIdentity.of(joined)
            one = Site(member, lambda: _load(data, tuple(classes)), model, device, echo_timed, approve)
            return Message(pack_message(one.answer(unpack_message(message.content))), reply_to=message)
    except Exception as error:  # Flower would send its text, which may name this site's files
        known = answerable(error, echo_timed)
        echo_timed(str(known))
        raise UnskewError(known.code, "the site's log says more.") from None


@lru_cache(maxsize=8)
def _load(data: str, classes: tuple[str, ...]) -> Dataset:
    """The site's set, read once a process."""
    return load(data, classes)
