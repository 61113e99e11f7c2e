"""FedAvg on Flower's deployment engine as its users write it, with the seconds of every round written to a
file.

`exchange.py` starts it. A site's data is a file that the configuration of its node names.
"""

import json
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

server = ServerApp()
client = ClientApp()


def model() -> nn.Module:
    """What `mlp` of unskew is for 28 x 28 inputs."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))


@client.train()
def train(message: Message, context: Context) -> Message:
    data = np.load(str(context.node_config["data"]))
    rows = TensorDataset(torch.from_numpy(data["x_train"]), torch.from_numpy(data["y_train"]))
    net, settings = model(), context.run_config
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    began = time.perf_counter()
    optimizer, criterion = torch.optim.SGD(net.parameters(), lr=float(settings["lr"])), nn.CrossEntropyLoss()
    for x, y in DataLoader(rows, batch_size=int(settings["batch"]), shuffle=True):
        optimizer.zero_grad()
        criterion(net(x), y).backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": len(rows), "seconds": time.perf_counter() - began})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


class Timed(FedAvg):
    """FedAvg that notes when each round ended, and the training of its slowest site."""

    def __init__(self, sites: int):
        super().__init__(fraction_evaluate=0.0, min_train_nodes=sites, min_available_nodes=sites)
        self.rounds: list[dict[str, float]] = []

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple:
        replies = list(replies)
        merged = super().aggregate_train(server_round, replies)
        trained = [reply.content["metrics"]["seconds"] for reply in replies if reply.has_content()]
        self.rounds.append(
            {"sites": len(trained), "end": time.monotonic(), "training": max(trained, default=0.0)}
        )
        return merged


@server.main()
def rounds(grid: Grid, context: Context) -> None:
    torch.manual_seed(0)
    strategy = Timed(3)
    strategy.start(grid, ArrayRecord(model().state_dict()), num_rounds=int(context.run_config["rounds"]))
    Path(str(context.run_config["results"])).write_text(json.dumps(strategy.rounds))
