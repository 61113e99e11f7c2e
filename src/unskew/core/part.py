"""The nouns a method is made of: Part, and Trip, an extra exchange.

Letters: B batch, C classes, D features, K clients, T rounds.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from unskew.core.account import Account
from unskew.core.client import Client, Fed
from unskew.core.replies import Ups
from unskew.core.trees import Tree, Weights
from unskew.core.values import Batch, Noise, Out, Share


@dataclass(frozen=True)
class Trip:
    """One extra exchange, server -> clients -> server, after round t (t = 0 before round 1, t = T after the last).

    `client(weights, client)` runs at each client of this round's cohort (`everyone`: at all clients) and returns
    what it shares; `server(weights, slice, ups, fed)` returns the next weights and slice.
    `shares(fed)` declares what this trip brings, as `Part.shares` does for training.
    early: the clients run it on the weights and slice their round began with, so that a network needs no exchange for
    it beside the training's; `server` follows the merge as ever.
    """

    when: Callable[[int, int], bool]
    client: Callable[[Weights, Client], Tree]
    server: Callable[[Weights, Tree, Ups, Fed], tuple[Weights, Tree]]
    shares: Callable[[Fed], dict[str, Share]]
    everyone: bool = False
    early: bool = False


class Part:
    """A slice of a method. Every hook is pure and optional; subclasses are frozen dataclasses of their settings.

    Hooks that run at a client are written for one client and run for many side by side, so: no `.item()`,
    no `if` on tensor values, no boolean-mask indexing; random numbers come from `noise`; averages over the batch
    go through `batch.mean`.
    """

    name: ClassVar[str] = ""
    written: ClassVar[str] = ""
    """What a method calls it, where that is not its name: the file of a user's own that it came from."""
    merges: ClassVar[bool] = False
    """This Part replaces the weighted mean of clients' weights (at most one Part may)."""
    normalises: ClassVar[bool] = False
    """This Part scales inputs itself: it is given raw values instead of standardised ones."""
    keeps_at_server: ClassVar[tuple[str, ...]] = ()
    """Leaves of the server's slice that are not broadcast."""
    clashes: ClassVar[dict[str, str]] = {}
    """Parts this one cannot be combined with, and why, as the end of a sentence."""
    neutral: ClassVar[dict[str, object]] = {}
    """Settings with which the Part changes nothing, for the check that it then does not."""
    weights_read: Literal["sum", "each"] = "sum"
    """Whether the server must see each client's weights, or their weighted sum will do (as for secure aggregation)."""
    tasks: ClassVar[tuple[str, ...]] = ("classification", "segmentation")
    """The tasks its hooks can serve. Those that read one label a sample, or features of a head, leave segmentation out."""
    weighting: Literal["size", "equal"] | None = None
    """How the merge weighs clients; None leaves it to the other Parts (by size)."""
    reserve: int = 0
    """Training samples of each class that the server holds back for itself, before anything is dealt out."""
    personal: bool = False
    """`personalise` has something to do, so that every client's own score is taken with it."""

    @property
    def taps(self) -> tuple[str, ...]:
        """Cuts of the model this Part wants to see; "cut" is the model's own, "maps" every one with channels of pixels."""
        return ()

    @property
    def trips(self) -> Sequence[Trip]:
        return ()

    def refuse(self, fed: Fed) -> str | None:
        """Why this Part cannot work with this model or these data, or None."""
        return None

    def model(self, module: nn.Module, classes: int) -> nn.Module:
        """The model this Part needs, made from the user's (MOON's projection); new layers draw from torch's generator."""
        return module

    def weights(self, fed: Fed) -> Weights:
        """Weights trained beside the model's, as `<part>.<name>` in every `w`: sent and merged unless kept or frozen."""
        return {}

    def shares(self, fed: Fed) -> dict[str, Share]:
        """What `finish` sends up beside the weights."""
        return {}

    def server_init(self, w: Weights, fed: Fed) -> Tree:
        """The server's slice before round 1; broadcast to clients as `c.down` (less `keeps_at_server`)."""
        return {}

    def client_init(self, w: Weights, fed: Fed) -> Tree:
        """A client's private slice before it first takes part; it never leaves."""
        return {}

    def begin(self, w: Weights, c: Client) -> Tree:
        """Before the first local step: what this round's hooks will find in `c.round` (a pass over the data, say)."""
        return {}

    def noise(self, fed: Fed, down: Tree) -> dict[str, Noise]:
        """What random numbers the hooks of this round need; `down` is the slice as broadcast."""
        return {}

    def keeps(self, name: str, fed: Fed) -> bool:
        """Whether this weight stays on the client: neither sent nor overwritten (FedBN)."""
        return False

    def freezes(self, name: str, fed: Fed) -> bool:
        """Whether this weight is never trained (FedBABU)."""
        return False

    def batch(self, b: Batch, c: Client) -> Batch:
        return b

    def tap(self, cut: str, h: Tensor, b: Batch, c: Client) -> tuple[Tensor, Batch]:
        return h, b

    def logits(self, z: Tensor, b: Batch, c: Client) -> Tensor:
        return z

    def loss(self, w: Weights, out: Out, b: Batch, c: Client) -> Tensor | float:
        """A term added to the task's loss."""
        return 0.0

    def grad(self, g: Weights, w: Weights, c: Client) -> Weights:
        return g

    def finish(self, w: Weights, c: Client) -> tuple[Tree, Tree]:
        """After the last local step: (what to share, the next private slice)."""
        return {}, c.mine

    def server(self, s: Tree, ups: Ups, fed: Fed) -> Tree:
        """The next slice, from what the clients shared: `ups["leaf"]` is [K, ...]."""
        return s

    def merge(self, w: Weights, s: Tree, ups: Ups, fed: Fed) -> tuple[Weights, Tree]:
        """The next global weights and slice; only where `merges` is True."""
        raise TypeError(f"{type(self).__name__} sets merges = True and must define merge")

    def refine(self, w: Weights, s: Tree, fed: Fed, t: int) -> tuple[Weights, Tree]:
        """The server's own work on the merged weights in round t, before any trip (FedAvg-FT); skipped if nobody came."""
        return w, s

    def received(self, down: Tree, fed: Fed) -> tuple[Tensor, Tensor] | None:
        """Inputs of others that a broadcast holds, raw, averaged or made, and a label of each: [N, *shape], [N].

        What the measure `received` looks at. None: of this Part, clients receive nothing that looks like an input.
        """
        return None

    def account(self, counts_KC: Any, fed: Fed) -> Account | None:
        """What the release amounts to as differential privacy, from everybody's samples per class; None: of no noise."""
        return None

    def evaluate_with(self, x: Tensor, c: Client) -> Tensor:
        """How inputs look outside training steps (FedRDN: the client's own statistics)."""
        return x

    def scores(self, z: Tensor, h: Tensor, c: Client) -> Tensor:
        """Logits at test time, from the model's and from what its head received (FedProto: the nearest prototype)."""
        return z

    def personalise(self, w: Weights, c: Client) -> Weights:
        """The weights by which a client's own score is taken (FedBABU: fine-tuned); see `personal`."""
        return w

    def __str__(self) -> str:
        changed = [
            f"{f.name}={getattr(self, f.name)}"
            for f in fields(self)  # type: ignore[arg-type]
            if f.init and getattr(self, f.name) != f.default
        ]
        return (self.written or self.name) + (f"({', '.join(changed)})" if changed else "")


HOOKS = tuple(n for n, hook in vars(Part).items() if inspect.isfunction(hook) and not n.startswith("_"))


def overrides(part: Part, hook: str) -> bool:
    """Whether a Part says anything at this hook, so that the engine can leave silent ones out."""
    return getattr(type(part), hook) is not getattr(Part, hook)
