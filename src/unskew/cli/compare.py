"""`unskew compare`: compare methods over several seeds, on the same partitions and absences."""

from __future__ import annotations

import json
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge

from unskew.cli.options import SETTINGS, FromSettings, Json, set_over
from unskew.errors import NothingUsed, Terminated, UsageError
from unskew.scores import kind
from unskew.system import disk


@dataclass(frozen=True)
class Arguments:
    """The options of the command, in addition to the settings that all runs share."""

    methods: Annotated[tuple[str, ...], "methods to compare, such as fedavg flea rebafl fedavg+fedrdn"]
    seeds: Annotated[int, Ge(1), "how many seeds, counted from 0"] = 3
    set: Annotated[
        tuple[str, ...],
        "an argument of a Part, for every method that has the Part, such as flea.alpha=0.1, or one of the"
        " further settings, such as lr_decay=0.99, which --help --all lists (repeatable)",
    ] = ()
    references: Annotated[bool, "add the rows local-only and centralised"] = True
    processes: Annotated[int, Ge(0), "how many runs at a time; 0: one on each core, or one on a GPU"] = 0
    tune: Annotated[
        int | None,
        Ge(2),
        "first try so many settings of every method on held-out training samples; docs/guides/tune.md (needs"
        " unskew[tune])",
    ] = None
    target: Annotated[
        float | None, "score for the column 'bytes to reach it'; 95 % of the best final score if left out"
    ] = None
    privacy: Annotated[
        bool,
        "then attack every run, and show scores against leakage and epsilon; docs/privacy.md explains it",
    ] = False
    config: Annotated[Path | None, "read settings from this YAML file; options given here override it"] = None
    name: Annotated[str | None, "name of the comparison; compare and a number if left out"] = None
    folder: Annotated[Path, "where runs are kept"] = Path("runs")
    dry_run: Annotated[bool, "show the partition and the plan, then stop"] = False
    json: Json = False


def compare(
    arguments: Arguments,
    given: Annotated[dict[str, Any], FromSettings([name for name in SETTINGS if name != "seed"])],
) -> None:
    """Compare methods: mean and standard deviation over seeds, paired tests, and a report."""
    from unskew.comparison.plan import Plan, dry_run, write_plan
    from unskew.comparison.tuning import planned_runs, tuning_of
    from unskew.config import build, load_partial
    from unskew.core.method import Method
    from unskew.data import data_overview
    from unskew.round.run import REFERENCES
    from unskew.runs.resolve import federation_of, parts_of
    from unskew.runs.run_folder import free_path
    from unskew.system.disk import check_name

    values = {**(load_partial(arguments.config) if arguments.config else {}), **given}
    if arguments.set:
        values["set"] = set_over(values.get("set", {}), arguments.set)
    methods = [*arguments.methods, *(REFERENCES if arguments.references else ())]
    for method in methods:
        if "," in re.sub(r"\([^()]*\)", "", method):
            text = f"separate methods by spaces: unskew compare {' '.join(method.split(','))}"
            raise UsageError("E109", f"'{method}' is no method; {text}.")
        parts_of(method)
    settings = build({**values, "method": arguments.methods[0]})
    name, folder = arguments.name, arguments.folder
    path = folder / check_name(name) if name is not None else free_path(folder, "compare")
    plan = Plan(
        methods=tuple(methods),
        seeds=tuple(range(arguments.seeds)),
        settings=values,
        processes=arguments.processes,
        target=arguments.target,
        privacy=arguments.privacy,
        tune=arguments.tune or 0,
    )
    tuning = tuning_of(path, plan)
    cells = planned_runs(path, plan, tuning)
    if not arguments.json:
        print(data_overview.terminal(federation_of(settings, Method())))
        runs = f"{len(methods)} methods x {arguments.seeds} seeds x {settings.rounds} rounds"
        print(f"plan   {runs}: {', '.join(methods)}")
        if settings.availability != "full":
            print(f"absent {settings.availability}: every method sees the same absences")
        for line in tuning.outline() if tuning else ():
            print(line)
        sys.stdout.flush()
    check_target(plan.target, dry_run(cells))
    if not arguments.dry_run:
        write_plan(path, plan)
        finish(path, plan, arguments.json)


def check_target(target: float | None, score: str) -> None:
    """Check the target for the main score `score`.

    Raises UsageError (E109) for a target that a share cannot reach, such as 90 for 90 %.
    """
    if target is None or not score or not kind(score).share or 0 < target <= 1:
        return
    meant = f"; for {target:g} % write {target / 100:g}" if 1 < target <= 100 else ""
    raise UsageError(
        "E109", f"target must be above 0 and at most 1, as {score} is a share{meant}; got {target:g}."
    )


def resume(path: Path, as_json: bool) -> None:
    """Finish a comparison that was interrupted."""
    from unskew.comparison.plan import check_data, read_plan
    from unskew.comparison.tuning import planned_runs, tuning_of

    plan = read_plan(path)
    check_data(planned_runs(path, plan, tuning_of(path, plan)))
    finish(path, plan, as_json)


def finish(path: Path, plan: Any, as_json: bool) -> None:
    """Tune the methods if the plan asks for it, and train all runs while a table shows the progress; then
    print the final table and write the report."""
    from unskew.cli.screen import Progress, json_of
    from unskew.comparison.training import attack_all, train_all
    from unskew.comparison.tuning import best_settings, cells_of
    from unskew.config import build, resume_command
    from unskew.report import page
    from unskew.report.analysis import leakage, results_table, summary
    from unskew.report.analysis.runs import by_method, read_comparison

    out = sys.stderr if as_json else sys.stdout
    try:
        with Progress(quiet=as_json) as progress:
            cells = cells_of(path, plan, progress.look, progress.say)
            train_all(cells, plan.processes, progress.look)
            if plan.privacy:
                attack_all(cells, progress.say)
    except (KeyboardInterrupt, Terminated):
        settings = (build({**plan.settings, "method": plan.text_of(label)}) for label in plan.methods)
        again = resume_command(path, *settings)
        print(f"\nInterrupted; every run is saved. Continue with: {again}", file=out)
        raise
    runs = read_comparison(path)
    rows = summary.summary_table(runs, target=plan.target)
    leaks = leakage.leakages(by_method(runs), rows) if plan.privacy else []
    more = {method: {"tuned": point} for method, point in best_settings(path).items()}
    for leak in leaks:
        more.setdefault(leak.method, {})["privacy"] = leakage.as_json(leak)
    records = [record | more.get(record["method"], {}) for record in results_table.as_json(rows)]
    disk.replace(path / "compare.json", json.dumps(records, indent=1))
    page.write_report(path, path / "report.html", target=plan.target)
    if as_json:
        print(json_of({"comparison": str(path), "rows": records}))
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        print(results_table.plain(rows, width))
        print(leakage.plain(leaks), end="\n" if leaks else "")
        print(f"report  {path / 'report.html'}")
    if untrained := [row.method for row in rows if row.untrained]:
        text = f"too few replies were used for every run to have a score: {', '.join(untrained)}"
        raise NothingUsed("E316", f"{text}. The table says how many.")
