"""The scenes of attacks on a coordinator's run. With all sites' samples the rounds are recomputed; with some,
only the merged model is attacked.

The folder may be untrusted: nothing that it names is run, and no file that it names is read as Python.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unskew import config
from unskew.attacks.scene import NO_CODE, SUMS_ONLY, RecordingExchange, Scene, last_checkpoint, settings_of
from unskew.config import Settings
from unskew.core.method import Method
from unskew.core.part import Part, Trip
from unskew.core.replies import Reply
from unskew.core.trees import Tree
from unskew.data.clients.federation import Federation
from unskew.data.clients.partition import Index
from unskew.data.samples.dataset import Dataset
from unskew.errors import StateError, UsageError
from unskew.federation.protocol.hello import Hello, data_difference, form_difference
from unskew.federation.protocol.study_rules import (
    SITES,
    check_metrics_not_own,
    check_not_from_a_file,
    prepare,
)
from unskew.federation.site_data import load
from unskew.methods import registry
from unskew.models import hf_folder as folders
from unskew.records import client_lists
from unskew.records.checkpoints import Checkpoint, digest
from unskew.records.private_state import DiskStore, MemoryStore
from unskew.round.clients import Broadcast
from unskew.round.trainer import Trainer
from unskew.runs.reopen import SITES_FILE, UserCode, check_model, check_weights
from unskew.runs.resolve import run_on
from unskew.runs.run_folder import RunFolder
from unskew.system import disk
from unskew.system.python_files import one_line


class SiteStates(MemoryStore):
    """The sites' private states after the last round but one, recomputed because the coordinator's folder has
    none.
    """

    def check(self) -> None:
        """Nothing to check, because nothing is on a disk."""


@dataclass
class ReplayFolder(RunFolder):
    """The folder of a coordinator, with the sites' samples in its run.

    kept: the sites' private state after the last round but one.
    """

    kept: SiteStates = field(default_factory=SiteStates)

    def store(self, checkpoint: Checkpoint | None) -> DiskStore:
        return self.kept  # pyright: ignore[reportReturnType]  # which is read the same way


@dataclass(frozen=True)
class AttackInputs:
    """The user's inputs. sites: those with samples. pictures: pictures of samples may be stored. options:
    other options.
    """

    sites: tuple[str, ...]
    pictures: bool
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class UsedReplies:
    """The clients with used replies. used: to training, by round. shared: with shares, by round and the
    ledger's name of the share, one set for each time that it was sent in this round.
    """

    used: Mapping[int, Collection[int]]
    shared: Mapping[tuple[int, str], Sequence[Collection[int]]]


class ReplayListener(RecordingExchange):
    """A listener that receives only the replies that the coordinator received."""

    def __init__(self, trainer: Trainer, used_replies: UsedReplies):
        super().__init__(trainer)
        self.used_replies, self._visits = used_replies, Counter[tuple[int, str]]()

    def train(self, start: Broadcast, cohort: Sequence[int], private: Mapping[int, Tree]) -> list[Reply]:
        return super().train(
            start, [k for k in cohort if k in self.used_replies.used.get(start.t, ())], private
        )

    def visit(
        self, trip: Trip, part: Part, start: Broadcast, ids: Sequence[int], private: Mapping[int, Tree]
    ) -> list[Reply]:
        """The ledger decides who answers a trip, because a site may answer a round's training and then
        fail.
        """
        declared = sorted({path.partition("/")[0] for path in trip.shares(self.trainer.fed)})
        if declared:
            name = (start.t, f"{part.name}/{declared[0]}")
            trained = any(path.partition("/")[0] == declared[0] for path in part.shares(self.trainer.fed))
            before = self._visits[name] + (trained and start.t > 0)  # the training's own shares stand first
            self._visits[name] += 1
            sets = self.used_replies.shared.get(name, ())
            attack_inputs = sets[before] if before < len(sets) else ()
            ids = [k for k in ids if k in attack_inputs]
        return super().visit(trip, part, start, ids, private)


class _SitesScene(Scene):
    """A scene with samples from outside the folder."""

    no_anew = "it trains the run anew, in which every site would be there in every round"

    def __init__(self, path: Path, folder: ReplayFolder, given: AttackInputs):
        self.given, self.pictures = given, given.pictures
        super().__init__(path, folder)

    def words(self) -> list[str]:
        """The command without the paths of this machine."""
        data = [word for name in self.given.sites for word in ("--data", f"{name}=PATH")]
        model = ["--model", "MODEL"] if self.run.settings.model != settings_of(self.path).model else []
        return [self.path.name, *data, *self.given.options, *model]

    def check_data(self, facts: Mapping[str, Any]) -> None:
        """Nothing to check: the coordinator knew counts only, which were compared when the run was opened."""


class SitesScene(_SitesScene):
    """A scene with the samples of all sites, in which every round ends as the coordinator's did."""

    def __init__(self, path: Path, folder: ReplayFolder, given: AttackInputs, used_replies: UsedReplies):
        """Raises StateError (E112) unless the recomputed run has the bits of both its checkpoints."""
        self.used_replies = used_replies
        super().__init__(path, folder, given)
        try:
            self._replay(folder)
        except BaseException:
            self.close()
            raise

    def _replay(self, folder: ReplayFolder) -> None:
        loop, _ = self._loop(folder.kept)
        now = loop.begin()
        for t in range(1, self.last_t):
            now, _ = loop.round(now, t)
        tree, facts = self.before
        self._same({"w": now.weights, **now.slices}, {"w": tree["w"], **tree.get("slices", {})}, facts["t"])
        _ = self.last_round

    def heard_by(self) -> RecordingExchange:
        return ReplayListener(self.trainer, self.used_replies)

    def _same(self, ours: Tree, kept: Tree, t: int) -> None:
        if digest(ours) != digest(kept):
            text = (
                f"round {t} of {self.path}, computed again from the samples given, does not end with the bits"
                " that the run has"
            )
            raise StateError(
                "E112",
                f"{text}: they are not those that the sites trained on, or versions or machines differ"
                " (sites.json and env.json name the versions), or a site's reply was spoilt on its way;"
                " --merged attacks the merged model alone.",
            )


