"""A coordinator's run opened for attacks by somebody who has the sites' samples: computed again, to the bits it has.

The folder may come from anybody: nothing that it names is run, and no file that it names is read as Python.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from unskew import config, many
from unskew.attacks.opening import NONE, last, settings_of
from unskew.attacks.replay import Listener
from unskew.attacks.scene import Scene
from unskew.config import Settings
from unskew.core.replies import Reply
from unskew.core.trees import Tree
from unskew.data.dataset import Dataset
from unskew.data.federation import Federation
from unskew.data.index import Index
from unskew.deploy.hello import Hello
from unskew.deploy.loaders import load
from unskew.deploy.studies import SITES, check_metrics_not_own, check_not_from_a_file, prepared
from unskew.engine.client.trainer import Trainer
from unskew.engine.client.values import Start
from unskew.engine.disk.code import Code, check_model
from unskew.engine.disk.folder import Folder
from unskew.engine.disk.reopened import SITES_FILE
from unskew.engine.disk.state import Checkpoint, digest
from unskew.engine.disk.store import Disk, Memory
from unskew.engine.resolve import run_on
from unskew.errors import StateError, UsageError
from unskew.methods import registry
from unskew.models import folder as folders
from unskew.privacy import secure


class Kept(Memory):
    """What the sites kept after the last round but one, computed again; the coordinator's folder holds none of it."""

    def check(self) -> None:
        """Nothing of it is on a disk."""


@dataclass
class Reheard(Folder):
    """The folder of a coordinator, with the sites' samples in its run.

    kept: the sites' private state after the last round but one.
    """

    kept: Kept = field(default_factory=Kept)

    def store(self, checkpoint: Checkpoint | None) -> Disk:
        return self.kept  # pyright: ignore[reportReturnType]  # which is read the same way


class Attended(Listener):
    """A listener in whose rounds only those sites train whose replies the coordinator used. used: by round."""

    def __init__(self, trainer: Trainer, used: Mapping[int, Collection[int]]):
        super().__init__(trainer)
        self.used = used

    def train(self, start: Start, cohort: Sequence[int], private: Mapping[int, Tree]) -> list[Reply]:
        return super().train(start, [k for k in cohort if k in self.used.get(start.t, ())], private)


class SitesScene(Scene):
    """A scene whose samples were given beside the folder, and whose every round ends as the coordinator's did."""

    no_anew = "it trains the run anew, in which every site would be there in every round"

    def __init__(self, path: Path, folder: Reheard, used: Mapping[int, Collection[int]], pictures: bool):
        """Raises StateError (E153) unless the run, computed again from its beginning, has the bits of both its checkpoints."""
        self.used, self.pictures, self._folder = used, pictures, folder
        self.given = [word for name in folder.run.federation.names or () for word in ("--data", f"{name}=PATH")]
        self.given += ["--model", "MODEL"] if folder.run.settings.model != settings_of(path).model else []
        super().__init__(path, folder)
        try:
            self._replay(folder)
        except BaseException:
            self.close()
            raise

    def _replay(self, folder: Reheard) -> None:
        loop, _ = self._loop(folder.kept)
        now = loop.begin()
        for t in range(1, self.last_t):
            now, _ = loop.round(now, t)
        tree, facts = self.before
        self._same({"w": now.weights, **now.slices}, {"w": tree["w"], **tree.get("slices", {})}, facts["t"])
        _ = self.last_round

    def heard_by(self) -> Listener:
        return Attended(self.trainer, self.used)

    def words(self) -> list[str]:
        """Without the paths of this machine: whoever reads the report need not know them."""
        return [self.path.name, *self.given]

    def check_data(self, facts: Mapping[str, Any]) -> None:
        """The coordinator has seen counts alone, which `opened` has compared; the bits say the rest."""

    def _same(self, ours: Tree, kept: Tree, t: int) -> None:
        if digest(ours) != digest(kept):
            text = f"round {t} of {self.path}, computed again from the samples given, does not end with the bits that the run has"
            raise StateError(
                "E153",
                f"{text}: they are not those that the sites trained on, or versions or machines differ (sites.json and "
                "env.json name the versions).",
            )


def opened(path: Path, given: Sequence[str], pictures: bool = False, code: Code = NONE) -> SitesScene:
    """The scene of a coordinator's run. given: SITE=PATH for every site. pictures: whether pictures of samples may be kept.
    code: the model's file, where the sites' models were in files of their own.

    Raises UsageError (E150) for an entry that is not SITE=PATH; StateError (E152) for a run that cannot be computed again,
    for sites without data and for data that are not as sites.json says, (E153) where the bits differ; as `load` does.
    """
    places = _places(given)
    settings = _with(code, path, _settings(path))
    hellos = _roster(path)
    if unknown := [name for name in places if name not in {h.site for h in hellos}]:
        known = ", ".join(h.site for h in hellos)
        raise UsageError("E150", f"--data names '{unknown[0]}', and the sites of {path} are {known}.")
    if missing := [h.site for h in hellos if h.site not in places]:
        text = f"{path} can only be computed again from every site's samples, and those of {', '.join(missing)} are missing"
        raise StateError("E152", f"{text}; give --data {missing[0]}=PATH.")
    method = registry.parse(settings.method, settings.set)
    if noisy := [p.name for p in (method.protector, method.samples_apart) if p]:
        text = f"the noise of '{noisy[0]}' in {path} came from the operating system, so no round can be computed again"
        raise StateError("E152", f"{text}; attack a simulated run of the same settings.")
    used = _used(path, len(hellos))
    sets = [_checked(path, h, places[h.site], settings) for h in hellos]
    return SitesScene(path, Reheard(path, run_on(_federation(hellos, sets), settings, method)), used, pictures)


