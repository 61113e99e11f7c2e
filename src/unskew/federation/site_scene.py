"""The scene of attacks on a coordinator's run: its merged model, and the samples of some or all of its sites.

The folder may be untrusted: nothing that it names is run, and no file that it names is read as Python.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unskew.attacks.scene import NO_CODE, Scene, last_checkpoint, settings_of
from unskew.config import Settings
from unskew.data.clients.federation import Federation
from unskew.data.clients.partition import Index
from unskew.data.samples.dataset import Dataset
from unskew.errors import StateError, UsageError
from unskew.federation.protocol.hello import Hello, data_difference, form_difference
from unskew.federation.protocol.study_rules import SITES, check_no_files, prepare
from unskew.federation.site_data import load
from unskew.methods import registry
from unskew.models import hf_folder as folders
from unskew.records.checkpoints import Checkpoint
from unskew.records.private_state import DiskStore, MemoryStore
from unskew.runs.reopen import SITES_FILE, UserCode, check_code, check_weights
from unskew.runs.resolve import run_on
from unskew.runs.run_folder import RunFolder
from unskew.system.python_files import one_line

COMPARED = (
    "train", "test", "layout", "shape", "classes", "pixels", "target", "several", "scale", "own_scale"
)  # fmt: skip
"""Fields of a site's description that its samples must have."""


class NoStates(MemoryStore):
    """The private states of a run of sites, none of which the coordinator's folder has."""

    def check(self) -> None:
        """Nothing to check, because nothing is on a disk."""


class SitesFolder(RunFolder):
    """The folder of a coordinator, with the sites' samples in its run."""

    def store(self, checkpoint: Checkpoint | None) -> DiskStore:
        return NoStates()  # pyright: ignore[reportReturnType]  # which is read the same way


class SitesScene(Scene):
    """A coordinator's run, of which only the merged model is attacked, with samples from outside its folder.

    Whoever has the samples of all sites attacks a simulation of the study, which has the same bits.
    """

    no_anew = "it trains the run anew, in which every site would be there in every round"

    def __init__(self, path: Path, folder: RunFolder, sites: Sequence[str]):
        """sites: those with samples.

        Raises StateError: E156 for weights of another model, E155 for a state that this method cannot have.
        """
        self.sites = sites
        super().__init__(path, folder)
        self.merged_only = "a coordinator keeps no replies of sites"
        try:
            self._check_model()
        except BaseException:
            self.close()
            raise

    def words(self) -> list[str]:
        """The command without the paths of this machine."""
        data = [word for name in self.sites for word in ("--data", f"{name}=PATH")]
        model = ["--model", "MODEL"] if self.run.settings.model != settings_of(self.path).model else []
        return [self.path.name, *data, *model]

    def check_data(self, facts: Mapping[str, Any]) -> None:
        """Nothing to check: the coordinator knew counts only, which were compared when the run was opened."""

    @property
    def told(self) -> str:
        return f"{super().told}; the members are samples of {', '.join(self.sites)}"

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


def open_sites(path: Path, given: Sequence[str], code: UserCode = NO_CODE) -> SitesScene:
    """The scene of a coordinator's run.

    given: SITE=PATH for some or all sites. code: the model's file, if the sites' models were in files. Raises
    UsageError (E126) for an entry that is not SITE=PATH; StateError (E155) for a folder without valid
    participants and for data unlike sites.json; and the errors of `load`.
    """
    places = _places(given)
    settings = _settings(path, code)
    hellos = _roster(path)
    names = [h.site for h in hellos]
    if unknown := [name for name in places if name not in names]:
        known = ", ".join(names)
        raise UsageError("E126", f"--data names '{unknown[0]}', and the sites of {path} are {known}.")
    sets = {h.site: _checked_set(path, h, places[h.site], settings) for h in hellos if h.site in places}
    method = registry.parse(settings.method, settings.set)
    folder = SitesFolder(path, run_on(_federation(hellos, sets), settings, method))
    return SitesScene(path, folder, tuple(sets))


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
    check_code(path, last_checkpoint(path)[1]["files"], settings, "model", code.model)
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
