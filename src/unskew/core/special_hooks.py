"""Hooks and attributes that few methods need, by subject. Every `Part` has them, with these defaults.

    StepHooks      a client's local steps: where they start, where gradients are taken, what carries over
    PersonalHooks  clients with weights or models of their own
    InputHooks     Parts that normalise inputs or read samples of the server
    EncodingHooks  an encoding that clients send in place of their weights
    PrivacyHooks   noise and differential privacy, for clients or for single samples

Letters: B batch, K clients, N samples, T rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor

from unskew.core.client import Client, Fed
from unskew.core.privacy_account import Account
from unskew.core.random_keys import Keys, Normal
from unskew.core.replies import Reply, Ups
from unskew.core.shares import Share
from unskew.core.trees import Tree, Weights


class StepHooks:
    """A client's local steps, beyond a term of the loss and a change of the gradient."""

    proximal: float = 0.0
    """The mu of a term mu/2 ||w - w_t||^2 in its loss, which contracts the local update; FedNova corrects for
    it."""
    own_logits: ClassVar[bool] = False
    """Its loss computes logits itself and ignores the model's, so a Part whose `logits` changes those is
    refused."""
    by_steps: ClassVar[Literal["", "client", "server"]] = ""
    """Who divides a client's change of the weights by its local steps: the client, or the server, which only
    knows what was sent. Parts that change where the steps start or what is sent are refused."""
    climbs: int = 0
    """How often `perturb` is called in a step, each time with the gradient at the weights of the previous
    call. Each call costs a forward and a backward pass."""
    each_model: ClassVar[bool] = False
    """`grad` is also called with the gradients of the weights that each other Part keeps at the client in
    addition to the model, one Part after the other (`clip_gradients` bounds the norm for each model)."""
    read_by_row: ClassVar[tuple[str, ...]] = ()
    """Leaves of the broadcast slice of which the hooks of a step read single rows, by numbers of `noise`, and
    otherwise at most whether there are any rows. On a GPU they are padded with rows of zeros, so that one
    recorded step serves rounds with different numbers of rows (FLea)."""

    def starts(self, w: Weights, c: Client) -> Weights:
        """After `begin`, without gradients: returns the weights at which training starts, with the names and
        shapes of the received ones, `w` (FedALA). `c.start` remains what was received."""
        return w

    chooses: ClassVar[bool] = False
    """`starts` chooses among models that the client received, so that `c.start` is the chosen one afterwards
    (IFCA)."""

    def perturb(self, g: Weights, w: Weights, c: Client) -> Weights:
        """At every step: returns the weights at which the step's gradient is taken (FedSAM).

        If the Part `climbs`, g holds the gradients at the weights that the last call returned, at first those
        at `w`, and `c.seen` all of this step. All passes of a step see the same samples, noise and dropout;
        the training loss and running statistics are those of the first pass.
        """
        return w

    def carry(self, g: Weights, w: Weights, c: Client) -> Tree:
        """At every step, after the optimiser's: returns the leaves of `c.round` that the next step and
        `finish` find changed (FedSMOO); `begin` makes them. g: the step's gradients, after `grad`; w: the
        weights after the step."""
        return {}

    def holds(self, c: Client) -> dict[str, Tensor]:
        """At every step: for weights by name, a boolean scalar that says whether the weight and its optimiser
        state, the number of steps included, stay unchanged. Weights that are not named move."""
        return {}

    def sends(self, w: Weights, c: Client) -> Weights:
        """After `finish`: returns the weights that leave the client in place of the trained ones, with their
        names and shapes (FedADMM). It does not change what the client keeps."""
        return w


class PersonalHooks:
    """Clients that have weights or whole models of their own."""

    divides: ClassVar[bool] = False
    """It divides the model into weights that clients share and weights that they keep or freeze. At most one
    Part of a method may."""
    personal: bool = False
    """`personalise` makes a client's own model, with which its own scores are computed. At most one Part of a
    method may."""

    def freezes(self, name: str, fed: Fed) -> bool:
        """Whether a weight is never trained, and so never sent (FedBABU)."""
        return False

    def personalise(self, w: Weights, c: Client) -> Weights:
        """At test time: returns the weights for the client's own score (FedBABU: fine-tuned). Called if
        `personal`."""
        return w


