"""A finished run opened for attacks: its last round, recomputed bit for bit, and the scoring samples.

The run's folder is not changed. The folder may come from a stranger, so no Python file is imported because
the folder names it. An exchange records what a reader at the server receives. Letters: N samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from unskew import config, scores
from unskew.config import Settings
from unskew.core import encoding
from unskew.core.client import replace_fields
from unskew.core.part import Part, Trip
from unskew.core.replies import Reply
from unskew.core.trees import Tree, Weights
from unskew.data.clients.federation import Federation
from unskew.data.samples import scaling
from unskew.errors import StateError
from unskew.records import checkpoints, client_lists, record, schema
from unskew.records.checkpoints import Checkpoint, State, digest
from unskew.records.private_state import MemoryStore, Store
from unskew.records.record import Record
from unskew.round.clients import Broadcast
from unskew.round.loop import Loop
from unskew.round.run import Run
from unskew.round.samples import load_samples
from unskew.round.trainer import Trainer
from unskew.runs import resolve
from unskew.runs.assemble import scoring_of, trainer_of
from unskew.runs.reopen import UserCode, recorded_method
from unskew.runs.run_folder import RunFolder, check_files, with_recorded_lanes
from unskew.system import disk
from unskew.system.python_files import GIVEN_OBJECT

SUMS_ONLY = "the server read sums alone (secure_aggregation)"
"""Why single replies cannot be attacked in a run, as the end of a sentence."""
NO_CODE = UserCode()
"""The code of a run that needs no user files."""


def settings_of(path: Path) -> Settings:
    """The settings of the run in this folder. Raises StateError (E117) without a run."""
    file = path / "config.yaml"
    if not file.exists():
        raise disk.no_run(path, "config.yaml")
    return config.load(file)


def open_run(path: Path, settings: Settings, code: UserCode) -> RunFolder:
    """The run of a folder with settings that name its samples; user files are those of the caller."""
    _check_here(path, settings)
    checkpoint = last_checkpoint(path)
    files = checkpoint[1]["files"]
    method = recorded_method(path, files, settings, code, ("method", "model", "loss"))
    # no attack reads metrics, which may be Python files as well
    safe, model = settings.replace(metrics=scores.NONE, loss=code.loss or settings.loss), code.model
    if isinstance(model, str):
        safe, model = safe.replace(model=model), None
    return RunFolder(path, with_recorded_lanes(resolve.resolve(safe, method=method, model=model), checkpoint))


def without_code(settings: Settings) -> Settings:
    """The settings without user files, which were compared when the run was opened."""
    code = {
        "method": "fedavg",
        "set": {},
        "metrics": scores.NONE,
        "loss": "auto",
        **({"model": "auto"} if ".py" in settings.model else {}),
    }
    return settings.replace(**code)


def last_checkpoint(path: Path) -> Checkpoint:
    """The last checkpoint of a run. Raises StateError: E155 without one, E201 for a damaged one."""
    try:
        return checkpoints.read(path / checkpoints.LATEST)
    except FileNotFoundError:
        raise StateError("E155", f"{path} has no state.safetensors: it has not begun, or lost it.") from None


def _check_here(path: Path, settings: Settings) -> None:
    """Raises StateError (E155) for a run with samples or a model that this machine cannot load."""
    if settings.data.startswith("("):
        text = (
            f"the samples of {path} are not named in its settings (they stayed at sites, or were given in"
            " Python)"
        )
        remedy = "attack a simulated run of the same settings, on data like them"
        raise StateError("E155", f"{text}, and an attack is scored on them; {remedy}.")
    if settings.model == GIVEN_OBJECT:
        raise StateError(
            "E155", f"the model of {path} was given in Python; attack a run whose model has a name or a file."
        )


@dataclass(frozen=True)
class Visit:
    """One trip: its Part, the broadcast, the clients' private state, and their replies."""

    part: Part
    trip: Trip
    start: Broadcast
    private: Mapping[int, Tree]
    replies: Sequence[Reply]

    @property
    def key(self) -> str:
        """The name of the Part."""
        return self.part.name


