"""Whether a site's clock is near enough to the server's for the server to let the site in.

Flower refuses a site whose clock is more than 5 s ahead of the server's or more than 305 s behind it.
"""

from __future__ import annotations

import time

OUT_OF_TIME = (9, 10)
"""OpenSSL's codes for a certificate that is not valid yet, or not any more."""
MOST_AHEAD_S, MOST_BEHIND_S = 5.0, 305.0


def judged(ahead_s: float) -> tuple[bool, str]:
    """(whether the server lets a site in whose clock is so far ahead of its own, a sentence on it)."""
    way = "ahead of" if ahead_s > 0 else "behind"
    text = f"{abs(ahead_s):.0f} s {way} the server's" if abs(ahead_s) >= 1 else "less than 1 s from the server's"
    if -MOST_BEHIND_S < ahead_s < MOST_AHEAD_S:
        return True, text
    rule = f"the server lets nobody in who is more than {MOST_AHEAD_S:.0f} s ahead or {MOST_BEHIND_S:.0f} s behind"
    remedy = "set this machine's clock, or the server's: sudo timedatectl set-ntp true"
    return False, f"this machine's clock is {text}, and {rule}; {remedy}"


def doubted(verify_code: int) -> str:
    """A question to add where a certificate seems out of its time, because this machine's clock may be; else ""."""
    if verify_code not in OUT_OF_TIME:
        return ""
    return f" This machine's clock says {time.strftime('%Y-%m-%d')}; if that is wrong: sudo timedatectl set-ntp true"