def _places(given: Iterable[str]) -> dict[str, str]:
    places = dict[str, str]()
    for pair in given:
        site, equals, place = pair.partition("=")
        if not (site and equals and place):
            raise UsageError("E150", f"--data takes SITE=PATH, such as north=north.npz; got '{pair}'.")
        if site in places:
            raise UsageError("E150", f"--data names '{site}' twice.")
        places[site] = place
    return places


def _settings(path: Path) -> Settings:
    """The run's settings. Raises StateError (E117, E152) for what is no coordinator's run, or would need code or replies."""
    file = path / "config.yaml"
    if not file.exists():
        raise StateError("E117", f"{path} is no run: it has no config.yaml. Runs are folders under runs/.")
    settings = config.load(file)
    if settings.data != SITES:
        raise StateError("E152", f"{path} is no run of sites, so it has its data already; leave --data out.")
    check_not_from_a_file(settings.method)
    check_metrics_not_own(settings.metrics)
    if secure.parse(settings.secure_aggregation):
        text = f"the server of {path} read sums alone (secure_aggregation), and attacks read single replies"
        raise StateError("E152", f"{text}; attack a run of the same settings without it.")
    return settings


def _with(code: Code, path: Path, settings: Settings) -> Settings:
    """The settings with the caller's model in place of one that is a file or folder: nothing is loaded that the run names.

    Raises UsageError (E150) for a method, which no site takes from a file; StateError (E156, E112) for a model that is
    missing or another.
    """
    if code.method is not None:
        raise UsageError("E150", "--method belongs to simulated runs: no site takes a method from a Python file.")
    if folders.is_named_in(settings.model) and code.model is None:
        text = f"the model of {path} was {settings.model}, a folder of Hugging Face"
        raise StateError("E156", f"{text}; name yours: --model \"hf(path='FOLDER')\".")
    check_model(path, last(path)[1]["files"], settings, code.model)
    return settings.replace(model=code.model) if isinstance(code.model, str) else settings


def _roster(path: Path) -> list[Hello]:
    try:
        hellos = [Hello.read(h) for h in json.loads((path / SITES_FILE).read_bytes())["sites"]]
        if not hellos or len({h.site for h in hellos}) < len(hellos):
            raise ValueError("no sites, or one of them twice")
    except (OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        text = f"{path / SITES_FILE} does not say who took part ({type(error).__name__})"
        raise StateError("E152", f"{text}; copy the folder again.") from None
    return hellos


def _used(path: Path, sites: int) -> dict[int, set[int]]:
    """Whose replies each round used, of its last line where it was computed more than once."""
    file = path / "events.jsonl"
    try:
        rows = [json.loads(line) for line in file.read_bytes().splitlines()]
        return {int(r["t"]): set(many.clients_in(r["answered"], sites)) for r in rows if r["code"] == "round"}
    except Exception as error:  # the folder may come from anybody, and its lists may be compressed
        text = f"{file} does not say who was there in each round ({type(error).__name__})"
        raise StateError("E152", f"{text}; copy the folder again.") from None


def _checked(path: Path, hello: Hello, place: str, settings: Settings) -> Dataset:
    """A site's samples, as the site prepared them. Raises StateError (E152) unless they are as sites.json says."""
    data = prepared(load(place, () if hello.target else hello.classes), settings)
    now = Hello.of(hello.site, data, hello.versions)
    for what in ("train", "test", "shape", "classes", "pixels", "target", "several"):
        here, then = getattr(now, what), getattr(hello, what)
        if here != then:
            here, then = (list(v) if isinstance(v, tuple) else v for v in (here, then))
            text = f"{place} is not what site {hello.site} of {path} trained on: its '{what}' is {here}, and sites.json says {then}"
            raise StateError("E152", f"{text}; name that site's data.")
    return data


def _federation(hellos: Sequence[Hello], sets: Sequence[Dataset]) -> Federation:
    """The sites as clients in the order in which the coordinator numbered them."""
    x, y, x_test, y_test = (
        np.concatenate([np.asarray(getattr(data, part)[:]) for data in sets]) for part in ("x", "y", "x_test", "y_test")
    )
    train, test = (
        [np.arange(a, b) for a, b in itertools.pairwise(np.cumsum([0, *sizes]))]
        for sizes in ([h.train for h in hellos], [h.test for h in hellos])
    )
    scaled = {data.applied for data in sets}
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
        target=sets[0].target,
    )
