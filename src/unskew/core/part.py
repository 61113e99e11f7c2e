"""A Part: the piece of a federated method that one paper contributes.

`Part` has the attributes and hooks that most methods need. What it inherits is for special subjects: see
`special_hooks` (local steps, personal models, inputs, encoding, privacy) and `description`.
Letters: B batch, C classes, D features, H x W pixels, K clients (in `ups`: those that replied), T rounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

from torch import Tensor, nn

from unskew.core.client import Batch, Client, Fed, Out
from unskew.core.description import Description
from unskew.core.network import Network
from unskew.core.replies import Ups
from unskew.core.shares import Noise, Share
from unskew.core.special_hooks import EncodingHooks, InputHooks, PersonalHooks, PrivacyHooks, StepHooks
from unskew.core.trees import Tree, Weights, under
from unskew.core.trip import Trip
from unskew.core.user_parts import check_class, wrap_hook


class Part(StepHooks, PersonalHooks, InputHooks, EncodingHooks, PrivacyHooks, Description):
    """A piece of a method: an optional hook for each place where a method may differ from FedAvg.

    A subclass is a frozen dataclass with a `name`; its fields are the method's settings, each `Annotated`
    with its range and meaning. Hooks are pure: they return what they change and store nothing on the Part. A
    Part's memory is in two trees of named tensors: its slice at the server (`s`; as broadcast, `c.down`) and
    a private one at each client (`c.mine`).

    A client's hooks are written for one client, and the engine runs them for many at once. Hence no
    `.item()`, no `if` on a tensor's value and no boolean-mask indexing; random numbers come from `noise`, and
    averages over the batch from `batch.mean`, because a batch may end in padding.

    `w` holds weights by name; `c` is the client with its round, sizes and trees. Weights that another Part
    keeps at the client in addition to the model are not visible: only that Part trains them.
    """

    # What it can be combined with

    tasks: ClassVar[tuple[str, ...]] = (
        "classification",
        "segmentation",
        "regression",
        "multilabel",
        "tokens",
    )
    """The tasks that it serves. A Part that reads one label per sample, or the head's features, leaves out
    segmentation and tokens; one that reads classes leaves out regression."""
    plain_loss: ClassVar[bool] = False
    """Its equations presume cross-entropy in which every class has the weight 1, such as those that correct
    for the numbers of samples of each class; `class_weights`, weights of samples and a loss of the user's are
    refused."""
    equal_samples: ClassVar[bool] = False
    """It mixes a client's samples with others, or fits weights to samples outside training steps, where all
    count alike; weights of samples are refused."""
    clashes: ClassVar[Mapping[str, str]] = {}
    """Names of Parts that it cannot be combined with, each with the reason, as the end of a sentence."""
    merges: ClassVar[bool] = False
    """`merge` replaces the weighted mean of the clients' weights. At most one Part of a method may."""
    weighting: Literal["size", "equal"] | None = None
    """How the merge weighs clients. None leaves it to the other Parts; if none decides, by number of
    samples."""
    weights_read: Literal["sum", "each"] = "sum"
    """Whether the server needs every client's weights, or only their weighted sum, as secure aggregation
    gives it."""
    keeps_at_server: ClassVar[tuple[str, ...]] = ()
    """Leaves of the server's slice that are not broadcast."""
    row_of: ClassVar[Mapping[str, str]] = {}
    """Broadcast leaves [K, ...] of which client k reads one row, and is sent no other: row k (""), or the row
    with the number that the named leaf [K] holds at k, -1 for none (FedDPMS: its match's latents)."""

    # Before round 1

    def refuse(self, fed: Fed) -> str | None:
        """Why this Part cannot work with this model or these data, as the end of a sentence; None if it
        can."""
        return None

    def paced(self, whole: int, rounds: int) -> Self:
        """The Part for a run of `rounds`, with its settings in rounds scaled from a run of `whole` rounds."""
        return self

    def model(self, module: nn.Module, classes: int) -> nn.Module:
        """The model that this Part needs, made from the user's (MOON: with a projection before the head).

        New layers may draw from torch's global generator, which is seeded here.
        """
        return module

    def weights(self, fed: Fed) -> Weights:
        """Weights to train in addition to the model's, by name; every `w` has them as `<part>.<name>`.

        They are sent and merged like the model's, unless `keeps` or `freezes` says otherwise.
        """
        return {}

    def keeps(self, name: str, fed: Fed) -> bool:
        """Whether a weight stays on the client, neither sent nor overwritten (FedBN)."""
        return False

    def shares(self, fed: Fed) -> dict[str, Share]:
        """Declares what `finish` sends in addition to the weights: the Share of each leaf, by its path
        ("sums", "delta/conv.weight")."""
        return {}

    def server_init(self, w: Weights, fed: Fed) -> Tree:
        """The server's slice before round 1, from the initial weights. Clients receive it as `c.down`."""
        return {}

    def client_init(self, w: Weights, fed: Fed) -> Tree:
        """A client's private tree, `c.mine`, when it first takes part; it never leaves the client."""
        return {}

    # A client's round

    def noise(self, fed: Fed, down: Tree) -> dict[str, Noise]:
        """The random numbers that this round's hooks need, by name; `c.noise` holds them, drawn anew at every
        step. down: the slice as broadcast."""
        return {}

    def begin(self, w: Weights, c: Client) -> Tree:
        """Before the first local step, without gradients: returns `c.round` for this round's hooks.

        `w` holds the received weights. This is the place for a pass over the client's data.
        """
        return {}

    def batch(self, b: Batch, c: Client) -> Batch:
        """At every step, before the forward pass: returns the batch to train on (mixed, normalised)."""
        return b

    @property
    def taps(self) -> tuple[str, ...]:
        """The cuts at which `tap` runs: block names, "cut" (the model's own), or "maps" (those
        the model lists, else every block whose output is [B, C, H, W])."""
        return ()

    def tap(self, cut: str, h: Tensor, b: Batch, c: Client) -> tuple[Tensor, Batch]:
        """In the forward pass, at each cut of `taps`: returns the activation [B, ...] and the batch for the
        rest of the pass, because a mixture of activations has a mixture of labels."""
        return h, b

    def logits(self, z: Tensor, b: Batch, c: Client) -> Tensor:
        """After the forward pass of a training step: returns the logits, of the shape of `z`, for the task's
        loss. Predictions at test time do not use it."""
        return z

    def loss(self, w: Weights, out: Out, b: Batch, c: Client) -> Tensor | float:
        """At every step: a scalar that is added to the task's mean loss and differentiated with respect to
        `w`."""
        return 0.0

    def grad(self, g: Weights, w: Weights, c: Client) -> Weights:
        """At every step, after the backward pass: returns the gradients, by name, for the optimiser."""
        return g

    def finish(self, w: Weights, c: Client) -> tuple[Tree, Tree]:
        """After the last local step, without gradients: returns (what to share, the next private tree).

        `w` holds the trained weights; the first tree must be as declared in `shares`.
        """
        return {}, c.mine

    # The server's round

    def merge(self, w: Weights, s: Tree, ups: Ups, fed: Fed) -> tuple[Weights, Tree]:
        """Once replies are in: returns the next global weights and slice. Called if `merges`.

        `w` holds the weights that were broadcast; `ups.replies` has the replies of the clients with the
        weights that they sent.
        """
        raise TypeError(f"{type(self).__name__} sets merges = True and must define merge")

    def caution(self, replies: int) -> str | None:
        """A warning, without full stop, if the merge needs more replies than these for what it promises; else
        None. It is logged in every such round, and printed before training if round 1 is one of them."""
        return None

    def server(self, s: Tree, ups: Ups, fed: Fed) -> Tree:
        """After the merge: returns the next slice, from what clients shared; `ups["leaf"]` is [K, ...]."""
        return s

    def refine(self, w: Weights, s: Tree, fed: Fed, t: int) -> tuple[Weights, Tree]:
        """After `server`: the server's own work on the merged weights of round t; returns weights and slice
        (FedAvg-FT).

        Trips follow it. In a round without replies, `merge`, `server` and `refine` are not called.
        """
        return w, s

    def dispatch(self, w: Weights, s: Tree, k: int, fed: Fed) -> tuple[Weights, Tree]:
        """Whenever client k is sent something: returns (its weights, its `c.down`), by default those of all
        (FedAMP).

        The weights have the names and shapes of the global `w`; `c.down` has one shape for all clients. s:
        the whole slice. Each client is then scored with the weights that it is sent.
        """
        return w, {leaf: v for leaf, v in s.items() if leaf not in self.keeps_at_server}

    hands_on: ClassVar[str] = ""
    """What `dispatch` sends of single clients to others, for those who decide whether it may: "mixtures of
    single clients' weights". Empty if what clients receive is made from all of them. Read `handed_on`, which
    also answers for Parts that do not say."""

    @property
    def handed_on(self) -> str:
        """`hands_on`, or a general text for a Part that does not say; "" without `dispatch`."""
        return self.hands_on or ("what it makes for each of them" if overrides(self, "dispatch") else "")

    @property
    def trips(self) -> Sequence[Trip]:
        """The exchanges of messages that it needs in addition to training."""
        return ()

    # At test time

    def scores(self, z: Tensor, h: Tensor, c: Client) -> Tensor:
        """Returns the logits [B, C] to predict with, from the model's logits `z` and the features `h` [B, D]
        (FedProto: nearest prototype). `c.inputs` holds their inputs, for further passes by `c.run` (FedEM: a
        mixture of models)."""
        return z

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Wraps the hooks of a user's own class in checks. Raises UsageError (E121) for a class with a method
        that looks like a hook and would never be called."""
        super().__init_subclass__(**keywords)
        if cls.__module__.partition(".")[0] == "unskew":
            return
        hooks = {hook: getattr(Part, hook) for hook in HOOKS}
        check_class(cls, hooks, {name for base in cls.__mro__[1:] for name in vars(base)})
        for name, hook in [(n, h) for n, h in vars(cls).items() if n in hooks]:
            if hook is not hooks[name] and (callable(hook) or isinstance(hook, staticmethod | classmethod)):
                setattr(cls, name, wrap_hook(name, hook))


HOOKS = (
    *("paced", "model", "weights", "refuse", "keeps", "freezes", "shares", "server_init", "client_init"),
    *("noise", "begin", "starts", "batch", "tap", "logits", "loss", "perturb", "sample_grad", "sample_sum"),
    *("grad", "carry", "holds", "finish", "sends", "encoded", "encode", "decode"),
    *("protect", "rounds_within", "spent", "merge", "caution", "server", "refine", "dispatch"),
    *("evaluate_with", "scores", "personalise", "received", "account"),
)
"""The names of all hooks in the order of a run: before round 1, at a client, at the server, at test time."""


def overrides(part: Part, hook: str) -> bool:
    """Whether a Part defines this hook, so that the engine can leave the others out."""
    return getattr(type(part), hook) is not getattr(Part, hook)


class OwnModel(Part):
    """A Part with a second model at each client, whose weights are named `<part>.<name>` after the model's.

    They start equal to the model's and take every step with them. A subclass adds their loss in `loss`, from
    `c.run_training(self.own(w), x)`; hooks of other Parts do not see them. The second model has its own
    running statistics. Clients' own scores are this model's; all other scores are the global model's.
    """

    personal = True

    def weights(self, fed: Fed) -> Weights:
        net = fed.net
        return {n: t for n, t in net.weights().items() if n not in net.extra and n not in net.constants}

    def keeps(self, name: str, fed: Fed) -> bool:
        return name.startswith(f"{self.name}.")

    def personalise(self, w: Weights, c: Client) -> Weights:
        return self.own(w)

    def own(self, w: Weights) -> Weights:
        """The weights of the client's own model, under the model's names."""
        return {**w, **under(w, self.name)}


class Remembered(Part):
    """A Part whose clients keep the weights of their last local training, as `w` of the private tree, and are
    scored with them. A subclass may start training from `last`, mix with it, or score otherwise."""

    personal = True

    def client_init(self, w: Weights, fed: Fed) -> Tree:
        return {"w": {n: w[n] for n in model_names(fed.net)}}

    def finish(self, w: Weights, c: Client) -> tuple[Tree, Tree]:
        return {}, {"w": {n: w[n] for n in model_names(c.net)}}

    def personalise(self, w: Weights, c: Client) -> Weights:
        return self.last(w, c)

    def last(self, w: Weights, c: Client) -> Weights:
        """The weights after the client's last training; the received ones if it has not taken part yet."""
        return w | c.mine.get("w", {})


def model_names(net: Network) -> list[str]:
    """The names of the model's weights and running statistics, without those that Parts add."""
    return [*net.trainable, *net.buffers]
