"""A cohort trained with as many clients side by side as turn out to fit into a GPU's memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from unskew.core.replies import Reply
from unskew.core.trees import Tree
from unskew.engine.client.values import Start
from unskew.engine.server.exchange import Exchange
from unskew.errors import StateError
from unskew.own import in_one_line

Tell = Callable[[int, str, str], None]


class Fitted:
    """Trains cohorts through an exchange. lanes: how many clients train side by side at most, as a run records it.

    How many fit is predicted from the model (`room`). Where that was too many, and nobody asked for the number, the first
    round is trained again with fewer until it fits. From then on the number stays, since another one may change last bits.
    """

    def __init__(self, trainer: Exchange, lanes: int, is_auto: bool, tell: Tell):
        self.trainer, self.lanes, self.is_auto, self.tell = trainer, lanes, is_auto, tell

    def train(self, start: Start, cohort: Sequence[int], private: Mapping[int, Tree]) -> list[Reply]:
        """As `Exchange.train`. Raises StateError (E142) for a GPU whose memory is full in a later round, or with a number of
        clients that was asked for."""
        while True:
            try:
                return self.trainer.train(start, cohort, private)
            except torch.OutOfMemoryError as error:
                if self.trainer.device.type == "cpu":
                    raise
                why = in_one_line(error)
            # not before here, where the error has gone and with it what its frames held in the GPU's memory
            fewer = self.trainer.resized() if self.is_auto and start.t == 1 else 0
            if not fewer:
                raise StateError("E142", self._advice(start.t, why))
            text = f"the GPU's memory is full with the clients that were predicted to fit, so at most {fewer} train side by side"
            self.tell(start.t, "E328", f"{text} from round 1 on; this number is recorded, and a resumed run keeps it.")
            self.lanes = fewer

    def _advice(self, t: int, why: str) -> str:
        text = f"round {t}: the GPU has not enough memory ({why}). The last checkpoint is safe: end other programs on the GPU"
        lower = f", or start another run with lanes={max(1, self.lanes // 2)}" if self.lanes > 1 else ""
        return f"{text} and resume the run{lower}."
