"""A site's model of a run, from its own folder: the last received weights with the site's private state.

`SITE/runs/NUMBER/` contains the run's setup, the last weights received for training or scoring, and the
site's private state. No code is read from it: a model or a method in a Python file is taken from the
caller's file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unskew import config
from unskew.core.trees import Tree
from unskew.data.clients.federation import RemoteFederation
from unskew.data.samples.dataset import Dataset
from unskew.errors import StateError, UnskewError, UsageError, printable
from unskew.federation.protocol.study_rules import SiteView, prepare
from unskew.federation.site.file_names import RECEIVED, REMOVED, SETUP, private_file
from unskew.federation.site.run_folder import OWNER, Owner, owner_facts
from unskew.federation.site.site_folder import SiteFolder
from unskew.federation.site.site_ledger import HEADER_SHARE, LEDGER_FILE, RunLedger, SiteLedger
from unskew.records import checkpoints
from unskew.records.private_state import MemoryStore
from unskew.records.record import Record
from unskew.records.rows import Row, scope_row
from unskew.round.clients import Broadcast
from unskew.round.run import Run
from unskew.runs.assemble import trainer_of
from unskew.runs.predictions import TrainedRun
from unskew.runs.reopen import UserCode, check_weights, rebuild

SCOPE_OF_WEIGHTS = {"global": "global@client", "kept": "personal@client", "personal": "personal@client"}
"""The scope of a score by the kind of weights at the site."""


@dataclass(frozen=True)
class SiteModel:
    """A site's model. trained: makes predictions.

    client: number of the client with this personal model, None if the method has only the global one. site:
    its name. record: its last scores and what has left it. kept: the round of its private state, 0 for
    none.
    """

    trained: TrainedRun
    client: int | None
    site: str
    record: Record
    kept: int


def open_site_model(path: Path, code: UserCode, data: Dataset | None = None) -> SiteModel:
    """The model in a site's folder of a run. data: the site's own set, from which some methods make its
    model.

    Raises StateError: E155 before a model was received, E156 if the model cannot be built from the arguments,
    E201 for damaged files, missing private state or a file of another owner, E111 for an altered
    folder. Raises UsageError (E131) if the data differ in number from those that the site trained on.
    """
    first, facts = checkpoints.read(path / SETUP)
    try:
        tree, received = checkpoints.read(path / RECEIVED)
    except FileNotFoundError:
        text = f"{path} holds no model that came after training: the first comes as round 2 begins"
        raise StateError("E155", f"{text}; wait for it, or for the run's end.") from None
    try:
        settings, k, t = config.build(dict(facts["settings"])), int(facts["k"]), int(received["t"])
        site = printable(str(received["site"]))[:64]
        owner = _owner(path, received, site, settings.method)
        owner.check(path / SETUP, facts)
        federation, largest = _federation(received, k, site), int(facts["largest"])
        start = Broadcast(t, float(received["lr"]), {**first["w"], **tree.get("w", {})}, tree.get("down", {}))
        base = int(received["base"])
    except StateError:
        raise  # which names the file
    except (KeyError, TypeError, ValueError, AttributeError, UnskewError) as error:
        what = error.text if isinstance(error, UnskewError) else type(error).__name__
        raise StateError(
            "E111", f"{path} cannot be read as a site's run ({what}); put back what the site wrote."
        ) from None
    seen = _with_samples(federation, k, prepare(data, settings), largest) if data else federation
    run = rebuild(path, seen, {}, settings, code)
    check_weights(path, run, start.weights)
    start = Broadcast(t, start.lr, {n: start.weights[n] for n in run.fed.net.weights()}, start.down)
    store = MemoryStore()
    private = _private(path, base, owner)
    store.put(t, {k: private})
    scope = k if _has_personal_model(run) else None
    return SiteModel(TrainedRun(run, start, store), scope, site, _record(path, k, t), base if private else 0)


def _has_personal_model(run: Run) -> bool:
    """True if sites have models of their own, by private state or by a Part that changes the model's use at a
    site.
    """
    trainer = trainer_of(run)
    try:
        kept = bool(trainer.kept or not trainer.sent) or any(part.personal for part in run.method.parts)
        return kept or bool(trainer.hooks["evaluate_with"] or trainer.hooks["scores"])
    finally:
        trainer.close()


def _federation(received: Mapping[str, Any], k: int, site: str) -> RemoteFederation:
    """The clients of the run, of which only this site is known."""
    names = [f"site {i}" for i in range(int(received["federation"]["clients"]))]
    names[k] = site
    return RemoteFederation.from_facts(received["inputs"], {**received["federation"], "names": names})


def _with_samples(known: RemoteFederation, k: int, data: Dataset, largest: int) -> SiteView:
    """The federation with this site's samples. Raises UsageError (E131) for a set of another form or size."""
    view = SiteView.of(data, k, known.clients, largest)
    form, known_form = ((f.shape, f.classes, f.layout, f.target) for f in (view, known))
    counted = view.label_counts[k].tolist(), known.label_counts[k].tolist()
    if form != known_form or counted[0] != counted[1]:
        text = f"{data.name} holds {len(data.y)} training samples"
        text += (
            f" of {list(view.shape)}, by class {counted[0]}; {known.name_of(k)} trained on {known.sizes[k]}"
            f" of {list(known.shape)}, {counted[1]}"
        )
        raise UsageError("E131", f"{text}; give the data with which the site took part.")
    return replace(view, names=known.names)


