"""model.md: a card with the facts on a run's model for its users, in Markdown. Equal runs have equal
cards."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from unskew.core.account import guarantee_text
from unskew.core.part import Part
from unskew.data import registry
from unskew.errors import UnskewError
from unskew.formats.markdown import escape_markdown, table
from unskew.formats.specs import without_folders
from unskew.records import client_lists
from unskew.records.checkpoints import State, digest
from unskew.records.record import Record
from unskew.round.run import Run
from unskew.runs.coverage import SCOPES
from unskew.version import revision

FILE = "model.md"


def card_text(run: Run, record: Record, now: State) -> str:
    """The text of model.md. now: the state after the last round."""
    federation, settings = run.federation, run.settings
    samples, tested = int(federation.sizes.sum()), int(federation.test_sizes.sum()) or len(federation.y_test)
    lines = [
        f"# {escape_markdown(without_folders(str(run.method)))} on {escape_markdown(federation.name)}",
        "",
        "How to use it: `unskew.load(RUN)`, `unskew predict RUN INPUT`.",
        "",
    ]
    lines += _table(
        ("", ""),
        [
            ("task", run.task.name),
            ("target" if federation.target else "classes", ", ".join(federation.classes)),
            ("one sample", f"{federation.layout or list(federation.shape)}"),
            ("model", without_folders(settings.model)),
            ("parameters", f"{sum(t.numel() for t in now.weights.values()):,}"),
            ("rounds", f"{now.t} of {settings.rounds}, {settings.epochs} local epochs each"),
            *([] if _is_noisy(run) else [("seed", settings.seed)]),
            ("weights", f"SHA-256 {digest(now.weights)}"),
        ],
    )
    lines += ["## Data", ""]
    lines += _table(
        ("", ""),
        [
            ("set", federation.name),
            (
                "source and licence",
                _data_source(settings.data) or "not known to unskew; whoever trained the model knows",
            ),
            ("samples", f"{samples:,} for training, {tested:,} for the scores below"),
            ("clients", f"{federation.clients:,}, divided by {federation.skew}"),
            ("who answers", without_folders(settings.availability)),
        ],
    )
    scored = "the test set" if federation.common_test else "the clients' own test samples"
    scored = "training samples held out" if settings.validation else scored
    lines += ["## Scores", "", f"Of the last evaluated round, on {scored}.", ""]
    lines += [
        *_table(
            ("scope", "score", "value"), ((*name, f"{v:.4f}") for *name, v in last_scores(record, now.t))
        ),
        "## What left the clients",
        "",
    ]
    lines += _table(("payload", "discloses", "read", "guarantee", "bytes of all clients"), _payloads(record))
    if record.privacy:
        lines += _table(("noise of", "differential privacy"), _guarantees(record))
    return "\n".join([*lines, "## Versions", "", f"unskew {revision()}, torch {torch.__version__}.", ""])


def _data_source(data: str) -> str:
    """The source and licence of a named data set; "" for a user's own data."""
    try:
        name, _ = registry.place_of(data)
    except UnskewError:
        return ""
    return str(importlib.import_module(f"unskew.data.sets.{name}").SOURCE) if name in registry.names() else ""


def last_scores(record: Record, t: int) -> list[tuple[str, str, float]]:
    """(scope, metric, value) of each score over all clients, of the last evaluated round up to round t."""
    named = [(scope, metric) for scope in SCOPES for metric in record.metrics(scope)]
    rows = {name: [row for row in zip(*record.series(*name)) if row[0] <= t] for name in named}
    last = max((series[-1][0] for series in rows.values() if series), default=0)
    return [(*name, series[-1][1]) for name, series in rows.items() if series and series[-1][0] == last]


def _payloads(record: Record) -> list[tuple[Any, ...]]:
    """A row for each payload that clients sent."""
    rows: dict[str, Mapping[str, Any]] = {}
    sizes: dict[str, int] = {}
    for row in record.rows["ledger"]:
        if row["way"] == "up":
            rows[row["share"]] = row
            sizes[row["share"]] = sizes.get(row["share"], 0) + client_lists.total_bytes(row)
    return [
        (
            _share_text(name, row.get("encoded")),
            row["kind"],
            row["reads"],
            row["guarantee"],
            f"{sizes[name]:,}",
        )
        for name, row in rows.items()
    ]


def _is_noisy(run: Run) -> bool:
    """Whether a guarantee rests on noise, which anybody who has the seed of a simulation can remove."""
    return any(type(part).account is not Part.account for part in run.method.parts)


def _guarantees(record: Record) -> list[tuple[str, str]]:
    """A row for each reading of each account."""
    return [
        (f"{name} ({account['release']})", guarantee_text(reading))
        for name, account in record.privacy.items()
        for reading in account["epsilons"]
    ]


def _share_text(share: str, encoded: str | None) -> str:
    name = "weights" if share == "w" else share
    return f"{name}, encoded by {encoded}" if encoded else name


def _table(head: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> list[str]:
    """The lines of a table and an empty line."""
    return [table(head, ([escape_markdown(str(value)) for value in row] for row in rows)), ""]
