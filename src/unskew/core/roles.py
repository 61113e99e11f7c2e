"""What only one Part of a method can do: which Parts can be combined follows from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from unskew.core.part import Part, overrides


@dataclass(frozen=True)
class Role:
    """name: in a word or two, for tables. does: what several Parts would each do, for the refusal. has: whether a Part has it."""

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


def roles_of(part: Part) -> list[str]:
    """The names of the roles that a Part has: it can be combined with Parts that have none of them."""
    return [role.name for role in ROLES if role.has(part)]


def at_odds(part: Part, other: Part) -> str:
    """Why what a Part says of itself does not go with a hook of another, as the end of a sentence; "" if it does."""
    if part.own_logits and overrides(other, "logits"):
        return (
            "its loss is of logits that it makes itself, and what the other makes of the model's would change nothing"
        )
    return _not_only_steps(part, other) if part.by_steps else ""


def _not_only_steps(part: Part, other: Part) -> str:
    """Why a Part that divides by local steps cannot stand beside another; "" if it can."""
    moved = "it divides how far a client moved by its local steps, and with the other"
    if overrides(other, "starts"):
        return f"{moved} the steps begin elsewhere than at the model that the client is sent"
    if part.by_steps == "server" and overrides(other, "dispatch"):
        return f"{moved} each client begins at a model of its own"
    if part.by_steps == "server" and overrides(other, "sends"):
        return f"{moved} a client sends something else than the weights at which its steps ended"
    return ""
