"""One federation in another framework, as `whole.py` measures it: `rivals.py FRAMEWORK FOLDER [CHECKOUT]`.

FRAMEWORK is pfllib, fl_bench, pfl or flower, and runs in an environment of its own, which needs torch and
numpy but not unskew. FOLDER is what `whole.py` wrote: the partition, the initial weights and the settings.
UNSKEW_DATA holds fashion_mnist.npz. CHECKOUT is the source of PFLlib or FL-bench, which are no packages. The
last line printed is the accuracy as JSON. Settings not named here are the framework's own.

Letters: K clients, n samples of a client.
"""

import json
import os
import random
import runpy
import sys
from argparse import Namespace
from functools import cache, cached_property
from pathlib import Path

import numpy as np
import torch
from nets import lenet, mlp
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset


class Task(Namespace):
    """The settings in `task.json`: method, clients, rounds, epochs, batch, lr, mu, lam, model, samples,
    seed."""

    def __init__(self, folder: Path):
        super().__init__(folder=folder, **json.loads((folder / "task.json").read_text()))

    @cached_property
    def arrays(self) -> dict[str, torch.Tensor]:
        """x [K, n, ...], y [K, n], x_test, y_test, read from the set's archive and standardised."""
        rows = np.load(self.folder / "rows.npy")
        with np.load(f"{os.environ['UNSKEW_DATA']}/fashion_mnist.npz") as file:
            images = {"x": file["x_train"][rows], "x_test": file["x_test"]}
            labels = {"y": file["y_train"][rows], "y_test": file["y_test"]}
        held = {name: torch.from_numpy(values).long() for name, values in labels.items()}
        for name, values in images.items():
            x = torch.from_numpy(values).float().div_(255).sub_(0.2860).div_(0.3530)
            held[name] = x.reshape(*held[name.replace("x", "y", 1)].shape, 1, 28, 28)
        return held

    def net(self) -> nn.Sequential:
        """The network with the initial weights."""
        net = lenet(pool_first=True) if self.model == "rebafl_fmnist" else mlp()
        with np.load(self.folder / f"initial-{self.seed}.npz") as file, torch.no_grad():
            for parameter, name in zip(net.parameters(), file, strict=True):
                parameter.copy_(torch.from_numpy(file[name]))
        return net

    def shuffled(self) -> None:
        """Seed everything that shuffles."""
        random.seed(self.seed), np.random.seed(self.seed), torch.manual_seed(self.seed)