@dataclass
class RecordedRound:
    """The messages of one round, or of the time before the first round.

    start: the broadcast. private: the clients' private state, which no reader receives. replies: of training.
    """

    start: Broadcast | None = None
    private: Mapping[int, Tree] = field(default_factory=dict[int, Tree])
    replies: Sequence[Reply] = ()
    visits: list[Visit] = field(default_factory=list[Visit])

    def visit(self, part: str) -> Visit | None:
        """The trip of the Part with this name, or None."""
        return next((v for v in self.visits if v.part.name == part), None)


class RecordingExchange:
    """An exchange that forwards to a trainer and keeps all messages since the last `forget` in `recorded`."""

    def __init__(self, trainer: Trainer):
        self.trainer = trainer
        self.device, self.sent = trainer.device, trainer.sent
        self.kept, self.hooks = trainer.kept, trainer.hooks
        self.chance = trainer.chance
        self.recorded = RecordedRound()

    def forget(self) -> None:
        """Begin a new round."""
        self.recorded = RecordedRound()

    def train(self, start: Broadcast, cohort: Sequence[int], private: Mapping[int, Tree]) -> list[Reply]:
        """The clients' replies; the record has encoded weights as a reader decodes them."""
        replies = self.trainer.train(start, cohort, private)
        method, fed = self.trainer.method, self.trainer.fed
        self.recorded.start, self.recorded.private = start, private
        self.recorded.replies, _ = encoding.decode_replies(method, replies, start.received, fed, start.t)
        return replies

    def visit(
        self, trip: Trip, part: Part, start: Broadcast, ids: Sequence[int], private: Mapping[int, Tree]
    ) -> list[Reply]:
        """The replies of a trip, which are recorded."""
        replies = self.trainer.visit(trip, part, start, ids, private)
        self.recorded.visits.append(Visit(part, trip, start, private, replies))
        return replies

    def remarks(self) -> list[tuple[str, str]]:
        """Nothing, because the run has made its remarks already."""
        return []

    def close(self) -> None:
        """End the trainer's threads."""
        self.trainer.close()


class OverlayStore:
    """A store that reads from another one and keeps new states in memory."""

    def __init__(self, below: Store):
        self.below, self.above = below, dict[int, Tree]()

    def fetch(self, clients: Iterable[int]) -> dict[int, Tree]:
        """The private trees of these clients, those of `above` first."""
        ids = list(clients)
        below = self.below.fetch([k for k in ids if k not in self.above])
        return below | {k: self.above[k] for k in ids if k in self.above}

    def put(self, t: int, trees: Mapping[int, Tree]) -> None:
        self.above |= {k: tree for k, tree in trees.items() if tree}

    def known(self) -> list[int]:
        return sorted({*self.below.known(), *self.above})


T = TypeVar("T")