class MergedScene(_SitesScene):
    """A scene of a run without recomputed rounds: the merged model, and samples of some sites or of all."""

    def __init__(self, path: Path, folder: ReplayFolder, given: AttackInputs, why: str):
        """why: the reason why rounds are not recomputed, as the end of a sentence.

        Raises StateError: E156 for weights of another model, E155 for a state that this method cannot have.
        """
        super().__init__(path, folder, given)
        self.merged_only = why
        try:
            self._check()
        except BaseException:
            self.close()
            raise

    def _check(self) -> None:
        """Check the final state, which is not recomputed."""
        check_weights(self.path, self.run, self.final.weights)
        not_finite = [name for name, w in self.final.weights.items() if not bool(torch.isfinite(w).all())]
        if not_finite:
            raise StateError(
                "E155", f"'{not_finite[0]}' of {self.path} is not finite, so there is no model to attack."
            )
        try:
            self.seen(self.trainer.samples.x[torch.zeros(1, dtype=torch.int64)].cpu())
        except Exception as error:
            text = (
                f"the server's state in {self.path} is none that {self.run.method} can have"
                f" ({one_line(error)})"
            )
            raise StateError("E155", f"{text}; copy the folder again.") from None

    @property
    def told(self) -> str:
        return f"{super().told}; the members are samples of {', '.join(self.given.sites)}"


EVENTS, LEDGER = "events.jsonl", "ledger.jsonl"
MOST_NAMED = 10
"""Sites that a sentence names, at most."""


