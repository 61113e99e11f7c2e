"""Users' callbacks, and how a run calls them such that none can change a bit of it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from unskew.config import Settings
from unskew.core.replies import Reply
from unskew.core.trees import Weights
from unskew.data.clients.federation import SUMMARY_CLIENTS
from unskew.errors import StateError, UnskewError, UsageError, excerpt
from unskew.records import checkpoints
from unskew.records.checkpoints import State
from unskew.records.record import Record
from unskew.system.python_files import one_line

if TYPE_CHECKING:  # a run holds its callbacks
    from unskew.round.run import Run

RUN_FILES = (checkpoints.LATEST, checkpoints.PREVIOUS, checkpoints.MODEL)
"""Files of a run that callbacks must not write."""


@dataclass(frozen=True)
class Replied:
    """A reply of a round. client: its number. name: its name. samples: the number that it reports.

    loss: its mean training loss, NaN if clients do not report it. used: whether the reply is merged.
    """

    client: int
    name: str
    samples: float
    loss: float
    used: bool


class Progress:
    """A run as its callbacks see it; everything is read-only, and tensors are copies.

    t: the last finished round or, between `round_begun` and `merged`, the current one. rounds: the number of
    planned rounds. folder: of the run; None if it is kept in memory.
    """

    def __init__(self, run: Run, record: Record):
        self._run, self._record = run, record
        self._now: State | None = None
        """The state after the last finished round."""
        self.t, self.rounds, self.folder = 0, run.settings.rounds, record.folder

    @property
    def settings(self) -> Settings:
        """A copy of the run's settings."""
        return copy.deepcopy(self._run.settings)

    @property
    def method(self) -> str:
        """The method as text."""
        return str(self._run.method)

    @property
    def clients(self) -> tuple[str, ...]:
        """The names of the clients, at most the first 2,000."""
        federation = self._run.federation
        return tuple(federation.name_of(k) for k in range(min(federation.clients, SUMMARY_CLIENTS)))

    @property
    def main_score(self) -> str:
        """The task's main score, such as "accuracy"."""
        return self._run.task.main_score

    def series(self, scope: str, metric: str) -> tuple[list[int], list[float]]:
        """(rounds, values) of a score over all clients so far, including rounds before a resumption."""
        return self._record.series(scope, metric)

    def weights(self) -> Weights:
        """The global weights after round t."""
        w = self._now.weights if self._now else self._run.fed.net.initial
        return {n: t.detach().clone() for n, t in w.items()}

    def save(self, name: str, facts: Mapping[str, Any]) -> None:
        """Write the global model, with the Parts' slices, to a safetensors file in the run's folder.

        Raises StateError (E109) for a run in memory, UsageError (E109) for another name of a file.
        """
        if self.folder is None or self._now is None:
            text = "this run is kept in memory; give run(..., name='my-run') so that files can be kept."
            raise StateError("E109", text)
        if name in RUN_FILES or Path(name).name != name or not name.endswith(".safetensors"):
            text = f"save: {excerpt(name)} is a file of the run's own, or no name of a file in its folder"
            raise UsageError("E109", f"{text}; give another one that ends in .safetensors.")
        tree = {"w": self._now.weights, "slices": self._now.slices}
        checkpoints.write(self.folder / name, tree, {"t": self._now.t, **facts})

    def _moved(self, t: int, now: State | None = None) -> None:
        """Set the round and, if it is finished, the state after it."""
        self.t, self._now = t, now or self._now


