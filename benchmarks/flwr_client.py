"""The client's side of `flwr_round`: a module of its own, so that Ray's worker processes import it by
name."""

from functools import cache

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.utils.data import TensorDataset
from usual import train
from work import Work, data, initial_model


@cache
def clients_in_memory(work: Work) -> list[TensorDataset]:
    """Made once in every worker process."""
    torch.set_num_threads(1)
    x, y = data(work)
    return [TensorDataset(x[k], y[k]) for k in range(work.clients)]


def fit(message: Message, context: Context, work: Work) -> Message:
    rows = clients_in_memory(work)[int(context.node_config["partition-id"])]
    model = initial_model(work)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    train(model, rows, work)
    content = RecordDict(
        {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(rows)})}
    )
    return Message(content=content, reply_to=message)


def client_app(work: Work) -> ClientApp:
    app = ClientApp()
    app.train()(lambda message, context: fit(message, context, work))
    return app
