"""The pages of methods, made from their code: one page for each method, and one table of all methods.

`unskew explain` prints the page of a method; the site has all pages. The table has the paper of
each method, its purpose, its messages and costs, and when to use it.
"""

from __future__ import annotations

import inspect
import re
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
from unskew.report.method_profile import Profile, scores


def method_page(part: Part, fed: Fed, setting: str, *, title: str = "#") -> str:
    """A Part's page as Markdown: equations, hooks, settings, and what leaves a client in a run like `fed`.

    setting: a description of `fed`, such as "digits and its default model, 10 clients". title: the marks of
    the first heading.
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
        _far_below(part),
        f"{title}# Hooks",
        _hooks(part),
        f"{title}# Settings",
        _settings(part),
        f"{title}# What leaves a client",
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
    return (
        "Beside the weights, with"
        f" {setting}:\n\n{_share_table(part, shares)}{alone}{_noise_sentence(part, fed)}"
    )


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
    """A table of Shares, and sentences on their readers."""
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
        ("share", "what", "shape", "bytes at most", "kind", "samples behind a number", "read", "guarantee"),
        rows,
    )
    return f"{table}\n\n{_privacy(groups)}"


def _shape(group: Iterable[Share]) -> str:
    shapes = ["×".join("rows" if s is None else str(s) for s in share.shape) or "1" for share in group]
    return ", ".join(shapes) if len(shapes) <= 6 else f"{len(shapes)} tensors"


def _privacy(groups: dict[str, list[Share]]) -> str:
    """Sentences on who reads which share, and on its protection."""

    def names(holds: Callable[[Share], bool]) -> str:
        return ", ".join(f"`{leaf}`" for leaf, group in groups.items() if holds(group[0]))

    sentences = {
        "The server reads {} of each client by itself, so secure aggregation cannot hide it.": names(
            lambda s: s.reads == "each"
        ),
        "Of {} it needs only the sum over clients, so secure aggregation can hide each client's.": names(
            lambda s: s.reads == "sum"
        ),
        "Nothing protects {}: from a client with few samples they disclose much.": names(
            lambda s: s.guarantee == "none"
        ),
        "What protects {} is measured, not proved.": names(lambda s: s.guarantee == "empirical"),
        "{}: differentially private, see its accounting.": names(lambda s: s.guarantee == "dp"),
    }
    return " ".join(sentence.format(leaves) for sentence, leaves in sentences.items() if leaves)


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


OVERVIEW_HEAD = (
    "method",
    "year",
    "paper",
    "family",
    "against",
    "changes",
    "sends beside the weights",
    "read",
    "exchanges more",
    "up",
    "down",
    "computing",
    "tasks",
    "one of its kind",
    "when to take it",
)
FAMILIES = {
    "data": "changes what clients train on",
    "steps": "corrects local steps, or takes them at another place",
    "classifier": "corrects what the head says of classes that a client lacks",
    "representation": "says what features should look like",
    "distillation": "teaches by outputs",
    "merge": "merges in another way",
    "robust": "merges although some clients send anything",
    "fairness": "is for the clients that fare worst",
    "personalised": "gives each client a model of its own",
    "clusters": "gives groups of clients models of their own",
    "compression": "sends less, beside any other method",
    "privacy": "proves what cannot be learned",
    "reference": "is there to be compared with",
}
"""A description of each family of methods."""
_ARXIV = re.compile(r",? ?arXiv (\d{4}\.\d{4,5})")


def overview_page(methods: Mapping[str, tuple[Part, Fed, str]]) -> str:
    """The page as Markdown. methods: by name, (Part, Fed of a small run, first line of its file)."""
    rows = [_row(name, Profile(*facts)) for name, facts in sorted(methods.items())]
    families = ", ".join(f"{name} {does}" for name, does in FAMILIES.items())
    return (
        "\n\n".join(
            [
                "# All methods",
                (
                    "Any of them can be combined with others, `fedrep+fedrdn+fedadam`; what makes no sense"
                    " together is refused in one sentence. FedAvg is what is left without any. `unskew list"
                    " methods` lists the same, and chooses: `--against labels` names those against label"
                    " skew."
                ),
                table(OVERVIEW_HEAD, rows),
                (
                    f"**family**: what a method does: it {families}. **against**: what is hard about the"
                    " federations that it is for: labels or features that differ between clients, scarcity"
                    " of samples, absence of clients; nothing where it is for all, or for something else."
                    " **changes**: where a method differs from FedAvg: the data a step trains on, the model,"
                    " the loss, the local steps, the merge, the form in which weights are sent, what else"
                    " the server does, the prediction. **read**: whether the server reads only sums over"
                    " clients, which secure aggregation can give without showing any client's own, or each"
                    " client's own. **exchanges more**: messages beside the one of a round's training, by"
                    " what sets them off. **up**, **down** and **computing**: bytes from and to clients and"
                    " what clients compute in a round, as multiples of FedAvg's, measured on the small"
                    " federation of `unskew check` with one local epoch; `unskew explain METHOD` counts the"
                    " bytes with your data and model. A method with computing 2 takes two passes forward and"
                    " back where FedAvg takes one. **tasks**: c classification, s segmentation, r"
                    " regression, m multilabel, t a label for each token. **one of its kind**: two methods"
                    " that share a word here cannot be combined, because both would do the same thing; all"
                    " others can, unless one of them says why not. A name leads to the method's file;"
                    " `unskew explain METHOD` prints its equations, its settings and its bytes with your data"
                    " and model. A naive implementation of every method agrees with it in"
                    " `tests/oracles`."
                ),
            ]
        )
        + "\n"
    )


def _row(name: str, profile: Profile) -> tuple[str, ...]:
    presets = "".join(f", `{preset}`" for preset in profile.part.presets)
    cost = profile.cost
    return (
        f"[`{name}`](../src/{type(profile.part).__module__.replace('.', '/')}.py){presets}",
        profile.year,
        _paper_link(profile.paper),
        profile.part.family,
        ", ".join(profile.part.against),
        ", ".join(profile.changes),
        ", ".join(profile.kinds if profile.fed.shared else [*profile.kinds, "no weights"]),
        profile.reads,
        str(len(profile.part.trips)) if profile.part.trips else "",
        *((_number(cost.up), _number(cost.down), _number(cost.computing)) if cost else ("", "", "")),
        "".join(task[0] for task in profile.part.tasks),
        ", ".join(profile.roles),
        profile.part.use_when,
    )


def _number(times: float) -> str:
    return f"{times:.2g}" if times < 1 else f"{times:.3g}"


def _paper_link(paper: str) -> str:
    """The paper with its arXiv number as a link."""
    return _ARXIV.sub(r", [\1](https://arxiv.org/abs/\1)", paper).removeprefix(", ")
