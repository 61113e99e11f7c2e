"""What a Part says of itself beside its hooks: its name, what it goes with, and what it does to a round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from unskew.core.configured import Configured

Skew = Literal["labels", "features", "scarcity", "absence"]
"""What may be hard about a federation: clients hold other labels, other-looking inputs, few samples, or often miss rounds."""

Family = Literal[
    "", "data", "steps", "classifier", "representation", "distillation", "merge", "robust", "fairness", "personalised",
    "clusters", "compression", "privacy", "reference",
]  # fmt: skip
"""What kind of thing a method is: it changes the data that clients train on, corrects their local steps, what the head
says, what features look like, teaches by outputs, merges in another way, merges although some clients lie, for clients that
fare worse, makes clients models of their own, or models for groups of them, sends less, proves what cannot be learned, or
is there to be compared with. "": its Part does not say."""


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
    """Names under which this Part is also known, each with the settings that it then has: {"rbsm": {"mu": 0.0}}."""
    neutral: ClassVar[Mapping[str, object]] = {}
    """Settings with which the Part changes nothing, so that `unskew check` can verify it."""
    untuned: ClassVar[Mapping[str, str]] = {}
    """Settings that a search for the best score must leave as they are, and why, as a sentence without its full stop:
    {"share": "it decides how much leaves a client"}."""
    first_stage: ClassVar[str] = ""
    """Its setting that is the share of a run's rounds (pFedSim), or as a whole number their count (CFL), after which it begins to
    do something else, where it has one: a run that ends early may never come to that."""
    spelling: ClassVar[str] = ""
    """How users refer to a Part of their own: `file.py` or `file.py:Class`; empty for those that come with unskew."""

    # What it goes with

    tasks: ClassVar[tuple[str, ...]] = ("classification", "segmentation", "regression", "multilabel", "tokens")
    """The tasks it serves. A Part that reads one label a sample, or the head's features, leaves segmentation and tokens out; one that
    reads classes at all leaves out regression, where a sample's label is a number."""
    needs: ClassVar[str] = ""
    """What it needs of labels that other tasks do not have, such as "class counts", as the refusal names it."""
    clashes: ClassVar[Mapping[str, str]] = {}
    """Names of Parts it cannot be combined with, and why, as the end of a sentence."""
    normalises: ClassVar[bool] = False
    """It normalises inputs itself, so it receives raw values instead of standardised ones."""
    by_input: ClassVar[Literal["", "floats", "images", "others"]] = ""
    """Which of a sample's several inputs it normalises, each by itself: all of floats, the images among them, beside which
    the others are standardised as for any method, or all of floats but the images. Empty: it cannot tell inputs apart, and
    refuses such samples."""
    merges: ClassVar[bool] = False
    """It replaces the weighted mean of clients' weights by its `merge`. At most one Part of a method may."""
    keeps_at_server: ClassVar[tuple[str, ...]] = ()
    """Leaves of the server's slice that are not broadcast."""
    read_by_row: ClassVar[tuple[str, ...]] = ()
    """Leaves of the broadcast slice of which `tap`, `loss` and the other hooks of a step read single rows, by numbers of
    `noise`, and beyond that at most whether there are any. On a GPU they are given more rows, of zeros, so that a recorded
    step also serves rounds in which other numbers of rows are sent (FLea)."""
    divides: ClassVar[bool] = False
    """It divides the model into what clients share and what they keep or freeze. At most one Part of a method may."""
    weights_read: Literal["sum", "each"] = "sum"
    """Whether the server needs every client's weights, or only their weighted sum (as secure aggregation gives)."""
    weighting: Literal["size", "equal"] | None = None
    """How the merge weighs clients. None leaves it to the other Parts; if none decides, it is by number of samples."""
    proximal: float = 0.0
    """The mu of a term mu/2 ||w - w_t||^2 in its loss, which contracts the local update; FedNova corrects for it."""
    own_logits: ClassVar[bool] = False
    """Its loss is of logits that it makes itself, in place of the model's, so that a Part whose `logits` changes those would do
    nothing and is refused."""
    by_steps: ClassVar[Literal["", "client", "server"]] = ""
    """Who divides how far clients moved by what their local steps add up to: the client, or the server, which knows only what
    it has and what was sent. Beside it nothing but these steps may lie between the two; other Parts are refused."""
    reserve: int = 0
    """Training samples of each class that the server holds back for itself before data are dealt to clients."""
    personal: bool = False
    """Whether `personalise` does something, so that clients' own scores are computed with it. At most one Part may."""
    samples_apart: ClassVar[bool] = False
    """Training draws every sample of a step independently of the others and sees each one's gradient (`sample_grad`), so
    that a proof about single samples holds. Parts that read a client's samples otherwise are refused."""
    alone: ClassVar[bool] = False
    """Its `batch`, `tap`, `logits` and `loss` do to a sample what they would do if it were the only one of its batch, so
    that they may stand beside a Part that sees samples apart."""
    totals: ClassVar[Mapping[str, int]] = {}
    """Hooks that read a client's samples through `Client.total` alone, with how often they call it: {"finish": 1}; only for
    `finish`. Trips say it of themselves. Beside a Part that protects samples these sums have noise, and nothing else of the
    samples can be read there."""
    step_noise: float = 0.0
    """The deviation of the noise on each number of a step's sum of the gradients that `sample_grad` bounds."""
    sum_noise: float = 0.0
    """The deviation of the noise on each number of the sums that `sample_sum` bounds."""
    hands_on: ClassVar[str] = ""
    """What of single clients its `dispatch` sends to others, for those who decide whether it may: "mixtures of single
    clients' weights". Empty if all that clients receive is made for all of them. Readers ask `handed_on`, which
    says something of every Part that dispatches."""
    climbs: int = 0
    """How often `perturb` is called in a step, each time with the gradient where the last call led; each costs a pass
    forward and back."""
    each_model: ClassVar[bool] = False
    """Its `grad` is also called with the gradients of what each other Part keeps at the client beside the model, one Part after
    the other (`clip_gradients`, which bounds the norm of every model's)."""
    protects: ClassVar[bool] = False
    """It replaces the clients' replies by noisy sums of them (`protect`), so Parts that read single replies are refused."""

    def first_rounds(self, rounds: int) -> int:
        """How many of a run's rounds its first stage takes, by the setting that `first_stage` names; 0 without one."""
        first = getattr(self, self.first_stage) if self.first_stage else 0
        return first if isinstance(first, int) else round(first * rounds)
