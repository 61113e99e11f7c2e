"""Centralised training of one model on as many samples at the same batch: the practical floor of a federated
round.

The strictest form: rows are slices of one tensor in memory, no DataLoader, nothing copied.

    python central.py --model rebafl_fmnist --variant central-1 --threads 1
"""

import copy

import torch
from session import Session, serve
from torch import Tensor
from torch.nn.functional import cross_entropy
from work import arguments, chosen_work, data, initial_model


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    work = chosen_work(options)
    x, y = (tensor.flatten(0, 1).to(options.device) for tensor in data(work))
    initial = initial_model(work).to(options.device)

    def one_round() -> list[Tensor]:
        model = copy.deepcopy(initial)
        optimizer = torch.optim.SGD(model.parameters(), lr=work.learning_rate)
        for _ in range(work.epochs):
            for x_batch, y_batch in zip(x.split(work.batch), y.split(work.batch), strict=True):
                optimizer.zero_grad()
                cross_entropy(model(x_batch), y_batch).backward()
                optimizer.step()
        return [p.detach().cpu() for p in model.parameters()]

    serve(Session(options.variant, options.weights), one_round)


if __name__ == "__main__":
    main()
