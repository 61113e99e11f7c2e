"""A Method: an ordered set of Parts that can be combined.

At most one Part of a method can have a role (such as the merge), which decides what can be combined.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from unskew.core.client import Fed
from unskew.core.part import HOOKS, Part, overrides
from unskew.core.replies import Reply
from unskew.core.shares import Share
from unskew.core.trees import hidden_tensor
from unskew.core.user_parts import check_part
from unskew.errors import UsageError, excerpt


@dataclass(frozen=True)
class Role:
    """Something that at most one Part of a method can do. name: in a word or two, for tables. does: the verb
    phrase of a refusal. has: whether a Part has the role."""

    name: str
    does: str
    has: Callable[[Part], bool]


ROLES = (
    Role("merge", "replace the merge of weights", lambda p: p.merges),
    Role("division", "divide the model into what is shared and what is not", lambda p: p.divides),
    Role("own model", "make a client's own model", lambda p: p.personal),
    Role("protection", "protect what clients send", lambda p: p.protects),
    Role("slope", "say at which weights a step's gradient is taken", lambda p: overrides(p, "perturb")),
    Role("sending", "say what is sent for the trained weights", lambda p: overrides(p, "sends")),
    Role("start", "say where training starts", lambda p: overrides(p, "starts")),
    Role("dispatch", "say what each client is sent", lambda p: overrides(p, "dispatch")),
    Role("encoding", "encode the weights that clients send", lambda p: overrides(p, "encode")),
)


def part_roles(part: Part) -> list[str]:
    """The names of a Part's roles; it can be combined with Parts that have none of them."""
    return [role.name for role in ROLES if role.has(part)]


def conflict(part: Part, other: Part) -> str:
    """Why a Part's attributes exclude a hook of another Part, as the end of a sentence; "" if they do not."""
    if part.own_logits and overrides(other, "logits"):
        return "its loss is of logits that it makes itself, so what the other makes of them has no effect"
    for hook, does in (
        ("starts", "the steps begin elsewhere than at the model that the client is sent"),
        ("dispatch", "each client begins at a model of its own"),
        ("sends", "a client sends something else than the weights at which its steps ended"),
    ):
        if part.by_steps and overrides(other, hook) and (part.by_steps == "server" or hook == "starts"):
            return f"it divides how far a client moved by its local steps, and with the other {does}"
    return ""


