"""One self-contained HTML page about a run, several runs, or a comparison."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from unskew.report import figures, tables
from unskew.report.figures import Line
from unskew.report.read import RunData, read_comparison, read_run
from unskew.report.stats import REFERENCES, Row, by_method, summary_table, target_of

SCOPES = (
    ("global", "accuracy", "global", "the global model on the global test set"),
    ("global@client", "mean", "global@client", "the global model on each client's test rows, mean over clients"),
    ("personal@client", "mean", "personal@client", "each client's own model (the weights and statistics it keeps) on its test rows"),
)


def write_report(paths: Path | str | Sequence[Path | str], out: Path | str) -> Path:
    """Read run folders, or one comparison's folder, and write the page to `out`; returns its path."""
    if isinstance(paths, (str, Path)):
        path = Path(paths)
        runs = read_comparison(path) if (path / "compare.yaml").exists() else [read_run(path)]
        name = path.name
    else:
        runs, name = [read_run(p) for p in paths], " and ".join(Path(p).name for p in paths)
    out = Path(out)
    part = out.with_suffix(".part")
    part.write_text(page(runs, name), encoding="utf-8")
    os.replace(part, out)
    return out


def page(runs: Sequence[RunData], name: str) -> str:
    """The page's text."""
    template = Environment(loader=PackageLoader("unskew.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True).get_template("page.html.j2")
    rows, target = summary_table(runs), target_of(runs)
    methods = list(by_method(runs))
    colour = figures.colours(methods, REFERENCES)
    first = runs[0]
    shared, differing = _settings(runs)
    return template.render(
        name=name,
        title=_title(rows, first),
        facts=_facts(runs),
        rows=[(r, tables.cells(r), colour[r.method]) for r in rows],
        head=tables.HEAD,
        note=tables.note(rows),
        scopes=[(label, told, _curves(runs, scope, metric, colour)) for scope, metric, label, told in SCOPES],
        spread=figures.spread([(m, colour[m], _client_means(g)) for m, g in by_method(runs).items()], "accuracy on the client's own test rows, last round, %"),
        bytes_curve=_bytes_curves(runs, colour),
        target=target,
        ledger=[(m, g[0].shares()) for m, g in by_method(runs).items() if g[0].ledger],
        size=figures.size,
        partition=figures.partition_map(first.federation) if first.federation else "",
        split=_split(first),
        attendance=figures.attendance(next((r for r in runs if r.method not in REFERENCES), first).attendance()),
        histograms=_histograms(runs),
        differing=differing,
        config=yaml.safe_dump(shared, sort_keys=False),
        env=first.env,
        command=_command(runs, name),
        events=[e for r in runs for e in r.events if e["code"] != "round"][:200],
    )


def _title(rows: Sequence[Row], run: RunData) -> str:
    leader = next((r for r in rows if r.leads), rows[0])
    what = f"{run.federation.get('name', run.config['data'])}, {run.federation.get('skew', run.config['skew'])}"
    if len(rows) == 1:
        return f"{leader.method} reaches {tables.percent(leader.mean10)} % on {what}"
    second = max((r for r in rows if not r.leads and not r.reference), key=lambda r: r.mean10.mean, default=None)
    ahead = f", {100 * (leader.mean10.mean - second.mean10.mean):.1f} points ahead of {second.method}" if second else ""
    return f"{leader.method} reaches {tables.percent(leader.mean10)} %{ahead}, on {what}"


def _facts(runs: Sequence[RunData]) -> list[tuple[str, str]]:
    run = next((r for r in runs if r.method not in REFERENCES), runs[0])
    here = run.attendance()
    answered = f"{np.mean([b for _, _, b in here]):.1f} of {here[0][1]}" if here else "-"
    return [
        (f"{run.federation.get('clients', '-'):,}", "clients"),
        (answered, "answer a round, on average"),
        (str(run.config["rounds"]), "rounds"),
        (str(len({r.seed for r in runs})), "seeds" if len({r.seed for r in runs}) != 1 else "seed"),
        (f"{sum(run.federation.get('sizes', {}).get('train', [0])):,}", "training samples"),
        (f"{run.federation.get('test', 0):,}", "test samples"),
    ]


def _curves(runs: Sequence[RunData], scope: str, metric: str, colour: dict[str, str]) -> str:
    lines = [_line(m, g, colour[m], [r.series(scope, metric) for r in g]) for m, g in by_method(runs).items()]
    label = {"global": "global accuracy, %"}.get(scope, "mean client accuracy, %")
    return figures.curves([line for line in lines if line], "round", label)


def _line(method: str, group: Sequence[RunData], colour: str, series: Sequence[tuple[np.ndarray, np.ndarray]]) -> Line | None:
    """Mean and deviation over seeds, at the rounds all of them have."""
    known = [dict(zip(t.tolist(), v.tolist())) for t, v in series if len(t)]
    if not known:
        return None
    x = np.array(sorted(set.intersection(*(set(k) for k in known))))
    values = np.array([[k[t] for t in x.tolist()] for k in known])
    band = values.std(0, ddof=1) if len(known) > 1 else np.zeros(len(x))
    return Line(method, colour, x, values.mean(0), band, method in REFERENCES)


def _bytes_curves(runs: Sequence[RunData], colour: dict[str, str]) -> str:
    lines = []
    for method, group in by_method(runs).items():
        if method in REFERENCES:
            continue
        line = _line(method, group, colour[method], [r.series("global", "accuracy") for r in group])
        sent = [dict(zip(*(v.tolist() for v in r.bytes_by_round()))) for r in group]
        keep = [t for t in line.x.tolist() if t > 0 and all(t in s for s in sent)] if line else []
        if line and keep:
            index = np.searchsorted(line.x, keep)
            x = np.array([np.mean([s[t] for s in sent]) for t in keep])
            lines.append(Line(method, line.colour, x, line.y[index], line.band[index]))
    return figures.curves(lines, "bytes sent by all, both ways", "global accuracy, %", log_x=True, unit=figures.size)


def _client_means(group: Sequence[RunData]) -> list[float]:
    """Each client's last accuracy, mean over seeds where partitions have the same clients."""
    found = [r.per_client() for r in group]
    return [float(np.mean([f[k] for f in found if k in f])) for k in sorted(set().union(*found))]


def _split(run: RunData) -> str:
    f = run.federation
    if not f:
        return ""
    sizes = f["sizes"]["train"]
    held = [sum(1 for v in row if v) for row in f["labels"]]
    return (
        f"{f['name']}, {f['skew']}: {f['clients']:,} clients with {min(sizes):,} to {max(sizes):,} samples "
        f"(median {int(np.median(sizes)):,}) and {np.mean(held):.1f} of {len(f['classes'])} classes each."
    )


def _histograms(runs: Sequence[RunData]) -> str:
    """The buffer of shared activations beside local data and what training then sees, where a run kept a buffer."""
    from safetensors import SafetensorError, safe_open

    for run in runs:
        path = run.path / "state.safetensors"
        if "flea" not in run.method or not path.exists() or not run.federation:
            continue
        try:
            with safe_open(str(path), "numpy") as file:
                labels = file.get_tensor("slices/flea/labels")
        except (SafetensorError, OSError):
            continue
        classes = run.federation["classes"]
        if not len(labels):
            continue
        buffer = np.bincount(labels, minlength=len(classes)) / len(labels)
        panels = [(f"buffer, {len(labels)} activations", buffer)]
        for k in range(min(3, len(run.federation["labels"]))):
            local = np.array(run.federation["labels"][k], dtype=float)
            if local.sum():
                local /= local.sum()
                name = run.federation["names"][k]
                panels += [(f"{name}: its data", local), (f"{name}: mixed (mean)", (local + buffer) / 2)]
        return figures.histograms([panels[0], *panels[1::2], panels[0], *panels[2::2]][: 2 * 4], classes)
    return ""


def _settings(runs: Sequence[RunData]) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """(what all runs share, what differs: key -> its values)."""
    keys = runs[0].config
    differing = {k: [str(v) for v in dict.fromkeys(map(str, (r.config.get(k) for r in runs)))] for k in keys}
    return {k: v for k, v in keys.items() if len(differing[k]) == 1}, {k: v for k, v in differing.items() if len(v) > 1}


def _command(runs: Sequence[RunData], name: str) -> str:
    """What repeats these runs."""
    if len(runs) == 1:
        return f"unskew run {runs[0].path / 'config.yaml'}"
    first = next((r for r in runs if r.method not in REFERENCES), runs[0])
    methods = [m for m in by_method(runs) if m not in REFERENCES]
    skip = {"method", "seed", "set", "partition_seed", "samples", "workers"}
    options = [f"--{k.replace('_', '-')} {v}" for k, v in first.config.items() if k not in skip and v != _DEFAULTS.get(k) and v is not None]
    quoted = " ".join(f"'{m}'" if "(" in m else m for m in methods)
    return f"unskew compare {quoted} {' '.join(options)} --seeds {len({r.seed for r in runs})}"


def _defaults() -> dict[str, Any]:
    from unskew.config import FIELDS

    return {n: f.default for n, f in FIELDS.items()}


_DEFAULTS = _defaults()
