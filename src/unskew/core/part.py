"""A Part: the piece of a federated method that one paper contributes.

`Configured` makes a frozen dataclass a set of checked settings, `Declared` holds the attributes of a Part,
and `Part` its
hooks. Letters: B batch, C classes, D features, H x W pixels, K clients (in `ups`: those that replied), N
samples, T rounds.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from types import FunctionType
from typing import Any, ClassVar, Literal, Self

import numpy as np
from torch import Tensor, nn

from unskew.core.account import Account
from unskew.core.client import Batch, Client, Fed, Out
from unskew.core.keys import Keys, Normal
from unskew.core.replies import Reply, Ups
from unskew.core.shares import Noise, Share
from unskew.core.trees import Tree, Weights
from unskew.core.trip import Trip
from unskew.core.user_parts import check_class, check_frozen, wrap_hook
from unskew.errors import UsageError
from unskew.formats import arguments, calls

MEMORY_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
"""Where Python says an object lies in memory, which differs from process to process."""


class Configured:
    """Settings that are checked when an object is made, and its text as users write it. name, spelling: see
    `Part`."""

    name: ClassVar[str]
    spelling: ClassVar[str]

    def __new__(cls, *_values: Any, **settings: Any) -> Self:
        """Raises UsageError: E102 for a setting that the class does not have, E121 for a class that is no
        frozen dataclass."""
        check_frozen(cls)
        known = inspect.signature(cls.__init__).parameters
        unknown = {name: value for name, value in settings.items() if name not in known}
        if unknown and not any(p.kind is p.VAR_KEYWORD for p in known.values()):
            arguments.check(cls, unknown, cls.__name__, "E102")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        """Checks every setting against its annotation and converts it to its type, in Python as on the
        command line. A setting that has no effect without another one (`With`) is refused.

        Raises UsageError (E102). A subclass that checks more, such as how two settings go together, calls
        this first.
        """
        settings = {f.name: getattr(self, f.name) for f in fields(self) if f.init}  # type: ignore[arg-type]
        for name, value in arguments.check(type(self), settings, type(self).__name__, "E102").items():
            object.__setattr__(self, name, value)
        if reason := arguments.ineffective(type(self), {name: getattr(self, name) for name in settings}):
            raise UsageError("E102", f"{type(self).__name__}: {reason}")

    def __str__(self) -> str:
        """As users write it, with the settings that are not the defaults: `fedprox(mu=0.1)`."""
        settings = [
            f"{f.name}={_setting_text(getattr(self, f.name))}"
            for f in fields(self)  # type: ignore[arg-type]
            if f.init and not _equal(getattr(self, f.name), arguments.default_of(f))
        ]
        return (self.spelling or self.name) + (f"({', '.join(settings)})" if settings else "")


def _equal(value: Any, default: Any) -> bool:
    """Whether a setting has its default. Arrays compare number by number, which is no answer: these count as
    set."""
    try:
        return value is default or bool(value == default)
    except (ValueError, RuntimeError, TypeError):
        return False


def _setting_text(value: Any) -> str:
    """A setting's value, on one line and the same in every process: of a tensor its shape, of a function its
    name. Their content and code are in the digest by which a run knows a Part that was given in Python."""
    if isinstance(value, Tensor | np.ndarray):
        return f"{type(value).__name__.lower()} {list(value.shape)}"
    if isinstance(value, FunctionType):
        return value.__name__
    return calls.value_text(value) if isinstance(value, str) else MEMORY_ADDRESS.sub("", str(value))


Skew = Literal["labels", "features", "scarcity", "absence"]
"""What may be hard about a federation: clients hold other labels, other-looking inputs, few samples, or often
miss rounds."""

Family = Literal[
    "",
    "data",
    "steps",
    "classifier",
    "representation",
    "distillation",
    "merge",
    "robust",
    "fairness",
    "personalised",
    "clusters",
    "compression",
    "privacy",
    "reference",
]
"""What kind of thing a method is: it changes the data that clients train on, corrects their local steps, what
the head says, what features look like, teaches by outputs, merges in another way, merges although some
clients lie, for clients that fare worse, makes clients models of their own, or models for groups of them,
sends less, proves what cannot be learned, or is there to be compared with. "": its Part does not say."""


class Declared(Configured):
    """The attributes of a Part, with what holds where it says nothing."""

    # What a Part is

    name: ClassVar[str] = ""
    """The method's name, by which its trees are stored and users ask for it."""
    use_when: ClassVar[str] = ""
    """When to use it, in a sentence, for the method's page."""
    family: ClassVar[Family] = ""
    """What kind of method it belongs to."""
    against: ClassVar[tuple[Skew, ...]] = ()
    """What is hard about the federations that it is for; empty if it is for all, or for something else."""
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = {}
    """Names under which this Part is also known, each with the settings that it then has: {"rbsm": {"mu":
    0.0}}."""
    neutral: ClassVar[Mapping[str, object]] = {}
    """Settings with which the Part changes nothing, so that `unskew check` can verify it."""
    untuned: ClassVar[Mapping[str, str]] = {}
    """Settings that a search for the best score must leave as they are, and why, as a sentence without its
    full stop: {"share": "it decides how much leaves a client"}."""
    first_stage: ClassVar[str] = ""
    """Its setting that is the share of a run's rounds (pFedSim), or as a whole number their count (CFL),
    after which it begins to
    do something else, where it has one: a run that ends early may never come to that."""
    spelling: ClassVar[str] = ""
    """How users refer to a Part of their own: `file.py` or `file.py:Class`; empty for those that come with
    unskew."""

    # What it goes with

    tasks: ClassVar[tuple[str, ...]] = (
        "classification",
        "segmentation",
        "regression",
        "multilabel",
        "tokens",
    )
    """The tasks it serves. A Part that reads one label a sample, or the head's features, leaves segmentation
    and tokens out; one that reads classes at all leaves out regression, where a sample's label is a
    number."""
    needs: ClassVar[str] = ""
    """What it needs of labels that other tasks do not have, such as "class counts", as the refusal names
    it."""
    clashes: ClassVar[Mapping[str, str]] = {}
    """Names of Parts it cannot be combined with, and why, as the end of a sentence."""
    normalises: ClassVar[bool] = False
    """It normalises inputs itself, so it receives raw values instead of standardised ones."""
    by_input: ClassVar[Literal["", "floats", "images", "others"]] = ""
    """Which of a sample's several inputs it normalises, each by itself: all of floats, the images among them,
    beside which the others are standardised as for any method, or all of floats but the images. Empty: it
    cannot tell inputs apart, and refuses such samples."""
    merges: ClassVar[bool] = False
    """It replaces the weighted mean of clients' weights by its `merge`. At most one Part of a method may."""
    keeps_at_server: ClassVar[tuple[str, ...]] = ()
    """Leaves of the server's slice that are not broadcast."""
    read_by_row: ClassVar[tuple[str, ...]] = ()
    """Leaves of the broadcast slice of which `tap`, `loss` and the other hooks of a step read single rows, by
    numbers of `noise`, and beyond that at most whether there are any. On a GPU they are given more rows, of
    zeros, so that a recorded step also serves rounds in which other numbers of rows are sent (FLea)."""
    divides: ClassVar[bool] = False
    """It divides the model into what clients share and what they keep or freeze. At most one Part of a method
    may."""
    weights_read: Literal["sum", "each"] = "sum"
    """Whether the server needs every client's weights, or only their weighted sum (as secure aggregation
    gives)."""
    weighting: Literal["size", "equal"] | None = None
    """How the merge weighs clients. None leaves it to the other Parts; if none decides, it is by number of
    samples."""
    proximal: float = 0.0
    """The mu of a term mu/2 ||w - w_t||^2 in its loss, which contracts the local update; FedNova corrects for
    it."""
    own_logits: ClassVar[bool] = False
    """Its loss is of logits that it makes itself, in place of the model's, so that a Part whose `logits`
    changes those would do nothing and is refused."""
    by_steps: ClassVar[Literal["", "client", "server"]] = ""
    """Who divides how far clients moved by what their local steps add up to: the client, or the server, which
    knows only what it has and what was sent. Beside it nothing but these steps may lie between the two; other
    Parts are refused."""
    reserve: int = 0
    """Training samples of each class that the server holds back for itself before data are dealt to
    clients."""
    personal: bool = False
    """Whether `personalise` does something, so that clients' own scores are computed with it. At most one
    Part may."""
    samples_apart: ClassVar[bool] = False
    """Training draws every sample of a step independently of the others and sees each one's gradient
    (`sample_grad`), so that a proof about single samples holds. Parts that read a client's samples otherwise
    are refused."""
    alone: ClassVar[bool] = False
    """Its `batch`, `tap`, `logits` and `loss` do to a sample what they would do if it were the only one of
    its batch, so that they may stand beside a Part that sees samples apart."""
    totals: ClassVar[Mapping[str, int]] = {}
    """Hooks that read a client's samples through `Client.total` alone, with how often they call it:
    {"finish": 1}; only for `finish`. Trips say it of themselves. Beside a Part that protects samples these
    sums have noise, and nothing else of the samples can be read there."""
    step_noise: float = 0.0
    """The deviation of the noise on each number of a step's sum of the gradients that `sample_grad`
    bounds."""
    sum_noise: float = 0.0
    """The deviation of the noise on each number of the sums that `sample_sum` bounds."""
    hands_on: ClassVar[str] = ""
    """What of single clients its `dispatch` sends to others, for those who decide whether it may: "mixtures
    of single clients' weights". Empty if all that clients receive is made for all of them. Readers ask
    `handed_on`, which says something of every Part that dispatches."""
    climbs: int = 0
    """How often `perturb` is called in a step, each time with the gradient where the last call led; each
    costs a pass forward and back."""
    each_model: ClassVar[bool] = False
    """Its `grad` is also called with the gradients of what each other Part keeps at the client beside the
    model, one Part after the other (`clip_gradients`, which bounds the norm of every model's)."""
    protects: ClassVar[bool] = False
    """It replaces the clients' replies by noisy sums of them (`protect`), so Parts that read single replies
    are refused."""

    def first_rounds(self, rounds: int) -> int:
        """How many of a run's rounds its first stage takes, by the setting that `first_stage` names; 0
        without one."""
        first = getattr(self, self.first_stage) if self.first_stage else 0
        return first if isinstance(first, int) else round(first * rounds)


