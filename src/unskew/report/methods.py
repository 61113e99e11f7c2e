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

WHEN = {
    "bsm": "Clients lack classes and nothing but the loss may change; where few samples of a class are better than none, take rbsm.",
    "ccvr": "After any run with label skew: one more exchange, and the head forgets the clients' biases.",
    "clip_median": "Among sites of which one may send something far too large: its pull is cut down to the typical one's.",
    "fedavg_ft": "To see how much of a method's loss is the head's: the server needs a few balanced samples of its own.",
    "fedavgm": "The global model swings from round to round because other clients answer every time.",
    "fedbabu": "Label skew spoils the head first; a common head that nobody trains cannot be spoiled.",
    "fedbn": "Sites whose inputs look different (scanners, cameras) and that each want a model of their own. It needs batch normalisation.",
    "fedbr": "Small skewed clients that may share averages of inputs without labels.",
    "feddata": "As an upper reference: what a tenth of the raw data, shared, would bring.",
    "feddecorr": "Few clients and features that collapse into few directions.",
    "feddyn": "Clients drift over many local steps and come back often enough to remember.",
    "feddpms": "Clients lack classes, and may share noisy means of latents from which others draw images.",
    "fedfa": "Images that look different from site to site, where models rather than inputs are to be made robust.",
    "fedgen": "Label skew, and the server may know how many samples of each class a client has.",
    "fedgen_images": "To compare with FLea's table; it is our reconstruction.",
    "fedlc": "Clients lack classes or hold few of some, and nothing but the loss may change.",
    "fedmix": "Averages of five or more inputs may be shared, and clients are skewed.",
    "fednova": "Clients of very different size, which take very different numbers of steps.",
    "fedntd": "Clients forget the classes they lack while they train.",
    "fedproto": "Clients whose features drift apart; with aggregate_weights=False also clients with models of their own.",
    "fedprox": "Clients do many local steps on skewed data and drift apart; the pull holds them near the global model.",
    "fedrdn": "Images that look different from site to site. It adds to any method, costs two numbers a channel, once.",
    "fedrs": "Clients lack classes; the mildest of the corrections of logits.",
    "flea": "Clients hold few samples of few classes, and may share obfuscated activations of a tenth of them.",
    "local": "As a reference: what clients reach without any federation.",
    "median": "Any minority of clients may send anything, and clients are of about one size.",
    "moon": "Image models with many local epochs; it costs two more forward passes a step.",
    "multi_krum": "A known share of the clients may send anything; the closest crowd is averaged.",
    "naivemix": "As fedmix, cheaper: no second derivative.",
    "norm": "The plain alternative to FedRDN: one pair of constants for everybody.",
    "rebafl": "Each client holds few of the classes and many clients are absent.",
    "scaffold": "Drift over many local steps, with few clients that come back often: control variates must be fresh to help.",
    "trimmed_mean": "A few clients may send anything, and the rest should still be averaged.",
}
"""When to use a method, by name."""


def page(part: Part, fed: Fed, beside: str, *, title: str = "#") -> str:
    """A Part's page as Markdown. beside: what `fed` stands for, as in "digits and its default model, 10 clients"."""
    kind = type(part)
    about = inspect.cleandoc(sys.modules[kind.__module__].__doc__ or kind.__doc__ or part.name)
    first, _, rest = about.partition("\n")
    when = WHEN.get(part.name)
    pieces = [
        f"{title} {part.name}",
        first,
        f"```text\n{rest.strip()}\n```" if rest.strip() else "",
        f"**When to use it.** {when}" if when else "",
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
