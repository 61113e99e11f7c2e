"""Inversion of updates into labels and inputs, and of activations into inputs.

Letters: C classes, D numbers of an input, N samples, U units of a dense layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unskew.core.network import Network
from unskew.core.random_keys import key
from unskew.core.trees import Weights
from unskew.round.run import Run


@dataclass(frozen=True)
class Update:
    """The update of one client. before, after: weights. n: number of samples. steps: of learning rate lr."""

    before: Weights
    after: Weights
    lr: float
    n: int
    steps: int


@dataclass(frozen=True)
class Search:
    """The search space of inputs: between low and high, from middle, in steps of `spread`."""

    low: Tensor
    high: Tensor
    middle: Tensor
    spread: Tensor

    @staticmethod
    def like(x: Tensor) -> Search:
        """The range, mean and deviation of the attacker's own samples, as the model sees them."""
        spread = x.std(correction=0)
        return Search(x.amin(), x.amax(), x.mean(), torch.where(spread > 0, spread, 1.0))

    def standardised(self, x: Tensor) -> Tensor:
        """Inputs in units of the spread, from the middle."""
        return (x - self.middle) / self.spread

    def inputs(self, z: Tensor) -> Tensor:
        """The inputs with these standardised values."""
        return self.middle + self.spread * z

    def holds(self, x: Tensor) -> Tensor:
        """bool [N]: whether all values of an input are in the range, up to a hundredth of it."""
        slack = (self.high - self.low) / 100
        return ((x >= self.low - slack) & (x <= self.high + slack)).flatten(1).all(1)


def white_box(
    features: Callable[[Tensor], Tensor], sent: Tensor, start: Tensor, within: Search, steps: int
) -> Tensor:
    """Inputs [N, *shape] that minimise |features(x) - sent|^2, by L-BFGS from `start`.

    features: the map that the clients applied. steps: the most steps. Values are cut to the range of the
    attacker's own samples; a sample for which `start` is nearer keeps it.
    """
    low, high, unit = within.standardised(within.low), within.standardised(within.high), sent.var() + 1e-12
    z = within.standardised(start).clamp(low, high).contiguous().requires_grad_()
    first = z.detach().clone()
    search = torch.optim.LBFGS(
        [z], max_iter=steps, history_size=20, tolerance_change=1e-12, line_search_fn="strong_wolfe"
    )

    def distance_N(z: Tensor) -> Tensor:
        return (features(within.inputs(z)) - sent).flatten(1).pow(2).mean(1) / unit

    def closure() -> Tensor:
        total = distance_N(z).sum()
        z.grad = torch.autograd.grad(total, [z])[0].contiguous()  # L-BFGS reads it as one vector
        return total.detach()

    search.step(closure)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        last = z.clamp(low, high)
        nearer = (distance_N(last) < distance_N(first)).reshape(-1, *[1] * (z.dim() - 1))
        return within.inputs(torch.where(nearer, last, first))