def accuracy(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    net.eval()
    with torch.no_grad():
        right = sum(
            int((net(a).argmax(1) == b).sum()) for a, b in zip(x.split(256), y.split(256), strict=True)
        )
    return right / len(y)


def pfllib(task: Task, checkout: str) -> float:
    """Its servers, with every client's samples in files as its own scripts write them. `main.py` trains one
    round more than it is asked for, scores each model before its round only, and scores training samples
    too: here the last model is scored, and training samples are not."""
    sys.path.insert(0, f"{checkout}/system")
    (task.folder / "system").mkdir(exist_ok=True)
    os.chdir(task.folder / "system")  # it reads from ../dataset and writes to ../results and models
    import importlib

    name = {"fedavg": "FedAvg", "fedprox": "FedProx", "scaffold": "SCAFFOLD", "ditto": "Ditto"}[task.method]
    module = "avg" if name == "FedAvg" else name.removeprefix("Fed").lower()
    kind = getattr(importlib.import_module(f"flcore.servers.server{module}"), name)
    off = dict.fromkeys(
        (
            *("few_shot", "client_drop_rate", "train_slow_rate", "send_slow_rate", "num_new_clients"),
            *("random_join_ratio", "time_select", "auto_break", "dlg_eval", "learning_rate_decay"),
        ),
        0,
    )
    args = Namespace(
        **off, device="cpu", dataset="whole", num_classes=10, model=task.net(), algorithm=name,
        global_rounds=task.rounds - 1, eval_gap=task.rounds, local_epochs=task.epochs,
        plocal_epochs=task.epochs, batch_size=task.batch, local_learning_rate=task.lr,
        learning_rate_decay_gamma=1.0, num_clients=task.clients, join_ratio=1.0, goal="test",
        time_threthold=10_000, save_folder_name="items", top_cnt=100, dlg_gap=100, batch_num_per_client=2,
        fine_tuning_epoch_new=0, server_learning_rate=1.0, mu=task.lam if name == "Ditto" else task.mu,
    )  # fmt: skip
    server = kind(args, 0)
    server.train_metrics = server.train_metrics_personalized = lambda: ([0], [1], [0.0])
    server.Budget = [0.0]  # of one round it could not print the mean
    task.shuffled()  # each of its clients has seeded torch with 0
    server.train()
    server.send_models()
    if name == "Ditto":
        server.evaluate_personalized()
    else:
        server.evaluate()
    return server.rs_test_acc[-1]


def fl_bench(task: Task, checkout: str) -> float:
    """Its command line, one process, as is its default. A client's score before and after its training is
    left out. Its SCAFFOLD takes as many batches as it is given epochs, so it is given all batches."""
    sys.path.insert(0, checkout)
    from src.utils import constants

    constants.FLBENCH_ROOT = task.folder / "fl-bench"  # the set and its partition
    constants.DATA_STD["fmnist"] = [0.3530]  # as the others scale it
    from src.server.fedavg import FedAvgServer
    from src.utils.models import MODELS, DecoupledModel

    class Net(DecoupledModel):
        def __init__(self, dataset: str, pretrained: bool):
            super().__init__()
            layers = list(task.net())
            self.base, self.classifier = nn.Sequential(*layers[:-1]), layers[-1]

    MODELS["whole"] = Net
    results: list[dict] = []
    plain = FedAvgServer.train

    def train(server: FedAvgServer) -> None:
        plain(server)
        results.append(server.test_results[task.rounds])

    FedAvgServer.train = train
    steps = task.epochs * task.samples // task.batch
    personal = task.method == "ditto"
    options = {
        "method": task.method, "dataset.name": "fmnist", "model.name": "whole", "optimizer.lr": task.lr,
        "common.seed": task.seed, "common.join_ratio": 1, "common.global_epoch": task.rounds,
        "common.local_epoch": steps if task.method == "scaffold" else task.epochs,
        "common.batch_size": task.batch, "common.client_side_evaluation": False, "common.use_cuda": False,
        "common.test.client.interval": task.rounds if personal else -1,
        "common.test.server.interval": -1 if personal else task.rounds, "common.test.server.test": True,
    }  # fmt: skip
    if task.method == "fedprox":
        options["fedprox.mu"] = task.mu
    if personal:
        options |= {"+ditto.lamda": task.lam, "+ditto.pers_epoch": task.epochs}
    sys.argv = ["main.py", *(f"{name}={value}" for name, value in options.items())]
    os.chdir(task.folder)  # it writes to out
    runpy.run_path(f"{checkout}/main.py", run_name="__main__")
    scores = results[0]["test_clients" if personal else "centralized"]["before"]["test"]
    return scores.accuracy / 100


def pfl(task: Task, checkout: str) -> float:
    """Its SimulatedBackend in one process. A user's samples are shuffled once a round, because its data sets
    do not shuffle."""
    os.environ["PFL_PYTORCH_DEVICE"] = "cpu"
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm import FederatedAveraging, NNAlgorithmParams
    from pfl.algorithm.fedprox import FedProx, FedProxParams
    from pfl.algorithm.scaffold import SCAFFOLD, SCAFFOLDParams
    from pfl.callback.central_evaluation import CentralEvaluationCallback
    from pfl.data import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.data.user_state import InMemoryUserStateStorage
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Weighted
    from pfl.model.pytorch import PyTorchModel

    task.shuffled()
    net, held = task.net(), task.arrays
    net.loss = lambda x, y: cross_entropy(net.train()(x), y)
    net.metrics = lambda x, y: {
        "accuracy": Weighted((net.eval()(x).argmax(1) == y).sum().item(), len(y)),
    }

    def user(k: int) -> PyTorchTensorDataset:
        order = torch.randperm(task.samples)
        return PyTorchTensorDataset((held["x"][k][order], held["y"][k][order]), user_id=str(k))

    users = FederatedDataset(user, get_user_sampler("minimize_reuse", range(task.clients)))
    facts = {
        "central_num_iterations": task.rounds, "evaluation_frequency": task.rounds,
        "train_cohort_size": task.clients, "val_cohort_size": 0,
    }  # fmt: skip
    algorithm, params, weighted = {
        "fedavg": lambda: (FederatedAveraging(), NNAlgorithmParams(**facts), [WeightByDatapoints()]),
        "fedprox": lambda: (FedProx(), FedProxParams(**facts, mu=task.mu), [WeightByDatapoints()]),
        "scaffold": lambda: (
            SCAFFOLD(),
            SCAFFOLDParams(
                **facts, population=task.clients, use_gradient_as_control_variate=False,
                user_state_storage=InMemoryUserStateStorage(),
            ),
            [],
        ),
    }[task.method]()  # fmt: skip
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    scored = PyTorchTensorDataset((held["x_test"], held["y_test"]))
    by_batch = NNEvalHyperParams(local_batch_size=256)
    model = algorithm.run(
        params,
        SimulatedBackend(users, users, postprocessors=weighted),
        model,
        NNTrainHyperParams(
            local_batch_size=task.batch, local_num_epochs=task.epochs, local_learning_rate=task.lr
        ),
        by_batch,
        callbacks=[CentralEvaluationCallback(scored, by_batch, frequency=10 * task.rounds)],
        send_metrics_to_platform=False,
    )
    return accuracy(model.pytorch_model, held["x_test"], held["y_test"])


# Flower and Ray read these when they are imported.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # read on Linux too: Ray stays on the loopback device
}