def _owner(path: Path, received: Mapping[str, Any], site: str, method: str) -> Owner:
    """The owner: this site and run in a site's folder, else as recorded in the weights. Raises StateError
    (E201) if they are another owner's.
    """
    number = str(owner_facts(received).get("run", path.name))
    ticket = path.parent.parent / "ticket.json"
    if path.parent.name == "runs":
        here = SiteFolder.open(path.parent.parent).ticket.site if ticket.is_file() else site
        Owner(path.name, here, method).check(
            path / RECEIVED, {OWNER: {"run": number, "site": site, "method": method}}
        )
    owner = Owner(number, site, method)
    owner.check(path / RECEIVED, received)
    return owner


def _private(path: Path, base: int, owner: Owner) -> Tree:
    """The private state after round `base`. Raises StateError (E201) if it was removed or is another
    owner's.
    """
    file = private_file(path, base)
    if file.is_file():
        return owner.of(file)
    if base and ((path / REMOVED).exists() or any(path.glob("private-*.safetensors"))):
        raise StateError(
            "E201", f"the private state after round {base} is not in {path} any more; copy it back there."
        )
    return {}


def _record(path: Path, k: int, t: int) -> Record:
    """The site's last scores on its own test samples, and what has left it, as rows; empty if they cannot be
    read.
    """
    record, number = Record(), path.name
    try:
        ledger = SiteLedger.read(path.parent.parent).runs[number]
        rows = [
            json.loads(line)
            for line in (path / LEDGER_FILE).read_text().splitlines(keepends=True)
            if line[-1:] == "\n"
        ]
        record.add("metrics", _scores(rows, ledger.metrics, t))
        record.add("ledger", [_ledger_row(row, ledger, k) for row in rows])
    except (UnskewError, OSError, KeyError, TypeError, ValueError, AttributeError):
        return Record()
    return record


def _scores(rows: list[Row], metrics: list[str], t: int) -> list[Row]:
    """The scores of the last answer with scores."""
    last = {row["share"]: row["values"] for row in rows if "values" in row and row["t"] == t}
    scores: dict[tuple[str, str], float] = {}
    for share, values in sorted(last.items()):
        scope, _, metric = share.partition("/")[2].partition(".")
        for name, value in zip([metric] if metric else metrics, values):
            scores[SCOPE_OF_WEIGHTS[scope], name] = float(value)
    return [scope_row(t, scope, metric, value) for (scope, metric), value in scores.items()]


def _ledger_row(row: Row, ledger: RunLedger, k: int) -> Row:
    """A row of the site's ledger in the form of a run's ledger. Readers and guarantees are listed in
    leaves.txt.
    """
    share = "w" if row["share"] == "weights" else str(row["share"])
    kind = (
        "statistics"
        if share == HEADER_SHARE or share.startswith("score/")
        else ledger.kinds.get(row["share"], "")
    )
    facts = {
        "t": int(row["t"]),
        "way": "up",
        "share": share,
        "clients": [k],
        "bytes": int(row["bytes"]),
        "kind": kind,
    }
    return {**facts, "reads": "leaves.txt", "guarantee": "leaves.txt"}
