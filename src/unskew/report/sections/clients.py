"""The score of each client after the last round."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from unskew.report.analysis.numbers import noun
from unskew.report.analysis.runs import RunData
from unskew.report.figures.method_rows import Strip, client_scores
from unskew.report.sections import AT_CLIENTS, Context, Scope, Section, render
from unskew.scores import kind

ORDER = 30


def build(context: Context) -> Section | None:
    """A tab per scope with a dot per client; None if no client was scored."""
    panels = [panel for scope in AT_CLIENTS if (panel := _panel(context, scope))]
    if not panels:
        return None
    seeds = " of one seed" if context.seeds > 1 else ""
    note = (
        f"Each dot is a client{seeds} after the last round. The bar is the mean, the ring the worst client."
    )
    html = render("tabs.html.j2", group="spread", panels=panels)
    return Section("Every client", "clients", html, note=note, link="Clients")


def _panel(context: Context, scope: Scope) -> tuple[str, str, Markup] | None:
    """(title, description, picture); None unless a method has at least two clients with a score."""
    strips = [
        _strip(method, context.colours[method], group, scope.key)
        for method, group in context.methods.items()
        if len(group[0].per_client(scope.key)) > 1
    ]
    if not strips:
        return None
    metric = strips[0].metric
    label = kind(metric).of(f"{noun(metric)} on the client's own test rows, last round")
    return scope.title, f"{scope.meaning}.", Markup(client_scores(strips, label))


def _strip(method: str, colour: str, group: Sequence[RunData], scope: str) -> Strip:
    """The clients of all seeds, which differ between seeds because each partitions the data anew."""
    clients, values, seeds = [], [], []
    for run in group:
        names = run.federation.get("names", [])
        seed = f", seed {run.seed}" if len(group) > 1 else ""
        for k, value in sorted(run.per_client(scope).items()):
            clients.append((names[k] if k < len(names) else f"client {k}") + seed)
            values.append(value)
            seeds += [run.seed] if len(group) > 1 else []
    return Strip(method, colour, clients, values, group[0].metric, seeds)