def open_replay(
    path: Path, given: Sequence[str], pictures: bool = False, code: UserCode = NO_CODE, merged: bool = False
) -> SitesScene | MergedScene:
    """The scene of a coordinator's run; its rounds are recomputed if every site's data are given and that is
    possible.

    given: SITE=PATH for some or all sites. pictures: pictures of samples may be stored. code: the model's
    file, if the sites' models were in files. merged: attack only the merged model. Raises UsageError (E126)
    for an entry that is not SITE=PATH; StateError: E155 for a folder without valid participants and for
    data unlike sites.json, E112 for other bits; and the errors of `load`.
    """
    places = _places(given)
    settings = _with_model(code, path, _settings(path))
    hellos = _roster(path)
    if unknown := [name for name in places if name not in {h.site for h in hellos}]:
        known = ", ".join(h.site for h in hellos)
        raise UsageError("E126", f"--data names '{unknown[0]}', and the sites of {path} are {known}.")
    method = registry.parse(settings.method, settings.set)
    asked = "only the merged model was to be attacked (--merged)" if merged else ""
    why = (
        asked or _unrepeatable(settings, method) or _missing([h.site for h in hellos if h.site not in places])
    )
    used_replies = UsedReplies({}, {}) if why else _read_used_replies(path, len(hellos))
    sets = {h.site: _checked_set(path, h, places[h.site], settings) for h in hellos if h.site in places}
    folder = ReplayFolder(path, run_on(_federation(hellos, sets), settings, method))
    attack_inputs = AttackInputs(tuple(sets), pictures, ("--merged",) if merged else ())
    return (
        MergedScene(path, folder, attack_inputs, why)
        if why
        else SitesScene(path, folder, attack_inputs, used_replies)
    )


def _unrepeatable(settings: Settings, method: Method) -> str:
    """Why the rounds of a run cannot be recomputed from any data; "" if they can."""
    if settings.secure:
        return SUMS_ONLY
    noisy = [part.name for part in (method.protector, method.samples_apart) if part]
    return f"the noise of '{noisy[0]}' came from the operating system" if noisy else ""


def _missing(sites: Sequence[str]) -> str:
    """The reason that these sites' data are missing; "" if there are none."""
    listed = ", ".join(sites[:MOST_NAMED]) + (
        f" and {len(sites) - MOST_NAMED} more" if len(sites) > MOST_NAMED else ""
    )
    return f"the samples of {listed} are missing" if sites else ""


def _places(given: Iterable[str]) -> dict[str, str]:
    places = dict[str, str]()
    for pair in given:
        site, equals, place = pair.partition("=")
        if not (site and equals and place):
            raise UsageError("E126", f"--data takes SITE=PATH, such as north=north.npz; got '{pair}'.")
        if site in places:
            raise UsageError("E126", f"--data names '{site}' twice.")
        places[site] = place
    return places


def _settings(path: Path) -> Settings:
    """The run's settings.

    Raises StateError (E117, E155) if it is not a coordinator's run, or if it would need code or replies.
    """
    file = path / "config.yaml"
    if not file.exists():
        raise disk.no_run(path, file.name)
    settings = config.load(file)
    if settings.data != SITES:
        raise StateError("E155", f"{path} is no run of sites, so it has its data already; leave --data out.")
    check_not_from_a_file(settings.method)
    check_metrics_not_own(settings.metrics)
    return settings


def _with_model(code: UserCode, path: Path, settings: Settings) -> Settings:
    """The settings with the caller's model in place of a file or folder, because nothing is loaded that the
    run names.

    Raises UsageError (E126) for a method; StateError (E156, E112) for a missing or different model.
    """
    if code.method is not None:
        raise UsageError(
            "E126", "--method belongs to simulated runs: no site takes a method from a Python file."
        )
    if folders.is_folder_model(settings.model) and code.model is None:
        text = f"the model of {path} was {settings.model}, a folder of Hugging Face"
        raise StateError("E156", f"{text}; name yours: --model \"hf(path='FOLDER')\".")
    check_model(path, last_checkpoint(path)[1]["files"], settings, code.model)
    return settings.replace(model=code.model) if isinstance(code.model, str) else settings


