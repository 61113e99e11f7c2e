"""Calls the callbacks of a run such that none of them can change a bit of it."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

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
from unskew.round.callback import Callback, Replied
from unskew.round.run import Run
from unskew.system.python_files import one_line

RUN_FILES = (checkpoints.LATEST, checkpoints.PREVIOUS, checkpoints.MODEL)
"""Files of a run that callbacks must not write."""


class ProgressView:
    """The read-only `Progress` of a run."""

    def __init__(self, run: Run, record: Record, folder: Path | None):
        self._run, self._record, self._folder = run, record, folder
        self._now: State | None = None
        """The state after the last finished round."""
        self._t, self._rounds = 0, run.settings.rounds

    @property
    def t(self) -> int:
        return self._t

    @property
    def rounds(self) -> int:
        return self._rounds

    @property
    def settings(self) -> Settings:
        return copy.deepcopy(self._run.settings)

    @property
    def method(self) -> str:
        return str(self._run.method)

    @property
    def clients(self) -> tuple[str, ...]:
        federation = self._run.federation
        return tuple(federation.name_of(k) for k in range(min(federation.clients, SUMMARY_CLIENTS)))

    @property
    def main_score(self) -> str:
        return self._run.task.main_score

    @property
    def folder(self) -> Path | None:
        return self._folder

    def series(self, scope: str, metric: str) -> tuple[list[int], list[float]]:
        return self._record.series(scope, metric)

    def weights(self) -> Weights:
        w = self._now.weights if self._now else self._run.fed.net.initial
        return {n: t.detach().clone() for n, t in w.items()}

    def save(self, name: str, facts: Mapping[str, Any]) -> None:
        if self._folder is None or self._now is None:
            raise StateError(
                "E109", "this run is kept in memory; give run(..., name='my-run') so that files can be kept."
            )
        if name in RUN_FILES or Path(name).name != name or not name.endswith(".safetensors"):
            what = (
                "is a file of the run's own"
                if name in RUN_FILES
                else "is no name of such a file in the run's folder"
            )
            raise UsageError(
                "E109", f"save: {excerpt(name)} {what}; give another one that ends in .safetensors."
            )
        tree = {"w": self._now.weights, "slices": self._now.slices}
        checkpoints.write(self._folder / name, tree, {"t": self._now.t, **facts})

    def _moved(self, t: int, now: State | None = None) -> None:
        """Set the round and, if it is finished, the state after it."""
        self._t, self._now = t, now or self._now


class CallbackList:
    """The callbacks of one run in this process."""

    def __init__(self, callbacks: Sequence[Callback], run: Run, record: Record):
        self.callbacks = tuple(callbacks)
        self._view, self._run = ProgressView(run, record, record.folder), run
        self._record = record
        if self.callbacks:
            record.keep_new()

    def begun(self, t: int, rounds: int) -> None:
        """Call `begun`. t: the last finished round. rounds: the number of planned rounds."""
        self._view._moved(t)
        self._view._rounds = rounds
        for callback in self.callbacks:
            with self._calling(callback, "begun"):
                callback.begun(self._view)

    def round_begun(self, t: int, asked: Sequence[int]) -> None:
        self._view._moved(t)
        for callback in self.callbacks:
            with self._calling(callback, "round_begun"):
                callback.round_begun(self._view, tuple(asked))

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
        for callback in self.callbacks:
            with self._calling(callback, "replied"):
                callback.replied(self._view, news)

    def merged(self, now: State) -> None:
        self._view._moved(now.t, now)
        for callback in self.callbacks:
            with self._calling(callback, "merged"):
                callback.merged(self._view)

    def evaluated(self, now: State) -> str:
        """Call `evaluated`. Returns the first callback's reason to end the run, "" to continue."""
        if not self.callbacks:
            return ""
        self._view._moved(now.t, now)
        why, rows = "", self._record.take_new()
        for callback in self.callbacks:
            with self._calling(callback, "evaluated"):
                reason = _stop_reason(callback.evaluated(self._view, [dict(row) for row in rows]))
                why = why or (f"{callback.name}: {reason}" if reason else "")
        return why

    def ended(self, why: str) -> None:
        """Call `ended` of every callback, even if one fails. After an error of the run, errors of callbacks
        are ignored."""
        for callback in self.callbacks:
            with suppress(Exception) if why != "done" else self._calling(callback, "ended"):
                callback.ended(self._view, why)

    @contextmanager
    def _calling(self, callback: Callback, hook: str) -> Iterator[None]:
        """A context for a call: afterwards torch's randomness and modes and the working folder are as before.
        Raises StateError (E127) for any exception."""
        threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
        try:  # leaving `inference_mode` also restores whether gradients are computed
            with _same_folder(), torch.random.fork_rng(devices=[]), torch.inference_mode(False):
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


@contextmanager
def _same_folder() -> Iterator[None]:
    """A context that restores the working folder, if it exists."""
    try:
        place = os.getcwd()
    except FileNotFoundError:
        place = ""
    try:
        yield
    finally:
        if place:
            with suppress(OSError):
                os.chdir(place)


def _stop_reason(answer: Any) -> str:
    """The reason in a callback's answer to end the run, "" to continue. Raises TypeError for an answer that
    is not a sentence, such as a score."""
    if isinstance(answer, str):
        return answer
    if answer is None or (isinstance(answer, bool | np.bool_) and not answer):
        return ""
    raise TypeError(
        f"it returned {excerpt(answer, 40)}; return None, or a sentence that says why the run should end"
    )
