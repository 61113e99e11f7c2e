"""DP-FedAvg on pfl-research, as its own CIFAR-10 benchmark builds it: `dp_beside_pfl.py` starts this with
pfl's python.

python dp_pfl.py FOLDER THREADS     FOLDER as dp_work.py writes it; prints one JSON object
"""

import json
import os
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch
from dp_work import Arrays, Work, initial, read
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


class Network(nn.Module):
    """pfl asks a module for `loss` and `metrics`, and says whether it is scored."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def loss(self, x: Tensor, y: Tensor, eval: bool = False) -> Tensor:
        self.train(not eval)
        return cross_entropy(self.layers(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor, eval: bool = True) -> dict:
        from pfl.metrics import Weighted

        self.train(not eval)
        return {"right": Weighted(int((self.layers(x).argmax(1) == y).sum()), len(y))}


def mechanism(work: Work):
    """Noise for `noise_cohort` of `population` users, scaled down to the users that are there; and its
    accountant."""
    from pfl.privacy import CentrallyAppliedPrivacyMechanism, GaussianMechanism, PLDPrivacyAccountant

    accountant = PLDPrivacyAccountant(
        num_compositions=work.rounds,
        sampling_probability=work.noise_cohort / work.population,
        mechanism="gaussian",
        epsilon=work.epsilon,
        delta=work.delta,
        noise_scale=work.cohort / work.noise_cohort,
    )
    gaussian = GaussianMechanism.from_privacy_accountant(accountant=accountant, clipping_bound=work.clip)
    return CentrallyAppliedPrivacyMechanism(gaussian), accountant


def users(arrays: Arrays):
    from pfl.data import FederatedDataset
    from pfl.data.sampling import get_user_sampler

    slices = [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in zip(arrays.x, arrays.y)]
    return FederatedDataset.from_slices(slices, get_user_sampler("random", range(len(slices))))


def seen_callback(work: Work, arrays: Arrays):
    """Scores the merged model every `every` rounds, and keeps the processor's seconds of each round without
    that."""
    from pfl.callback.base import TrainingProcessCallback
    from pfl.metrics import Metrics

    x, y = torch.from_numpy(arrays.x_test), torch.from_numpy(arrays.y_test)

    class Seen(TrainingProcessCallback):
        def __init__(self) -> None:
            self.accuracy: list[tuple[int, float]] = []
            self.seconds: list[float] = []

        def on_train_begin(self, *, model) -> Metrics:
            self.began = time.process_time()
            return Metrics()

        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration: int):
            self.seconds.append(time.process_time() - self.began)
            t = central_iteration + 1
            if t % work.every == 0 or t == work.rounds:
                network = model.pytorch_model.eval()
                with torch.no_grad():
                    right = sum(
                        int((network.layers(a).argmax(1) == b).sum())
                        for a, b in zip(x.split(500), y.split(500))
                    )
                self.accuracy.append((t, right / len(y)))
            self.began = time.process_time()
            return False, Metrics()

    return Seen()


def train(work: Work, arrays: Arrays) -> dict:
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByUser
    from pfl.algorithm import FederatedAveraging, NNAlgorithmParams
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel

    module = Network(initial(work.seed))
    torch.manual_seed(work.seed)
    np.random.seed(work.seed)
    protection, accountant = mechanism(work)
    seen, data = seen_callback(work, arrays), users(arrays)
    never = 10**9
    FederatedAveraging().run(
        NNAlgorithmParams(
            work.rounds, evaluation_frequency=never, train_cohort_size=work.cohort, val_cohort_size=0
        ),
        SimulatedBackend(data, data, postprocessors=[WeightByUser(), protection]),
        PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0)),
        NNTrainHyperParams(
            local_batch_size=work.batch, local_num_epochs=1, local_learning_rate=work.learning_rate
        ),
        NNEvalHyperParams(local_batch_size=work.batch),
        callbacks=[seen],
        send_metrics_to_platform=False,
    )
    return {
        "noise": accountant.noise_parameter,
        "accuracy": seen.accuracy,
        "seconds": statistics.median(seen.seconds),
    }


def main() -> None:
    torch.set_num_threads(int(sys.argv[2]))
    os.environ["PFL_PYTORCH_DEVICE"] = "cpu"
    print(json.dumps(train(*read(Path(sys.argv[1])))))


if __name__ == "__main__":
    main()
