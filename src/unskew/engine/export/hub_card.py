"""README.md of a folder for the Hugging Face Hub: what its pages read in front of a card, and the card."""

from __future__ import annotations

import re
from typing import Any

from unskew import documents, specs
from unskew.engine import card
from unskew.engine.disk.record import Record
from unskew.engine.disk.state import State
from unskew.engine.predictions import Trained
from unskew.errors import UsageError, excerpt, suggestion

UNKNOWN = "unknown"
LICENSES = (
    UNKNOWN, "other", "apache-2.0", "mit", "openrail", "bigscience-openrail-m", "creativeml-openrail-m", "afl-3.0",
    "artistic-2.0", "bsl-1.0", "bsd", "bsd-2-clause", "bsd-3-clause", "bsd-3-clause-clear", "c-uda", "cc", "cc0-1.0",
    "cc-by-2.0", "cc-by-2.5", "cc-by-3.0", "cc-by-4.0", "cc-by-sa-3.0", "cc-by-sa-4.0", "cc-by-nc-2.0", "cc-by-nc-3.0",
    "cc-by-nc-4.0", "cc-by-nd-4.0", "cc-by-nc-nd-3.0", "cc-by-nc-nd-4.0", "cc-by-nc-sa-2.0", "cc-by-nc-sa-3.0",
    "cc-by-nc-sa-4.0", "cdla-sharing-1.0", "cdla-permissive-1.0", "cdla-permissive-2.0", "wtfpl", "ecl-2.0", "epl-1.0",
    "epl-2.0", "etalab-2.0", "eupl-1.1", "eupl-1.2", "agpl-3.0", "gfdl", "gpl", "gpl-2.0", "gpl-3.0", "lgpl", "lgpl-2.1",
    "lgpl-3.0", "isc", "lppl-1.3c", "ms-pl", "mpl-2.0", "odc-by", "odbl", "osl-3.0", "postgresql", "ofl-1.1", "ncsa",
    "unlicense", "zlib", "pddl",
)  # fmt: skip
"""What the hub calls licences: SPDX's names in small letters, without -only and -or-later."""


def checked(license: str) -> str:
    """The hub's name of a licence, "unknown" where none is given. Raises UsageError (E109) for one that it does not know."""
    name = re.sub(r"-(only|or-later)$", "", license.strip().lower()) or UNKNOWN
    if name not in LICENSES:
        text = f"the hub knows no licence {excerpt(license)}.{suggestion(name, LICENSES)}"
        raise UsageError(
            "E109", f"{text} Write SPDX's name, such as apache-2.0, or 'other' and say in README.md which."
        )
    return name


def text_of(trained: Trained, record: Record, now: State, license: str) -> str:
    """The whole file. license: as the hub calls it."""
    run = trained.run
    front = documents.dump(_front(trained, record, now, license))
    body = card.card(run, record, now).replace(
        "How to use it: `unskew.load(RUN)`, `unskew predict RUN INPUT`.",
        "How to use it, with unskew installed: download this folder, then `unskew.load(FOLDER).predict(x)` or "
        "`unskew predict FOLDER INPUT`.",
    )
    if license == UNKNOWN:
        body += "\n## Licence\n\nWhoever exported this model has not said under which licence it may be used.\n"
    return f"---\n{front}---\n\n{body}"


def _front(trained: Trained, record: Record, now: State, license: str) -> dict[str, Any]:
    """The facts in front. Data sets are named in the model-index alone: the hub would take a name in `datasets` for a
    link to whichever set there has it."""
    run, federation = trained.run, trained.run.federation
    task = _task(run.task.name, len(federation.shape))
    held = "validation" if run.settings.validation else "test"
    data = {"name": federation.name, "type": re.sub(r"[^a-z0-9._-]+", "-", federation.name.lower()).strip("-") or "own"}
    metrics = [
        _metric(run.task.main_score, scope, metric, value)
        for scope, metric, value in card.last_scores(record, now.t)
        if metric != "std"  # which says how far scores lie apart, and is none
    ]
    results = [{"task": {"type": task}, "dataset": {**data, "split": held}, "metrics": metrics}] if metrics else []
    name = f"{specs.without_folders(str(run.method))} on {federation.name}"
    return {
        "license": license,
        "library_name": "unskew",
        **({"pipeline_tag": task} if task != "other" else {}),
        "tags": ["federated-learning", "unskew"],
        "metrics": sorted({entry["type"] for entry in metrics}),
        **({"model-index": [{"name": name, "results": results}]} if results else {}),
    }


def _metric(main: str, scope: str, metric: str, value: float) -> dict[str, Any]:
    """One score. main: of which score `mean` and `worst` are over clients."""
    over = metric in ("mean", "worst")
    name = f"{metric} {main}" if over else metric
    return {"type": main if over else metric, "name": f"{name}, {scope}", "value": float(value)}


def _task(task: str, axes: int) -> str:
    """What the hub calls a task. axes: of a sample."""
    if task in ("classification", "multilabel"):
        return {1: "tabular-classification", 3: "image-classification"}.get(axes, "other")
    if task == "regression" and axes == 1:
        return "tabular-regression"
    return {"segmentation": "image-segmentation", "tokens": "token-classification"}.get(task, "other")
