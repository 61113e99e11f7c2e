"""Where a score is taken: one model on one test set, or models at clients on the clients' own test rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Scope:
    """key: as in metrics.jsonl. metric: what the score's series over rounds is called there; "" for the score's own name."""

    key: str
    metric: str
    title: str
    meaning: str


GLOBAL = Scope("global", "", "Global", "The global model on the global test set")
AT_CLIENTS = (
    Scope("global@client", "mean", "Global at clients", "The global model on each client's own test rows"),
    Scope(
        "personal@client",
        "mean",
        "Personal",
        "Each client's own model, with the weights that it keeps to itself, on its own test rows",
    ),
)


def scopes(federation: Mapping[str, Any]) -> tuple[Scope, ...]:
    """As federation.json says they were scored: without a common test set the global model's score is pooled over clients."""
    pooled = federation.get("test") == 0 and any(federation.get("sizes", {}).get("test", ()))
    first = replace(GLOBAL, meaning="The global model on all clients' own test rows together") if pooled else GLOBAL
    return first, *AT_CLIENTS