def _roster(path: Path) -> list[Hello]:
    try:
        hellos = [Hello.read(h) for h in json.loads((path / SITES_FILE).read_bytes())["sites"]]
        if (
            not hellos
            or len({h.site for h in hellos}) < len(hellos)
            or any(data_difference(hellos[0], h) for h in hellos)
        ):
            raise ValueError("no sites, one of them twice, or of different data")
    except (OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        text = f"{path / SITES_FILE} does not say who took part ({type(error).__name__})"
        raise StateError("E155", f"{text}; copy the folder again.") from None
    return hellos


def _read_used_replies(path: Path, sites: int) -> UsedReplies:
    """The used replies of each round; of a repeated round, those of its last lines."""
    try:
        events, ledger = (
            [json.loads(r) for r in (path / name).read_bytes().splitlines()] for name in (EVENTS, LEDGER)
        )
        used = {
            int(r["t"]): set(client_lists.clients_in(r["answered"], sites))
            for r in events
            if r["code"] == "round"
        }
        shared: dict[tuple[int, str], list[set[int]]] = {}
        for row in ledger:
            if row["way"] == "up" and row["share"] != "w" and not row.get("dropped"):
                clients = set(client_lists.clients_in(row["clients"], sites))
                shared.setdefault((int(row["t"]), str(row["share"])), []).append(clients)
        return UsedReplies(used, shared)
    except Exception as error:  # the folder may come from anybody, and its lists may be compressed
        text = f"{path / EVENTS} and {LEDGER} do not say who was there in each round ({type(error).__name__})"
        raise StateError("E155", f"{text}; copy the folder again.") from None


def _checked_set(path: Path, hello: Hello, place: str, settings: Settings) -> Dataset:
    """A site's samples, as the site prepared them. Raises StateError (E155) unless they agree with
    sites.json.
    """
    data = prepare(load(place, () if hello.target else hello.classes), settings)
    now = Hello.of(hello.site, data, hello.versions)
    for what in (
        "train",
        "test",
        "layout",
        "shape",
        "classes",
        "pixels",
        "target",
        "several",
        "scale",
        "own_scale",
    ):
        value, then = getattr(now, what), getattr(hello, what)
        if value != then:
            value, then = (list(v) if isinstance(v, tuple) else v for v in (value, then))
            text = (
                f"{place} is not what site {hello.site} of {path} trained on: its '{what}' is {value}, and"
                f" sites.json says {then}"
            )
            raise StateError("E155", f"{text}; name that site's data.")
    if text := form_difference((place, f"site {hello.site}"), (now.form, hello.form)):
        raise StateError("E155", f"{place} is not what site {hello.site} of {path} trained on: {text}.")
    return data


def _federation(hellos: Sequence[Hello], sets: Mapping[str, Dataset]) -> Federation:
    """The sites as clients in the coordinator's order; those without data have no samples."""
    x, y, x_test, y_test = (
        np.concatenate([np.asarray(getattr(data, part)[:]) for data in sets.values()])
        for part in ("x", "y", "x_test", "y_test")
    )
    train, test = (
        [np.arange(a, b) for a, b in itertools.pairwise(np.cumsum([0, *sizes]))]
        for sizes in (
            [h.train if h.site in sets else 0 for h in hellos],
            [h.test if h.site in sets else 0 for h in hellos],
        )
    )
    scaled = {data.applied for data in sets.values()}
    return Federation(
        "sites",
        x,
        y,
        x_test,
        y_test,
        hellos[0].classes,
        Index.of(train),
        Index.of(test),
        "sites",
        names=tuple(h.site for h in hellos),
        applied=scaled.pop() if len(scaled) == 1 else None,
        target=next(iter(sets.values())).target,
        layout=hellos[0].layout,
    )
