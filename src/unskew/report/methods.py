"""The page of a method, made from its code: `unskew explain` prints it, and docs/methods/ holds it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from unskew import arguments, calls
from unskew.core.client import Fed
from unskew.core.part import HOOKS, Part, overrides
from unskew.core.protection import reads_samples, sums_released
from unskew.core.trip import Trip
from unskew.core.values import Share
from unskew.markdown import block
from unskew.privacy.dpsgd import DPSGD


def page(part: Part, fed: Fed, setting: str, *, title: str = "#") -> str:
    """A Part's page as Markdown: equations, hooks, settings, and what leaves a client in a run like `fed`.

    setting: what `fed` stands for, such as "digits and its default model, 10 clients". title: of the first heading.
    """
    kind = type(part)
    called = part.spelling or part.name  # a method in a file is called by its file
    module = inspect.cleandoc(sys.modules[kind.__module__].__doc__ or part.name)
    first, _, rest = module.partition("\n")
    pieces = [
        f"{title} {part.name}",
        first,
        inspect.cleandoc(vars(kind).get("__doc__") or ""),
        block(rest.strip()),
        f"**When to use it.** {part.use_when}" if part.use_when else "",
        f"{title}# Hooks",
        _hooks(part),
        f"{title}# Settings",
        _settings(part),
        f"{title}# What leaves a client",
        _leaves(part, fed, setting),
        f"Run it with `unskew run {called}`, or together with others: "
        f"`unskew run {called}+{_companion(part)}`. {_code(kind)}",
    ]
    return "\n\n".join(p for p in pieces if p) + "\n"


def _hooks(part: Part) -> str:
    own = [hook for hook in HOOKS if overrides(part, hook) and hook != "shares"]
    rows = [(f"`{hook}`", _first_paragraph(getattr(type(part), hook))) for hook in own]
    rows += [("a trip", _trip(trip)) for trip in part.trips]
    if part.normalises:
        rows.append(("`normalises`", "It receives raw inputs and normalises them itself."))
    return _table(("hook", "what it does"), rows) if rows else "None: it changes nothing."


def _first_paragraph(hook: Callable[..., object]) -> str:
    return " ".join((inspect.getdoc(hook) or "").split("\n\n")[0].split())


def _trip(trip: Trip) -> str:
    where = "all clients" if trip.everyone else "the round's clients"
    return f"`{trip.client.__name__}` runs at {where}, then `{trip.server.__name__}` at the server."


def _settings(part: Part) -> str:
    rows = [
        (f"`{a.name}`", _default(part, a), ", ".join(filter(None, (a.type, a.range))), a.meaning)
        for a in arguments.of(type(part))
    ]
    presets = [f"`{name}` is short for `{calls.written(part.name, s)}`." for name, s in part.presets.items()]
    table = _table(("setting", "default", "range", "meaning"), rows) if rows else "None."
    return "\n\n".join([table, *presets])


def _default(part: Part, argument: arguments.Argument) -> str:
    """The default, and the value that this Part has where it is another."""
    value, default = getattr(part, argument.name), argument.default
    if default is arguments.REQUIRED:
        return f"none, here `{value!r}`"
    return f"`{default!r}`" if value == default else f"`{default!r}`, here `{value!r}`"


def _leaves(part: Part, fed: Fed, setting: str) -> str:
    shares = {**part.shares(fed), **{leaf: share for trip in part.trips for leaf, share in trip.shares(fed).items()}}
    everything = "Nothing" if not fed.shared else "Nothing beside the weights"
    each = "The server must see each client's weights by themselves, so secure aggregation cannot hide them."
    alone = f" {each}" if part.weights_read == "each" else ""
    alone += f" The server hands on to other clients: {part.handed_on}." if part.handed_on else ""
    if encoded := part.encoded(fed):
        return f"In place of the weights that clients train, with {setting}:\n\n{_declared(part, encoded)}"
    if not shares:
        return f"{everything}.{alone}"
    return f"Beside the weights, with {setting}:\n\n{_declared(part, shares)}{alone}{_made_noisy(part, fed)}"


def _made_noisy(part: Part, fed: Fed) -> str:
    """What `dpsgd` makes of what it shares, where that goes with it, as a sentence."""
    by = DPSGD()
    if reads_samples(part, by) or not (sums := sums_released([part], fed.rounds)):
        return ""
    many = "one sum" if sums == 1 else f"{sums:,} sums"
    return (
        f" Beside `{by.name}` each sample's part in these is clipped, the sums over samples have noise of the client's own, "
        f"and a run of {fed.rounds} rounds counts {many} of a client in its [epsilon](../privacy.md#what-methods-share)."
    )


def _declared(part: Part, shares: Mapping[str, Share]) -> str:
    """A table of Shares, and who sees what."""
    groups: dict[str, list[Share]] = {}
    for leaf, share in shares.items():
        groups.setdefault(leaf.split("/")[0], []).append(share)
    rows = [
        (
            f"`{part.name}/{leaf}`",
            group[0].what,
            _shape(group),
            f"{sum(s.max_bytes for s in group):,}",
            group[0].discloses,
            group[0].behind,
            group[0].reads,
            group[0].guarantee,
        )
        for leaf, group in groups.items()
    ]
    table = _table(
        ("share", "what", "shape", "bytes at most", "kind", "samples behind a number", "read", "guarantee"), rows
    )
    return f"{table}\n\n{_privacy(groups)}"


def _shape(group: Iterable[Share]) -> str:
    shapes = ["×".join("rows" if s is None else str(s) for s in share.shape) or "1" for share in group]
    return shapes[0] if len(shapes) == 1 else f"{len(shapes)} tensors" if len(shapes) > 6 else ", ".join(shapes)


def _privacy(groups: dict[str, list[Share]]) -> str:
    """Who sees what, in sentences."""

    def named(holds: Callable[[Share], bool]) -> str:
        return ", ".join(f"`{leaf}`" for leaf, group in groups.items() if holds(group[0]))

    sentences = {
        "The server reads {} of each client by itself, so secure aggregation cannot hide it.": named(
            lambda s: s.reads == "each"
        ),
        "Of {} it needs only the sum over clients, so secure aggregation can hide each client's.": named(
            lambda s: s.reads == "sum"
        ),
        "Nothing protects {}: from a client with few samples they disclose much.": named(
            lambda s: s.guarantee == "none"
        ),
        "What protects {} is measured, not proved.": named(lambda s: s.guarantee == "empirical"),
        "{}: differentially private, see its accounting.": named(lambda s: s.guarantee == "dp"),
    }
    return " ".join(sentence.format(leaves) for sentence, leaves in sentences.items() if leaves)


def _companion(part: Part) -> str:
    return "fedrdn" if part.name in ("fedprox", "clip_median") else "fedprox"


def _code(kind: type) -> str:
    """What it is called in Python, where the package gives it, and its file, as sentences."""
    if not kind.__module__.startswith("unskew."):
        return f"Its code is `{Path(inspect.getfile(kind)).name}`."
    return f"In Python it is `unskew.{kind.__name__}()`. Its code is `src/{kind.__module__.replace('.', '/')}.py`."


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A Markdown table; a bar in a cell does not end it."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
