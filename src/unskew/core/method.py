"""A Method: an ordered set of Parts that can be combined.

At most one Part of a method can have a role (such as the merge), which decides what can be combined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from unskew.core.client import Fed
from unskew.core.part import HOOKS, Part, overrides
from unskew.core.protection import protection_problem, sample_problem
from unskew.core.shares import Share
from unskew.core.user_parts import check_part, is_own
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
        return (
            "its loss is of logits that it makes itself, and what the other makes of the model's would change"
            " nothing"
        )
    return _steps_conflict(part, other) if part.by_steps else ""


def _steps_conflict(part: Part, other: Part) -> str:
    """Why a Part that divides by local steps cannot be combined with another; "" if it can."""
    moved = "it divides how far a client moved by its local steps, and with the other"
    if overrides(other, "starts"):
        return f"{moved} the steps begin elsewhere than at the model that the client is sent"
    if part.by_steps == "server" and overrides(other, "dispatch"):
        return f"{moved} each client begins at a model of its own"
    if part.by_steps == "server" and overrides(other, "sends"):
        return f"{moved} a client sends something else than the weights at which its steps ended"
    return ""


class Method:
    """An ordered set of Parts; `Method()` is FedAvg.

    Their order matters for the hooks `batch`, `tap`, `logits` and `grad`, each of which receives the result
    of the previous Part's; terms of `loss` add up. `weighting` says how the merge weighs clients: "size" or
    "equal". Raises UsageError (E107) for two Parts of one name, two merges, or Parts that cannot be combined.
    """

    def __init__(self, *parts: Part):
        for p in parts:
            _check_is_part(p)
        self.parts = tuple(parts)
        for p in parts:
            self._check_part(p)
            self._check_beside(p)
        for role in ROLES:
            if len(having := [p.name for p in parts if role.has(p)]) > 1:
                raise UsageError("E107", f"{' and '.join(having)} each {role.does}; keep one.")
        weighing = {p.weighting for p in parts} - {None}
        if len(weighing) > 1:
            raise UsageError(
                "E107",
                f"the Parts of {self} weigh clients differently ({', '.join(sorted(map(str, weighing)))}).",
            )
        self.weighting: Literal["size", "equal"] = "equal" if "equal" in weighing else "size"

    def _check_part(self, p: Part) -> None:
        hidden = [h for h in HOOKS if not callable(getattr(p, h))]
        if hidden:
            raise UsageError(
                "E107", f"'{p.name}' has a setting '{hidden[0]}' that hides the hook of that name."
            )
        check_part(p, [h for h in HOOKS if overrides(p, h)])
        if [other.name for other in self.parts].count(p.name) > 1:
            raise UsageError("E107", f"'{p.name}' stands twice in {self}; each Part can be there once.")

    def _check_beside(self, p: Part) -> None:
        for other in self.parts:
            if reason := p.clashes.get(other.name) or conflict(p, other):
                raise UsageError("E107", f"'{p.name}' and '{other.name}' cannot be combined: {reason}.")

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
        if all(self.freezes(n, fed) for n in fed.net.learnable):
            who = (
                "every parameter has requires_grad=False"
                if not fed.net.trainable
                else f"{self} freezes all of it"
            )
            raise UsageError("E108", f"nothing of this model is left to train: {who}.")
        for p in self.parts:
            if not fed.shared and (p.merges or p.weighting or p is self.encoder or overrides(p, "dispatch")):
                raise UsageError(
                    "E108", f"'{p.name}' cannot run here: clients keep every weight, so none are merged."
                )
            for cut in p.taps:
                fed.net.cuts(cut)
            if fed.net.layout and p.normalises and not p.by_input:
                text = "it scales inputs channel by channel, and a sample here has several inputs"
                raise UsageError("E108", f"'{p.name}' cannot run here: {text}.")
            if p.normalises and fed.net.embeds and not (fed.net.layout and p.by_input):
                raise UsageError(
                    "E108", f"'{p.name}' cannot run here: it scales inputs, and the model looks them up."
                )
            if p.plain_loss and not fed.usual_loss:
                text = (
                    "it presumes cross-entropy and equal weights of classes; leave loss and class_weights out"
                )
                raise UsageError("E108", f"'{p.name}' cannot run here: {text}.")
            if reason := p.refuse(fed):
                raise UsageError("E108", f"'{p.name}' cannot run here: {reason}.")
            if leaf := _unproved_share(p, fed):
                text = (
                    f"it declares '{leaf}' as guarantee='dp' and does not define `account`, so nothing"
                    " says what is proved"
                )
                raise UsageError(
                    "E108", f"'{p.name}' cannot run here: {text}; declare 'empirical' or 'none'."
                )
            if _changes_nothing(p, fed):
                raise UsageError(
                    "E108", f"'{p.name}' cannot run here: it holds back no weight of this model."
                )
            if _trains_alone(p, fed):
                text = "clients would keep every weight that they train, so that each trains alone"
                raise UsageError(
                    "E108",
                    f"'{p.name}' cannot run here: {text}; take a model with layers to share, or local.",
                )
        self._check_scaled_once(fed)
        if self.samples_apart:
            self._check_samples_apart(self.samples_apart, fed)
        if self.protector:
            self._check_protected(self.protector, fed)

    def _check_scaled_once(self, fed: Fed) -> None:
        """Raises UsageError (E107) for two Parts that normalise images, each by statistics of raw images."""
        images = fed.net.layout.images if fed.net.layout else len(fed.shape) == 3 and not fed.net.embeds
        twice = [p.name for p in self.parts if p.by_input in ("images", "floats")]
        if images and len(twice) > 1:
            left = (
                "standardise(images=False) scales the others alone"
                if fed.net.layout
                else f"leave out '{twice[1]}'"
            )
            raise UsageError(
                "E107", f"'{twice[0]}' and '{twice[1]}' cannot be combined: both normalise images; {left}."
            )

    def _check_samples_apart(self, by: Part, fed: Fed) -> None:
        """Raises UsageError for a method with a Part that protects single samples: E107 for another Part that
        could read samples without noise, E108 for a model with batch normalisation."""
        for p in self.parts:
            if p is not by and (reason := sample_problem(p, by)):
                raise UsageError("E107", f"'{p.name}' and '{by.name}' cannot be combined: {reason}.")
        if fed.net.norms:
            text = "batch normalisation mixes the samples of a batch, so no sample has a gradient of its own"
            raise UsageError(
                "E108", f"'{by.name}' cannot run here: {text}; take a model without, or with GroupNorm."
            )

    def _check_protected(self, by: Part, fed: Fed) -> None:
        """Raises UsageError: E107 for a Part whose messages `by` cannot protect, E108 for a model whose
        running statistics leave clients."""
        for p in self.parts:
            if p is not by and (reason := protection_problem(p, fed)):
                raise UsageError("E107", f"'{p.name}' and '{by.name}' cannot be combined: {reason}.")
        if sent := [n for n in fed.net.statistics if not self.keeps(n, fed)]:
            text = (
                f"noise would spoil the running statistics of batch normalisation ('{sent[0]}'), which"
                " clients send"
            )
            raise UsageError(
                "E108", f"'{by.name}' cannot run here: {text}; take a model without, or add fedbn."
            )

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


def _check_is_part(p: object) -> None:
    if isinstance(p, Part):
        return
    instead = ""
    if isinstance(p, type) and issubclass(p, Part):
        instead = f"; {p.__name__} is a class, of which {p.__name__}() makes a Part"
    elif isinstance(p, str):
        instead = (
            "; methods are given by name to `unskew.run` and `unskew.compare`, all in one text:"
            " 'fedprox+scaffold'"
        )
    elif isinstance(p, (list, tuple, Method)):
        instead = "; give them one by one, Method(FedProx(), Scaffold())"
    raise UsageError("E107", f"a Method is made of Parts, not of {excerpt(p)}{instead}.")


def method_remarks(method: Method, fed: Fed, patience: int) -> tuple[tuple[str, str], ...]:
    """Remarks for the user of this method and model before round 1, as (code, text)."""
    return (*division_remarks(method, fed), *stage_remarks(method, fed.rounds, patience))


def stage_remarks(method: Method, rounds: int, patience: int) -> tuple[tuple[str, str], ...]:
    """A remark (E128) on each Part that may not reach its second stage, because the run has too few rounds or
    early stopping may end it before. patience: of early stopping; 0 without."""
    remarks: list[tuple[str, str]] = []
    for p, first, last in _first_stages(method, rounds):
        if patience and patience < last < rounds:
            text = (
                f"patience={patience} may end the run before '{p.name}' comes to its second stage, after"
                f" round {last} of {rounds}"
            )
            remarks.append(
                ("E139", f"{text} ({p.first_stage}={first:g}); its scores are then those of the first.")
            )
        elif last >= rounds:
            text = f"the run has {rounds} rounds, and '{p.name}' comes to its second stage after round {last}"
            remarks.append(
                ("E139", f"{text} ({p.first_stage}={first:g}); its scores are those of the first.")
            )
    return tuple(remarks)


def more_rounds_problem(method: Method, before: int, now: int) -> str:
    """A clause if the method trains the first `before` rounds otherwise in a run of `now` rounds; else ""."""
    for p in method.parts:
        moved = any(trip.when(t, before) != trip.when(t, now) for trip in p.trips for t in range(before))
        if moved or p.has_schedule():
            return f"'{p.name}' has a schedule over all rounds, which {now} rounds would begin otherwise"
    return ""


def first_stage_doubt(method: Method, rounds: int, t: int) -> str:
    """A sentence if round t, the last one trained out of `rounds`, is in a Part's first stage; else ""."""
    for p, _, last in _first_stages(method, rounds):
        if 0 < t <= last:
            text = (
                f"round {t} of {rounds} is the last that was trained, and '{p.name}' comes to its second"
                f" stage after round {last}"
            )
            return f"{text}, so the scores are those of its first stage"
    return ""


