"""The page docs/methods.md: a table of all methods with the paper of each, its purpose, its messages and
costs, and when to use it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from unskew.core.client import Fed
from unskew.core.part import Part
from unskew.formats.markdown import table
from unskew.report.method_profile import Profile

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
