"""A run in its folder: begun, saved, and resumed to the same bits.

A checkpoint is written after a round if the one before it is a second old, and after the last two rounds, so
that saving costs little where rounds are short. A run that ends with an error saves its last finished round;
one that is killed repeats at most the rounds of that second.

A run is only resumed with the same settings, data, files of the user's own and given objects. A file that
only metrics come from changes no weight and may be mended. The setting `rounds` may grow: a run that has
ended goes back to the round before its last, so that what is done in a last round is not part of the longer
run.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from unskew import config
from unskew.config import Settings
from unskew.core import module_inputs
from unskew.core.method import more_rounds_problem
from unskew.core.trees import Tree
from unskew.data.clients.federation import Federation
from unskew.data.samples.dataset import SAMPLE_WEIGHT
from unskew.data.storage.rows_on_disk import HeldRows, Rows, is_streamed, row_digests
from unskew.errors import Paused, StateError, UsageError
from unskew.records import checkpoints, record, schema
from unskew.records.checkpoints import MODEL, Checkpoint, State
from unskew.records.private_state import DiskStore
from unskew.records.record import Record
from unskew.records.run_lock import RunLock
from unskew.round.callback import CallbackList
from unskew.round.loop import Loop, RoundSummary, remaining_rounds
from unskew.round.run import Run
from unskew.runs import hardware, predictions, resolve
from unskew.runs.assemble import loop_of
from unskew.runs.callbacks import callbacks_of
from unskew.runs.disclosure import account_entries
from unskew.runs.score_coverage import check_used
from unskew.system import disk
from unskew.system.python_files import GIVEN_OBJECT, one_line
from unskew.version import revision

BLOCK_BYTES = 1 << 20


def fingerprint(federation: Federation, by_sample: bool = False) -> str:
    """SHA-256 of the samples, labels, weights and classes, for training and the test, and of who holds which.

    Of samples that are read on demand, the digest of each sample counts, and of a named set's images those
    that clients or the server hold. by_sample: each sample's digest also of samples in memory, so that it
    does not depend on how much memory a machine has.
    """
    facts = (federation.classes, federation.names, federation.mean, federation.std)
    further = tuple(fact for fact in (federation.target, federation.layout) if fact)
    sha = hashlib.sha256(repr(facts + further).encode())
    indices = [
        index
        for part in (federation.train, federation.val, federation.test)
        for index in (part.rows, part.offsets)
    ]
    weights = [federation.columns[SAMPLE_WEIGHT]] if SAMPLE_WEIGHT in federation.columns else []
    source = federation.x.source if isinstance(federation.x, Rows) else None
    x = (source.held, source.x) if isinstance(source, HeldRows) else (federation.x,)
    samples = (*x, federation.y, federation.x_test, federation.y_test, *weights)
    for array in (*samples, *indices, federation.reserved):
        sha.update(f"\n{array.dtype} {array.shape}\n".encode())
        each = array
        if isinstance(array, Rows) and is_streamed(array):
            each = array.survey.digests
        if by_sample and each is array and any(array is x for x in (federation.x, federation.x_test)):
            each = row_digests(array)
        for block in _byte_blocks(each):
            sha.update(block)
        if isinstance(array, Rows) and is_streamed(array) and array.changes:
            sha.update(repr(federation.applied).encode())
    return sha.hexdigest()


def _byte_blocks(array: Any) -> Iterator[memoryview]:
    """The bytes of an array, some rows at a time."""
    row_bytes = max(1, int(np.prod(array.shape[1:], dtype=np.int64)) * array.dtype.itemsize)
    rows = max(1, BLOCK_BYTES // row_bytes)
    for start in range(0, len(array), rows):
        yield np.ascontiguousarray(np.asarray(array[start : start + rows])).reshape(-1).view(np.uint8).data


def check_same(path: Path, settings: Settings) -> None:
    """Raises StateError (E112) unless the run in this folder has these settings and unchanged user files."""
    config.check_same(config.load(path / "config.yaml"), settings, path)
    check_files(first_files(path), settings, path)


def first_files(path: Path) -> dict[str, str]:
    """The digests of the user's files when the run in this folder began. Raises StateError (E111) for a
    damaged env.json."""
    env = path / "env.json"
    try:
        return dict(json.loads(env.read_text())["files"]) if env.exists() else {}
    except (ValueError, KeyError, TypeError) as error:
        why = f"{type(error).__name__}: remove it to go on without the versions and the files it names"
        raise StateError("E111", f"{env} is damaged ({why}).") from None


def check_files(before: Mapping[str, str], settings: Settings, path: Path) -> None:
    """Raises StateError (E112) if a file of the settings that is not only for metrics has another digest than
    before."""
    for file, now in settings.files().items():
        if before.get(file, now) != now and file not in settings.files_of_metrics():
            text = f"{file} has changed since {path} began; going on would mix two of it"
            raise StateError("E112", f"{text}. Choose another --name.")


def check_objects(before: Mapping[str, str], now: Mapping[str, str], path: Path) -> None:
    """Raises StateError if a model or Part from Python differs from the earlier one (E112) or is missing
    (E156). before, now: digests by description."""
    for name, then in before.items():
        if name not in now:
            text = f"{path} was begun from Python with {name} given as an object; resume it there."
            raise StateError("E156", text)
        if now[name] != then:
            text = (
                f"{name} given here is not the one with which {path} was begun; going on would mix two runs"
            )
            raise StateError("E112", f"{text}. Choose another --name.")


Say = Callable[[str], None]
Shown = Callable[[State, RoundSummary], None]


def free_path(parent: Path, stem: str) -> Path:
    """The first path among `parent/stem-0001`, `parent/stem-0002`, ... that does not exist."""
    taken = {p.name for p in parent.glob(f"{stem}-*")} if parent.exists() else set()
    return parent / next(f"{stem}-{i:04d}" for i in range(1, 10_000) if f"{stem}-{i:04d}" not in taken)


@dataclass
class RunFolder:
    """One run on disk. `go` trains the remaining rounds; it may be killed at any time.

    saved_every_s: the age of a checkpoint after which another one is written. unsaved: the tree and the
    facts of the checkpoint after the last finished round, until they are written. saved_s: when the last
    one was written.
    """

    saved_every_s: ClassVar[float] = 1.0

    path: Path
    run: Run
    unsaved: tuple[Tree, dict[str, Any]] | None = field(default=None, init=False)
    saved_s: float = field(default=-math.inf, init=False)

    @staticmethod
    def open(path: Path, rounds: int | None = None) -> RunFolder:
        """The run in this folder, resolved from its config.yaml. rounds: more than it has there.

        Raises StateError: E117 if there is no run, E156 for a run that began with Python objects; UsageError
        (E109) for fewer rounds.
        """
        file = path / "config.yaml"
        if not file.exists():
            raise disk.no_run(path, "config.yaml")
        settings = config.load(file)
        if rounds is not None and rounds < settings.rounds:
            raise UsageError("E109", f"{path} is a run of {settings.rounds} rounds; got rounds={rounds}.")
        settings = settings.replace(rounds=settings.rounds if rounds is None else rounds)
        again = f"resume it with unskew.run(..., name='{path.name}')"
        if (
            GIVEN_OBJECT in (settings.data, settings.model)
            or GIVEN_OBJECT in settings.metrics + settings.loss
        ):
            text = f"{path} was begun from Python with its own data, model, loss or metric; {again}."
            raise StateError("E156", text)
        try:
            method = resolve.method_of(settings)
        except UsageError as error:
            if error.code != "E102":
                raise
            text = f"{path} cannot be read: {error.text} If a program gave a Part of its own, {again}."
            raise StateError("E156", text) from error
        return RunFolder(path, resolve.resolve(settings, method=method))

    def go(
        self, say: Say, shown: Shown, ready: Callable[[Loop], None] = lambda _: None
    ) -> tuple[Loop, State]:
        """Begin or resume the run and train to the end. Returns (the loop, the last state).

        say: prints a sentence. ready: called once before training. shown: called after every round. Raises
        StateError if the folder is in use or has other settings, Paused on a full disk, and NothingUsed after
        a run in which no reply was used; its files are complete then.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with self.locked():
                return self._go(say, shown, ready)
        except Paused as full:
            if full.code != "E203":
                raise
            resume = config.resume_command(self.path, self.run.settings)
            text = f"{full.text} The last checkpoint is safe; free space, then: {resume}"
            raise Paused(full.code, text) from full

    def _go(self, say: Say, shown: Shown, ready: Callable[[Loop], None]) -> tuple[Loop, State]:
        for part in self.path.rglob("*.safetensors.*.part"):  # left by a process that was killed
            part.unlink()
        fewer = self._fewer_rounds()
        if not fewer:
            self._describe()
        checkpoint = checkpoints.latest(self.path, self._check_files, say)
        self._check_same(checkpoint, fewer > 0)
        if fewer:
            checkpoint = self._with_more_rounds(fewer, checkpoint)
        self._describe_data()
        self.run = with_recorded_lanes(self.run, checkpoint)
        loop = self.opened(checkpoint)
        if checkpoint and checkpoint[1].get("ends"):
            loop.end_with(checkpoint[1]["ends"])
        loop.callbacks = CallbackList(
            (*callbacks_of(self.run.settings, self.path), *self.run.callbacks), self.run, loop.record
        )
        self._account(loop)
        ready(loop)

        def save(after: State, summary: RoundSummary) -> None:
            self.save(loop, after)
            shown(after, summary)

        try:
            loop.callbacks.begun(checkpoint[1]["t"] if checkpoint else 0, loop.last)
            now = self._first(loop, checkpoint, say)
            for after in remaining_rounds(loop, now, save):
                now = after
            self._finish(now)
            check_used(self.run, loop.record)
            loop.callbacks.ended("done")
        except BaseException as error:
            with suppress(Exception):  # the error that ends the run is the one to report
                self.flush(loop)
            loop.callbacks.ended(one_line(error))
            raise
        finally:
            loop.trainer.close()
            loop.record.close()
            self._stored(loop).close()
        return loop, now

    def locked(self) -> AbstractContextManager[Any]:
        """The lock of the folder for the time of training. Raises StateError (E110) if it is in use."""
        return RunLock(self.path)

    def opened(self, checkpoint: Checkpoint | None) -> Loop:
        """The loop of this run with the record and store of the checkpoint."""
        return loop_of(self.run, self.store(checkpoint), self.record(checkpoint))

    def record(self, checkpoint: Checkpoint | None) -> Record:
        """The record as it was at the checkpoint."""
        return Record(self.path, checkpoint[1]["records"] if checkpoint else None)

    def store(self, checkpoint: Checkpoint | None) -> DiskStore:
        """The clients' private state as it was at the checkpoint."""
        return DiskStore(self.path / "private", checkpoint[1] if checkpoint else None, self.run.device)

    def _check_files(self, checkpoint: Checkpoint) -> None:
        """Raises StateError (E201) if a file that a checkpoint refers to is damaged."""
        record.check(self.path, checkpoint[1]["records"])
        self.store(checkpoint).check()

    def _check_same(self, checkpoint: Checkpoint | None, continues: bool = False) -> None:
        """Raises StateError: E112 for a checkpoint of other settings, files or data, E201 if it is
        missing. continues: the run is to have more rounds than config.yaml says.

        A run whose continuation was interrupted has more rounds in config.yaml than in its checkpoint.
        """
        if checkpoint is None:
            if (self.path / MODEL).exists() or record.last_round_in(self.path) > 0:
                text = f"{self.path} has begun, but its checkpoints are gone; start the run again"
                raise StateError("E201", f"{text} under another --name.")
            return
        facts, settings = checkpoint[1], self.run.settings
        before = config.build(facts["settings"])
        began = facts["t"] < before.rounds < settings.rounds
        if continues or (began and not more_rounds_problem(self.run.method, before.rounds, settings.rounds)):
            before = before.replace(rounds=settings.rounds)
        config.check_same(before, settings, self.path)
        check_files(facts["files"], settings, self.path)
        check_objects(facts.get("given", {}), self.run.given, self.path)
        if facts["data"] != self.data:
            text = f"the data of {self.path} have changed since it began; resuming would mix two runs."
            raise StateError("E112", text)

    def _fewer_rounds(self) -> int:
        """The number of rounds in config.yaml if that is smaller than the run's and no other setting differs;
        else 0."""
        file, now = self.path / "config.yaml", self.run.settings
        if not file.exists():
            return 0
        before = config.load(file)
        alike = before.replace(rounds=now.rounds).fingerprint() == now.fingerprint()
        return before.rounds if alike and before.rounds < now.rounds else 0

    def _with_more_rounds(self, before: int, checkpoint: Checkpoint | None) -> Checkpoint | None:
        """The checkpoint from which the folder's run of `before` rounds continues to the run's own number,
        which config.yaml then has. If the run has ended, it is the checkpoint before the last round, and the
        files of its end are removed.

        Raises StateError: E112 if a run of more rounds would have other bits, E201 without that checkpoint.
        """
        now, protector = self.run.settings.rounds, self.run.method.protector
        facts = checkpoint[1] if checkpoint else {"t": 0}
        problem = more_rounds_problem(self.run.method, before, now)
        if protector and (within := protector.rounds_within(self.run.fed)) < now:
            problem = problem or f"its privacy budget allows {within} rounds"
        if facts.get("ends"):
            problem = f"it was ended after round {facts['t']}, which events.jsonl explains"
        if problem:
            text = f"{self.path}, a run of {before} rounds, cannot continue to {now}: {problem}"
            raise StateError("E112", f"{text}. Start a new run under another --name.")
        if facts["t"] == before:
            previous = self.path / checkpoints.PREVIOUS
            if not previous.exists():
                text = f"{previous} is missing, from which {self.path} would continue to {now} rounds."
                raise StateError("E201", text)
            checkpoint = checkpoints.read(previous)
            self._check_files(checkpoint)
            for file in (MODEL, schema.PRIVACY_FILE):
                (self.path / file).unlink(missing_ok=True)
            previous.replace(self.path / checkpoints.LATEST)
        disk.replace(self.path / "config.yaml", config.dump(self.run.settings))
        return checkpoint

    @cached_property
    def data(self) -> str:
        """The fingerprint of the run's data."""
        return fingerprint(self.run.federation)

    def _first(self, loop: Loop, checkpoint: Checkpoint | None, say: Say) -> State:
        if checkpoint:
            now = checkpoints.state_in(checkpoint, self.run.device)
            loop.deliveries.restore(checkpoint[0].get("held", {}), now.slices)
            if now.t < loop.last:
                began = recorded_revision(self.path) or revision()
                other = (
                    f" It was begun by unskew {began}; this is {revision()}." if began != revision() else ""
                )
                say(f"Resuming {self.path} from round {now.t} of {loop.last}.{other}")
            return now
        now = loop.begin()
        loop.evaluate(now, None)
        self.save(loop, now)
        return now

    def save(self, loop: Loop, now: State) -> None:
        """Save the state after a finished round: at once if it is one of the last two, or if the last
        checkpoint is old enough; else with a later one. Raises Paused (E203) on a full disk; the previous
        checkpoint remains."""
        facts: dict[str, Any] = {"t": now.t, "records": loop.record.marks(), **self._stored(loop).facts()}
        facts |= {"ends": loop.ends} if loop.ends else {}
        tree = {"w": now.weights, "slices": now.slices, "held": loop.deliveries.state(now.slices)}
        self.unsaved = tree, facts
        if now.t >= loop.last - 1 or time.monotonic() >= self.saved_s + self.saved_every_s:
            self.flush(loop)

    def flush(self, loop: Loop) -> None:
        """Write the checkpoint of the last finished round, unless it is written. Raises Paused (E203)."""
        if self.unsaved is None:
            return
        tree, facts = self.unsaved
        loop.record.sync()
        self._stored(loop).sync()
        meta = {
            **facts,
            "settings": self.run.settings.as_dict(),
            "files": self.run.settings.files(),
            **({"given": dict(self.run.given)} if self.run.given else {}),
            "data": self.data,
            "inputs": predictions.input_facts(self.run.federation),
            **({} if self.run.device == "cpu" else {"lanes": self.run.lanes}),
        }
        checkpoints.write(self.path / checkpoints.LATEST, tree, meta, keep=self.path / checkpoints.PREVIOUS)
        self.unsaved, self.saved_s = None, time.monotonic()
        self._stored(loop).sweep()

    @staticmethod
    def _stored(loop: Loop) -> DiskStore:
        assert isinstance(loop.store, DiskStore)
        return loop.store

    def _describe(self) -> None:
        """Write config.yaml and env.json, or check an existing config."""
        path = self.path / "config.yaml"
        if path.exists():
            check_same(self.path, self.run.settings)
        else:
            disk.replace(self.path / "env.json", json.dumps(environment(self.run), indent=1))
            disk.replace(path, config.dump(self.run.settings))

    def _describe_data(self) -> None:
        """Write federation.json, after the check that the data are the run's."""
        tables = module_inputs.table_exposure(self.run.fed.net.module, self.run.fed.shared)
        looked_up = {"looked_up": tables} if tables else {}
        disk.replace(self.path / "federation.json", json.dumps(self.run.federation.summary() | looked_up))

    def _account(self, loop: Loop) -> None:
        """Write privacy.json with the differential privacy of the Parts' releases: published and other
        figures."""
        loop.record.privacy = account_entries(loop)
        schema.put_releases(self.path, loop.record.privacy)

    def _finish(self, now: State) -> None:
        facts = {
            "t": now.t,
            "model": self.run.settings.model,
            "method": str(self.run.method),
            "inputs": predictions.input_facts(self.run.federation),
        }
        checkpoints.write(self.path / MODEL, now.weights, facts)


def with_recorded_lanes(run: Run, checkpoint: Checkpoint | None) -> Run:
    """The run with the lanes that its checkpoint recorded, on a GPU with lanes=auto: a prediction on this
    machine may differ and change last bits."""
    recorded = checkpoint[1].get("lanes") if checkpoint else None
    if recorded is None or run.device == "cpu" or run.settings.fixed_lanes is not None:
        return run
    return replace(run, lanes=recorded)


def recorded_revision(path: Path) -> str:
    """The revision of unskew that began the run in this folder; "" if it is unknown."""
    with suppress(OSError, ValueError):  # not begun, or damaged, which readers of the whole run report
        return str(json.loads((path / "env.json").read_text()).get("unskew", ""))
    return ""


def environment(run: Run) -> dict[str, Any]:
    """The content of env.json: versions, machine, device, digests of the user's files, command and time."""
    on_command_line = sys.argv[0].endswith(("unskew", "__main__.py"))
    return {
        "unskew": revision(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "cores": hardware.core_count(),
        "device": run.device,
        "files": run.settings.files(),
        "command": " ".join(["unskew", *sys.argv[1:]]) if on_command_line else "",
        "started": time.strftime("%Y-%m-%d %H:%M:%S"),
    }