class Method:
    """An ordered set of Parts; `Method()` is FedAvg.

    Their order matters for the hooks `batch`, `tap`, `logits` and `grad`, each of which receives the result
    of the previous Part's; terms of `loss` add up. `weighting` says how the merge weighs clients: "size" or
    "equal". Raises UsageError (E107) for two Parts of one name, two merges, or Parts that cannot be combined.
    """

    def __init__(self, *parts: Part):
        for p in parts:
            if not isinstance(p, Part):  # pyright: ignore[reportUnnecessaryIsInstance]
                text = (
                    f"a Method is made of Parts, such as Method(FedProx(), Scaffold()), not of {excerpt(p)}"
                )
                raise UsageError("E107", f"{text}; names are given to `unskew.run`: 'fedprox+scaffold'.")
        self.parts = tuple(parts)
        for p in parts:
            if hidden := [h for h in HOOKS if not callable(getattr(p, h))]:
                text = f"'{p.name}' has a setting '{hidden[0]}' that hides the hook of that name"
                raise UsageError("E107", f"{text}.")
            check_part(p, [h for h in HOOKS if overrides(p, h)])
            if [other.name for other in self.parts].count(p.name) > 1:
                raise UsageError("E107", f"'{p.name}' stands twice in {self}; each Part can be there once.")
            for other in self.parts:
                if reason := p.clashes.get(other.name) or conflict(p, other):
                    raise UsageError("E107", f"'{p.name}' and '{other.name}' cannot be combined: {reason}.")
        for role in ROLES:
            if len(having := [p.name for p in parts if role.has(p)]) > 1:
                raise UsageError("E107", f"{' and '.join(having)} each {role.does}; keep one.")
        weighing = {p.weighting for p in parts} - {None}
        if len(weighing) > 1:
            text = f"the Parts of {self} weigh clients differently ({', '.join(sorted(map(str, weighing)))})"
            raise UsageError("E107", f"{text}.")
        self.weighting: Literal["size", "equal"] = "equal" if "equal" in weighing else "size"

    @property
    def merger(self) -> Part | None:
        """The Part that replaces the weighted mean of weights, if there is one."""
        return next((p for p in self.parts if p.merges), None)

    @property
    def protector(self) -> Part | None:
        """The Part that replaces single replies by noisy sums, if there is one."""
        return next((p for p in self.parts if p.protects), None)

    @property
    def dispatcher(self) -> Part | None:
        """The Part that sends each client something of its own, if there is one."""
        return next((p for p in self.parts if overrides(p, "dispatch")), None)

    @property
    def encoder(self) -> Part | None:
        """The Part that encodes the weights which clients send, if there is one."""
        return next((p for p in self.parts if overrides(p, "encode")), None)

    @property
    def samples_apart(self) -> Part | None:
        """The Part that protects single samples and sees the gradient of each, if there is one."""
        return next((p for p in self.parts if p.samples_apart), None)

    @property
    def weights_read(self) -> Literal["sum", "each"]:
        """Whether the server needs every client's weights ("each"), or only their weighted sum ("sum");
        encoded weights cannot be added up."""
        return "each" if self.encoder or any(p.weights_read == "each" for p in self.parts) else "sum"

    @property
    def normalises(self) -> Literal["", "images", "all"]:
        """The inputs that Parts normalise, so that they are not standardised beforehand: none (""), only the
        images of several inputs, or all."""
        by = [p.by_input for p in self.parts if p.normalises]
        return "" if not by else "images" if set(by) == {"images"} else "all"

    @property
    def proximal(self) -> float:
        """The sum of mu over the Parts with a term mu/2 ||w - w_t||^2."""
        return sum(p.proximal for p in self.parts)

    def check_task(self, name: str) -> None:
        """Raises UsageError (E108) for a Part that does not serve this task."""
        for p in self.parts:
            if name not in p.tasks:
                needs = f"it needs {p.needs}, so " if p.needs else ""
                served = " and ".join(p.tasks)
                raise UsageError(
                    "E108", f"'{p.name}' cannot run here: {needs}it is for {served}, not for {name}."
                )

    def check(self, fed: Fed) -> None:
        """Raises UsageError (E104, E107, E108) for a Part that cannot work with this model or these data, and
        if nothing is left to train. The task is checked by `check_task`."""
        net = fed.net
        if all(self.freezes(n, fed) for n in net.learnable):
            frozen = (
                f"{self} freezes all of it" if net.trainable else "every parameter has requires_grad=False"
            )
            raise UsageError("E108", f"nothing of this model is left to train: {frozen}.")
        for p in self.parts:
            for cut in p.taps:
                net.cuts(cut)
            merging = p.merges or p.weighting or p is self.encoder or overrides(p, "dispatch")
            reason: str | None = None
            if not fed.shared and merging:
                reason = "clients keep every weight, so none are merged"
            elif p.normalises and net.layout and not p.by_input:
                reason = "it scales inputs channel by channel, and a sample here has several inputs"
            elif p.normalises and net.embeds and not net.layout:
                reason = "it scales inputs, and the model looks them up"
            elif p.plain_loss and not fed.usual_loss:
                reason = "it presumes cross-entropy and equal classes; leave loss and class_weights out"
            elif fed.weighted and (p.plain_loss or p.equal_samples or p is self.samples_apart):
                reason = "all samples count alike in it; leave the weights of samples out"
            if reason := reason or p.refuse(fed) or _share_problem(p, fed) or _division_problem(p, fed):
                raise UsageError("E108", f"'{p.name}' cannot run here: {reason}.")
        images = net.layout.images if net.layout else len(fed.shape) == 3 and not net.embeds
        twice = [p.name for p in self.parts if p.by_input in ("images", "floats")]
        if images and len(twice) > 1:
            left = (
                "standardise(images=False) scales the others alone"
                if net.layout
                else f"leave out '{twice[1]}'"
            )
            text = f"'{twice[0]}' and '{twice[1]}' cannot be combined: both normalise images"
            raise UsageError("E107", f"{text}; {left}.")
        if apart := self.samples_apart:
            self._check_others(apart, lambda p: sample_problem(p, apart))
            if net.norms:
                text = (
                    "batch normalisation mixes the samples of a batch, so no sample has a gradient of its own"
                )
                remedy = "take a model without, or with GroupNorm"
                raise UsageError("E108", f"'{apart.name}' cannot run here: {text}; {remedy}.")
        if protector := self.protector:
            self._check_others(protector, lambda p: protection_problem(p, fed))
            if sent := [n for n in net.statistics if not self.keeps(n, fed)]:
                text = (
                    f"noise would spoil the statistics of batch normalisation ('{sent[0]}') that clients send"
                )
                remedy = "take a model without, or add fedbn"
                raise UsageError("E108", f"'{protector.name}' cannot run here: {text}; {remedy}.")

    def _check_others(self, by: Part, problem: Callable[[Part], str | None]) -> None:
        """Raises UsageError (E107) for a Part to which the proof of `by` does not extend."""
        for p in self.parts:
            if p is not by and (reason := problem(p)):
                raise UsageError("E107", f"'{p.name}' and '{by.name}' cannot be combined: {reason}.")

    def shares(self, fed: Fed) -> dict[str, dict[str, Share]]:
        """The Shares that each Part declares for training, by the Part's name."""
        return {p.name: self.covered(p.shares(fed)) for p in self.parts}

    def covered(self, shares: dict[str, Share]) -> dict[str, Share]:
        """A Part's Shares with the guarantee that they have in this method: "dp" if a Part protects single
        samples, since its proof covers every Share."""
        if not self.samples_apart:
            return shares
        return {leaf: replace(share, guarantee="dp") for leaf, share in shares.items()}

    def keeps(self, name: str, fed: Fed) -> bool:
        """Whether a Part keeps this weight on the client."""
        return any(p.keeps(name, fed) for p in self.parts)

    def freezes(self, name: str, fed: Fed) -> bool:
        """Whether a Part freezes this weight."""
        return any(p.freezes(name, fed) for p in self.parts)

    def divided(self, fed: Fed) -> dict[str, tuple[str, ...]]:
        """The fields `shared` and `kept` of `Fed`: trained weights that leave clients, and that stay."""
        trained = [n for n in fed.net.learnable if not self.freezes(n, fed)]
        kept = tuple(n for n in trained if self.keeps(n, fed))
        return {"shared": tuple(n for n in trained if n not in kept), "kept": kept}

    def __str__(self) -> str:
        return "+".join(map(str, self.parts)) or "fedavg"

    def __repr__(self) -> str:
        return f"Method({', '.join(map(repr, self.parts))})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Method) and self.parts == other.parts

    def __hash__(self) -> int:
        return hash(self.parts)


