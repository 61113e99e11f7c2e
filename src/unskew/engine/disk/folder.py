"""A run in its folder: begun, saved after every round, resumed to the same bits."""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from unskew import config, disk
from unskew.data.intake.take import GIVEN
from unskew.engine import card, hardware, predictions, resolve
from unskew.engine.assemble import loop_of
from unskew.engine.callbacks.audience import Audience
from unskew.engine.callbacks.chosen import chosen
from unskew.engine.disk import privacy, record, state
from unskew.engine.disk.fingerprint import fingerprint
from unskew.engine.disk.lock import Lock
from unskew.engine.disk.record import Record
from unskew.engine.disk.sameness import check_files, check_given, check_same, files_at_first, rescored
from unskew.engine.disk.state import MODEL, Checkpoint, State
from unskew.engine.disk.store import Disk
from unskew.engine.leaves import accounts
from unskew.engine.resolve import Run
from unskew.engine.server.loop import Loop, rounds
from unskew.engine.server.summary import Round
from unskew.engine.server.used import check_used
from unskew.errors import Paused, StateError, UsageError
from unskew.models import tokens
from unskew.own import in_one_line
from unskew.revision import revision

Say = Callable[[str], None]
Shown = Callable[[State, Round], None]


def fresh(parent: Path, stem: str) -> Path:
    """`parent/stem-0001`, the first that is free."""
    taken = {p.name for p in parent.glob(f"{stem}-*")} if parent.exists() else set()
    return parent / next(f"{stem}-{i:04d}" for i in range(1, 10_000) if f"{stem}-{i:04d}" not in taken)


