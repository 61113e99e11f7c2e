"""A coordinator's run opened for attacks by somebody who has samples of its sites: computed again, or its merged model alone.

The folder may come from anybody: nothing that it names is run, and no file that it names is read as Python.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from unskew import config, disk, many
from unskew.attacks.opening import NONE, SUMMED, last
from unskew.config import Settings
from unskew.core.method import Method
from unskew.data.dataset import Dataset
from unskew.data.federation import Federation
from unskew.data.index import Index
from unskew.deploy import forms
from unskew.deploy.hello import Hello, difference
from unskew.deploy.loaders import load
from unskew.deploy.sites_scene import Came, Given, MergedScene, Reheard, SitesScene
from unskew.deploy.studies import SITES, check_metrics_not_own, check_not_from_a_file, prepared
from unskew.engine.disk.code import Code, check_model
from unskew.engine.disk.reopened import SITES_FILE
from unskew.engine.resolve import run_on
from unskew.errors import StateError, UsageError
from unskew.methods import registry
from unskew.models import folder as folders
from unskew.privacy import secure

EVENTS, LEDGER = "events.jsonl", "ledger.jsonl"
MOST_NAMED = 10
"""Sites that a sentence names, at most."""


def opened(
    path: Path, given: Sequence[str], pictures: bool = False, code: Code = NONE, merged: bool = False
) -> SitesScene | MergedScene:
    """The scene of a coordinator's run, whose rounds are computed again if every site's data are given and that is possible;
    else of its merged model alone.

    given: SITE=PATH for some or all sites. pictures: whether pictures of samples may be kept. code: the model's file, where
    the sites' models were in files of their own. merged: the merged model alone, although rounds might be computed again.
    Raises UsageError (E150) for an entry that is not SITE=PATH; StateError (E152) for a folder that does not say who took
    part and for data that are not as sites.json says, (E153) where the bits differ; as `load` does.
    """
    places = _places(given)
    settings = _with(code, path, _settings(path))
    hellos = _roster(path)
    if unknown := [name for name in places if name not in {h.site for h in hellos}]:
        known = ", ".join(h.site for h in hellos)
        raise UsageError("E150", f"--data names '{unknown[0]}', and the sites of {path} are {known}.")
    method = registry.parse(settings.method, settings.set)
    asked = "only the merged model was to be attacked (--merged)" if merged else ""
    why = asked or _unrepeatable(settings, method) or _missing([h.site for h in hellos if h.site not in places])
    came = Came({}, {}) if why else _came(path, len(hellos))
    sets = {h.site: _checked(path, h, places[h.site], settings) for h in hellos if h.site in places}
    folder = Reheard(path, run_on(_federation(hellos, sets), settings, method))
    there = Given(tuple(sets), pictures, ("--merged",) if merged else ())
    return MergedScene(path, folder, there, why) if why else SitesScene(path, folder, there, came)


def _unrepeatable(settings: Settings, method: Method) -> str:
    """Why the rounds of a run cannot be computed again from any data; "" if they can."""
    if secure.parse(settings.secure_aggregation):
        return SUMMED
    noisy = [part.name for part in (method.protector, method.samples_apart) if part]
    return f"the noise of '{noisy[0]}' came from the operating system" if noisy else ""


def _missing(sites: Sequence[str]) -> str:
    """Why the rounds of a run cannot be computed again without the data of these sites; "" if there are none."""
    listed = ", ".join(sites[:MOST_NAMED]) + (f" and {len(sites) - MOST_NAMED} more" if len(sites) > MOST_NAMED else "")
    return f"the samples of {listed} are missing" if sites else ""


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
        raise disk.no_run(path, file.name)
    settings = config.load(file)
    if settings.data != SITES:
        raise StateError("E152", f"{path} is no run of sites, so it has its data already; leave --data out.")
    check_not_from_a_file(settings.method)
    check_metrics_not_own(settings.metrics)
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
        if not hellos or len({h.site for h in hellos}) < len(hellos) or any(difference(hellos[0], h) for h in hellos):
            raise ValueError("no sites, one of them twice, or of different data")
    except (OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        text = f"{path / SITES_FILE} does not say who took part ({type(error).__name__})"
        raise StateError("E152", f"{text}; copy the folder again.") from None
    return hellos


def _came(path: Path, sites: int) -> Came:
    """Whose replies came in each round, of its last lines where it was computed more than once."""
    try:
        events, ledger = ([json.loads(r) for r in (path / name).read_bytes().splitlines()] for name in (EVENTS, LEDGER))
        used = {int(r["t"]): set(many.clients_in(r["answered"], sites)) for r in events if r["code"] == "round"}
        shared: dict[tuple[int, str], list[set[int]]] = {}
        for row in ledger:
            if row["way"] == "up" and row["share"] != "w" and not row.get("dropped"):
                clients = set(many.clients_in(row["clients"], sites))
                shared.setdefault((int(row["t"]), str(row["share"])), []).append(clients)
        return Came(used, shared)
    except Exception as error:  # the folder may come from anybody, and its lists may be compressed
        text = f"{path / EVENTS} and {LEDGER} do not say who was there in each round ({type(error).__name__})"
        raise StateError("E152", f"{text}; copy the folder again.") from None


def _checked(path: Path, hello: Hello, place: str, settings: Settings) -> Dataset:
    """A site's samples, as the site prepared them. Raises StateError (E152) unless they are as sites.json says."""
    data = prepared(load(place, () if hello.target else hello.classes), settings)
    now = Hello.of(hello.site, data, hello.versions)
    for what in ("train", "test", "layout", "shape", "classes", "pixels", "target", "several", "scale", "own_scale"):
        here, then = getattr(now, what), getattr(hello, what)
        if here != then:
            here, then = (list(v) if isinstance(v, tuple) else v for v in (here, then))
            text = f"{place} is not what site {hello.site} of {path} trained on: its '{what}' is {here}, and sites.json says {then}"
            raise StateError("E152", f"{text}; name that site's data.")
    if text := forms.difference((place, f"site {hello.site}"), (now.form, hello.form)):
        raise StateError("E152", f"{place} is not what site {hello.site} of {path} trained on: {text}.")
    return data


def _federation(hellos: Sequence[Hello], sets: Mapping[str, Dataset]) -> Federation:
    """The sites as clients in the order in which the coordinator numbered them; those without data have no samples."""
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