class InputHooks:
    """Parts that normalise inputs, or use samples that the server holds."""

    normalises: ClassVar[bool] = False
    """It normalises inputs itself, so it receives raw values instead of standardised ones."""
    by_input: ClassVar[Literal["", "floats", "images", "others"]] = ""
    """Which inputs of a sample with several it normalises, each separately: all floats, only images, or all
    floats except images; the other inputs are standardised as for any method. Empty: it refuses such
    samples."""
    reserve: int = 0
    """The number of training samples of each class that the server sets aside for itself before the data are
    divided among clients."""

    def evaluate_with(self, x: Tensor, c: Client) -> Tensor:
        """Outside training steps: returns the inputs [B, *shape] as the model sees them (FedRDN: normalised
        by the client's mean and standard deviation)."""
        return x


class EncodingHooks:
    """An encoding that clients send in place of their weights.

    A Part has all three hooks or none, and at most one Part of a method has them.
    """

    def encoded(self, fed: Fed) -> dict[str, Share]:
        """Declares what is sent in place of the weights in `fed.shared`: the Share of each leaf, by its
        path."""
        return {}

    def encode(self, change: Weights, c: Client, keys: Keys) -> tuple[Tree, Tree]:
        """After `sends`, for one client: returns (its change of the shared weights, encoded; its next private
        tree)."""
        return {}, c.mine

    def decode(self, tree: Tree, w: Weights, fed: Fed, keys: Keys) -> Weights:
        """At the server, once the gate has accepted a reply: returns the client's change of the broadcast
        weights `w`, for the names in `fed.shared`.

        The gate has checked what Shares declare. Raises DecodeError for any other tree that an honest client
        never sends.
        """
        return {}


class PrivacyHooks:
    """Noise and differential privacy, for whole clients (`protect`) or for single samples (`sample_grad`)."""

    # Parts that protect clients

    protects: ClassVar[bool] = False
    """It replaces the clients' replies by noisy sums (`protect`); Parts that read single replies are
    refused."""

    def protect(self, w: Weights, s: Tree, ups: Ups, fed: Fed, normal: Normal) -> tuple[list[Reply], Tree]:
        """Once the gate has judged the replies, even if it accepted none: returns (the replies that all later
        hooks read, the next slice). Called if `protects`.

        ups: the replies, and in `ups.declared` their Shares. normal(shape, purpose): standard normal numbers
        from the source that the run's guarantee names.
        """
        raise TypeError(f"{type(self).__name__} sets protects = True and must define protect")

    def rounds_within(self, fed: Fed) -> int:
        """The number of rounds that its privacy budget allows, after which the run ends."""
        return fed.rounds

    def spent(self, fed: Fed, t: int) -> float | None:
        """The epsilon of everything released up to round t; None if it does not account by rounds."""
        return None

    # Parts that protect single samples

    samples_apart: ClassVar[bool] = False
    """Training draws every sample of a step independently and takes its gradient separately (`sample_grad`),
    as a proof about single samples requires. Parts that read a client's samples in other ways are refused."""
    step_noise: float = 0.0
    """The standard deviation of the noise on each number of a step's sum of `sample_grad`."""
    sum_noise: float = 0.0
    """The standard deviation of the noise on each number of a sum of `sample_sum`."""

    def sample_grad(self, g: Weights, c: Client) -> Weights:
        """At every step, for the gradients of one sample's loss: returns what is summed over the step's
        samples. Noise (`step_noise`) is added to the sum, which is divided by the expected number of samples.
        Called if `samples_apart`."""
        return g

    def sample_sum(self, v: dict[str, Tensor], c: Client) -> dict[str, Tensor]:
        """For what another Part measures of one sample by `Client.total`: returns what is summed over the
        client's samples; noise (`sum_noise`) is added. Called if `samples_apart`; without this hook, Parts
        that release such sums are refused."""
        return v

    # What a Part promises so that it can be combined with one that protects single samples

    alone: ClassVar[bool] = False
    """`batch`, `tap`, `logits` and `loss` treat each sample as if it were the only one of its batch."""
    totals: ClassVar[Mapping[str, int]] = {}
    """Hooks that read a client's samples only by `Client.total`, and the number of such calls: {"finish": 1}.
    Only `finish` may; a Trip has `sums` for it."""

    # What a run discloses

    def account(self, counts_KC: np.ndarray[Any, Any], fed: Fed) -> Account | None:
        """The differential privacy of what it releases, from each client's number of samples per class; None
        if it adds no noise."""
        return None

    def received(self, down: Tree, fed: Fed) -> tuple[Tensor, Tensor] | None:
        """The inputs of other clients, raw, averaged or generated, that a broadcast holds: ([N, *shape], [N]
        labels), for the measure `received`; None if nothing in it resembles an input."""
        return None
