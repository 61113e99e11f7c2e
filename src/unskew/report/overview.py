"""One table of all methods, made from their code: what each changes, what it sends, and when to take it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import get_args

from unskew.core.client import Fed
from unskew.core.part import HOOKS, Part, overrides
from unskew.core.values import Kind
from unskew.markdown import table

PLACES = {
    "data": ("batch", "tap", "normalises"),
    "model": ("model", "weights", "keeps", "freezes"),
    "loss": ("logits", "loss"),
    "steps": ("starts", "grad", "perturb", "sample_grad", "holds"),
    "merge": ("merge", "protect", "sends"),
    "messages": ("encode",),
    "server": ("server", "refine", "dispatch"),
    "prediction": ("evaluate_with", "scores", "personalise"),
}
"""What a method changes, and the hooks by which it does."""
HEAD = (
    "method", "since", "changes", "sends beside the weights", "read", "exchanges more", "tasks", "when to take it",
)  # fmt: skip


def page(methods: Mapping[str, tuple[Part, Fed, str]]) -> str:
    """The page as Markdown. methods: by name a Part, what it knows of a small run, and the first line of its file."""
    rows = [_row(name, *facts) for name, facts in sorted(methods.items())]
    return (
        "\n\n".join(
            [
                "# All methods",
                "Any of them can be combined with others, `fedrep+fedrdn+fedadam`; what makes no sense together is refused in one "
                "sentence. FedAvg is what is left without any.",
                table(HEAD, rows),
                "**changes**: where a method differs from FedAvg: the data a step trains on, the model, the loss, the local steps, "
                "the merge, the form in which weights are sent, what else the server does, the prediction. **read**: whether the server reads only sums over clients, "
                "which secure aggregation can give without showing any client's own, or each client's own. **exchanges more**: "
                "messages beside the one of a round's training, by what sets them off. **tasks**: c classification, s segmentation, r regression. "
                "A name leads to the method's page, with its equations, settings and bytes; `unskew explain METHOD` says the same "
                "of your own data and model.",
            ]
        )
        + "\n"
    )


def _row(name: str, part: Part, fed: Fed, summary: str) -> tuple[str, ...]:
    shares = {**part.shares(fed), **{leaf: s for trip in part.trips for leaf, s in trip.shares(fed).items()}}
    kinds = sorted({s.discloses for s in shares.values()}, key=get_args(Kind).index)
    each = part.weights_read == "each" or overrides(part, "encode") or any(s.reads == "each" for s in shares.values())
    year = re.search(r"\b(20[0-2]\d)\b", re.sub(r"arXiv \S+", "", summary))
    presets = "".join(f", `{preset}`" for preset in part.presets)
    return (
        f"[`{name}`](methods/{name}.md){presets}",
        year.group(1) if year else "",
        ", ".join(changes(part)),
        ", ".join(kinds if fed.shared else [*kinds, "no weights"]),
        "each" if each else "sums",
        str(len(part.trips)) if part.trips else "",
        "".join(task[0] for task in part.tasks),
        part.use_when,
    )


def changes(part: Part) -> list[str]:
    """Where a Part differs from FedAvg, as in PLACES."""
    own = {hook for hook in HOOKS if overrides(part, hook)} | ({"normalises"} if part.normalises else set())
    places = [place for place, hooks in PLACES.items() if own & set(hooks)]
    return places or ["server"] * bool(part.trips)  # what comes of its messages
