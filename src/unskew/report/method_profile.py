"""Facts about a method that its Part states before a run, for the table of all methods and its filters.

The costs of methods relative to FedAvg are read from `methods/costs.csv`, which `tools/costs.py` measures.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from typing import Any, get_args

from unskew.core.client import Fed
from unskew.core.method import part_roles, sum_problem
from unskew.core.part import HOOKS, Part, overrides
from unskew.core.shares import Kind, Share

COSTS_FILE = "costs.csv"


@dataclass(frozen=True)
class Cost:
    """The cost of a round as multiples of FedAvg's.

    up, down: bytes from and to clients. computing: operations of the clients.
    """

    up: float
    down: float
    computing: float


@cache
def costs() -> dict[str, Cost]:
    """The cost of every method of this package, by name."""
    text = (resources.files("unskew.methods") / COSTS_FILE).read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    return {row["method"]: Cost(*(float(row[name]) for name in ("up", "down", "computing"))) for row in rows}


SCORES_FILE = "scores.csv"
FAR_BELOW = 5.0
"""Points below FedAvg from which on a method's page says so."""


@dataclass(frozen=True)
class Score:
    """A method's score at its default in benchmarks/methods.yaml, in percent, and FedAvg's.

    seeds: the number of seeds. why: the reason for a low score, as a sentence, written by hand; "" for none.
    """

    score: float
    fedavg: float
    seeds: int
    why: str = ""

    @property
    def is_far_below(self) -> bool:
        """Whether it is more than FAR_BELOW points below FedAvg's."""
        return self.score < self.fedavg - FAR_BELOW


@cache
def scores() -> dict[str, Score]:
    """The measured methods of this package, by name; methods without a measurement are absent."""
    text = (resources.files("unskew.methods") / SCORES_FILE).read_text(encoding="utf-8")
    return {
        row["method"]: Score(float(row["score"]), float(row["fedavg"]), int(row["seeds"]), row["why"])
        for row in csv.DictReader(text.splitlines())
    }


PLACES = {
    "data": ("batch", "tap", "normalises"),
    "model": ("model", "weights", "keeps", "freezes"),
    "loss": ("logits", "loss"),
    "steps": ("starts", "grad", "perturb", "sample_grad", "holds", "carry"),
    "merge": ("merge", "protect", "sends"),
    "messages": ("encode",),
    "server": ("server", "refine", "dispatch"),
    "prediction": ("evaluate_with", "scores", "personalise"),
}
"""By kind of change, the hooks that make it."""
_PAPER = re.compile(r"\(([^()]*\b(?:19|20)\d\d\b[^()]*|[^()]*arXiv[^()]*)\)")
_YEAR = re.compile(r"\b(20[0-2]\d)\b")


@dataclass(frozen=True)
class Profile:
    """A Part in a run like `fed`. summary: the first line of its file. A Part without a name is FedAvg."""

    part: Part
    fed: Fed
    summary: str

    @property
    def year(self) -> str:
        """The year of its paper, or "" if the summary has none."""
        match = _YEAR.search(re.sub(r"arXiv \S+", "", self.summary))
        return match.group(1) if match else ""

    @property
    def paper(self) -> str:
        """Authors, venue and arXiv number in the summary, or ""."""
        match = _PAPER.search(self.summary)
        return match.group(1) if match else ""

    @cached_property
    def shares(self) -> list[Share]:
        """All Shares that leave a client besides the weights, with those of its trips."""
        trips = [share for trip in self.part.trips for share in trip.shares(self.fed).values()]
        return [*self.part.shares(self.fed).values(), *trips]

    @property
    def kinds(self) -> list[str]:
        """The kinds of its Shares, from the least to the most disclosing."""
        return sorted({share.discloses for share in self.shares}, key=get_args(Kind).index)

    @property
    def leaves(self) -> set[str]:
        """The kinds of all that leaves a client, including the weights."""
        encoded = self.part.encoded(self.fed).values()
        return {
            *self.kinds,
            *(share.discloses for share in encoded),
            *(["weights"] if self.fed.shared else []),
        }

    @property
    def fewest(self) -> int | None:
        """The fewest samples behind a number that leaves; None if all of a class or client are."""
        shares = [*self.shares, *self.part.encoded(self.fed).values()]
        return min((share.samples for share in shares if isinstance(share.samples, int)), default=None)

    @property
    def reads(self) -> str:
        """Whether the server reads "sums" over clients or the shares of "each"."""
        single = self.part.weights_read == "each" or overrides(self.part, "encode")
        return "each" if single or any(share.reads == "each" for share in self.shares) else "sums"

    @property
    def summed(self) -> bool:
        """Whether secure aggregation can serve it."""
        return sum_problem(self.part, self.fed) is None

    @property
    def hands_on(self) -> str:
        """The data of single clients that the server passes on to others; "" if none."""
        return self.part.handed_on

    @property
    def roles(self) -> list[str]:
        """The roles that no other Part of a method with this one may have."""
        return part_roles(self.part)

    @property
    def changes(self) -> list[str]:
        """The places in which it differs from FedAvg, as in PLACES."""
        hooks = {hook for hook in HOOKS if overrides(self.part, hook)}
        if self.part.normalises:
            hooks.add("normalises")
        places = [place for place, names in PLACES.items() if hooks & set(names)]
        if not places and self.part.trips:  # the server uses its messages
            return ["server"]
        return places

    @property
    def cost(self) -> Cost | None:
        """The cost of a round as multiples of FedAvg's; None if it was not measured."""
        return costs().get(self.part.name) if self.part.name else Cost(1.0, 1.0, 1.0)

    def as_json(self) -> dict[str, Any]:
        """The profile as plain values."""
        cost = self.cost
        return {
            "about": self.summary,
            "year": int(self.year) if self.year else None,
            "paper": self.paper,
            "family": self.part.family,
            "against": list(self.part.against),
            "tasks": list(self.part.tasks),
            "changes": self.changes,
            "shares": self.kinds,
            "sends_weights": bool(self.fed.shared),
            "least_samples": self.fewest,
            "reads": self.reads,
            "secure_aggregation": self.summed,
            "hands_on": self.hands_on,
            "exchanges": len(self.part.trips),
            "bytes_up": cost.up if cost else None,
            "bytes_down": cost.down if cost else None,
            "computing": cost.computing if cost else None,
            "roles": self.roles,
            "use_when": self.part.use_when,
        }