class Callback:
    """Methods that a run calls as it goes on. Override those that you need; by default they do nothing.

    A callback cannot change a bit of the run, but it can end it: if `evaluated` returns a sentence with the
    reason, the next round is the last. An exception ends the run with E127; the rounds before are saved.
    """

    name: str = ""
    """Its name in messages; by default that of its class."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if "name" not in vars(cls):
            cls.name = cls.__name__

    def begun(self, run: Progress) -> None:
        """The run begins or is resumed, before the next round trains."""

    def round_begun(self, run: Progress, asked: Sequence[int]) -> None:
        """Round t begins. asked: the clients that are sent the model."""

    def replied(self, run: Progress, replies: Sequence[Replied]) -> None:
        """The replies of round t have arrived and been checked."""

    def merged(self, run: Progress) -> None:
        """Round t is merged: `run.weights()` are the weights after it."""

    def evaluated(self, run: Progress, rows: Sequence[Mapping[str, Any]]) -> str | None:
        """Round t is over. Returns the reason to end the run, None to continue. Also called for round 0, the
        untrained model. rows: the rows of metrics.jsonl since the last call; over a network some come a round
        later."""

    def ended(self, run: Progress, why: str) -> None:
        """The run is over. why: "done", or the error that ended it."""


class CallbackList:
    """The callbacks of one run in this process."""

    def __init__(self, callbacks: Sequence[Callback], run: Run, record: Record):
        self.callbacks = tuple(callbacks)
        self._view, self._run = Progress(run, record), run
        self._record = record
        if self.callbacks:
            record.keep_new()

    def begun(self, t: int, rounds: int) -> None:
        """Call `begun`. t: the last finished round. rounds: the number of planned rounds."""
        self._view._moved(t)
        self._view.rounds = rounds
        self._call("begun")

    def round_begun(self, t: int, asked: Sequence[int]) -> None:
        """Call every callback's `round_begun`."""
        self._view._moved(t)
        self._call("round_begun", tuple(asked))

    def replied(self, replies: Sequence[Reply], good: Sequence[Reply], withheld: bool) -> None:
        """Call `replied`. withheld: whether clients do not report their losses."""
        if not self.callbacks:
            return
        used, names = {r.client for r in good}, self._run.federation.name_of
        loss = [float("nan") if withheld else float(torch.as_tensor(r.loss)) for r in replies]
        news = tuple(
            Replied(r.client, names(r.client), float(r.size), value, r.client in used)
            for r, value in zip(replies, loss)
        )
        self._call("replied", news)

    def merged(self, now: State) -> None:
        """Call every callback's `merged`."""
        self._view._moved(now.t, now)
        self._call("merged")

    def evaluated(self, now: State) -> str:
        """Call `evaluated`. Returns the first callback's reason to end the run, "" to continue."""
        if not self.callbacks:
            return ""
        self._view._moved(now.t, now)
        reasons = self._call("evaluated", [dict(row) for row in self._record.take_new()])
        return next((f"{c.name}: {reason}" for c, reason in zip(self.callbacks, reasons) if reason), "")

    def ended(self, why: str) -> None:
        """Call `ended` of every callback, even if one fails. After an error of the run, errors of callbacks
        are ignored."""
        for callback in self.callbacks:
            with suppress(Exception) if why != "done" else self._calling(callback, "ended"):
                callback.ended(self._view, why)

    def _call(self, hook: str, *args: Any) -> list[str]:
        """Call this hook of every callback. Returns their reasons to end the run."""
        reasons: list[str] = []
        for callback in self.callbacks:
            with self._calling(callback, hook):
                answer = getattr(callback, hook)(self._view, *copy.deepcopy(args))
                reasons.append(_stop_reason(answer) if hook == "evaluated" else "")
        return reasons

    @contextmanager
    def _calling(self, callback: Callback, hook: str) -> Iterator[None]:
        """A context for a call, after which torch's randomness and modes are as before."""
        threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
        try:  # leaving `inference_mode` also restores whether gradients are computed
            with torch.random.fork_rng(devices=[]), torch.inference_mode(False):
                yield
        except UnskewError:
            raise
        except Exception as error:
            what = (
                f"the callback {callback.name} failed in '{hook}' at round {self._view.t}: {one_line(error)}"
            )
            raise StateError(
                "E127", f"{what}. The rounds before are saved; mend it, and resume the run."
            ) from error
        finally:
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)
            torch.set_default_dtype(dtype)


def _stop_reason(answer: Any) -> str:
    """The reason in a callback's answer to end the run, "" to continue."""
    if isinstance(answer, str):
        return answer
    if answer is None or (isinstance(answer, bool | np.bool_) and not answer):
        return ""
    raise TypeError(
        f"it returned {excerpt(answer, 40)}; return None, or a sentence that says why the run should end"
    )
