"""A site's model of a run, from its own folder: the last received weights with the site's private state.

`SITE/runs/NUMBER/` contains the run's setup, the last weights received for training or scoring, and the
site's private state. No code is read from it: a model or a method in a Python file is taken from the
caller's file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from unskew import config
from unskew.core.trees import Tree
from unskew.data.clients.federation import RemoteFederation
from unskew.data.samples.dataset import Dataset
from unskew.errors import StateError, UnskewError, UsageError, printable
from unskew.federation.protocol.study_rules import SiteView, prepare
from unskew.federation.site.local_run import PRIVATE, RECEIVED, SETUP, STATELESS
from unskew.records import checkpoints
from unskew.records.private_state import MemoryStore
from unskew.round.clients import Broadcast
from unskew.round.run import Run
from unskew.runs.assemble import trainer_of
from unskew.runs.predictions import TrainedRun
from unskew.runs.reopen import UserCode, rebuild


@dataclass(frozen=True)
class SiteModel:
    """A site's model. trained: makes predictions.

    client: number of the client with this personal model, None if the method has only the global one. site:
    its name. kept: the round of its private state, 0 for none.
    """

    trained: TrainedRun
    client: int | None
    site: str
    kept: int


def open_site_model(path: Path, code: UserCode, data: Dataset | None = None) -> SiteModel:
    """The model in a site's folder of a run. data: the site's own set, from which some methods make its
    model.

    Raises StateError: E155 before a model was received, E156 if the model cannot be built from the arguments,
    E201 for damaged files or missing private state, E111 for an altered folder. Raises UsageError (E131) if
    the data differ in number from those that the site trained on.
    """
    first, facts = checkpoints.read(path / SETUP)
    try:
        tree, received = checkpoints.read(path / RECEIVED)
    except FileNotFoundError:
        text = f"{path} holds no model that came after training: the first comes as round 2 begins"
        raise StateError("E155", f"{text}; wait for it, or for the run's end.") from None
    try:
        settings, k, t = config.from_dict(dict(facts["settings"])), int(facts["k"]), int(received["t"])
        site = printable(str(received["site"]))[:64]
        names = [f"site {i}" for i in range(int(received["federation"]["clients"]))]
        names[k] = site  # the only one that is known
        form = {**received["federation"], "names": names}
        federation = RemoteFederation.from_facts(received["inputs"], form)
        largest, lr, base = int(facts["largest"]), float(received["lr"]), int(received["base"])
        weights, down = {**first["w"], **tree.get("w", {})}, tree.get("down", {})
    except (KeyError, TypeError, ValueError, AttributeError, UnskewError) as error:
        what = error.text if isinstance(error, UnskewError) else type(error).__name__
        raise StateError(
            "E111", f"{path} cannot be read as a site's run ({what}); put back what the site wrote."
        ) from None
    seen = _with_samples(federation, k, prepare(data, settings), largest) if data else federation
    run = rebuild(path, seen, {}, settings, code, weights)
    start = Broadcast(t, lr, {n: weights[n] for n in run.fed.net.weights()}, down)
    store = MemoryStore()
    private = _private(path, base)
    store.put(t, {k: private})
    scope = k if _has_personal_model(run) else None
    return SiteModel(TrainedRun(run, start, store), scope, site, base if private else 0)


def _has_personal_model(run: Run) -> bool:
    """True if sites have models of their own, by private state or by a Part that changes its use."""
    trainer = trainer_of(run)
    try:
        kept = bool(trainer.kept or not trainer.sent) or any(part.personal for part in run.method.parts)
        return kept or bool(trainer.hooks["evaluate_with"] or trainer.hooks["scores"])
    finally:
        trainer.close()


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


def _private(path: Path, base: int) -> Tree:
    """The private state after round `base`. Raises StateError (E201) if it was removed."""
    file = path / PRIVATE.format(base)
    if file.is_file():
        return checkpoints.read(file)[0]
    if base and not (path / STATELESS).exists():
        text = f"the private state after round {base} is not in {path} any more; copy it back there."
        raise StateError("E201", text)
    return {}
