"""One self-contained HTML page about a run, several runs, or a comparison.

Its head states the result in one sentence, the key numbers, and reasons for doubt. The runs of a comparison
by unskew have equal samples, partition, training and scoring. A page can also be made of any other folders;
its head then names all differences between the runs besides the method.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from unskew.config import FIELDS
from unskew.report import sections
from unskew.report.analysis import results_table
from unskew.report.analysis.number_formats import digits, p_value, plural, size, with_unit
from unskew.report.analysis.runs import (
    NOT_A_CONFIGURATION,
    TUNED,
    RunData,
    read_json,
    read_runs,
    requested_target,
)
from unskew.report.analysis.summary import Gap, benefit_sentence, range_text
from unskew.report.figures.svg import shorten
from unskew.report.sections import Context, context_of, render
from unskew.scores import kind, significant
from unskew.system import disk

SAME_TASK = ("data", "skew", "clients", "samples", "partition_seed", "validation")
"""Settings that must be equal for scores to be comparable."""
IRRELEVANT_SETTINGS = (*NOT_A_CONFIGURATION, "set", "track", "measure", "metrics", "keep_best")
"""Settings that may differ between methods; `set` contains arguments of a method."""


def comparability_doubts(context: Context) -> list[str]:
    """Sentences on differences between the runs, besides the method, that may explain the scores."""
    runs = [r for r in context.runs if not r.is_reference]
    doubts = list[str]()
    seeds = {method: sorted(r.seed for r in group) for method, group in context.methods.items()}
    if len(set(map(tuple, seeds.values()))) > 1:
        named = "; ".join(f"{method} {', '.join(map(str, values))}" for method, values in seeds.items())
        doubts.append(
            f"Methods have different seeds ({named}), and only those that two methods share are paired."
        )
    differing = {k: v for k in FIELDS if k not in IRRELEVANT_SETTINGS and len(v := _values(runs, k)) > 1}
    if tasks := _named({k: v for k, v in differing.items() if k in SAME_TASK}):
        doubts.append(f"These runs differ in their data ({tasks}), so their scores cannot be compared.")
    tuned: set[str] = set.intersection(*map(_tuned_settings, runs)) if runs else set()
    training = _named({k: v for k, v in differing.items() if k not in {*SAME_TASK, *tuned}})
    if training and len({r.config.get("method") for r in runs}) > 1:
        doubts.append(
            f"Not only the methods of these runs differ ({training}), so a gap between scores need not be the"
            " methods'."
        )
    versions = sorted({str(run.env["unskew"]) for run in context.runs if run.env.get("unskew")})
    if len(versions) > 1:
        doubts.append(f"These runs are of different versions of unskew ({', '.join(versions)}).")
    return doubts + _samples(context.runs)


def _named(differing: Mapping[str, Sequence[str]]) -> str:
    return "; ".join(f"{key} {', '.join(values)}" for key, values in differing.items())


def _tuned_settings(run: RunData) -> set[str]:
    methods = read_json(run.path.parent / TUNED).get("methods", {})
    return {name for entry in methods.values() for name in entry.get("best", {})}


def _values(runs: Sequence[RunData], key: str) -> list[str]:
    """The different values of a setting; a run without the setting has its default."""
    return sorted({str(run.config.get(key, FIELDS[key].default)) for run in runs})


def _samples(runs: Sequence[RunData]) -> list[str]:
    """A sentence if runs of equal settings and seed have different samples, as after a change of a data
    file."""
    first: dict[tuple[str, ...], RunData] = {}
    for run in runs:
        key = (str(run.federation.get("clients")), str(run.seed), *(_values([run], k)[0] for k in SAME_TASK))
        other = first.setdefault(key, run)
        if any(run.federation.get(k) != other.federation.get(k) for k in ("sizes", "labels", "test")):
            named = ", ".join(f"{r.method} seed {r.seed}" for r in (other, run))
            return [
                f"Runs of equal settings hold different samples ({named}), so their scores cannot be"
                " compared."
            ]
    return []


EXPECTED_EVENTS = ("E323", "E128", "E112")
"""Codes of events that concern no reply and no round, such as a budget that ended the run, and cautions."""


def result_sentence(context: Context) -> str:
    """A sentence without full stop: the leading method, its lead, and the certainty of the lead."""
    run = context.first
    where = _where(run)
    leader = next((s for s in context.summaries if s.leads), None)
    if leader is None:
        return f"{context.summaries[0].method} {where}: without a global {context.score}"
    which = kind(context.metric)
    unit = which.unit.replace(" ", "\u00a0")
    score = f"{leader.method} reaches {digits(leader.final, context.metric)}{unit} global {context.score}"
    rounds = [r.rounds for r in context.methods[leader.method]]
    where = f"after {range_text(rounds)} round{'s' if max(rounds) != 1 else ''} {where}"
    rivals = [s for s in context.summaries if not s.leads and not s.reference and s.final.n]
    if not rivals:
        return f"{score} {where}"
    second = max(rivals, key=lambda s: which.ahead(s.final.mean, 0.0))
    gap = which.ahead(leader.final.mean, second.final.mean)
    by = f"{100 * gap:.1f} points ahead of" if which.share else f"{significant(gap, 3)} better than"
    ahead = f"{by} {second.method}"
    return f"{score} {where}, {ahead}{_certainty(second.gap)}"


def _where(run: RunData) -> str:
    skew = run.federation.get("skew") or run.config.get("skew", "")
    name = run.federation.get("name") or run.config.get("data", "its data")
    return f"on {name} ({skew})" if skew else f"on {name}"


def _certainty(second: Gap | None) -> str:
    """The end of the result sentence: the certainty of the lead over the second method."""
    if second is None or not second.seeds:
        return "; no seed of one is a seed of the other, so they cannot be paired"
    if second.seeds == 1:
        return "; one seed cannot tell whether this would happen again"
    if math.isnan(second.p):
        return f" (in {second.lost} of {second.seeds} seeds)"
    tie = f"{second.seeds} seeds cannot tell them apart" if second.p >= 0.05 else f"over {second.seeds} seeds"
    return f" ({tie}, {p_value(second.p)})"


def key_numbers(context: Context) -> list[tuple[str, str]]:
    """The key numbers as (value, meaning)."""
    run, federation = context.first, context.first.federation
    lead = next((s for s in context.summaries if s.leads), context.summaries[0])
    final = with_unit(lead.final.mean, context.metric).replace(" ", "\u00a0")
    numbers = [(final, f"global {context.score}, {shorten(lead.method, 26)}")]
    if lead.worst.n:
        numbers.append((with_unit(lead.worst.mean, context.metric), "at its worst client"))
    numbers.append((size(lead.up + lead.down), "sent, both ways, all clients"))
    if federation:
        numbers.append((f"{federation['clients']:,}", "clients"))
        numbers.append(
            (f"{np.median(federation['sizes']['train'] or [0]):,.0f}", "samples per client (median)")
        )
    if run.attendance:
        answered = float(np.mean([r.came for r in run.attendance]))
        asked = float(np.mean([len(r.asked) for r in run.attendance]))
        numbers.append((f"{significant(answered, 3)} of {significant(asked, 3)}", "clients answer a round"))
    numbers.append(
        (
            range_text([r.planned for group in context.competing.values() for r in group] or [run.planned]),
            "rounds",
        )
    )
    numbers.append((str(context.seeds), "seeds" if context.seeds != 1 else "seed"))
    return numbers


def warnings(context: Context) -> list[str]:
    """Sentences on reasons to doubt the numbers."""
    runs = context.runs
    sentences = [*altered_records(runs), *comparability_doubts(context)]
    sentences += [*results_table.doubts(context.summaries), *results_table.remarks(context.summaries)]
    codes = [str(e.get("code", "")) for r in runs for e in r.events]
    events = sum(code.startswith("E3") and code not in EXPECTED_EVENTS for code in codes)
    if events:
        listed = "is listed" if events == 1 else "are listed"
        sentences.append(
            f"{plural(events, 'event')} such as a dropped reply or a skipped round {listed} at the end."
        )
    return sentences


def altered_records(runs: Sequence[RunData]) -> list[str]:
    """A sentence for each record that was changed after its run."""
    return [
        f"{run.path}: {name} is missing or not as the run wrote it, so these figures may be wrong; copy the"
        " folder again."
        for run in runs
        for name in run.altered
    ]


def write_report(
    paths: Path | str | Sequence[Path | str],
    out: Path | str,
    target: float | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Path:
    """Write the page of run folders, comparison folders, or both to `out`, and return its path.

    target: the score of "bytes until the target"; by default the comparison's target, or else 95 % of the
    best method's final score. say: receives the sentences on changed records, which are also on the page.
    Raises StateError if a folder is neither a run nor a comparison (E117), or is damaged (E111).
    """
    paths = [Path(paths)] if isinstance(paths, (str, Path)) else [Path(p) for p in paths]
    out = Path(out).expanduser()
    target = requested_target(paths) if target is None else target
    runs = read_runs(paths)
    disk.write_output(out, page(runs, " and ".join(_name(p) for p in paths), target))
    for sentence in altered_records(runs):
        say(sentence)
    return out


def _name(path: Path) -> str:
    return path.name or path.resolve().name


def page(runs: Sequence[RunData], name: str, target: float | None = None) -> str:
    """The HTML text of the page. name: of the runs in its head. target: as for `write_report`."""
    context = context_of(runs, name, target)
    return render(
        "page.html.j2",
        name=name,
        runs=len(context.runs),
        result=result_sentence(context),
        pays=benefit_sentence(context.summaries),
        cards=key_numbers(context),
        warnings=warnings(context),
        sections=sections.build(context),
        colours=context.colours,
        seeds=sorted({r.seed for r in context.runs}),
        version=context.first.env.get("unskew", ""),
    )
