"""A server's certificate that is renewed in time, by the server itself."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from cryptography import x509

from unskew.deploy import certificates, federation_journal
from unskew.deploy.supervise import Say
from unskew.deploy.tickets import Coordinator
from unskew.errors import UsageError

RENEW_DAYS = 30
"""With fewer days left a certificate is renewed."""
LOOK_S = 3600.0


def renew(home: Coordinator, hosts: Sequence[str] = ()) -> x509.Certificate:
    """Renew a federation's certificate, and note it in its journal. Raises UsageError as `certificates.renew` does."""
    now = certificates.renew(home.folder, hosts)
    federation_journal.note(home, [("renewed", {"certificate": f"{now.serial_number:x}", "hosts": list(hosts)})])
    return now


@dataclass
class Renewal:
    """Looks at the certificate of a server once an hour."""

    home: Coordinator
    say: Say
    _serial: int | None = None
    _next: float = field(default=0.0)

    def tend(self) -> bool:
        """Renew the certificate if it is due. Returns whether another certificate is there than at the last look."""
        if not self.home.tls or time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + LOOK_S
        try:
            now = certificates.read(self.home.folder / "server.crt")
            if certificates.days_left(now) < RENEW_DAYS:
                now = renew(self.home)
                self.say(
                    f"the server's certificate was renewed for {certificates.days_left(now)} days; no site has to join again"
                )
        except UsageError as error:
            self.say(str(error))
            return False
        before, self._serial = self._serial, now.serial_number
        return before not in (None, self._serial)