class TargetRun:
    """A finished run as seen by a reader of its payloads; `close` it after use.

    final: the state after the last round. last_t: the number of that round. trainer: the clients with their
    samples.
    """

    merged_only = ""
    """Why only the merged model can be attacked, as the end of a sentence; "" if replies can be, too."""

    def __init__(self, path: Path, code: UserCode = NO_CODE):
        """Open the run in `path`. code: the Python files of the run; files that only the folder names are not
        imported.

        Raises StateError: E117 without a run, E155 for one that cannot be attacked, E156 and E112 for missing
        or different code, and the errors of resuming for a damaged run.
        """
        self.path = path
        self._kept = dict[str, Any]()
        self.settings = settings_of(path)
        self.folder = open_run(path, self.settings, code)
        self.run: Run = self.folder.run
        self.merged_only = SUMS_ONLY if self.run.secure else ""
        options = {"--method": code.method, "--model": code.model}
        self.named = [
            word for option, text in options.items() if isinstance(text, str) for word in (option, text)
        ]
        protector = self.run.method.protector
        self.last_t = protector.rounds_within(self.run.fed) if protector else self.run.settings.rounds
        self.last = self._checked()
        self.final = checkpoints.state_in(self.last, self.run.device)
        self.trainer = trainer_of(self.run)

    def close(self) -> None:
        """End the threads."""
        self.trainer.close()

    @property
    def sent(self) -> tuple[str, ...]:
        """Names of the weights that leave a client."""
        return self.trainer.sent

    @property
    def federation(self) -> Federation:
        """The run's clients and their samples."""
        return self.run.federation

    def stored(self, rows: np.ndarray | Tensor) -> Tensor:
        """The training samples of these rows, [N, *shape]."""
        return load_samples(self.federation.x[np.asarray(rows)], self.trainer.device)

    def held_by(self, k: int) -> Tensor:
        """The training samples of client k, [N, *shape]."""
        return self.stored(self.federation.train[k])

    def held(self) -> Tensor:
        """The training samples of all clients, each once."""
        return self.stored(np.unique(self.federation.train.rows))

    def _checked(self) -> Checkpoint:
        """The last checkpoint, after a check that the run is finished and its files are unchanged."""
        checkpoint = last_checkpoint(self.path)
        facts = checkpoint[1]
        self.last_t = facts.get("ends", self.last_t)
        if facts["t"] < self.last_t:
            where = f"round {facts['t']} of {self.last_t}"
            raise StateError(
                "E155", f"{self.path} is at {where}; attacks need a finished run: unskew resume {self.path}"
            )
        config.check_same(config.build(facts["settings"]), self.settings, self.path)
        check_files(facts["files"], without_code(self.run.settings), self.path)
        record.check(self.path, facts["records"])
        self.folder.store(checkpoint).check()
        if facts["data"] != self.folder.data:
            raise StateError(
                "E112", f"the data of {self.path} have changed since it ran, so nothing can be scored."
            )
        return checkpoint

    def words(self) -> list[str]:
        """The words that name the run in a command."""
        return [str(self.path), *self.named]

    @property
    def remark(self) -> str:
        """A remark for findings if only the merged model was attacked; else ""."""
        return f"only the merged model was attacked, because {self.merged_only}" if self.merged_only else ""

    def _loop(self, store: Store) -> tuple[Loop, RecordingExchange]:
        listener = RecordingExchange(self.trainer)
        scoring = scoring_of(self.trainer, self.federation)
        loop = Loop(self.run, listener, scoring, store, Record())
        if ends := self.last[1].get("ends"):
            loop.end_with(ends)
        return loop, listener

    @cached_property
    def before(self) -> Checkpoint:
        """The checkpoint before the last round. Raises StateError (E155) if it is missing."""
        try:
            checkpoint = checkpoints.read(self.path / checkpoints.PREVIOUS)
        except FileNotFoundError:
            checkpoint = None
        if checkpoint is None or checkpoint[1]["t"] != self.final.t - 1:
            text = (
                f"{self.path} has no state.previous.safetensors of round {self.final.t - 1}, from which its"
                " last round is heard again."
            )
            raise StateError("E155", f"{text} Train the run anew.")
        return checkpoint

    @cached_property
    def last_round(self) -> RecordedRound:
        """The messages of the repeated last round. Raises StateError (E112) if it ends with other bits."""
        loop, listener = self._loop(OverlayStore(self.folder.store(self.before)))
        after, _ = loop.round(checkpoints.state_in(self.before, self.run.device), self.final.t)
        self._same(
            {"w": after.weights, **after.slices}, {"w": self.final.weights, **self.final.slices}, self.final.t
        )
        return listener.recorded

    def rounds(self) -> Iterator[tuple[int, RecordedRound, State]]:
        """(round, messages, state after it) of the repeated run; round 0 is before the first one."""
        loop, listener = self._loop(MemoryStore())
        now = loop.begin()
        yield 0, listener.recorded, now
        for t in range(1, self.last_t + 1):
            listener.forget()
            now, _ = loop.round(now, t)
            yield t, listener.recorded, now

    def first(self, what: str, look: Callable[[int, RecordedRound, State], T | None]) -> T | None:
        """The first value other than None that `look` returns for `rounds`, or None.

        what: the name under which the value is cached, because repeated rounds cost as much as training and
        all seeds of an attack read the same payloads.
        """
        if what not in self._kept:
            self._kept[what] = next((value for r in self.rounds() if (value := look(*r)) is not None), None)
        return self._kept[what]

    def _same(self, ours: Tree, kept: Tree, t: int) -> None:
        if digest(ours) != digest(kept):
            text = f"round {t} of {self.path}, computed again, does not end with the bits that the run has"
            raise StateError(
                "E112",
                f"{text}; attack it with the versions and the machine that env.json in its folder names.",
            )

    def check_same(self, ours: Tensor, kept: Tensor, what: str) -> None:
        """Raises StateError (E112) if a recomputed payload differs from that of the run's server."""
        if not torch.equal(ours, kept):
            self._same({what: ours}, {what: kept}, self.final.t)

    def answered(self, t: int) -> list[int]:
        """The clients with used replies of round t, in ascending order."""
        file = self.path / "events.jsonl"
        rows = schema.parse_rows(file, file.read_bytes().splitlines())
        events = [event for event in rows if event["code"] == "round" and event["t"] == t]
        if not events:
            return []
        return sorted(int(k) for k in client_lists.clients_in(events[-1]["answered"], self.run.fed.clients))

    def start_at(self, checkpoint: Checkpoint, t: int) -> Broadcast:
        """The broadcast of round t on the state of a checkpoint."""
        loop, _ = self._loop(MemoryStore())
        return loop.down(checkpoints.state_in(checkpoint, self.run.device), t)

    @cached_property
    def ended(self) -> Broadcast:
        """The broadcast that would follow the last round."""
        loop, _ = self._loop(MemoryStore())
        return loop.down(self.final, self.final.t)

    def seen(self, x: Tensor, k: int = -1) -> Tensor:
        """Stored samples [N, *shape] as client k's model sees them at test time; k = -1 for no client."""
        c = self.trainer.client(k, self.ended, "", self.final.weights, {})
        return self.trainer.prepared(x.to(self.trainer.device), c, self.ended)

    def unseen_by_model(self, x: Tensor) -> Tensor:
        """The inverse of `seen` for k = -1: stored samples for inputs as the model sees them.

        The transformation by Parts at test time is affine in each value, so two samples determine it.
        """
        zero, one = (self.seen(torch.full((1, *self.run.fed.shape), v)) for v in (0.0, 1.0))
        return (x - zero) / (one - zero)

    def natural(self, x: Tensor) -> Tensor:
        """Stored samples [N, ...] in natural units (images: [0, 1])."""
        federation = self.federation
        if federation.applied is None:
            return x
        return torch.as_tensor(scaling.undo(x.numpy(force=True), federation.applied, federation.layout)).to(x)

    def drawn_by(self, visit: Visit, k: int, w: Weights) -> list[Tensor]:
        """The stored samples that client k drew for its reply in a trip, one tensor per draw."""
        drawn: list[Tensor] = []
        trainer, start = self.trainer, visit.start
        with trainer.evaluating():
            c = trainer.client(k, start, visit.part.name, w, visit.private.get(k, {}))
            draw = c.chosen
            assert draw is not None

            def keep(count: int, purpose: str, replacement: bool, raw: bool):  # type: ignore[no-untyped-def]
                drawn.append(draw(count, purpose, replacement, True).x)
                return draw(count, purpose, replacement, raw)

            visit.trip.client(w, replace_fields(c, chosen=keep))
        return drawn
