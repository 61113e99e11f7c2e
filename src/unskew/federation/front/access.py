"""Access to the front: admitted keys, the machine that uses a site's key, and refusals.

A site's name is held by the process or machine that came first, until nothing has been received from it for
a while.

The first refusal of an address is reported in a line, further ones every ten minutes, each line with the
number of attempts. A flood therefore writes a few lines an hour for each of at most 32 addresses, and every
attempt is counted.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable

from unskew.errors import UsageError
from unskew.federation import certificates
from unskew.federation.protocol.signed_messages import PublicKey
from unskew.federation.tickets import Coordinator

SILENT_S = 15.0
"""A live process is heard of at least every 5 s. One that was started again in its folder counts as the
same."""


class SiteHolders:
    """The place (see `place_of`) with the right to each site's name, and the time of its last request."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock, self._holders = clock, dict[str, tuple[int, float]]()

    def may_speak(self, site: str, place: int) -> bool:
        """True if a request from this place is accepted; the place then holds the site's name."""
        now = self._clock()
        holder, last_request = self._holders.get(site, (place, now))
        if holder != place and now - last_request < SILENT_S:
            return False
        self._holders[site] = place, now
        return True


LINE_S = 600.0
"""Seconds between two lines about one address and reason; the first one is written at once."""
MOST_PAIRS = 32
"""Pairs of address and reason with counts of their own; the others are counted together."""
OTHER_ADDRESSES = "other addresses"


class Refusals:
    """Counts refused attempts and reports them. write: receives an address, the reason, and how often."""

    def __init__(self, write: Callable[[str, str, int], None], clock: Callable[[], float] = time.monotonic):
        self.write, self.clock = write, clock
        self._times: dict[tuple[str, str], int] = {}
        """Attempts since the last line, by address and reason."""
        self._due: dict[tuple[str, str], float] = {}

    def note(self, who: str, why: str) -> None:
        """Count one attempt. who: an address, or the name of a site."""
        if (who, why) not in self._times and len(self._times) >= MOST_PAIRS:
            who = OTHER_ADDRESSES
        self._times[who, why] = self._times.get((who, why), 0) + 1
        self.flush()

    def flush(self, everything: bool = False) -> None:
        """Write the lines that are due, or all with `everything`. Forget addresses without new attempts."""
        now = self.clock()
        for (who, why), times in list(self._times.items()):
            is_due = now >= self._due.get((who, why), now)
            if times and (is_due or everything):
                self.write(who, why, times)
                self._times[who, why], self._due[who, why] = 0, now + LINE_S
            elif not times and is_due:
                del self._times[who, why], self._due[who, why]


class Members:
    """The admitted sites. context: the TLS context for the next connection."""

    context: ssl.SSLContext

    def __init__(self, home: Coordinator):
        self.home = home
        self._texts: dict[str, str] | None = None
        self._sites: dict[str, str] = {}
        self.read()

    def read(self) -> bool:
        """Read the keys again. True if anything has changed. A damaged key admits no site."""
        paths = {site: self.home.key_file(site) for site in self.home.now().sites}
        texts = {site: path.read_text(errors="replace") for site, path in paths.items() if path.exists()}
        if texts == self._texts:
            return False
        keys = {site: key for site, text in texts.items() if (key := _parse_key(text))}
        files = self.home.folder / "server.crt", self.home.folder / "server.key"
        self.context = certificates.server_context(*files, keys.values())
        self._texts, self._sites = texts, {key.fingerprint: site for site, key in keys.items()}
        return True

    def site(self, fingerprint: str) -> str:
        """The site with the key of this fingerprint; "" if it is not admitted."""
        return self._sites.get(fingerprint, "")


def _parse_key(text: str) -> PublicKey | None:
    try:
        return PublicKey.parse(text)
    except UsageError:
        return None
