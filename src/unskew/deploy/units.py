"""Sites that seem to measure in other units, as far as the means and deviations tell that `standardise` asks each site for.

Channel c of site k is unlike that of site j where
    |mu_kc - mu_jc| > 5 sigma_jc    or    sigma_kc > 5 sigma_jc    or    sigma_kc < sigma_jc / 5
and is remarked on where it is unlike those of most other sites. Pounds lie 7 deviations of a hospital's weights away from
kilograms. What is 0 and 1 at both, or does not vary at one, tells nothing of units; nor do sites with few samples.

Letters: K sites, J those other than one, C channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from unskew.core.replies import Reply
from unskew.deploy.forms import NUMBERS
from unskew.deploy.hello import Hello

Array = np.ndarray[Any, Any]
APART, TIMES = 5.0, 5.0
FEWEST = 10
"""Samples below which a site's deviation says little."""
MOST_NAMED = 4
MEND = "it may be measured in other units there; ask the site, and have all sites use the same"


def unlike(hellos: Sequence[Hello], replies: Sequence[Reply], part: str) -> dict[str, str]:
    """By site whose numbers are unlike the other sites', which and how, as the end of a sentence.

    replies: to the trip in which `part` asks for `mu` and `sigma`, [C] each.
    """
    known = [reply for reply in replies if reply.size >= FEWEST]
    if len(known) < 2:
        return {}
    mu_KC, sigma_KC = (np.stack([r.shares[part][leaf].double().numpy() for r in known]) for leaf in ("mu", "sigma"))
    texts: dict[str, str] = {}
    for k, reply in enumerate(known):
        others, hello = np.arange(len(known)) != k, hellos[reply.client]
        hows = _hows(mu_KC[k], sigma_KC[k], mu_KC[others], sigma_KC[others])
        remarks = [f"{_called(hello, c)} {how}" for c, how in enumerate(hows) if how]
        more = f" and {len(remarks) - MOST_NAMED} more" if len(remarks) > MOST_NAMED else ""
        if remarks:
            texts[hello.site] = f"{'; '.join(remarks[:MOST_NAMED])}{more}; {MEND}"
    return texts


def _hows(mu_C: Array, sigma_C: Array, mu_JC: Array, sigma_JC: Array) -> list[str]:
    """By channel of one site, how it is unlike those of most other sites, "" if it is not."""
    tells = (sigma_C > _noise(mu_C)) & (sigma_JC > _noise(mu_JC))
    tells &= ~(_is_binary(mu_C, sigma_C) & _is_binary(mu_JC, sigma_JC))
    scale_JC = np.where(tells, sigma_JC, 1.0)
    apart_JC, times_JC = np.abs(mu_C - mu_JC) / scale_JC, sigma_C / scale_JC
    far = tells & (apart_JC > APART)
    unlike_JC = far | (tells & ((times_JC > TIMES) | (times_JC < 1 / TIMES)))
    apart_C, times_C = np.median(apart_JC, 0), np.median(times_JC, 0)
    return [
        ""
        if 2 * unlike_JC[:, c].sum() <= len(mu_JC)
        else f"has a mean {apart_C[c]:.3g} of the other sites' standard deviations away from theirs (median)"
        if 2 * far[:, c].sum() > len(mu_JC)
        else f"has {times_C[c]:.3g} times the other sites' standard deviation (median)"
        for c in range(len(mu_C))
    ]


def _noise(mean: Array) -> Array:
    """A deviation that is no more than the rounding of a mean."""
    return 1e-6 * np.abs(mean)


def _is_binary(mean: Array, deviation: Array) -> Array:
    """Whether these are of zeros and ones."""
    return np.abs(deviation**2 - mean * (1 - mean)) < 1e-4


def _called(hello: Hello, channel: int) -> str:
    """What a channel is called: by its column or input, where the site has told its name."""
    if hello.layout:
        return hello.layout.called(channel)
    columns = [name for name, became in hello.form for _ in range(_width(became))]
    return f"column '{columns[channel]}'" if len(columns) == hello.shape[0] else f"channel {channel}"


def _width(became: str) -> int:
    """How many columns of numbers a column of a table became: as many as it has words, but one for two."""
    words = 1 if became == NUMBERS else int(became.partition(" ")[0]) if became[:1].isdigit() else 0
    return 1 if words == 2 else words
