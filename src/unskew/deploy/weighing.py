"""How much each site weighs in a run, shown at the coordinator before round 1; and who cannot be believed to hold so much.

Letters: K sites.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from unskew.config import Settings
from unskew.core.method import Method
from unskew.core.replies import capped
from unskew.deploy.hello import Hello

MOST_LINES = 30
DECISIVE = 0.5
"""A site with more of the weight than this decides alone what the model becomes."""
MOST_TIMES, LEAST_DOUBTED = 1000, 100_000
"""A number of samples is doubted if it is so many times the median of the other sites', and at least so large."""


def boasts(hellos: Sequence[Hello], bounds: Mapping[str, int]) -> dict[str, str]:
    """By site whose number of samples is out of all proportion to the other sites', what it says, as a sentence
    without its full stop.

    What some methods share grows with the largest number, so a single false one makes every honest site refuse. bounds:
    a number that was agreed with its site is not doubted.
    """
    texts: dict[str, str] = {}
    for hello in hellos:
        others = [h for h in hellos if h is not hello]
        for what, number, usual in (
            ("training", hello.train, median([h.train for h in others] or [hello.train])),
            ("test", hello.test, median([h.test for h in others] or [hello.test])),
        ):
            if hello.site not in bounds and number >= LEAST_DOUBTED and number > MOST_TIMES * usual:
                claim = f"{hello.site} says it holds {number:,} {what} samples, the other sites {usual:,g} (median)"
                texts[hello.site] = claim
    return texts


def weighing(hellos: Sequence[Hello], method: Method, settings: Settings, bounds: Mapping[str, int]) -> list[str]:
    """A line for each site that trains: its samples, the bound on them, its weight if all answer; and a warning."""
    training = [h for h in hellos if h.train]
    equal = settings.weighting == "equal" or method.weighting == "equal"
    total = sum(h.train for h in training)
    raw_K = [1 / len(training) if equal else h.train / total for h in training]
    weight_K = capped(raw_K, settings.cap)
    lines = [
        f"{'weights' if not i else '':<7} {h.site:<20} {h.train:>13,} samples {_bound(h, bounds):<22} {p:>6.1%}{_cut(p, raw)}"
        for i, (h, p, raw) in enumerate(zip(training[:MOST_LINES], weight_K, raw_K))
    ]
    if len(training) > MOST_LINES:
        lines.append(f"        and {len(training) - MOST_LINES} more sites")
    largest = max(range(len(training)), key=lambda k: weight_K[k])
    if len(training) > 1 and weight_K[largest] > DECISIVE + 1e-9:
        site = training[largest].site
        lines.append(f"        {site} outweighs all others together; --cap 0.5 or --weighting equal limits it.")
    return lines


def _bound(hello: Hello, bounds: Mapping[str, int]) -> str:
    return f"(at most {bounds[hello.site]:,})" if hello.site in bounds else "(no bound)"


def _cut(weight: float, raw: float) -> str:
    return f", cut from {raw:.1%}" if raw > weight + 1e-9 else ""