@dataclass
class Folder:
    """One run on disk. `go` trains what is left of it; nothing is lost if it is killed anywhere."""

    path: Path
    run: Run

    @staticmethod
    def open(path: Path) -> Folder:
        """The run in this folder, resolved anew from its config.yaml.

        Raises StateError: E117 where there is none, E118 for one that began with objects that only Python can give.
        """
        file = path / "config.yaml"
        if not file.exists():
            raise disk.no_run(path, "config.yaml")
        settings = config.load(file)
        goes_on = f"unskew.run(..., name='{path.name}')"
        if GIVEN in (settings.data, settings.model) or GIVEN in settings.metrics:
            raise StateError(
                "E118", f"{path} was begun from Python with its own data, model or metric; resume it with {goes_on}."
            )
        try:
            method = resolve.method_of(settings)
        except UsageError as error:
            if error.code != "E102":
                raise
            ours = f"Begun from Python with a Part of its own, it goes on there: {goes_on}."
            raise StateError("E118", f"{path} cannot be read: {error.text} {ours}") from error
        return Folder(path, resolve.resolve(settings, method=method))

    def go(self, say: Say, shown: Shown, ready: Callable[[Loop], None] = lambda _: None) -> tuple[Loop, State]:
        """Begin or resume, to the end. `ready` is called once before anything trains, `shown` after every round.

        Raises StateError when in use or of other settings, Paused on a full disk, and NothingUsed at the end of a run
        that its clients did not train; all its files are there then, too.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with self.locked():
                return self._go(say, shown, ready)
        except Paused as full:
            if full.code != "E203":
                raise
            resume = (
                f"The last checkpoint is safe; free space, then: {config.resume_command(self.path, self.run.settings)}"
            )
            raise Paused(full.code, f"{full.text} {resume}") from full

    def _go(self, say: Say, shown: Shown, ready: Callable[[Loop], None]) -> tuple[Loop, State]:
        for part in self.path.rglob("*.safetensors.*.part"):  # of a process that was killed
            part.unlink()
        self._describe()
        checkpoint = state.latest(self.path, self._check_files, say)
        self._check_same(checkpoint)
        self._describe_data()
        self.run = as_recorded(self.run, checkpoint)
        loop = self.opened(checkpoint)
        if checkpoint and checkpoint[1].get("ends"):
            loop.end_with(checkpoint[1]["ends"])
        loop.audience = Audience((*chosen(self.run.settings, self.path), *self.run.callbacks), self.run, loop.record)
        self._account(loop)
        ready(loop)

        def save(after: State, summary: Round) -> None:
            self.save(loop, after)
            shown(after, summary)

        try:
            loop.audience.begun(checkpoint[1]["t"] if checkpoint else 0, loop.last)
            now = self._first(loop, checkpoint, say)
            for after in rounds(loop, now, save):
                now = after
            self._finish(loop, now)
            check_used(self.run, loop.record)
            loop.audience.ended("done")
        except BaseException as error:
            loop.audience.ended(in_one_line(error))
            raise
        finally:
            loop.trainer.close()
            loop.record.close()
            if isinstance(loop.store, Disk):
                loop.store.close()
        return loop, now

    def locked(self) -> AbstractContextManager[Any]:
        """What keeps others out of the folder while this run trains. Raises StateError (E110) where somebody is in it."""
        return Lock(self.path)

    def opened(self, checkpoint: Checkpoint | None) -> Loop:
        """The loop of this run, its record and store as they were at the checkpoint."""
        return loop_of(self.run, self.store(checkpoint), self.record(checkpoint))

    def record(self, checkpoint: Checkpoint | None) -> Record:
        """The record as it was at the checkpoint."""
        return Record(self.path, checkpoint[1]["records"] if checkpoint else None)

    def store(self, checkpoint: Checkpoint | None) -> Disk:
        """The clients' private state as it was at the checkpoint."""
        return Disk(self.path / "private", checkpoint[1] if checkpoint else None, self.run.device)

    def _check_files(self, checkpoint: Checkpoint) -> None:
        """Raises StateError (E204, E208) if a file that a checkpoint vouches for is damaged."""
        record.check(self.path, checkpoint[1]["records"])
        self.store(checkpoint).check()

    def _check_same(self, checkpoint: Checkpoint | None) -> None:
        """Raises StateError: E112 for a checkpoint of other settings, files or data, E202 where one must have been lost."""
        if checkpoint is None:
            if (self.path / MODEL).exists() or record.last_round_in(self.path) > 0:
                text = f"{self.path} has begun, but its checkpoints are gone. Start the run again under another --name."
                raise StateError("E202", text)
            return
        facts, settings = checkpoint[1], self.run.settings
        config.check_same(config.build(facts["settings"]), settings, self.path)
        check_files(facts["files"], settings, self.path)
        check_given(facts.get("given", {}), self.run, self.path)
        if facts["data"] != self.data:
            raise StateError(
                "E112", f"the data of {self.path} have changed since it began; resuming would mix two runs."
            )

    @cached_property
    def data(self) -> str:
        """The fingerprint of the run's data."""
        return fingerprint(self.run.federation)

    def _first(self, loop: Loop, checkpoint: Checkpoint | None, say: Say) -> State:
        if checkpoint:
            now = state.state_in(checkpoint, self.run.device)
            if now.t < loop.last:
                began = maker(self.path)
                other = (
                    f" It was begun by unskew {began}; this is {revision()}." if began not in ("", revision()) else ""
                )
                say(f"Resuming {self.path} from round {now.t} of {loop.last}.{other}")
                self._tell_rescored(loop, checkpoint[1]["files"], now.t, say)
            return now
        now = loop.begin()
        self._tell_rescored(loop, files_at_first(self.path), now.t, say)
        loop.evaluate(now, None)
        self.save(loop, now)
        return now

    def _tell_rescored(self, loop: Loop, before: Mapping[str, str], t: int, say: Say) -> None:
        """Into the record, that a file of metrics was mended. before: digests of the user's own files; t: the last finished round."""
        events = rescored(before, self.run.settings, t)
        loop.record.add("events", events)
        for event in events:
            say(f"{event['code']} {event['text']}")

    def save(self, loop: Loop, now: State) -> None:
        """Write the checkpoint of a round that is finished. Raises Paused (E203) on a full disk; the one before stays."""
        store = loop.store
        assert isinstance(store, Disk)
        meta = {
            "t": now.t,
            "records": loop.record.marks(),
            **store.facts(),
            "settings": self.run.settings.as_dict(),
            "files": self.run.settings.files(),
            **({"given": dict(self.run.given)} if self.run.given else {}),
            "data": self.data,
            "inputs": predictions.facts(self.run.federation),
            **({"ends": loop.ends} if loop.ends else {}),
            **({} if self.run.device == "cpu" else {"lanes": loop.fitted.lanes}),
        }
        tree: dict[str, Any] = {"w": now.weights, "slices": now.slices}
        state.write(self.path / state.LATEST, tree, meta, keep=self.path / state.PREVIOUS)
        store.sweep()

    def _describe(self) -> None:
        """config.yaml and env.json; an existing config must be the same run's."""
        path = self.path / "config.yaml"
        if path.exists():
            check_same(self.path, self.run.settings)
        else:
            disk.replace(self.path / "env.json", json.dumps(environment(self.run), indent=1))
            disk.replace(path, config.dump(self.run.settings))

    def _describe_data(self) -> None:
        """federation.json, once it is known that the data are the run's: others would be refused, and described all the same."""
        tables = tokens.looked_up(self.run.fed.net.module, self.run.fed.shared)
        looked_up = {"looked_up": tables} if tables else {}
        disk.replace(self.path / "federation.json", json.dumps(self.run.federation.summary() | looked_up))

    def _account(self, loop: Loop) -> None:
        """privacy.json, where a part's release amounts to differential privacy: the honest figures beside the published."""
        counts_KC, drawn = self.run.federation.label_counts, loop.chance.described
        by_part = accounts(self.run.method, self.run.fed, counts_KC, drawn)
        privacy.put_releases(self.path, {name: account.as_json() for name, account in by_part.items()})

    def _finish(self, loop: Loop, now: State) -> None:
        state.write(
            self.path / MODEL,
            now.weights,
            {
                "t": now.t,
                "model": self.run.settings.model,
                "method": str(self.run.method),
                "inputs": predictions.facts(self.run.federation),
            },
        )
        disk.replace(self.path / card.FILE, card.card(self.run, loop.record, now))


def as_recorded(run: Run, checkpoint: Checkpoint | None) -> Run:
    """The run with as many lanes as its checkpoint says that it trained with on a GPU, where nobody asked for a number: what
    `auto` predicts here may be another, with other last bits."""
    recorded = checkpoint[1].get("lanes") if checkpoint else None
    if recorded is None or run.device == "cpu" or run.settings.lanes != "auto":
        return run
    return replace(run, lanes=recorded)


def maker(path: Path) -> str:
    """The unskew that began the run in this folder, as `revision()` tells it; empty where none has."""
    with suppress(OSError, ValueError):  # not begun, or damaged: what reads the run whole says so
        return str(json.loads((path / "env.json").read_text()).get("unskew", ""))
    return ""


def environment(run: Run) -> dict[str, Any]:
    return {
        "unskew": revision(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "cores": hardware.cores(),
        "device": run.device,
        "files": run.settings.files(),
        "command": " ".join(["unskew", *sys.argv[1:]]) if sys.argv[0].endswith(("unskew", "__main__.py")) else "",
        "started": time.strftime("%Y-%m-%d %H:%M:%S"),
    }
