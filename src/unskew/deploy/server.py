"""The server's side: sites are greeted, their tasks compared, then the engine's own rounds, over the wire.

A run's folder is the simulator's, plus `sites.json`: the run's number and who takes part, fixed at its beginning.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from unskew import data, disk
from unskew.config import Settings
from unskew.core.trees import Tree
from unskew.data.dataset import Dataset
from unskew.deploy.identity import Private, Public
from unskew.deploy.journal import FILE, Journal
from unskew.deploy.post import POLL_S, Channel, Post, names
from unskew.deploy.remote import Away, Remote, Scores
from unskew.deploy.roster import Hello, Sites, check_alike
from unskew.deploy.site import check_named, check_noise, prepared
from unskew.engine import resolve
from unskew.engine.disk.folder import Folder, Say, Shown
from unskew.engine.disk.lock import Lock
from unskew.engine.disk.record import Record
from unskew.engine.disk.state import State, digest
from unskew.engine.memory import check_room
from unskew.engine.server.loop import Loop
from unskew.errors import Paused, UnskewError, UsageError
from unskew.methods import registry

SITES = "(sites)"
"""The setting `data` of a run whose samples are at sites."""
ROSTER = "sites.json"


@dataclass(frozen=True)
class Terms:
    """How a run deals with its sites. order: all admitted sites; wait_s: how long to wait for those that are missing."""

    order: tuple[str, ...]
    min_sites: int = 1
    deadline_s: float = 600.0
    wait_s: float = 600.0
    test: str | None = None
    """A test set at the server: an .npz file or a folder."""


@dataclass
class Deployed(Folder):
    """A run on disk whose clients are sites."""

    post: Post | None = None
    hellos: Sequence[Hello] = ()
    min_sites: int = 1

    def _locked(self) -> AbstractContextManager[Any]:
        return nullcontext()  # by `conduct`, earlier

    def _opened(self, found: tuple[Tree, dict[str, Any]] | None) -> Loop:
        assert self.post is not None
        index = {int(k): t for k, t in found[1]["private"]} if found else {}
        record, store = Record(self.path, found[1]["lengths"] if found else None), Away(self.path / "private", index)
        self._last_index = index
        fed = resolve.fed_of(self.settings, self.method, self.federation)
        check_noise(self.method, fed)
        check_room(self.method, fed)
        local = resolve.trainer_of(self.settings, self.method, self.federation, fed)
        remote = Remote(local, self.post, self.hellos, self.settings, store, record, self.min_sites)
        scoring = Scores(remote, resolve.scoring_of(local, self.federation))
        return Loop(self.method, self.federation, fed, self.settings, remote, scoring, store, record)


def study(settings: Settings) -> Settings:
    """Settings of a run over the network. Raises UsageError (E506) for a method that wants samples at the server, or from a file."""
    check_named(settings.method)
    method = registry.parse(settings.method, settings.set)
    if settings.measure != "none":
        raise UsageError(
            "E506", f"'{settings.measure}' is measured where the samples are; over a network set measure to none."
        )
    if settings.validation:
        raise UsageError("E506", "validation holds out samples before they are dealt out; sites hold theirs already.")
    for part in method.parts:
        if part.reserve:
            text = f"'{part.name}' holds back {part.reserve} samples of each class at the server, which has none."
            raise UsageError("E506", text)
    return settings.replace(method=str(method), set={}, data=SITES, lanes="1", device="cpu", samples=None, skew="iid")


def conduct(
    path: Path,
    settings: Settings,
    channel: Channel,
    key: Private,
    keys: Mapping[str, Public],
    terms: Terms,
    say: Say,
    shown: Shown,
    ready: Callable[[Loop], None] = lambda _: None,
) -> tuple[Loop, State]:
    """Begin or resume a run over the network, to its end.

    Raises UsageError (E504) where sites do not fit together, Paused (E206) where too few of them answer, StateError (E110)
    where another process conducts it, of which nothing is touched.
    """
    path.mkdir(parents=True, exist_ok=True)
    with Lock(path):  # before the journal: two that write one would break its chain
        journal = Journal(path / FILE, key)
        try:
            return _conduct(path, study(settings), channel, journal, keys, terms, say, shown, ready)
        except UnskewError as error:
            journal.note("stopped", code=error.code, text=error.text)
            raise
        finally:
            journal.close()


def _conduct(
    path: Path,
    settings: Settings,
    channel: Channel,
    journal: Journal,
    keys: Mapping[str, Public],
    terms: Terms,
    say: Say,
    shown: Shown,
    ready: Callable[[Loop], None],
) -> tuple[Loop, State]:

    def told(t: int, code: str, text: str) -> None:
        say(f"{code} {text}")

    post = Post("new", channel, journal.key, keys, terms.deadline_s, told, journal)
    known = _roster(path)
    post.run = known[0] if known else f"r{secrets.token_hex(8)}"
    hellos = known[1] if known else ()
    journal.note("resumed" if known else "begun", run=post.run, settings=settings.as_dict(), sites=list(terms.order))
    found = _gathered(post, settings, terms, [h.site for h in hellos] or list(terms.order), say)
    if known:
        _check_back(hellos, found)
    else:
        hellos = [found[s] for s in terms.order if s in found]
        check_alike(hellos)
    method = registry.parse(settings.method, settings.set)
    test = prepared(_test_set(terms.test), settings) if terms.test else None
    federation = Sites.of("sites", hellos, test)
    settings = settings.replace(clients=len(hellos))
    if not known:
        disk.replace(path / ROSTER, json.dumps({"run": post.run, "sites": [h.as_json() for h in hellos]}, indent=1))
    at = Deployed(path, settings, method, federation, None, post, hellos, terms.min_sites)
    loop, state = at.go(say, shown, ready)
    kept = ("model.safetensors", "metrics.jsonl", "ledger.jsonl", "events.jsonl")
    files = {name: sha256((path / name).read_bytes()).hexdigest() for name in kept if (path / name).exists()}
    journal.note("done", rounds=state.t, model=digest(state.weights), files=files)
    return loop, state


def _roster(path: Path) -> tuple[str, list[Hello]] | None:
    if not (path / ROSTER).exists():
        return None
    found = json.loads((path / ROSTER).read_text())
    return found["run"], [Hello.read(h) for h in found["sites"]]


def _gathered(post: Post, settings: Settings, terms: Terms, wanted: list[str], say: Say) -> dict[str, Hello]:
    """Wait until all are there, or for `wait_s` if some are missing. Raises Paused (E206) with fewer than min_sites."""
    until, found, told = time.monotonic() + terms.wait_s, {}, -1
    while True:
        found |= {s: h for s, h in post.greet(settings.as_dict()).items() if s in wanted}
        missing = [s for s in wanted if s not in found]
        if len(missing) != told:
            told = len(missing)
            say(f"{len(found)}/{len(wanted)} sites are there" + (f"; waiting for {names(missing)}" if missing else ""))
        if not missing:
            return found
        if time.monotonic() >= until:
            break
        time.sleep(POLL_S)
    if len(found) < terms.min_sites:
        raise Paused(
            "E206",
            f"{len(found)} of {len(wanted)} sites came; {terms.min_sites} are needed. Missing: {names(missing)}.",
        )
    return found


def _check_back(before: Sequence[Hello], found: Mapping[str, Hello]) -> None:
    for hello in before:
        now = found.get(hello.site, hello)
        if now != hello:
            text = f"{hello.site} holds {now.train} training samples, {hello.train} when the run began"
            text = (
                text if now.train != hello.train else f"{hello.site} has other data or versions than when the run began"
            )
            raise UsageError("E504", f"{text}; resuming would mix two runs.")


def _test_set(text: str) -> Dataset:
    path = Path(text)
    return data.folder(path) if path.is_dir() else data.npz(path)
