"""The usual loop: per client a deep copy of the model, a DataLoader and torch.optim.SGD; then a size-weighted
mean.

python usual.py --model rebafl_fmnist --variant usual-1 --threads 1
"""

import copy

import torch
from session import Session, serve
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from work import Work, arguments, chosen_work, data, initial_model


def train(model: nn.Module, rows: TensorDataset, work: Work) -> nn.Module:
    """One client's work, in place."""
    loader = DataLoader(rows, batch_size=work.batch, shuffle=False, num_workers=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=work.learning_rate)
    criterion = nn.CrossEntropyLoss()
    model.train()
    for _ in range(work.epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
    return model


def weighted_mean(states: list[dict[str, Tensor]], sizes: list[int]) -> dict[str, Tensor]:
    """Mean of state dicts by size; counters (whole numbers) are taken from the first client."""
    mean = copy.deepcopy(states[0])
    for name, value in mean.items():
        if value.is_floating_point():
            mean[name] = sum(
                state[name] * (size / sum(sizes)) for state, size in zip(states, sizes, strict=True)
            )
    return mean


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    work, device = chosen_work(options), options.device
    x, y = (tensor.to(device) for tensor in data(work))
    clients = [TensorDataset(x[k], y[k]) for k in range(work.clients)]
    initial = initial_model(work).to(device)
    names = [name for name, _ in initial.named_parameters()]

    def one_round() -> list[Tensor]:
        states = [train(copy.deepcopy(initial), rows, work).state_dict() for rows in clients]
        mean = weighted_mean(states, [len(rows) for rows in clients])
        return [mean[name].cpu() for name in names]

    serve(Session(options.variant, options.weights), one_round)


if __name__ == "__main__":
    main()
