"""One round on pfl-research: its PyTorchModel, FederatedAveraging and SimulatedBackend, on tensors in memory.

    python pfl_round.py --model rebafl_fmnist --variant pfl-2x1 --processes 2 --threads 1

Several processes are pfl's own way (`PFL_WORKER_ADDRESSES`, torch.distributed with gloo): each takes a share
of the cohort, and the sums are all-reduced. This file starts the other processes itself.
pfl never evaluates here: it does so in iteration 0 only, and that is the warm-up round.
pfl averages parameters but not the running statistics of BatchNorm; training does not read those.
"""

import atexit
import os
import socket
import subprocess
import sys
import time

import numpy as np
import torch
from session import Session
from torch import nn
from torch.nn.functional import cross_entropy
from work import Work, arguments, chosen_work, data, initial_model

RANK = "PFL_WORKER_RANK"
NEVER = 10**9


def join_workers(processes: int) -> int:
    """Start the other ranks and name all of them to pfl. Must come before pfl is imported."""
    if processes == 1 or RANK in os.environ:
        return int(os.environ.get(RANK, 0))
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    os.environ["PFL_WORKER_ADDRESSES"] = ",".join(f"127.0.0.1:{port + i}" for i in range(processes))
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    for rank in range(1, processes):
        environment = {**os.environ, RANK: str(rank)}
        worker = subprocess.Popen([sys.executable, *sys.argv], env=environment, stdin=subprocess.DEVNULL)
        atexit.register(worker.kill)
    os.environ[RANK] = "0"
    return 0


def add_loss(model: nn.Module) -> nn.Module:
    """pfl asks a module for `loss` and `metrics`."""
    model.loss = lambda x, y: cross_entropy(model(x), y)
    model.metrics = lambda x, y: {}
    return model


def federated_dataset(work: Work):
    """The datasets are made once: pfl keeps a dataset's batches, so this is its fastest form."""
    from pfl.data import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler

    x, y = data(work)
    users = [PyTorchTensorDataset((x[k], y[k]), user_id=str(k)) for k in range(work.clients)]
    return FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", range(work.clients)))


def rounds_on_request(session: Session | None):
    """A pfl callback that holds the process between iterations. `session` is None in ranks above 0."""
    from pfl.callback.base import TrainingProcessCallback
    from pfl.internal.ops.pytorch_ops import distributed
    from pfl.metrics import Metrics

    class Rounds(TrainingProcessCallback):
        def on_train_begin(self, *, model) -> Metrics:
            self.initial = model.get_parameters()
            return self.hold(model)[1]

        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration: int):
            seconds = time.perf_counter() - self.start
            if session:
                session.done(seconds, list(model.pytorch_model.parameters()))
            return self.hold(model)

        def hold(self, model) -> tuple[bool, Metrics]:
            """Wait for the driver (rank 0) or for rank 0 (others); then start again from the initial
            weights."""
            wanted = torch.tensor([float(session.wait() if session else 0)])
            if distributed.world_size > 1:
                torch.distributed.broadcast(wanted, src=0)
            model.set_parameters(self.initial)
            self.start = time.perf_counter()
            return not wanted.item(), Metrics()

    return Rounds()


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="per process")
    options = parser.parse_args()
    work = chosen_work(options)
    if work.clients % options.processes:
        parser.error(f"pfl deals clients evenly: --clients {work.clients}, --processes {options.processes}")
    torch.set_num_threads(options.threads)
    os.environ["PFL_PYTORCH_DEVICE"] = "cpu"
    rank = join_workers(options.processes)

    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm import FederatedAveraging, NNAlgorithmParams
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel

    np.random.seed(0)  # pfl takes its seeds from here; all ranks must draw the same
    module = add_loss(initial_model(work))
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    users = federated_dataset(work)
    FederatedAveraging().run(
        NNAlgorithmParams(
            NEVER, evaluation_frequency=NEVER, train_cohort_size=work.clients, val_cohort_size=0
        ),
        SimulatedBackend(users, users, postprocessors=[WeightByDatapoints()]),
        model,
        NNTrainHyperParams(
            local_batch_size=work.batch, local_num_epochs=work.epochs, local_learning_rate=work.learning_rate
        ),
        NNEvalHyperParams(local_batch_size=work.batch),
        callbacks=[rounds_on_request(Session(options.variant, options.weights) if rank == 0 else None)],
        send_metrics_to_platform=False,
    )


if __name__ == "__main__":
    main()