class Inversion:
    """Finds labels and inputs of updates of one model. plan: steps, weight of total variation, first rate."""

    def __init__(self, net: Network, run: Run, plan: tuple[int, float, float], search: Search):
        self.net, self.task, self.classes = net, run.task, run.fed.classes
        self.steps, self.tv, self.rate = plan
        self.search, self.shape = search, run.fed.shape

    def labels(self, update: Update, own: Tensor) -> Tensor:
        """Classes [N] of the client's samples, from the head's update.

        own: inputs of the attacker's samples as the model sees them.
        """
        name = f"{self.net.head}.bias"
        if name in update.before:
            change_C = update.before[name] - update.after[name]
        else:  # each row is a sum of features, which are mostly positive
            weight = f"{self.net.head}.weight"
            change_C = (update.before[weight] - update.after[weight]).flatten(1).sum(1)
        if update.n == 1:
            return change_C.argmin()[None]
        with torch.no_grad():
            p_C = self.net.run(update.before, own)[0].softmax(1).mean(0)
        slope_C = change_C / (update.lr * update.steps)
        return round_counts((update.n * (p_C - slope_C)).double().cpu(), update.n)

    def read_off(self, update: Update, own: Tensor) -> Tensor:
        """Inputs [U, *shape] that the units of dense layers of the input give away: dW_u / db_u.

        It is exact for a unit that a single sample moved, and else a mixture; those beyond the range of the
        attacker's own samples are left out. own: as for `labels`.
        """
        answers = [own[:0]]
        for name in _dense_layers_of_input(self.net, update.before, own[:2]):
            weight_UD, bias_U = (
                (update.before[n] - update.after[n]).double() for n in (f"{name}.weight", f"{name}.bias")
            )
            moved = bias_U.abs() > 1e-6 * bias_U.abs().max()
            x = (weight_UD[moved] / bias_U[moved][:, None]).to(own.dtype).reshape(-1, *self.shape)
            answers.append(x[self.search.holds(x)])
        return torch.cat(answers)

    def inputs(self, update: Update, labels: Tensor, seed: int) -> Tensor:
        """Inputs [N, *shape], as the model sees them, with an update in the direction of this one."""
        names = self.net.trainable
        aim = torch.cat([(update.before[n] - update.after[n]).flatten() for n in names])
        y = self.task.targets(labels, self.classes).to(aim.device)
        z = torch.randn((update.n, *self.shape), generator=key(seed)).to(aim.device).requires_grad_()
        within = self.search
        low, high = within.standardised(within.low), within.standardised(within.high)
        optimiser = torch.optim.Adam([z], self.rate)
        marks = [int(self.steps * share) for share in (3 / 8, 5 / 8, 7 / 8)]
        falling = torch.optim.lr_scheduler.MultiStepLR(optimiser, marks, 0.1)
        for _ in range(self.steps):
            change = self._change(update, within.inputs(z), y)
            distance = 1 - torch.nn.functional.cosine_similarity(change, aim, dim=0)
            distance = distance + self.tv * variation(z)
            (slope,) = torch.autograd.grad(distance, [z])
            z.grad = slope.sign()
            optimiser.step()
            falling.step()
            with torch.no_grad():
                z.clamp_(low, high)
        return within.inputs(z.detach())

    def _change(self, update: Update, x: Tensor, y: Tensor) -> Tensor:
        """The change of all weights by the update's number of full-batch steps on x, as a vector."""
        names = self.net.trainable
        w = {n: t.detach().clone() for n, t in update.before.items()}
        first = [w[n].requires_grad_() for n in names]
        now = first
        for _ in range(update.steps):
            logits = self.net.run({**w, **dict(zip(names, now))}, x)[0]
            loss = self.task.loss(logits, y).mean()
            slopes = torch.autograd.grad(loss, now, create_graph=True, allow_unused=True)
            now = [t if g is None else t - update.lr * g for t, g in zip(now, slopes)]
        return torch.cat([(a - b).flatten() for a, b in zip(first, now)])


def _dense_layers_of_input(net: Network, w: Weights, x: Tensor) -> list[str]:
    """The names of dense layers with a bias that read inputs x [N, *shape] as they are."""
    names = list[str]()

    def note(name: str) -> Callable[..., None]:
        def compare(_: nn.Module, args: tuple[Tensor, ...], __: Tensor) -> None:
            if args and torch.equal(args[0].flatten(1), x.flatten(1)):
                names.append(name)

        return compare

    hooks = [
        layer.register_forward_hook(note(name))
        for name, layer in net.module.named_modules()
        if isinstance(layer, nn.Linear) and {f"{name}.weight", f"{name}.bias"} <= w.keys()
    ]
    with torch.no_grad():
        net.run(w, x)
    for hook in hooks:
        hook.remove()
    return names


def round_counts(counts_C: Tensor, n: int) -> Tensor:
    """Classes [N] with rounded counts that sum to n: whole parts first, then the largest remainders."""
    counts = counts_C.clamp(min=0)
    counts = counts * n / counts.sum().clamp(min=1e-12)
    whole = counts.floor()
    rest = n - int(whole.sum())
    whole[(counts - whole).argsort(descending=True, stable=True)[:rest]] += 1
    return torch.repeat_interleave(torch.arange(len(whole)), whole.long())[:n]


def variation(x: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels; 0 unless samples are images."""
    if x.dim() != 4:
        return x.new_zeros(())
    return (x[..., 1:] - x[..., :-1]).abs().mean() + (x[..., 1:, :] - x[..., :-1, :]).abs().mean()
