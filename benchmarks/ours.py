"""Our engine's end of the comparison: local training of all clients and the weighted mean, as a run does
them."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
import work
from session import Session, serve

from unskew import models
from unskew.core.client import Fed
from unskew.core.method import Method
from unskew.core.network import Network
from unskew.core.replies import Ups
from unskew.merge.mean import weighted_mean
from unskew.round.chunks import Recipe
from unskew.round.clients import Broadcast, LocalTraining
from unskew.round.samples import Samples
from unskew.round.trainer import Trainer
from unskew.runs.hardware import MOST_LANES
from unskew.tasks.task import Classification


class InOrder(Trainer):
    """Rows in the order they come: the references do not shuffle, and the results are compared."""

    def orders(self, k: int, t: int) -> np.ndarray:
        return np.tile(self.samples.rows[k], (self.training.recipe.epochs, 1))


def main() -> None:
    parser = work.arguments(__doc__ or "")
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--lanes", type=int, default=0, help="0: as `auto` chooses")
    options = parser.parse_args()
    session = Session(options.variant, options.weights)
    chosen = work.chosen_work(options)
    x_KN, y_KN = work.data(chosen)
    x, y = x_KN.flatten(0, 1), y_KN.flatten()
    module = models.build(chosen.model, chosen.shape, chosen.classes)
    with torch.no_grad():
        for ours, theirs in zip(module.parameters(), work.initial_model(chosen).parameters(), strict=True):
            ours.copy_(theirs)
    net = Network(module, chosen.shape)
    rows = [np.arange(k * chosen.samples, (k + 1) * chosen.samples) for k in range(chosen.clients)]
    counts = np.stack([np.bincount(y[r].numpy(), minlength=chosen.classes) for r in rows])
    fed = Fed(
        clients=chosen.clients,
        classes=chosen.classes,
        shape=chosen.shape,
        rounds=1,
        epochs=chosen.epochs,
        batch=chosen.batch,
        lr=chosen.learning_rate,
        net=net,
        sizes=np.full(chosen.clients, chosen.samples),
        task=Classification(),
    )
    samples = Samples(x, F.one_hot(y, chosen.classes).float(), rows, counts)
    training = LocalTraining(Recipe(chosen.batch, chosen.epochs, bool(net.norms)))
    lanes = options.lanes or (MOST_LANES if net.folds else 1)
    trainer = InOrder(Method(), fed, samples, training, lanes, options.cores)
    w = net.weights()

    def one_round() -> list[torch.Tensor]:
        replies = trainer.train(Broadcast(1, chosen.learning_rate, w, {}), range(chosen.clients), {})
        merged = weighted_mean(w, Ups.of(replies))
        return [merged[n] for n in net.trainable]

    serve(session, one_round)
    trainer.close()


if __name__ == "__main__":
    main()