class Part(Declared):
    """A piece of a method: an optional hook for each place where a method may differ from FedAvg.

    A subclass is a frozen dataclass; its fields are the method's settings, each `Annotated` with its range
    and meaning.
    Hooks are pure: they return what they change and remember nothing on the Part. What a Part remembers lives
    in two
    trees of named tensors: its slice at the server (`s`; as broadcast, `c.down`) and a private one at each
    client (`c.mine`).

    Hooks of a client are written for one client, and the engine runs them for many side by side. Hence no
    `.item()`, no `if` on a tensor's value and no boolean-mask indexing; random numbers come from `noise`, and
    averages over the batch from `batch.mean`, because a batch may end in padding.

    The hooks stand roughly in the order of a run. `w` holds weights by name, `c` is the client: its round,
    sizes and trees. Weights that another Part keeps at the client beside the model are hidden in its round:
    that Part alone trains them. The attributes with which a Part says what it goes with are in `Declared`.
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
        """What of single clients others are sent, in words: `hands_on`, or for a Part that dispatches and
        does not say it what that may be; "" where all are sent the same."""
        return self.hands_on or "what it makes for each of them" * overrides(self, "dispatch")

    def __init_subclass__(cls, **keywords: Any) -> None:
        """A class that does not come with unskew has its hooks called with care. Raises UsageError (E121) for
        one whose hooks nobody would call."""
        super().__init_subclass__(**keywords)
        if cls.__module__.partition(".")[0] == "unskew":
            return
        hooks = {hook: vars(Part)[hook] for hook in HOOKS}
        check_class(cls, hooks, {name for base in cls.__mro__[1:] for name in vars(base)})
        for name, hook in [(n, h) for n, h in vars(cls).items() if n in hooks]:
            if hook is not hooks[name] and (callable(hook) or isinstance(hook, staticmethod | classmethod)):
                setattr(cls, name, wrap_hook(name, hook))

    # Before round 1

    def paced(self, whole: int, rounds: int) -> Self:
        """The Part for a run of `rounds`, with what it counts in rounds changed so that it ends where one of
        `whole` does."""
        return self

    def model(self, module: nn.Module, classes: int) -> nn.Module:
        """The model this Part needs, made from the user's; returns a module (MOON: with a projection before
        the head).

        New layers may draw from torch's global generator, which is seeded here.
        """
        return module

    def weights(self, fed: Fed) -> Weights:
        """Weights to train in addition to the model's, by name; they appear in every `w` as `<part>.<name>`.

        They are sent and merged like the model's, unless `keeps` or `freezes` says otherwise.
        """
        return {}

    def refuse(self, fed: Fed) -> str | None:
        """Why this Part cannot work with this model or these data, as the end of a sentence; None if it
        can."""
        return None

    def keeps(self, name: str, fed: Fed) -> bool:
        """Whether a weight stays on the client, neither sent nor overwritten (FedBN)."""
        return False

    def freezes(self, name: str, fed: Fed) -> bool:
        """Whether a weight is never trained, and so never sent (FedBABU)."""
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
        """The random numbers that this round's hooks need, by name; `c.noise` then holds them, new at every
        step.

        `down` is the slice as broadcast.
        """
        return {}

    def begin(self, w: Weights, c: Client) -> Tree:
        """Before the first local step, without gradients: returns what this round's hooks find in `c.round`.

        `w` holds the received weights. This is the place for a pass over the client's data.
        """
        return {}

    def starts(self, w: Weights, c: Client) -> Weights:
        """After `begin`, without gradients: returns the weights that training starts from in place of the
        received, with their names and shapes (FedALA). `c.start` stays what was received; `c.round` is what
        `begin` returned."""
        return w

    def batch(self, b: Batch, c: Client) -> Batch:
        """At every step, before the forward pass: returns the batch to train on (mixed, normalised)."""
        return b

    def tap(self, cut: str, h: Tensor, b: Batch, c: Client) -> tuple[Tensor, Batch]:
        """In the forward pass, at each cut of `taps`: returns the activation [B, ...] and the batch to go on
        with.

        The batch may change because a mixture of activations has a mixture of labels.
        """
        return h, b

    def logits(self, z: Tensor, b: Batch, c: Client) -> Tensor:
        """After the forward pass of a training step: returns the logits, of the shape of `z`, for the task's
        loss.

        Predictions at test time do not pass through it.
        """
        return z

    def loss(self, w: Weights, out: Out, b: Batch, c: Client) -> Tensor | float:
        """At every step: a scalar that is added to the task's mean loss, and differentiated with respect to
        `w`."""
        return 0.0

    def perturb(self, g: Weights, w: Weights, c: Client) -> Weights:
        """At every step: returns the weights at which its gradient is taken (FedSAM); g: the gradients where
        the last call led, at first at `w`, if it `climbs`; `c.seen` has all of this step. Passes see the same
        samples, noise and dropout; the training loss and running statistics are the first one's."""
        return w

    def sample_grad(self, g: Weights, c: Client) -> Weights:
        """At every step, the gradients of one sample's loss: returns what is added up over the step's
        samples. Noise of the deviation `step_noise` follows, and division by their expected number. Only
        called where `samples_apart` is True."""
        return g

    def sample_sum(self, v: dict[str, Tensor], c: Client) -> dict[str, Tensor]:
        """What another Part measures of one sample for `Client.total`: returns what is added up over the
        client's samples, to which noise of the deviation `sum_noise` is added. Only called where
        `samples_apart` is True; a Part that does not define it has every Part refused that releases such
        sums."""
        return v

    def grad(self, g: Weights, w: Weights, c: Client) -> Weights:
        """At every step, after the backward pass: returns the gradients, by name, for the optimiser;
        `c.noise` as in `loss`."""
        return g

    def carry(self, g: Weights, w: Weights, c: Client) -> Tree:
        """At every step, after the optimiser's: returns those leaves of `c.round`, as `begin` made them, that
        the next step and `finish` find changed (FedSMOO). g: the step's gradients, as `grad` left them; w:
        the weights after the step."""
        return {}

    def holds(self, c: Client) -> dict[str, Tensor]:
        """At every step: by name, whether a weight stays as it is (a scalar, True or False), and with it what
        the optimiser remembers of it, the number of its steps included. Weights that are not named move."""
        return {}

    def finish(self, w: Weights, c: Client) -> tuple[Tree, Tree]:
        """After the last local step, without gradients: returns (what to share, the next private tree).

        `w` holds the trained weights; the first tree must be as declared in `shares`.
        """
        return {}, c.mine

    def sends(self, w: Weights, c: Client) -> Weights:
        """After `finish`, which has seen the same `c`: returns the weights that leave the client in place of
        the trained ones, with their names and shapes (FedADMM); what the client keeps is not changed by
        it."""
        return w

    # What travels in place of the weights; a Part has all three hooks or none, and at most one Part of a
    # method has them

    def encoded(self, fed: Fed) -> dict[str, Share]:
        """Declares what travels in place of the weights in `fed.shared`: the Share of each leaf, by its
        path."""
        return {}

    def encode(self, change: Weights, c: Client, keys: Keys) -> tuple[Tree, Tree]:
        """After `sends`, for one client alone: returns (its change of the shared weights, encoded, the next
        private tree)."""
        return {}, c.mine

    def decode(self, tree: Tree, w: Weights, fed: Fed, keys: Keys) -> Weights:
        """At the server, once the gate has passed a reply: returns the change of `w`, the broadcast weights,
        in `fed.shared`.

        Raises DecodeError where honest clients never send such a tree; what Shares declare has been
        checked."""
        return {}

    # The server's round

    def protect(self, w: Weights, s: Tree, ups: Ups, fed: Fed, normal: Normal) -> tuple[list[Reply], Tree]:
        """Once the gate has passed replies, also if it passed none: returns what all later hooks read instead
        of them, and the next slice. Only called where `protects` is True.

        ups: the replies, and in `ups.declared` the Shares they hold. normal(shape, purpose): standard normal
        numbers, drawn from where the run's guarantee says.
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

        `w` holds the weights that were broadcast; `ups.replies` are the clients' replies, with the weights
        that leave them.
        """
        raise TypeError(f"{type(self).__name__} sets merges = True and must define merge")

    def caution(self, replies: int) -> str | None:
        """A warning if this number of replies is too small for what the merge promises, without full stop;
        else None. It is logged in every such round, and printed before training if round 1 is one of them."""
        return None

    def server(self, s: Tree, ups: Ups, fed: Fed) -> Tree:
        """After the merge: returns the next slice, from what clients shared; `ups["leaf"]` is [K, ...]."""
        return s

    def refine(self, w: Weights, s: Tree, fed: Fed, t: int) -> tuple[Weights, Tree]:
        """After `server`: the server's own work on the merged weights of round t; returns weights and slice
        (FedAvg-FT).

        Trips follow it. Neither `merge`, `server` nor `refine` is called in a round in which nobody
        replied."""
        return w, s

    def dispatch(self, w: Weights, s: Tree, k: int, fed: Fed) -> tuple[Weights, Tree]:
        """Whenever client k is sent something: returns its weights, with the names and shapes of the global
        `w`, and what it finds in `c.down`, of one shape for all (FedAMP). s: the whole slice. `hands_on` says
        what of other clients this is. Clients then score what they are sent, as where they keep weights."""
        return w, {leaf: v for leaf, v in s.items() if leaf not in self.keeps_at_server}

    # At test time

    def evaluate_with(self, x: Tensor, c: Client) -> Tensor:
        """Inputs [B, *shape] as the model sees them outside training steps (FedRDN: normalised by the
        client's own mean and std)."""
        return x

    def scores(self, z: Tensor, h: Tensor, c: Client) -> Tensor:
        """Logits [B, C] to predict with, from the model's, `z`, and the features [B, D] (FedProto: nearest
        prototype).

        `c.inputs` holds the inputs that they are of, for further passes by `c.run` (FedEM: a mixture of
        models)."""
        return z

    def personalise(self, w: Weights, c: Client) -> Weights:
        """The weights with which a client's own score is computed (FedBABU: fine-tuned); called where
        `personal`."""
        return w

    # What it discloses

    def received(self, down: Tree, fed: Fed) -> tuple[Tensor, Tensor] | None:
        """Inputs of other clients that a broadcast holds, raw, averaged or generated: ([N, *shape], [N]
        labels), for the
        measure `received`. None: clients receive nothing of this Part that looks like an input."""
        return None

    def account(self, counts_KC: np.ndarray[Any, Any], fed: Fed) -> Account | None:
        """What its release amounts to as differential privacy, from each client's samples per class; None: no
        noise."""
        return None


HOOKS = tuple(n for n, hook in vars(Part).items() if inspect.isfunction(hook) and not n.startswith("_"))
"""The names of all hooks, in the order in which they stand above."""


def overrides(part: Part, hook: str) -> bool:
    """Whether a Part defines this hook, so that the engine can leave the others out."""
    return getattr(type(part), hook) is not getattr(Part, hook)
