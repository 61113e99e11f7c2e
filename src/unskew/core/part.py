"""A Part: the piece of a federated method that one paper contributes.

Letters: B batch, C classes, D features, H x W pixels, K clients (in `ups`: those that replied), N samples, T rounds.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from torch import Tensor, nn

from unskew.core.account import Account
from unskew.core.client import Client, Fed
from unskew.core.declared import Declared
from unskew.core.guarded import guarded
from unskew.core.replies import Reply, Ups
from unskew.core.trees import Tree, Weights
from unskew.core.trip import Trip
from unskew.core.values import Batch, Keys, Noise, Normal, Out, Share
from unskew.core.written import check_class


class Part(Declared):
    """A piece of a method: an optional hook for each place where a method may differ from FedAvg.

    A subclass is a frozen dataclass; its fields are the method's settings, each `Annotated` with its range and meaning.
    Hooks are pure: they return what they change and remember nothing on the Part. What a Part remembers lives in two
    trees of named tensors: its slice at the server (`s`; as broadcast, `c.down`) and a private one at each client
    (`c.mine`).

    Hooks of a client are written for one client, and the engine runs them for many side by side. Hence no `.item()`, no
    `if` on a tensor's value and no boolean-mask indexing; random numbers come from `noise`, and averages over the batch
    from `batch.mean`, because a batch may end in padding.

    The hooks stand roughly in the order of a run. `w` holds weights by name, `c` is the client: its round, sizes and trees.
    Weights that another Part keeps at the client beside the model are hidden in its round: that Part alone trains them.
    The attributes with which a Part says what it goes with are in `Declared`.
    """

    @property
    def taps(self) -> tuple[str, ...]:
        """The cuts at which `tap` runs: block names, "cut" (the model's own), or "maps" (those
        the model lists, else every block whose output is [B, C, H, W])."""
        return ()

    @property
    def trips(self) -> Sequence[Trip]:
        """The exchanges of messages that it needs in addition to training."""
        return ()

    @property
    def handed_on(self) -> str:
        """What of single clients others are sent, in words: `hands_on`, or for a Part that dispatches and does not say it what
        that may be; "" where all are sent the same."""
        return self.hands_on or "what it makes for each of them" * overrides(self, "dispatch")

    def __init_subclass__(cls, **keywords: Any) -> None:
        """A class that does not come with unskew has its hooks called with care. Raises UsageError (E121) for one whose hooks
        nobody would call."""
        super().__init_subclass__(**keywords)
        if cls.__module__.partition(".")[0] == "unskew":
            return
        hooks = {hook: vars(Part)[hook] for hook in HOOKS}
        check_class(cls, hooks, {name for base in cls.__mro__[1:] for name in vars(base)})
        for name, hook in [(n, h) for n, h in vars(cls).items() if n in hooks]:
            if hook is not hooks[name] and (callable(hook) or isinstance(hook, staticmethod | classmethod)):
                setattr(cls, name, guarded(name, hook))

    # Before round 1

    def paced(self, whole: int, rounds: int) -> Self:
        """The Part for a run of `rounds`, with what it counts in rounds changed so that it ends where one of `whole` does."""
        return self

    def model(self, module: nn.Module, classes: int) -> nn.Module:
        """The model this Part needs, made from the user's; returns a module (MOON: with a projection before the head).

        New layers may draw from torch's global generator, which is seeded here.
        """
        return module

    def weights(self, fed: Fed) -> Weights:
        """Weights to train in addition to the model's, by name; they appear in every `w` as `<part>.<name>`.

        They are sent and merged like the model's, unless `keeps` or `freezes` says otherwise.
        """
        return {}

    def refuse(self, fed: Fed) -> str | None:
        """Why this Part cannot work with this model or these data, as the end of a sentence; None if it can."""
        return None

    def keeps(self, name: str, fed: Fed) -> bool:
        """Whether a weight stays on the client, neither sent nor overwritten (FedBN)."""
        return False

    def freezes(self, name: str, fed: Fed) -> bool:
        """Whether a weight is never trained, and so never sent (FedBABU)."""
        return False

    def shares(self, fed: Fed) -> dict[str, Share]:
        """Declares what `finish` sends in addition to the weights: the Share of each leaf, by its path ("sums",
        "delta/conv.weight")."""
        return {}

    def server_init(self, w: Weights, fed: Fed) -> Tree:
        """The server's slice before round 1, from the initial weights. Clients receive it as `c.down`."""
        return {}

    def client_init(self, w: Weights, fed: Fed) -> Tree:
        """A client's private tree, `c.mine`, when it first takes part; it never leaves the client."""
        return {}

    # A client's round

    def noise(self, fed: Fed, down: Tree) -> dict[str, Noise]:
        """The random numbers that this round's hooks need, by name; `c.noise` then holds them, new at every step.

        `down` is the slice as broadcast.
        """
        return {}

    def begin(self, w: Weights, c: Client) -> Tree:
        """Before the first local step, without gradients: returns what this round's hooks find in `c.round`.

        `w` holds the received weights. This is the place for a pass over the client's data.
        """
        return {}

    def starts(self, w: Weights, c: Client) -> Weights:
        """After `begin`, without gradients: returns the weights that training starts from in place of the received, with
        their names and shapes (FedALA). `c.start` stays what was received; `c.round` is what `begin` returned."""
        return w

    def batch(self, b: Batch, c: Client) -> Batch:
        """At every step, before the forward pass: returns the batch to train on (mixed, normalised)."""
        return b

    def tap(self, cut: str, h: Tensor, b: Batch, c: Client) -> tuple[Tensor, Batch]:
        """In the forward pass, at each cut of `taps`: returns the activation [B, ...] and the batch to go on with.

        The batch may change because a mixture of activations has a mixture of labels.
        """
        return h, b

    def logits(self, z: Tensor, b: Batch, c: Client) -> Tensor:
        """After the forward pass of a training step: returns the logits, of the shape of `z`, for the task's loss.

        Predictions at test time do not pass through it.
        """
        return z

    def loss(self, w: Weights, out: Out, b: Batch, c: Client) -> Tensor | float:
        """At every step: a scalar that is added to the task's mean loss, and differentiated with respect to `w`."""
        return 0.0

    def perturb(self, g: Weights, w: Weights, c: Client) -> Weights:
        """At every step: returns the weights at which its gradient is taken (FedSAM); g: the gradients where the last
        call led, at first at `w`, if it `climbs`; `c.seen` has all of this step. Passes see the same samples, noise and
        dropout; the training loss and running statistics are the first one's."""
        return w

    def sample_grad(self, g: Weights, c: Client) -> Weights:
        """At every step, the gradients of one sample's loss: returns what is added up over the step's samples. Noise of the
        deviation `step_noise` follows, and division by their expected number. Only called where `samples_apart` is True."""
        return g

    def sample_sum(self, v: dict[str, Tensor], c: Client) -> dict[str, Tensor]:
        """What another Part measures of one sample for `Client.total`: returns what is added up over the client's samples,
        to which noise of the deviation `sum_noise` is added. Only called where `samples_apart` is True; a Part that does
        not define it has every Part refused that releases such sums."""
        return v

    def grad(self, g: Weights, w: Weights, c: Client) -> Weights:
        """At every step, after the backward pass: returns the gradients, by name, for the optimiser; `c.noise` as in `loss`."""
        return g

    def carry(self, g: Weights, w: Weights, c: Client) -> Tree:
        """At every step, after the optimiser's: returns those leaves of `c.round`, as `begin` made them, that the next step
        and `finish` find changed (FedSMOO). g: the step's gradients, as `grad` left them; w: the weights after the step."""
        return {}

    def holds(self, c: Client) -> dict[str, Tensor]:
        """At every step: by name, whether a weight stays as it is (a scalar, True or False), and with it what the optimiser
        remembers of it, the number of its steps included. Weights that are not named move."""
        return {}

    def finish(self, w: Weights, c: Client) -> tuple[Tree, Tree]:
        """After the last local step, without gradients: returns (what to share, the next private tree).

        `w` holds the trained weights; the first tree must be as declared in `shares`.
        """
        return {}, c.mine

    def sends(self, w: Weights, c: Client) -> Weights:
        """After `finish`, which has seen the same `c`: returns the weights that leave the client in place of the trained
        ones, with their names and shapes (FedADMM); what the client keeps is not changed by it."""
        return w

    # What travels in place of the weights; a Part has all three hooks or none, and at most one Part of a method has them

    def encoded(self, fed: Fed) -> dict[str, Share]:
        """Declares what travels in place of the weights in `fed.shared`: the Share of each leaf, by its path."""
        return {}

    def encode(self, change: Weights, c: Client, keys: Keys) -> tuple[Tree, Tree]:
        """After `sends`, for one client alone: returns (its change of the shared weights, encoded, the next private tree)."""
        return {}, c.mine

    def decode(self, tree: Tree, w: Weights, fed: Fed, keys: Keys) -> Weights:
        """At the server, once the gate has passed a reply: returns the change of `w`, the broadcast weights, in `fed.shared`.

        Raises Undecodable where honest clients never send such a tree; what Shares declare has been checked."""
        return {}

    # The server's round

    def protect(self, w: Weights, s: Tree, ups: Ups, fed: Fed, normal: Normal) -> tuple[list[Reply], Tree]:
        """Once the gate has passed replies, also if it passed none: returns what all later hooks read instead of them, and
        the next slice. Only called where `protects` is True.

        ups: the replies, and in `ups.declared` the Shares they hold. normal(shape, purpose): standard normal numbers, drawn
        from where the run's guarantee says.
        """
        raise TypeError(f"{type(self).__name__} sets protects = True and must define protect")

    def rounds_within(self, fed: Fed) -> int:
        """How many rounds its privacy budget allows; the run ends after them."""
        return fed.rounds

    def spent(self, fed: Fed, t: int) -> float | None:
        """Epsilon of all that has been released up to round t; None if it accounts for nothing by rounds."""
        return None

    def merge(self, w: Weights, s: Tree, ups: Ups, fed: Fed) -> tuple[Weights, Tree]:
        """Once replies are in: returns the next global weights and slice. Only called where `merges` is True.

        `w` holds the weights that were broadcast; `ups.replies` are the clients' replies, with the weights that leave them.
        """
        raise TypeError(f"{type(self).__name__} sets merges = True and must define merge")

    def caution(self, replies: int) -> str | None:
        """A warning if this number of replies is too small for what the merge promises, without full stop; else None. It is
        logged in every such round, and printed before training if round 1 is one of them."""
        return None

    def server(self, s: Tree, ups: Ups, fed: Fed) -> Tree:
        """After the merge: returns the next slice, from what clients shared; `ups["leaf"]` is [K, ...]."""
        return s

    def refine(self, w: Weights, s: Tree, fed: Fed, t: int) -> tuple[Weights, Tree]:
        """After `server`: the server's own work on the merged weights of round t; returns weights and slice (FedAvg-FT).

        Trips follow it. Neither `merge`, `server` nor `refine` is called in a round in which nobody replied."""
        return w, s

    def dispatch(self, w: Weights, s: Tree, k: int, fed: Fed) -> tuple[Weights, Tree]:
        """Whenever client k is sent something: returns its weights, with the names and shapes of the global `w`, and what
        it finds in `c.down`, of one shape for all (FedAMP). s: the whole slice. `hands_on` says what of other clients
        this is. Clients then score what they are sent, as where they keep weights."""
        return w, {leaf: v for leaf, v in s.items() if leaf not in self.keeps_at_server}

    # At test time

    def evaluate_with(self, x: Tensor, c: Client) -> Tensor:
        """Inputs [B, *shape] as the model sees them outside training steps (FedRDN: normalised by the client's own mean and std)."""
        return x

    def scores(self, z: Tensor, h: Tensor, c: Client) -> Tensor:
        """Logits [B, C] to predict with, from the model's, `z`, and the features [B, D] (FedProto: nearest prototype).

        `c.inputs` holds the inputs that they are of, for further passes by `c.run` (FedEM: a mixture of models)."""
        return z

    def personalise(self, w: Weights, c: Client) -> Weights:
        """The weights with which a client's own score is computed (FedBABU: fine-tuned); called where `personal`."""
        return w

    # What it discloses

    def received(self, down: Tree, fed: Fed) -> tuple[Tensor, Tensor] | None:
        """Inputs of other clients that a broadcast holds, raw, averaged or generated: ([N, *shape], [N] labels), for the
        measure `received`. None: clients receive nothing of this Part that looks like an input."""
        return None

    def account(self, counts_KC: np.ndarray[Any, Any], fed: Fed) -> Account | None:
        """What its release amounts to as differential privacy, from each client's samples per class; None: no noise."""
        return None


HOOKS = tuple(n for n, hook in vars(Part).items() if inspect.isfunction(hook) and not n.startswith("_"))
"""The names of all hooks, in the order in which they stand above."""


def overrides(part: Part, hook: str) -> bool:
    """Whether a Part defines this hook, so that the engine can leave the others out."""
    return getattr(type(part), hook) is not getattr(Part, hook)
