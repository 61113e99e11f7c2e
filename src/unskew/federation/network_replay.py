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
from unskew.federation.protocol.study_rules import SITES, check_no_files, prepare
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
from unskew.system.python_files import one_line

EVENTS, LEDGER = "events.jsonl", "ledger.jsonl"
MOST_NAMED = 10
"""Sites that a sentence names, at most."""
MERGED_ASKED = "only the merged model was to be attacked (--merged)"
COMPARED = (
    "train", "test", "layout", "shape", "classes", "pixels", "target", "several", "scale", "own_scale"
)  # fmt: skip
"""Fields of a site's description that its samples must have."""


class SiteStates(MemoryStore):
    """The recomputed private states after the last round but one; the coordinator's folder has none."""

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
class UsedClients:
    """The clients with used replies. used: to training, by round. shared: with shares, by round and the
    ledger's name of the share, one set for each time that it was sent in this round.
    """

    used: Mapping[int, Collection[int]]
    shared: Mapping[tuple[int, str], Sequence[Collection[int]]]


class ReplayListener(RecordingExchange):
    """A listener that receives only the replies that the coordinator received."""

    def __init__(self, trainer: Trainer, used_clients: UsedClients):
        super().__init__(trainer)
        self.used_clients, self._visits = used_clients, Counter[tuple[int, str]]()

    def train(self, start: Broadcast, cohort: Sequence[int], private: Mapping[int, Tree]) -> list[Reply]:
        used = self.used_clients.used.get(start.t, ())
        return super().train(start, [k for k in cohort if k in used], private)

    def visit(
        self, trip: Trip, part: Part, start: Broadcast, ids: Sequence[int], private: Mapping[int, Tree]
    ) -> list[Reply]:
        """The ledger decides who answers a trip; a site may have answered the training and then failed."""
        declared = sorted({path.partition("/")[0] for path in trip.shares(self.trainer.fed)})
        if declared:
            name = (start.t, f"{part.name}/{declared[0]}")
            trained = any(path.partition("/")[0] == declared[0] for path in part.shares(self.trainer.fed))
            before = self._visits[name] + (trained and start.t > 0)  # the training's own shares stand first
            self._visits[name] += 1
            sets = self.used_clients.shared.get(name, ())
            answered = sets[before] if before < len(sets) else ()
            ids = [k for k in ids if k in answered]
        return super().visit(trip, part, start, ids, private)


class SitesScene(Scene):
    """A coordinator's run with samples from outside its folder.

    With the samples of all sites every round is recomputed and ends as the coordinator's did. Otherwise only
    the merged model is attacked, with the samples of some sites or of all.
    """

    no_anew = "it trains the run anew, in which every site would be there in every round"

    def __init__(
        self,
        path: Path,
        folder: ReplayFolder,
        sites: Sequence[str],
        *,
        pictures: bool,
        used_clients: UsedClients | None,
        why: str,
    ):
        """sites: those with samples. pictures: pictures of samples may be stored. used_clients: None if no
        round is recomputed. why: the reason for that, as the end of a sentence.

        Raises StateError: E112 unless the recomputed run has the bits of both its checkpoints; E156 for
        weights of another model, E155 for a state that this method cannot have.
        """
        self.sites, self.pictures = sites, pictures
        super().__init__(path, folder)
        self.merged_only, self.used_clients = why, used_clients
        try:
            if used_clients:
                self._replay(folder)
            else:
                self._check_model()
        except BaseException:
            self.close()
            raise

    def words(self) -> list[str]:
        """The command without the paths of this machine."""
        data = [word for name in self.sites for word in ("--data", f"{name}=PATH")]
        merged = ["--merged"] if self.merged_only == MERGED_ASKED else []
        model = ["--model", "MODEL"] if self.run.settings.model != settings_of(self.path).model else []
        return [self.path.name, *data, *merged, *model]

    def check_data(self, facts: Mapping[str, Any]) -> None:
        """Nothing to check: the coordinator knew counts only, which were compared when the run was opened."""

    def heard_by(self) -> RecordingExchange:
        return ReplayListener(self.trainer, self.used_clients) if self.used_clients else super().heard_by()

    @property
    def told(self) -> str:
        members = f"; the members are samples of {', '.join(self.sites)}"
        return f"{super().told}{members}" if self.merged_only else ""

    def _replay(self, folder: ReplayFolder) -> None:
        loop, _ = self._loop(folder.kept)
        now = loop.begin()
        for t in range(1, self.last_t):
            now, _ = loop.round(now, t)
        tree, facts = self.before
        self._same({"w": now.weights, **now.slices}, {"w": tree["w"], **tree.get("slices", {})}, facts["t"])
        _ = self.last_round

    def _same(self, ours: Tree, kept: Tree, t: int) -> None:
        if digest(ours) != digest(kept):
            text = (
                f"round {t} of {self.path}, computed again from the samples given, does not end with the bits"
            )
            raise StateError(
                "E112",
                f"{text} that the run has: they are not those that the sites trained on, or versions or"
                " machines differ (sites.json and env.json name the versions), or a site's reply was spoilt"
                " on its way; --merged attacks the merged model alone.",
            )

    def _check_model(self) -> None:
        """Check the final state, which is not recomputed."""
        check_weights(self.path, self.run, self.final.weights)
        not_finite = [name for name, w in self.final.weights.items() if not bool(torch.isfinite(w).all())]
        if not_finite:
            text = f"'{not_finite[0]}' of {self.path} is not finite, so there is no model to attack."
            raise StateError("E155", text)
        try:
            self.seen(self.trainer.samples.x[torch.zeros(1, dtype=torch.int64)].cpu())
        except Exception as error:
            text = f"the server's state in {self.path} is none that {self.run.method} can have"
            raise StateError("E155", f"{text} ({one_line(error)}); copy the folder again.") from None


