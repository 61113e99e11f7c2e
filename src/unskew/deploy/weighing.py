"""How much each site weighs in a run, shown at the coordinator before round 1.

Letters: K sites.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from unskew.config import Settings
from unskew.core.method import Method
from unskew.core.replies import capped
from unskew.deploy.hello import Hello

MOST_LINES = 30
DECISIVE = 0.5
"""A site with more of the weight than this decides alone what the model becomes."""


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