def stage_remarks(method: Method, rounds: int, patience: int) -> tuple[tuple[str, str], ...]:
    """A remark (E139) on each Part that may not reach its second stage, because the run has too few rounds or
    early stopping may end it before. patience: of early stopping; 0 without."""
    remarks: list[tuple[str, str]] = []
    for p in method.parts:
        first = getattr(p, p.first_stage) if p.first_stage else 0.0
        last, setting = p.first_rounds(rounds), f"({p.first_stage}={first:g})"
        if not last or (first == 1.0 and isinstance(first, float) and last == rounds):
            continue  # all rounds, 1.0, are deliberate
        if patience and patience < last < rounds:
            text = f"patience={patience} may end the run before '{p.name}' comes to its second stage, after"
            text = f"{text} round {last} of {rounds} {setting}; its scores are then those of the first."
            remarks.append(("E139", text))
        elif last >= rounds:
            text = f"the run has {rounds} rounds, and '{p.name}' comes to its second stage after round {last}"
            remarks.append(("E139", f"{text} {setting}; its scores are those of the first."))
    return tuple(remarks)


def more_rounds_problem(method: Method, before: int, now: int) -> str:
    """A clause if the method trains the first `before` rounds otherwise in a run of `now` rounds; else ""."""
    for p in method.parts:
        moved = any(trip.when(t, before) != trip.when(t, now) for trip in p.trips for t in range(before))
        if moved or p.has_schedule():
            return f"'{p.name}' has a schedule over all rounds, which {now} rounds would begin otherwise"
    return ""


def _share_problem(p: Part, fed: Fed) -> str:
    """The reason to refuse a Share with guarantee "dp" of a Part that does not account for epsilon."""
    if overrides(p, "account") or p.protects:
        return ""
    for shares in (p.shares(fed), *(trip.shares(fed) for trip in p.trips)):
        for leaf in (leaf for leaf, share in shares.items() if share.guarantee == "dp"):
            text = f"it declares '{leaf}' as guarantee='dp' and does not define `account`"
            return f"{text}; declare 'empirical' or 'none'"
    return ""


def _division_problem(p: Part, fed: Fed) -> str:
    """Why a Part that keeps or freezes weights, or that divides the model, makes no sense with this model: it
    selects none of the weights, or all of them. References intend the latter."""
    hooks = {hook for hook in HOOKS if overrides(p, hook)} - {"refuse"}
    selects = hooks & {"keeps", "freezes"}
    held = [p.keeps(n, fed) or p.freezes(n, fed) for n in (*fed.net.learnable, *fed.net.statistics)]
    if selects and (p.divides or not (hooks - selects or p.weighting)) and not any(held):
        return "it holds back no weight of this model"
    if p.divides and all(held) and p.family != "reference" and not p.trips and not p.shares(fed):
        text = "clients would keep every weight that they train, so that each trains alone"
        return f"{text}; take a model with layers to share, or local"
    return ""


