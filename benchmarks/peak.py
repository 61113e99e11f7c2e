"""Which share of a core's measured peak each benchmark model reaches, and how fast any loop in float32 could
be here.

python benchmarks/peak.py --out peak.json        about six minutes on one core

The peaks are those of torch's own kernels: the best of several convolutions, forwards and backwards, and the
best of several products of matrices, all in float32 on one thread. A model's operations are counted layer by
layer, forwards and backwards; normalisation, pooling and the optimiser are not in it. `at_most` is the time
of the usual loop over that of the counted
operations at peak: no float32 implementation with these kernels is faster than that.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import own_models
import torch
import torch.nn.functional as F
import work
from torch import Tensor, nn

from unskew import models
from unskew.core.network import Network

LAST = torch.channels_last
CONVOLUTIONS = (
    (32, 32, 16, 64, 3),
    (32, 64, 8, 64, 3),
    (32, 128, 16, 128, 3),
    (32, 32, 14, 64, 5),
    (32, 16, 32, 32, 3),
)
"""Batch, channels in, pixels a side, channels out, kernel a side."""
PRODUCTS = ((32, 800, 128), (256, 784, 200), (1024, 1024, 1024))


def rate(operations: float, run: Callable[[], object], repeats: int = 15) -> float:
    """GFLOP/s of the fastest of some runs."""
    run()
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began)
    return operations / min(seconds) / 1e9


def convolution_peaks() -> list[float]:
    """GFLOP/s of each of `CONVOLUTIONS`, a forward and a backward pass together."""
    rates = []
    for batch, C, side, O, kernel in CONVOLUTIONS:
        x = torch.randn(batch, C, side, side).to(memory_format=LAST).requires_grad_()
        w = torch.randn(O, C, kernel, kernel).to(memory_format=LAST).requires_grad_()
        y = F.conv2d(x, w, padding=kernel // 2)
        g = torch.randn_like(y)

        def both(x: Tensor = x, w: Tensor = w, g: Tensor = g, pad: int = kernel // 2) -> object:
            return torch.autograd.grad(F.conv2d(x, w, padding=pad), (x, w), g)

        rates.append(rate(3 * 2 * y.numel() * C * kernel * kernel, both))
    return rates


def product_peaks() -> list[float]:
    """GFLOP/s of each of `PRODUCTS`."""
    rates = []
    for m, k, n in PRODUCTS:
        a, b = torch.randn(m, k), torch.randn(k, n)
        rates.append(rate(2 * m * k * n, lambda a=a, b=b: a @ b))
    return rates


def operations(model: nn.Module, shape: tuple[int, ...], batch: int) -> tuple[float, float]:
    """What a step on a batch multiplies and adds: (in convolutions, in products of matrices).

    Backwards, a layer does its forward work twice, and the first one, whose input has no gradient, once.
    """
    forward: list[tuple[bool, float]] = []

    def note(layer: nn.Module, inputs: tuple[Tensor, ...], y: Tensor) -> None:
        assert isinstance(layer.weight, Tensor)
        forward.append((not isinstance(layer, nn.Linear), 2 * y.numel() * layer.weight[0].numel()))

    for layer in model.modules():
        if isinstance(layer, (nn.Conv1d, nn.Conv2d, nn.Linear)):
            layer.register_forward_hook(note)
    with torch.no_grad():
        model(torch.randn(batch, *shape))
    sums = [0.0, 0.0]
    for number, (convolves, n) in enumerate(forward):
        sums[not convolves] += n * (2 if number == 0 else 3)
    return sums[0], sums[1]


def loops(name: str) -> tuple[work.Work, nn.Module, Callable[[], object], Callable[[], object]]:
    """(the work, the model as it is usually written, a round of the usual loop, one of unskew)."""
    if name in own_models.MODELS:
        todo, model = own_models.chosen(name, own_models.CLIENTS), own_models.initial(name)
        return todo, model, own_models.usual_round(todo), own_models.ours(todo, "auto")[0]
    todo = work.WORKS[name]
    todo = replace(todo, clients=min(todo.clients, own_models.CLIENTS), epochs=1)
    model, built = work.initial_model(todo), models.build(name, todo.shape, todo.classes)
    lanes = "16" if Network(built, todo.shape).folds else "auto"
    return todo, model, own_models.usual_round(todo, model), own_models.ours(todo, lanes, built)[0]


def measured(name: str, repeats: int, convolves: float, multiplies: float) -> dict[str, object]:
    """A row. convolves, multiplies: the peaks, GFLOP/s."""
    todo, model, usual, ours = loops(name)
    convolved, multiplied = operations(copy.deepcopy(model), todo.shape, todo.batch)
    least = (convolved / convolves + multiplied / multiplies) / 1e9 / todo.batch  # seconds a sample
    taken: dict[str, list[float]] = {"usual": [], "ours": []}
    for warm_up in (True, *[False] * repeats):
        for variant, one in (("usual", usual), ("ours", ours)):
            began = time.process_time()
            one()
            if not warm_up:
                taken[variant].append(time.process_time() - began)
    samples = todo.clients * todo.samples * todo.epochs
    seconds = {variant: min(all_of) / samples for variant, all_of in taken.items()}
    return {
        "model": name,
        "mflop": round((convolved + multiplied) / todo.batch / 1e6, 2),
        "convolved": round(convolved / (convolved + multiplied), 3),
        **{variant: round(1e-3 / each, 2) for variant, each in seconds.items()},
        **{f"{variant}_share": round(least / each, 3) for variant, each in seconds.items()},
        "times_usual": round(seconds["usual"] / seconds["ours"], 2),
        "at_most": round(seconds["usual"] / least, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = [*own_models.MODELS, *work.WORKS]
    parser.add_argument("--models", nargs="+", default=names, choices=names)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    convolutions, products = convolution_peaks(), product_peaks()
    found: dict[str, object] = {
        "torch": torch.__version__,
        "convolutions": convolutions,
        "products": products,
    }
    print(json.dumps(found), flush=True)
    rows = []
    for name in options.models:
        rows.append(measured(name, options.repeats, max(convolutions), max(products)))
        print(json.dumps(rows[-1]), flush=True)
        if options.out:
            options.out.write_text(json.dumps({**found, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
