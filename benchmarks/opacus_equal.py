"""Whether `dpsgd` trains a client to the weights that Opacus gives it, on the same samples and with the same
noise.

pip install opacus && python benchmarks/opacus_equal.py

Prints the largest difference of any weight after a round of local training; exits with 1 if it is above 1e-6.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import opacus.optimizers.optimizer as theirs
import torch
from opacus import GradSampleModule

from unskew.core import Normal
from unskew.methods import registry
from unskew.round.chunks import poisson_rows
from unskew.round.randomness import SeededSource
from unskew.runs import conformance

CLIP, NOISE, BATCH, LR, EPOCHS, CLIENT = 0.7, 0.5, 16, 0.05, 2, 0


def main() -> int:
    method = registry.parse(f"dpsgd(clip={CLIP}, noise_multiplier={NOISE})")
    loop = conformance.loop_for(method, lanes="1", epochs=EPOCHS, batch=BATCH, lr=LR, momentum=0.9)
    (reply,) = loop.trainer.train(loop.down(loop.begin(), 1), [CLIENT], {})
    loop.trainer.close()
    expected = by_opacus(loop)
    worst = max(float((reply.weights[n] - t).abs().max()) for n, t in expected.items())
    steps = EPOCHS * -(-int(loop.fed.sizes[CLIENT]) // BATCH)
    print(
        f"{steps} steps, {sum(t.numel() for t in expected.values()):,} weights: largest difference"
        f" {worst:.2g}"
    )
    return int(worst > 1e-6)


def by_opacus(loop: conformance.Loop) -> dict[str, torch.Tensor]:
    """The client's weights after the round, trained by Opacus."""
    fed, data = loop.fed, loop.trainer.samples
    module = fed.net.module_with(fed.net.weights()).train()
    names = [n for n, _ in module.named_parameters()]
    wrapped = GradSampleModule(module)
    sgd = torch.optim.SGD(wrapped.parameters(), lr=LR, momentum=0.9)
    n = int(fed.sizes[CLIENT])
    optimiser = theirs.DPOptimizer(
        sgd, noise_multiplier=NOISE, max_grad_norm=CLIP, expected_batch_size=min(BATCH, n)
    )
    normal = SeededSource(fed.seed).normal(1, "dpsgd")
    drawn = poisson_rows(
        data.rows[CLIENT], EPOCHS * -(-n // BATCH), BATCH, SeededSource(fed.seed).samples(1, CLIENT)
    )
    for step, rows in enumerate(drawn):
        theirs._generate_noise = noise_of(normal, step, names)  # ours in place of theirs
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(wrapped(data.x[rows]), data.y[rows].argmax(1))
        loss.backward()
        optimiser.step()
    return {n: p.detach() for n, p in module.named_parameters()}


def noise_of(normal: Normal, step: int, names: list[str]) -> Callable[..., torch.Tensor]:
    """The noise of a step in Opacus's form: called once for each weight, in order."""
    left = iter(names)

    def draw(std: float, reference: torch.Tensor, **_: object) -> torch.Tensor:
        return std * normal(tuple(reference.shape), f"{CLIENT} {step} {next(left)}").to(reference.dtype)

    return draw


if __name__ == "__main__":
    sys.exit(main())