UNSEEN_HOOKS = (
    *(
        "refuse",
        "model",
        "weights",
        "keeps",
        "freezes",
        "server_init",
        "client_init",
        "sample_grad",
        "sample_sum",
        "noise",
        "grad",
        "sends",
        "encoded",
        "encode",
        "decode",
        "holds",
        "shares",
    ),
    *("merge", "caution", "server", "refine", "protect", "rounds_within", "spent", "account"),
)
"""Hooks that see no sample of a client, or one sample at a time. Encoded weights already have noise."""

SAMPLE_HOOKS = ("batch", "tap", "logits", "loss")
"""Hooks that see a batch of one sample if samples are protected, so a Part that mixes samples would mix
none."""
TEST_HOOKS = ("evaluate_with", "scores", "received")
"""Hooks for scores, which have no access to training samples if samples are protected."""


def protection_problem(part: Part, fed: Fed) -> str | None:
    """Why noisy sums over clients are not enough for this Part, as the end of a sentence; None if they are.

    Only the sum of the weights and of every Share with reads="sum" is released.
    """
    if part.weights_read == "each":
        return "it reads each client's weights, and only their noisy sum is there"
    if reason := _reserves(part):
        return reason
    if part.trips:
        return "it exchanges more than training, and what it exchanges gets no noise"
    return _no_sum(part, fed, "noisy sums are there", "to which noise could be added")


def sum_problem(part: Part, fed: Fed) -> str | None:
    """Why the sums that secure aggregation gives are not enough for this Part, as the end of a sentence; None
    if they are."""
    if overrides(part, "encode"):
        return "it encodes the weights that clients send, and encoded weights cannot be added up"
    if part.weights_read != "sum":
        return "it reads each client's weights, and only their sum is there"
    if exchanged := [trip.shares(fed) for trip in part.trips]:
        leaf = next((f"'{part.name}/{leaf}'" for shares in exchanged for leaf in shares), "messages")
        return f"it exchanges {leaf} beside training, and only what comes with training is summed"
    return _no_sum(part, fed, "sums are there", "that could be summed")


def _no_sum(part: Part, fed: Fed, there: str, vector: str) -> str | None:
    """Why the sum over clients is not enough for a Share of this Part. there, vector: the ends of the
    sentences."""
    for leaf, share in part.shares(fed).items():
        if share.reads == "each":
            return f"it reads '{part.name}/{leaf}' of each client, and only {there}"
        if not share.dtype.is_floating_point or None in share.shape:
            return f"'{part.name}/{leaf}' is no vector of fixed length {vector}"
    return None


def sample_problem(part: Part, by: Part) -> str | None:
    """Why the proof of `by` about single samples does not hold with this Part, as the end of a sentence; None
    if it does."""
    summed = part.totals if overrides(by, "sample_sum") else {}
    allowed = {
        *UNSEEN_HOOKS,
        *TEST_HOOKS,
        *(SAMPLE_HOOKS if part.alone else ()),
        *({"finish"} & summed.keys()),
    }
    own = next((hook for hook in HOOKS if hook not in allowed and overrides(part, hook)), None)
    if reason := _reserves(part):
        return reason
    if own in SAMPLE_HOOKS:
        return (
            f"its hook {own} may mix the samples of a batch, and here each trains by itself (alone = True"
            " says it does not)"
        )
    if own or any(not trip.sums or not overrides(by, "sample_sum") for trip in part.trips):
        return f"its {f'hook {own}' if own else 'own exchange'} could read samples that no noise covers"
    return None


def sums_released(parts: Sequence[Part], rounds: int) -> int:
    """The number of sums over its samples that a client releases for these Parts if it takes part in every
    round."""
    of_training = sum(often for part in parts for hook, often in part.totals.items() if overrides(part, hook))
    return rounds * of_training + sum(trip.sums * trip.often(rounds) for part in parts for trip in part.trips)


def _reserves(part: Part) -> str | None:
    return "it trains on samples that the server holds, which no noise protects" if part.reserve else None


def without_losses(replies: list[Reply], by: Part | None, summed: bool, trip: bool = False) -> list[Reply]:
    """The replies without the losses of single clients if these are not known, or have no noise: a hook that
    reads one is refused (E108), instead of taking a default value for it.

    by: the Part that protects clients or samples. summed: secure aggregation only gives sums. trip: the
    replies are to a trip, in which nothing trains.
    """
    if trip:
        why = "in a trip nobody trains, so that there is none"
    elif summed:
        why = "with secure aggregation only the sum of all losses is there"
    elif by:
        why = f"no noise of '{by.name}' covers a loss"
    else:
        return replies
    text = f"a hook reads the loss of single clients, and {why}"
    loss = hidden_tensor(f"{text}; take the Part out, or have it share what it needs of the loss.")
    return [replace(r, loss=loss) for r in replies]