def _first_stages(method: Method, rounds: int) -> Iterator[tuple[Part, float, int]]:
    """For each Part with a second stage: (the Part, the setting for the length of the first stage, its last
    round). A setting of 1.0, which means all rounds, is deliberate and left out."""
    for p in method.parts:
        first = getattr(p, p.first_stage) if p.first_stage else 0.0
        last = p.first_rounds(rounds)
        if last and not (first == 1.0 and isinstance(first, float) and last == rounds):
            yield p, first, last


def division_remarks(method: Method, fed: Fed) -> tuple[tuple[str, str], ...]:
    """A remark (E121) on each of a user's own Parts whose `keeps` or `freezes` selects no weight of this
    model: most likely it looks for names of another model."""
    names = (*fed.net.learnable, *fed.net.statistics)
    remarks: list[tuple[str, str]] = []
    for p in method.parts if names else ():
        for hook in ("keeps", "freezes"):
            if is_own(p) and overrides(p, hook) and not any(getattr(p, hook)(n, fed) for n in names):
                text = (
                    f"`{hook}` of '{p.name}' holds none of this model's {len(names)} weights, which are"
                    f" called like '{names[0]}'"
                )
                remarks.append(
                    ("E121", f"{text} and '{names[-1]}'; training goes on as if it were not there.")
                )
    return tuple(remarks)


