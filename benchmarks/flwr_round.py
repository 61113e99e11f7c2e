"""One round on Flower's simulation engine (Ray): its FedAvg strategy, one worker per core, the usual loop as
fit.

    python flwr_round.py --model rebafl_fmnist --variant flwr-2 --workers 2

The round is what `FedAvg.start` does in one round without evaluation: configure, send and receive, aggregate.
Workers keep the data in memory, so messages carry weights only.
"""

import os
import tempfile

# Flower and Ray read these when they are imported.
os.environ |= {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # read on Linux too: Ray stays on the loopback device
}
os.environ.setdefault("FLWR_HOME", tempfile.mkdtemp(prefix="flwr-home-"))

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from flwr_client import client_app
from session import Session, serve
from torch import Tensor
from work import Work, arguments, chosen_work, initial_model

TIMEOUT_S = 3600.0


def one_round(grid: Grid, strategy: FedAvg, initial: ArrayRecord, work: Work) -> ArrayRecord:
    messages = strategy.configure_train(1, initial, ConfigRecord(), grid)
    replies = list(grid.send_and_receive(messages, timeout=TIMEOUT_S))
    good = sum(not reply.has_error() for reply in replies)
    if good != work.clients:
        raise RuntimeError(f"{good} of {work.clients} clients answered; the first error is in the log above")
    arrays, _ = strategy.aggregate_train(1, replies)
    assert arrays is not None
    return arrays


def server_app(work: Work, session: Session) -> ServerApp:
    app = ServerApp()
    model = initial_model(work)
    names = [name for name, _ in model.named_parameters()]

    @app.main()
    def rounds(grid: Grid, context: Context) -> None:
        strategy = FedAvg(
            fraction_evaluate=0.0, min_train_nodes=work.clients, min_available_nodes=work.clients
        )
        initial = ArrayRecord(model.state_dict())

        def averaged() -> list[Tensor]:
            state = one_round(grid, strategy, initial, work).to_torch_state_dict()
            return [state[name] for name in names]

        serve(session, averaged)

    return app


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    work = chosen_work(options)
    torch.set_num_threads(1)
    run_simulation(
        server_app(work, Session(options.variant, options.weights)),
        client_app(work),
        num_supernodes=work.clients,
        backend_config={
            "init_args": {"num_cpus": options.workers, "num_gpus": 0},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


if __name__ == "__main__":
    main()
