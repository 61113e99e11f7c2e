"""Who may connect: the admitted keys as they are on the disk at this moment."""

from __future__ import annotations

import ssl

from unskew.deploy import proof
from unskew.deploy.identity import Public
from unskew.deploy.tickets import Coordinator
from unskew.errors import UsageError


class Members:
    """context: what TLS demands of the next connection; None where TLS is disabled."""

    context: ssl.SSLContext | None = None

    def __init__(self, home: Coordinator):
        self.home = home
        self._texts: dict[str, str] | None = None
        self._certificate = b""
        self._sites: dict[str, str] = {}
        self.read()

    def read(self) -> bool:
        """Look at the disk again. Returns whether anything has changed. A damaged key lets nobody in."""
        paths = {site: self.home.key_file(site) for site in self.home.now().sites}
        texts = {site: path.read_text(errors="replace") for site, path in paths.items() if path.exists()}
        certificate = (self.home.folder / "server.crt").read_bytes() if self.home.tls else b""
        if (texts, certificate) == (self._texts, self._certificate):
            return False
        keys = {site: key for site, text in texts.items() if (key := _parsed(text))}
        if self.home.tls:
            folder = self.home.folder
            self.context = proof.accepting(folder / "server.crt", folder / "server.key", keys.values())
        self._certificate = certificate
        self._texts, self._sites = texts, {key.fingerprint: site for site, key in keys.items()}
        return True

    def site(self, fingerprint: str) -> str:
        """The site whose key this is; "" if it is not, or no longer, admitted."""
        return self._sites.get(fingerprint, "")


def _parsed(text: str) -> Public | None:
    try:
        return Public.parse(text)
    except UsageError:
        return None
