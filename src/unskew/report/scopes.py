"""Where a score is taken: one model on one test set, or models at clients on the clients' own test rows."""

from __future__ import annotations

from dataclasses import dataclass


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
SCOPES = (GLOBAL, *AT_CLIENTS)