def _unproved_share(p: Part, fed: Fed) -> str:
    """A Share with guarantee "dp" of a Part that does not account for epsilon; "" if there is none."""
    if overrides(p, "account") or p.protects:
        return ""
    declared = [p.shares(fed), *(trip.shares(fed) for trip in p.trips)]
    return next(
        (leaf for shares in declared for leaf, share in shares.items() if share.guarantee == "dp"), ""
    )


def _changes_nothing(p: Part, fed: Fed) -> bool:
    """Whether a Part that only keeps or freezes weights (such as those of normalisation layers), or that
    divides the model by them, selects no weight of this model."""
    hooks = {hook for hook in HOOKS if overrides(p, hook)} - {"refuse"}
    if not hooks & {"keeps", "freezes"} or (not p.divides and (hooks - {"keeps", "freezes"} or p.weighting)):
        return False
    return not any(p.keeps(n, fed) or p.freezes(n, fed) for n in (*fed.net.learnable, *fed.net.statistics))


def _trains_alone(p: Part, fed: Fed) -> bool:
    """Whether a Part that divides the model leaves nothing to share, for instance if clients only train the
    head. References, which intend that, do not count."""
    if not p.divides or p.family == "reference" or p.trips or p.shares(fed):
        return False
    return all(p.keeps(n, fed) or p.freezes(n, fed) for n in (*fed.net.learnable, *fed.net.statistics))