def open_replay(
    path: Path, given: Sequence[str], pictures: bool = False, code: UserCode = NO_CODE, merged: bool = False
) -> SitesScene:
    """The scene of a coordinator's run; its rounds are recomputed if every site's data are given and that is
    possible.

    given: SITE=PATH for some or all sites. pictures: pictures of samples may be stored. code: the model's
    file, if the sites' models were in files. merged: attack only the merged model. Raises UsageError (E126)
    for an entry that is not SITE=PATH; StateError: E155 for a folder without valid participants and for
    data unlike sites.json, E112 for other bits; and the errors of `load`.
    """
    places = _places(given)
    settings = _settings(path, code)
    hellos = _roster(path)
    names = [h.site for h in hellos]
    if unknown := [name for name in places if name not in names]:
        known = ", ".join(names)
        raise UsageError("E126", f"--data names '{unknown[0]}', and the sites of {path} are {known}.")
    method = registry.parse(settings.method, settings.set)
    why = MERGED_ASKED if merged else _unrepeatable(settings, method)
    if missing := [site for site in names if site not in places]:
        more = f" and {len(missing) - MOST_NAMED} more" if len(missing) > MOST_NAMED else ""
        why = why or f"the samples of {', '.join(missing[:MOST_NAMED])}{more} are missing"
    used_clients = None if why else _read_used_clients(path, len(hellos))
    sets = {h.site: _checked_set(path, h, places[h.site], settings) for h in hellos if h.site in places}
    folder = ReplayFolder(path, run_on(_federation(hellos, sets), settings, method))
    return SitesScene(path, folder, tuple(sets), pictures=pictures, used_clients=used_clients, why=why)


def _unrepeatable(settings: Settings, method: Method) -> str:
    """Why the rounds of a run cannot be recomputed from any data; "" if they can."""
    if settings.secure:
        return SUMS_ONLY
    noisy = [part.name for part in (method.protector, method.samples_apart) if part]
    return f"the noise of '{noisy[0]}' came from the operating system" if noisy else ""


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