def flower(task: Task, checkout: str) -> float:
    """Its simulation on Ray, two workers of one core; its strategies FedAvg and FedProx score the global
    model at the server. The client is the usual loop."""
    os.environ |= QUIET | {"FLWR_HOME": str(task.folder / "flwr")}
    import rivals  # workers import the client's side by this name
    from flwr.app import ArrayRecord, MetricRecord
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg, FedProx
    from flwr.simulation import run_simulation

    found: list[float] = []

    def score(t: int, arrays: ArrayRecord) -> MetricRecord | None:
        if 0 < t < task.rounds:
            return None
        net, held = task.net(), task.arrays
        net.load_state_dict(arrays.to_torch_state_dict())
        found.append(accuracy(net, held["x_test"], held["y_test"]))
        return MetricRecord({"accuracy": found[-1]})

    server, client = ServerApp(), ClientApp()

    @server.main()
    def rounds(grid, context) -> None:
        everyone = {"fraction_evaluate": 0.0, "min_train_nodes": task.clients}
        everyone["min_available_nodes"] = task.clients
        prox = task.method == "fedprox"
        strategy = FedProx(proximal_mu=task.mu, **everyone) if prox else FedAvg(**everyone)
        initial = ArrayRecord(task.net().state_dict())
        strategy.start(grid, initial, num_rounds=task.rounds, evaluate_fn=score)

    folder = str(task.folder)
    client.train()(lambda message, context: rivals.fit(message, context, folder))
    run_simulation(
        server,
        client,
        num_supernodes=task.clients,
        backend_config={
            "init_args": {"num_cpus": 2, "num_gpus": 0},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
    return found[-1]


@cache
def held_by_worker(folder: str) -> Task:
    """Read once in every worker process."""
    torch.set_num_threads(1)
    return Task(Path(folder))


def fit(message, context, folder: str):
    """A Flower client's round: the usual loop, with FedProx's term where the server sends its factor."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

    task, k = held_by_worker(folder), int(context.node_config["partition-id"])
    net = task.net().train()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    mu = float(message.content["config"].get("proximal-mu", 0.0))
    received = [p.detach().clone() for p in net.parameters()]
    rows = TensorDataset(task.arrays["x"][k], task.arrays["y"][k])
    optimizer = torch.optim.SGD(net.parameters(), lr=task.lr)
    for _ in range(task.epochs):
        for x, y in DataLoader(rows, batch_size=task.batch, shuffle=True):
            optimizer.zero_grad()
            loss = cross_entropy(net(x), y)
            if mu:
                loss = loss + mu / 2 * sum(
                    (p - w).pow(2).sum() for p, w in zip(net.parameters(), received, strict=True)
                )
            loss.backward()
            optimizer.step()
    content = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": len(rows)})}
    return Message(content=RecordDict(content), reply_to=message)


if __name__ == "__main__":
    framework, folder, *checkout = sys.argv[1:]
    sys.argv = sys.argv[:1]
    score = globals()[framework](Task(Path(folder)), *(checkout or [""]))
    print(json.dumps({"accuracy": score}), flush=True)
