"""What a trained model says of new samples: of a finished run, of a folder for the Hugging Face Hub, or of a site's own folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn

from unskew.data.federation import Federation
from unskew.engine import predictions
from unskew.engine.export.folder import Format, write_export
from unskew.engine.predictions import Trained
from unskew.engine.resolve import Run
from unskew.errors import UsageError

if TYPE_CHECKING:  # it needs what only a site has installed
    from unskew.deploy.own_model import OwnModel


class Predicting:
    """Samples in, classes or numbers out. run, trained: what predicts, and what it was trained as."""

    run: Run
    trained: Trained

    @property
    def federation(self) -> Federation:
        """What samples and classes are; without samples unless the run is of this process."""
        return self.run.federation

    def predict(self, x: Any, client: int | str | None = None) -> np.ndarray:
        """The model's classes for samples as they were given, before any scaling: [N], or masks [N, H, W], or classes of tokens [N, T]; or its numbers [N], or
        which labels a sample has, bool [N, L].

        x: [N, *shape], an array or tensor of the type of the training samples (uint8 for images given as uint8); after training
        on a table also a DataFrame, whose columns are found by name; of samples
        with several inputs, a dictionary or tuple of them, or an archive of `numpy.load` that holds them as for training.
        client: by name or number, whose own model answers, where the method gives clients such: with the weights it
        keeps (FedBN), its statistics (FedRDN), its label shares (unskew). Default: the global model.
        The classes are called as `federation.classes` has them, whole numbers are numbers; masks hold places in it.
        Raises UsageError (E131) where that model is not here, DataError (E403, E405) for samples that do not fit.
        """
        z = self._outputs(x, client)
        guess = self.run.task.predictions(z).numpy()
        return predictions.labels(self.federation, guess)

    def predict_proba(self, x: Any, client: int | str | None = None) -> np.ndarray:
        """The probabilities from which `predict` takes the likeliest class, float32 [N, C], or [N, C, H, W] of pixels, [N, T, C] of tokens; of
        several labels a sample each one's own, [N, L].

        Raises UsageError (E109) where the model predicts a number.
        """
        if self.federation.target:
            raise UsageError("E109", "this model predicts a number, which has no probability; call predict.")
        z = self._outputs(x, client)
        return (z.sigmoid() if self.federation.several else z.softmax(-1 if self.federation.tokens else 1)).numpy()

    def _outputs(self, x: Any, client: int | str | None) -> Tensor:
        """What predictions are read from; arguments as of `predict`."""
        return self.trained.outputs(x, client)


@dataclass(repr=False, eq=False)
class Published(Predicting):
    """A model from a folder of the format hub. Neither its run nor any client is known; README.md there holds its scores.

    `model` is in evaluation mode and expects samples as they were scaled for training; `predict` takes them as they were
    given.
    """

    run: Run
    model: nn.Module
    trained: Trained
    path: Path

    def _outputs(self, x: Any, client: int | str | None) -> Tensor:
        if client is not None:
            raise UsageError("E131", f"{self.path} holds the global model alone; leave the client out.")
        return self.trained.outputs(x)

    def __repr__(self) -> str:
        return (
            f"<{self.run.settings.model} for {self.federation.layout or list(self.federation.shape)} from {self.path}>"
        )


@dataclass(repr=False, eq=False)
class AtSite(Predicting):
    """The model that a site has of a run over a network, from the site's own folder: its own one, where the method gives sites
    such, and otherwise the global one. `t`: the round after which its weights were; `own.kept`: that of its private state.
    """

    run: Run
    model: nn.Module
    trained: Trained
    path: Path
    own: OwnModel

    @property
    def t(self) -> int:
        """The round after which the weights that the site was sent were."""
        return self.trained.end.t

    def _outputs(self, x: Any, client: int | str | None) -> Tensor:
        self._check_mine(client)
        return self.trained.outputs(x, self.own.client)

    def _check_mine(self, client: int | str | None) -> None:
        if client is not None and client != self.own.site:
            raise UsageError("E131", f"{self.path} holds the model of {self.own.site} alone; leave the client out.")

    def export(
        self, folder: str | Path, format: Format = "safetensors", client: int | str | None = None, license: str = ""
    ) -> list[Path]:
        """Write the model into a new folder, as `Result.export` does; client: no other than this site."""
        self._check_mine(client)
        return write_export(self.trained, self.own.record, Path(folder), format, self.own.client, license)

    def __repr__(self) -> str:
        whose = (
            f"{self.own.site}'s own model"
            if self.own.client is not None
            else f"the model that {self.own.site} was sent"
        )
        kept = f", with what it kept after round {self.own.kept}" if self.own.kept else ""
        return f"<{whose} after round {self.t} of {self.run.settings.rounds}{kept}, from {self.path}>"