def _settings(path: Path, code: UserCode) -> Settings:
    """The run's settings, with the caller's model in place of a file or folder, because nothing is loaded
    that the run names.

    Raises StateError (E117, E155) if it is not a coordinator's run, (E156, E112) for a missing or different
    model; UsageError (E126, E506) for a method from a file.
    """
    settings = settings_of(path)
    if settings.data != SITES:
        raise StateError("E155", f"{path} is no run of sites, so it has its data already; leave --data out.")
    check_no_files(settings)
    if code.method is not None:
        text = "--method belongs to simulated runs: no site takes a method from a Python file."
        raise UsageError("E126", text)
    if folders.is_folder_model(settings.model) and code.model is None:
        text = f"the model of {path} was {settings.model}, a folder of Hugging Face"
        raise StateError("E156", f"{text}; name yours: --model \"hf(path='FOLDER')\".")
    check_model(path, last_checkpoint(path)[1]["files"], settings, code.model)
    return settings.replace(model=code.model) if isinstance(code.model, str) else settings


def _roster(path: Path) -> list[Hello]:
    try:
        hellos = [Hello.read(h) for h in json.loads((path / SITES_FILE).read_bytes())["sites"]]
        twice = len({h.site for h in hellos}) < len(hellos)
        if not hellos or twice or any(data_difference(hellos[0], h) for h in hellos):
            raise ValueError("no sites, one of them twice, or of different data")
    except (OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        text = f"{path / SITES_FILE} does not say who took part ({type(error).__name__})"
        raise StateError("E155", f"{text}; copy the folder again.") from None
    return hellos


def _read_used_clients(path: Path, sites: int) -> UsedClients:
    """The used replies of each round; of a repeated round, those of its last lines."""
    used: dict[int, set[int]] = {}
    shared: dict[tuple[int, str], list[set[int]]] = {}
    try:
        for row in map(json.loads, (path / EVENTS).read_bytes().splitlines()):
            if row["code"] == "round":
                used[int(row["t"])] = set(client_lists.clients_in(row["answered"], sites))
        for row in map(json.loads, (path / LEDGER).read_bytes().splitlines()):
            if row["way"] == "up" and row["share"] != "w" and not row.get("dropped"):
                clients = set(client_lists.clients_in(row["clients"], sites))
                shared.setdefault((int(row["t"]), str(row["share"])), []).append(clients)
    except Exception as error:  # the folder may come from anybody, and its lists may be compressed
        text = f"{path / EVENTS} and {LEDGER} do not say who was there in each round ({type(error).__name__})"
        raise StateError("E155", f"{text}; copy the folder again.") from None
    return UsedClients(used, shared)


def _checked_set(path: Path, hello: Hello, place: str, settings: Settings) -> Dataset:
    """A site's samples as prepared there. Raises StateError (E155) unless they agree with sites.json."""
    data = prepare(load(place, () if hello.target else hello.classes), settings)
    now = Hello.of(hello.site, data, hello.versions)
    text = f"{place} is not what site {hello.site} of {path} trained on"
    for what in COMPARED:
        value, then = getattr(now, what), getattr(hello, what)
        if value != then:
            value, then = (list(v) if isinstance(v, tuple) else v for v in (value, then))
            differ = f"its '{what}' is {value}, and sites.json says {then}"
            raise StateError("E155", f"{text}: {differ}; name that site's data.")
    if difference := form_difference((place, f"site {hello.site}"), (now.form, hello.form)):
        raise StateError("E155", f"{text}: {difference}.")
    return data


def _federation(hellos: Sequence[Hello], sets: Mapping[str, Dataset]) -> Federation:
    """The sites as clients in the coordinator's order; those without data have no samples."""
    x, y, x_test, y_test = (
        np.concatenate([np.asarray(getattr(data, part)[:]) for data in sets.values()])
        for part in ("x", "y", "x_test", "y_test")
    )
    sizes = [(h.train, h.test) if h.site in sets else (0, 0) for h in hellos]
    train, test = (
        Index.of([np.arange(a, b) for a, b in itertools.pairwise(np.cumsum([0, *counts]))])
        for counts in zip(*sizes)
    )
    scaled = {data.applied for data in sets.values()}
    return Federation(
        "sites",
        x,
        y,
        x_test,
        y_test,
        hellos[0].classes,
        train,
        test,
        "sites",
        names=tuple(h.site for h in hellos),
        applied=scaled.pop() if len(scaled) == 1 else None,
        target=next(iter(sets.values())).target,
        layout=hellos[0].layout,
    )
