"""The page of a method, made from its code; `unskew explain` prints it, and the site has all pages."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from unskew.core.client import Fed
from unskew.core.method import sample_problem, sums_released
from unskew.core.part import HOOKS, Part, overrides
from unskew.core.shares import Share
from unskew.core.trip import Trip
from unskew.formats import arguments, calls
from unskew.formats.markdown import block, table
from unskew.privacy.dpsgd import DPSGD
from unskew.report.method_profile import scores


def method_page(part: Part, fed: Fed, setting: str) -> str:
    """A Part's page as Markdown: equations, hooks, settings, and what leaves a client in a run like `fed`.

    setting: a description of `fed`, such as "digits and its default model, 10 clients".
    """
    kind = type(part)
    called = part.spelling or part.name  # a method in a file is called by its file
    module = inspect.cleandoc(sys.modules[kind.__module__].__doc__ or part.name)
    first, _, rest = module.partition("\n")
    pieces = [
        f"# {part.name}",
        first,
        inspect.cleandoc(vars(kind).get("__doc__") or ""),
        block(rest.strip()),
        f"**When to use it.** {part.use_when}" if part.use_when else "",
        _far_below(part),
        "## Hooks",
        _hooks(part),
        "## Settings",
        _settings(part),
        "## What leaves a client",
        _disclosure(part, fed, setting),
        (
            f"Run it with `unskew run {called}`, or together with others: "
            f"`unskew run {called}+{_companion(part)}`. {_code(kind)}"
        ),
    ]
    return "\n\n".join(p for p in pieces if p) + "\n"


def _far_below(part: Part) -> str:
    """A sentence on the score of its default where that is far below FedAvg's; else ""."""
    measured = scores().get(part.name)
    if not measured or not measured.is_far_below:
        return ""
    kind = "clients' own scores are" if part.personal else "the score is"
    seeds = "seed 0" if measured.seeds == 1 else f"the mean of {measured.seeds} seeds"
    return (
        f"**Below FedAvg.** At its default {kind} {measured.score:.1f} % on digits where FedAvg has"
        f" {measured.fedavg:.1f} (dirichlet:0.1, 20 clients, 30 rounds of one epoch, a rate of 0.1; {seeds})."
        f" {measured.why}"
    ).rstrip()


def _hooks(part: Part) -> str:
    hooks = [hook for hook in HOOKS if overrides(part, hook) and hook != "shares"]
    rows = [(f"`{hook}`", _first_paragraph(getattr(type(part), hook))) for hook in hooks]
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
    presets = [
        f"`{name}` is short for `{calls.call_text(part.name, s)}`." for name, s in part.presets.items()
    ]
    table = _table(("setting", "default", "range", "meaning"), rows) if rows else "None."
    return "\n\n".join([table, *presets])


def _default(part: Part, argument: arguments.Argument) -> str:
    """The default of a setting, and the value of this Part if it differs."""
    value, default = getattr(part, argument.name), argument.default
    if default is arguments.REQUIRED:
        return f"none, here `{value!r}`"
    return f"`{default!r}`" if value == default else f"`{default!r}`, here `{value!r}`"


def _disclosure(part: Part, fed: Fed, setting: str) -> str:
    shares = {
        **part.shares(fed),
        **{leaf: share for trip in part.trips for leaf, share in trip.shares(fed).items()},
    }
    everything = "Nothing" if not fed.shared else "Nothing beside the weights"
    each = "The server must see each client's weights by themselves, so secure aggregation cannot hide them."
    alone = f" {each}" if part.weights_read == "each" else ""
    alone += f" The server hands on to other clients: {part.handed_on}." if part.handed_on else ""
    if encoded := part.encoded(fed):
        return f"In place of the weights that clients train, with {setting}:\n\n{_share_table(part, encoded)}"
    if not shares:
        return f"{everything}.{alone}"
    text = f"{alone}{_noise_sentence(part, fed)}".strip()
    table = f"Beside the weights, with {setting}:\n\n{_share_table(part, shares)}"
    return f"{table}\n\n{text}" if text else table


def _noise_sentence(part: Part, fed: Fed) -> str:
    """A sentence on the shares of this Part together with `dpsgd`; "" if they cannot be combined."""
    by = DPSGD()
    if sample_problem(part, by) or not (sums := sums_released([part], fed.rounds)):
        return ""
    many = "one sum" if sums == 1 else f"{sums:,} sums"
    return (
        f" Beside `{by.name}` each sample's part in these is clipped, the sums over samples have noise of the"
        f" client's own, and a run of {fed.rounds} rounds counts {many} of a client in its"
        " [epsilon](../privacy.md#what-methods-share)."
    )


def _share_table(part: Part, shares: Mapping[str, Share]) -> str:
    """A table of Shares."""
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
    return _table(
        ("share", "what", "shape", "bytes at most", "kind", "samples behind a number", "read", "guarantee"),
        rows,
    )


def _shape(group: Iterable[Share]) -> str:
    shapes = ["×".join("rows" if s is None else str(s) for s in share.shape) or "1" for share in group]
    return ", ".join(shapes) if len(shapes) <= 6 else f"{len(shapes)} tensors"


def _companion(part: Part) -> str:
    return "fedrdn" if part.name in ("fedprox", "clip_median") else "fedprox"


def _code(kind: type) -> str:
    """Sentences with its name in Python, if it belongs to the package, and with its file."""
    if not kind.__module__.startswith("unskew."):
        return f"Its code is `{Path(inspect.getfile(kind)).name}`."
    return (
        f"In Python it is `unskew.{kind.__name__}()`. Its code is"
        f" `src/{kind.__module__.replace('.', '/')}.py`."
    )


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A Markdown table with bars in cells escaped."""
    return table(head, ([cell.replace("|", "\\|") for cell in row] for row in rows))
