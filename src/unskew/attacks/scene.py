"""A finished run opened for attacks: its last round heard again to the same bits, and the samples that score an attack.

Nothing of the run's folder is changed. Letters: N samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from unskew import config, many
from unskew.attacks.opening import NONE, SUMMED, last, opened, settings_of, without_code
from unskew.attacks.replay import Heard, Listener, Overlay, Visit
from unskew.core.client import changed
from unskew.core.trees import Tree, Weights
from unskew.data import scaling
from unskew.engine.assemble import scoring_of, trainer_of
from unskew.engine.client.values import Start
from unskew.engine.disk import record, shapes, state
from unskew.engine.disk.code import Code
from unskew.engine.disk.folder import Folder
from unskew.engine.disk.record import Record
from unskew.engine.disk.sameness import check_files
from unskew.engine.disk.state import Checkpoint, State, digest
from unskew.engine.disk.store import Memory, Store
from unskew.engine.resolve import Run
from unskew.engine.server.loop import Loop
from unskew.errors import StateError

T = TypeVar("T")


class Scene:
    """A finished run as whoever reads its payloads meets it; `close` it.

    final: the state after the last round. last_t: the round with which the run ends, where its budget does not last longer.
    trainer: the clients with their samples.
    """

    pictures = True
    """Whether pictures of samples may stay in the run's folder."""
    no_anew = ""
    """Why attacks that train the run anew are not made here; "" where they may be."""
    merged_only = ""
    """Why the merged model alone can be attacked here and no reply, as the end of a sentence; "" where replies can be, too."""

    def __init__(self, path: Path, folder: Folder | None = None, code: Code = NONE):
        """folder: the run with samples that its settings do not name; opened from the path if left out. code: Python files
        of the run, which may be anybody's, so that none is imported because its folder names it.

        Raises StateError: E117 for no run, E152 for one that cannot be attacked, E156 and E112 for code that is missing or
        another than the run's, and as resuming does for a damaged one.
        """
        self.path = path
        self._kept = dict[str, Any]()
        self.settings = settings_of(path)
        self.folder = folder or opened(path, self.settings, code)
        self.run: Run = self.folder.run
        self.merged_only = SUMMED if self.run.secure else ""
        given = {"--method": code.method, "--model": code.model}
        self.named = [word for option, text in given.items() if isinstance(text, str) for word in (option, text)]
        protector = self.run.method.protector
        self.last_t = protector.rounds_within(self.run.fed) if protector else self.run.settings.rounds
        self.last = self._checked()
        self.final = state.state_in(self.last, self.run.device)
        self.trainer = trainer_of(self.run)

    def close(self) -> None:
        """End the threads."""
        self.trainer.close()

    @property
    def sent(self) -> tuple[str, ...]:
        """Names of the weights that leave a client."""
        return self.trainer.sent

    def _checked(self) -> Checkpoint:
        """The last checkpoint, if the run has come to its end and everything it vouches for is whole."""
        checkpoint = last(self.path)
        facts = checkpoint[1]
        self.last_t = facts.get("ends", self.last_t)
        if facts["t"] < self.last_t:
            where = f"round {facts['t']} of {self.last_t}"
            raise StateError(
                "E152", f"{self.path} is at {where}; attacks need a finished run: unskew resume {self.path}"
            )
        config.check_same(config.build(facts["settings"]), self.settings, self.path)
        check_files(facts["files"], without_code(self.run.settings), self.path)
        record.check(self.path, facts["records"])
        self.folder.store(checkpoint).check()
        self.check_data(facts)
        return checkpoint

    def check_data(self, facts: Mapping[str, Any]) -> None:
        """Raises StateError (E112) for other data than a checkpoint's facts vouch for."""
        if facts["data"] != self.folder.data:
            raise StateError("E112", f"the data of {self.path} have changed since it ran, so nothing can be scored.")

    def heard_by(self) -> Listener:
        """What carries a round that is computed again."""
        return Listener(self.trainer)

    def words(self) -> list[str]:
        """The run, as a command that measures the same again names it."""
        return [str(self.path), *self.named]

    @property
    def told(self) -> str:
        """What a finding says where the merged model alone was attacked; "" elsewhere."""
        return f"only the merged model was attacked, because {self.merged_only}" if self.merged_only else ""

    def _loop(self, store: Store) -> tuple[Loop, Listener]:
        listener = self.heard_by()
        scoring = scoring_of(self.trainer, self.run.federation)
        loop = Loop(self.run, listener, scoring, store, Record())
        if ends := self.last[1].get("ends"):
            loop.end_with(ends)
        return loop, listener

    @cached_property
    def before(self) -> Checkpoint:
        """The checkpoint before the last round. Raises StateError (E152) where the folder has lost it."""
        try:
            checkpoint = state.read(self.path / state.PREVIOUS)
        except FileNotFoundError:
            checkpoint = None
        if checkpoint is None or checkpoint[1]["t"] != self.final.t - 1:
            text = f"{self.path} has no state.previous.safetensors of round {self.final.t - 1}, from which its last round is heard again."
            raise StateError("E152", f"{text} Train the run anew.")
        return checkpoint

    @cached_property
    def last_round(self) -> Heard:
        """What the last round carried, computed again. Raises StateError (E153) if it ends with other bits than the run."""
        loop, listener = self._loop(Overlay(self.folder.store(self.before)))
        after, _ = loop.round(state.state_in(self.before, self.run.device), self.final.t)
        self._same({"w": after.weights, **after.slices}, {"w": self.final.weights, **self.final.slices}, self.final.t)
        return listener.heard

    def rounds(self) -> Iterator[tuple[int, Heard, State]]:
        """(round, what it carried, the state after it), computed again from the beginning; 0 is before the first round."""
        loop, listener = self._loop(Memory())
        now = loop.begin()
        yield 0, listener.heard, now
        for t in range(1, self.last_t + 1):
            listener.forget()
            now, _ = loop.round(now, t)
            yield t, listener.heard, now

    def first(self, what: str, look: Callable[[int, Heard, State], T | None]) -> T | None:
        """The first thing that `look` returns of `rounds`, None if it returns nothing. what: its name in this run, under which
        it is kept: a round costs what training it cost, and every seed of an attack reads the same payloads."""
        if what not in self._kept:
            self._kept[what] = next((thing for r in self.rounds() if (thing := look(*r)) is not None), None)
        return self._kept[what]

    def _same(self, ours: Tree, kept: Tree, t: int) -> None:
        if digest(ours) != digest(kept):
            text = f"round {t} of {self.path}, computed again, does not end with the bits that the run has"
            raise StateError(
                "E153", f"{text}; attack it with the versions and the machine that env.json in its folder names."
            )

    def check_same(self, ours: Tensor, kept: Tensor, what: str) -> None:
        """Raises StateError (E153) unless a payload that was computed again has the bits that the run's server kept."""
        if not torch.equal(ours, kept):
            self._same({what: ours}, {what: kept}, self.final.t)

    def answered(self, t: int) -> list[int]:
        """The clients whose replies of round t were used, in the order of their numbers."""
        file = self.path / "events.jsonl"
        rows = shapes.rows(file, file.read_bytes().splitlines())
        events = [event for event in rows if event["code"] == "round" and event["t"] == t]
        return sorted(int(k) for k in many.clients_in(events[-1]["answered"], self.run.fed.clients)) if events else []

    def start_at(self, checkpoint: Checkpoint, t: int) -> Start:
        """What clients were sent on the state of a checkpoint, in round t."""
        loop, _ = self._loop(Memory())
        return loop.down(state.state_in(checkpoint, self.run.device), t)

    @cached_property
    def ended(self) -> Start:
        """What clients would be sent after the last round."""
        loop, _ = self._loop(Memory())
        return loop.down(self.final, self.final.t)

    def seen(self, x: Tensor, k: int = -1) -> Tensor:
        """Samples [N, *shape] as stored, as the model of client k, or of nobody, sees them at test time."""
        c = self.trainer.client(k, self.ended, "", self.final.weights, {})
        return self.trainer.prepared(x.to(self.trainer.device), c, self.ended)

    def unseen_by_model(self, x: Tensor) -> Tensor:
        """The inverse of `seen` for nobody: inputs as the model sees them, as they would be stored.

        What Parts make of inputs at test time is affine, value by value, so two samples determine it.
        """
        zero, one = (self.seen(torch.full((1, *self.run.fed.shape), v)) for v in (0.0, 1.0))
        return (x - zero) / (one - zero)

    def natural(self, x: Tensor) -> Tensor:
        """Samples [N, ...] as they are stored, in natural units (images: [0, 1])."""
        federation = self.run.federation
        if federation.applied is None:
            return x
        return torch.as_tensor(scaling.undone(x.numpy(force=True), federation.applied, federation.layout)).to(x)

    def drawn_by(self, visit: Visit, k: int, w: Weights) -> list[Tensor]:
        """The samples, as stored, that client k drew for what it sent in a trip, one tensor a draw."""
        drawn: list[Tensor] = []
        trainer, start = self.trainer, visit.start
        with trainer.evaluating():
            c = trainer.client(k, start, visit.part.name, w, visit.private.get(k, {}))
            draw = c.chosen
            assert draw is not None

            def keep(count: int, purpose: str, replacement: bool, raw: bool):  # type: ignore[no-untyped-def]
                drawn.append(draw(count, purpose, replacement, True).x)
                return draw(count, purpose, replacement, raw)

            visit.trip.client(w, changed(c, chosen=keep))
        return drawn
