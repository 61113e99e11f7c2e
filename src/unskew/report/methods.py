"""The page of a method, made from its code so that it cannot go stale: `unskew explain` prints it, docs/methods/ keeps it."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Iterable
from pathlib import Path

from unskew.core.client import Fed
from unskew.core.part import HOOKS, Part, overrides
from unskew.core.values import Share


def page(part: Part, fed: Fed, beside: str, *, title: str = "#") -> str:
    """A Part's page as Markdown. beside: what `fed` stands for, as in "digits and its default model, 10 clients"."""
    kind = type(part)
    about = inspect.cleandoc(sys.modules[kind.__module__].__doc__ or kind.__doc__ or part.name)
    first, _, rest = about.partition("\n")
    pieces = [
        f"{title} {part.name}",
        first,
        f"```text\n{rest.strip()}\n```" if rest.strip() else "",
        f"**When to use it.** {part.use_when}" if part.use_when else "",
        f"{title}# Its hooks",
        _hooks(part),
        f"{title}# Settings",
        _settings(part),
        f"{title}# What leaves a client",
        _leaves(part, fed, beside),
        f"Run it: `unskew run {part.name}`; with others: `unskew run {part.name}+{_companion(part)}`. "
        f"Its code: {_code(kind)}.",
    ]
    return "\n\n".join(p for p in pieces if p) + "\n"


def _hooks(part: Part) -> str:
    rows = [
        f"| `{hook}` | {_first_sentence(part, hook)} |" for hook in HOOKS if overrides(part, hook) and hook != "shares"
    ]
    rows += [f"| a trip | {trip.client.__name__} → {trip.server.__name__}, {_asked(trip)} |" for trip in part.trips]
    for flag, told in (("merges", "replaces the weighted mean of weights"), ("normalises", "is given raw inputs")):
        rows += [f"| `{flag}` | {told} |"] if getattr(part, flag) else []
    return "| hook | what it does |\n|---|---|\n" + "\n".join(rows) if rows else "None: it is plain."


def _first_sentence(part: Part, hook: str) -> str:
    own = inspect.getdoc(getattr(type(part), hook)) or inspect.getdoc(getattr(Part, hook)) or _PLAIN.get(hook, "")
    return " ".join(own.split("\n\n")[0].split()).replace("|", "\\|")


_PLAIN = {
    "batch": "Changes the batch before it enters the model.",
    "tap": "Changes activations at its cuts.",
    "logits": "Changes logits before the task's loss, in training only.",
    "grad": "Changes gradients before the optimiser's step.",
}


def _asked(trip) -> str:
    return "at all clients" if trip.everyone else "at the round's clients"


def _settings(part: Part) -> str:
    fields = [f for f in dataclasses.fields(part) if f.init]  # type: ignore[arg-type]
    if not fields:
        return "None."
    rows = "\n".join(f"| `{f.name}` | `{getattr(part, f.name)!r}` |" for f in fields)
    return f"| setting | value |\n|---|---|\n{rows}\n\n{inspect.cleandoc(type(part).__doc__ or '')}"


def _leaves(part: Part, fed: Fed, beside: str) -> str:
    found = {**part.shares(fed), **{n: s for t in part.trips for n, s in t.shares(fed).items()}}
    weights = "Nothing" if not fed.shared and part.name == "local" else "Nothing beside the weights"
    each = "The server must see each client's weights by themselves, so secure aggregation cannot hide them."
    alone = f" {each}" if part.weights_read == "each" else ""
    if not found:
        return f"{weights}.{alone}"
    grouped: dict[str, list[Share]] = {}
    for leaf, share in found.items():
        grouped.setdefault(leaf.split("/")[0], []).append(share)
    rows = [
        f"| `{part.name}/{leaf}` | {group[0].what} | {_shape(group)} | {sum(s.max_bytes for s in group):,} | "
        f"{group[0].reads} | {group[0].guarantee} |"
        for leaf, group in grouped.items()
    ]
    table = "| share | what | shape | at most, bytes | read | guarantee |\n|---|---|---|---|---|---|\n" + "\n".join(
        rows
    )
    return f"Beside the weights, with {beside}:\n\n{table}\n\n{_privacy(grouped)}{alone}"


def _shape(group: Iterable[Share]) -> str:
    shapes = ["×".join("rows" if s is None else str(s) for s in share.shape) or "1" for share in group]
    return shapes[0] if len(shapes) == 1 else f"{len(shapes)} tensors" if len(shapes) > 6 else ", ".join(shapes)


def _privacy(grouped: dict[str, list[Share]]) -> str:
    """Who sees what, in sentences."""

    def named(wanted) -> str:
        return ", ".join(f"`{leaf}`" for leaf, group in grouped.items() if wanted(group[0]))

    told = []
    if alone := named(lambda s: s.reads == "each"):
        told.append(f"The server reads {alone} of each client by itself, so secure aggregation cannot hide it.")
    if summed := named(lambda s: s.reads == "sum"):
        told.append(f"Of {summed} it needs only the sum over clients, so secure aggregation can hide each client's.")
    if bare := named(lambda s: s.guarantee == "none"):
        told.append(f"Nothing protects {bare}: a client with few samples tells much about them.")
    if measured := named(lambda s: s.guarantee == "empirical"):
        told.append(f"What protects {measured} is measured, not proved.")
    if proved := named(lambda s: s.guarantee == "dp"):
        told.append(f"{proved}: differentially private, see its accounting.")
    return " ".join(told)


def _companion(part: Part) -> str:
    return "fedrdn" if part.name in ("fedprox", "clip_median") else "fedprox"


def _code(kind: type) -> str:
    path = Path(inspect.getfile(kind))
    inside = "unskew" in path.parts
    where = "/".join(path.parts[len(path.parts) - path.parts[::-1].index("unskew") - 1 :]) if inside else path.name
    return f"`{'src/' if inside else ''}{where}`"
