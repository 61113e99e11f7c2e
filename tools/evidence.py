"""Run the methods among which `unskew diagnose` chooses, in the settings of
src/unskew/diagnosis/settings.yaml.

    python tools/evidence.py [--seeds N] [--methods A B] [--settings A B]    one row of runs.csv for each run
    python tools/evidence.py --tables [...]        the settings of tables.yaml alone, which take minutes
    python tools/evidence.py --confirm [...]       the settings of confirmation.yaml, into confirmed.csv

Stopped and started again it goes on where it was: a row that is in runs.csv is not run again; delete rows to
repeat them. One core, a quarter of an hour a seed. A setting's measures are written to skews.csv. Of a table,
each seed draws other test samples; of the other settings, it draws the clients and the first weights alone.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from sklearn import datasets

import unskew
from unskew import data
from unskew.config import Settings, build
from unskew.data import Dataset
from unskew.diagnosis import advice
from unskew.diagnosis import skews as diagnosis_skews
from unskew.diagnosis.diagnose import METHODS, WITH_FEATURES
from unskew.diagnosis.pooling import pooling_of
from unskew.diagnosis.skews import Skews, skews_of
from unskew.round.run import CENTRALISED, LOCAL
from unskew.runs.resolve import federation_of

FOLDER = Path(advice.__file__).parent
COMMON = {"rounds": 24, "epochs": 2, "batch": 16, "lr": 0.05, "eval_every": 3, "workers": 1}
TESTS = 600
"""Test samples of a setting at most."""
TABLE_TESTS = 0.4
"""The share of a table's rows that is for testing."""
ON_TABLES = ("unskew", "fedavg", "fedprox", "scaffold", "feddyn", "rbsm", "rebafl", LOCAL, CENTRALISED)
RUN = ("setting", "method", "seed", "one", "sites", "worst", "bytes", "seconds")
MEASURES = tuple(field.name for field in dataclasses.fields(Skews))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", nargs="*")
    parser.add_argument("--settings", nargs="*")
    parser.add_argument("--tables", action="store_true")
    parser.add_argument("--confirm", action="store_true")
    given = parser.parse_args()
    file = "tables.yaml" if given.tables else "settings.yaml"
    plans = advice.plans("confirmation.yaml" if given.confirm else file)
    methods = given.methods or (ON_TABLES if given.tables else [*METHODS, LOCAL, *WITH_FEATURES])
    for seed in range(given.seeds):
        for name in given.settings or plans:
            if not given.confirm and not known("skews.csv", setting=name, seed=seed):
                append("skews.csv", ("setting", "seed", *MEASURES), measured(name, plans[name], seed))
            if given.tables and not known("pooling.csv", setting=name, seed=seed):
                append("pooling.csv", ("setting", "seed", "gain", "error"), pooled(name, plans[name], seed))
            for method in methods:
                file = "confirmed.csv" if given.confirm else "runs.csv"
                if not known(file, setting=name, method=method, seed=seed):
                    row = scored(name, plans[name], method, seed)
                    append(file, RUN, row)
                    print(*row.values(), flush=True)


def known(file: str, **which: object) -> bool:
    """Whether a file has the row of this setting, method and seed."""
    path = FOLDER / file
    rows = list(csv.DictReader(path.open(newline=""))) if path.exists() else []
    return any(all(row[key] == str(value) for key, value in which.items()) for row in rows)


def append(file: str, columns: tuple[str, ...], row: dict[str, Any]) -> None:
    path = FOLDER / file
    begins = not path.exists()
    with path.open("a", newline="") as lines:
        writer = csv.DictWriter(lines, columns, lineterminator="\n")
        if begins:
            writer.writeheader()
        writer.writerow(row)


def scored(name: str, plan: dict[str, Any], method: str, seed: int) -> dict[str, Any]:
    """A run's scores; without any where the method cannot run in this setting."""
    row: dict[str, Any] = {"setting": name, "method": method, "seed": seed}
    began = time.process_time()
    try:
        result = unskew.run(
            method, dataset_of(plan, seed), seed=seed, progress=False, **{**COMMON, **plan["run"]}
        )
    except unskew.UnskewError as error:
        if error.code != "E108":
            raise
        return row
    own = "personal@client" if result.scores("personal@client") else "global@client"
    shared = bool(result.bytes("up")) and not any(
        part.keeps(n, result.run.fed) for part in result.method.parts for n in result.weights
    )
    return row | {
        "one": round(result.scores()["mean10"], 4) if shared else "",
        "sites": round(result.scores(own)["mean10"], 4),
        "worst": round(result.scores(own, "worst")["mean10"], 4),
        "bytes": result.bytes("up"),
        "seconds": round(time.process_time() - began, 1),
    }


def measured(name: str, plan: dict[str, Any], seed: int) -> dict[str, Any]:
    """The measures of a setting's federation."""
    settings = settings_of(plan, seed)
    sites = diagnosis_skews.numbers_of(federation_of(settings, unskew.Method(), dataset_of(plan, seed)))
    skews = skews_of(sites, settings.availability, seed)
    rounded = {k: "" if v is None else round(v, 4) for k, v in dataclasses.asdict(skews).items()}
    return {"setting": name, "seed": seed, **rounded}


def pooled(name: str, plan: dict[str, Any], seed: int) -> dict[str, Any]:
    """The gain of pooled rows in a setting of a table."""
    pooling = pooling_of(federation_of(settings_of(plan, seed), unskew.Method(), dataset_of(plan, seed)))
    assert pooling
    return {"setting": name, "seed": seed, "gain": round(pooling.gain, 4), "error": round(pooling.error, 4)}


def settings_of(plan: dict[str, Any], seed: int) -> Settings:
    return build({**COMMON, **plan["run"], "seed": seed})


def dataset_of(plan: dict[str, Any], seed: int) -> Dataset:
    """The samples of a setting, made smaller, with some of the test samples."""
    if "table" in plan:
        return table(plan, seed)
    return smaller(plan["data"], *plan.get("smaller", (1, 1)))


def table(plan: dict[str, Any], seed: int) -> Dataset:
    """The rows of a table, of which the seed draws those for testing, standardised column by column.

    `sites: [COLUMN, N]` divides the rows into N sites by the quantiles of a column. A number to predict
    becomes `classes` classes of equally many rows.
    """
    x, y, columns, names = table_rows(plan["table"])
    if classes := plan.get("classes"):
        y = np.searchsorted(np.quantile(y, np.arange(1, classes) / classes), y, side="right")
    if sites := plan.get("sites"):
        values = x[:, names.index(sites[0])]
        edges = np.quantile(values, np.arange(1, sites[1]) / sites[1])
        columns = {"site": np.searchsorted(edges, values, side="right")}
    order = np.random.default_rng(seed).permutation(len(y))
    test, train = np.split(order, [round(TABLE_TESTS * len(y))])
    test = test[:TESTS]
    parts = ((x[rows].astype(np.float32), y[rows].astype(np.int64)) for rows in (train, test))
    (x_train, y_train), (x_test, y_test) = parts
    return Dataset(
        plan["table"],
        *(x_train, y_train, x_test, y_test, tuple(map(str, range(int(y.max()) + 1)))),
        {name: values[train] for name, values in columns.items()},
        {name: values[test] for name, values in columns.items()},
    ).with_constants()


@cache
def table_rows(name: str) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray], list[str]]:
    """(samples [N, D], labels or targets [N], columns of sites, names of the D numbers) of a table.

    name: a set of scikit-learn, or one of ours, of which a sample becomes the mean and the deviation of each
    channel of a signal, or of each band of a spectrogram.
    """
    if load := getattr(datasets, f"load_{name}", None):
        source = load()
        return source.data, source.target, {}, list(source.feature_names)
    full = data.read(name)
    x, y = np.concatenate([full.x[:], full.x_test[:]]), np.concatenate([full.y, full.y_test])
    x = diagnosis_skews.moments(x[:, 0] if x.ndim == 4 else x)
    columns = {c: np.concatenate([v, full.test_columns[c]]) for c, v in full.columns.items()}
    return x, y, columns, list(map(str, range(x.shape[1])))


@cache
def smaller(name: str, high: int, wide: int) -> Dataset:
    full = data.read(name)
    kept = np.sort(np.random.default_rng(0).permutation(len(full.y_test))[:TESTS])
    x, x_test = (averaged(x, high, wide) for x in (full.x, full.x_test[kept]))
    columns = {column: values[kept] for column, values in full.test_columns.items()}
    few = dataclasses.replace(full, x=x, x_test=x_test, y_test=full.y_test[kept], test_columns=columns)
    return (
        few if few.mean is not None else few.with_constants()
    )  # so that inputs are standardised for every method


def averaged(x: np.ndarray, high: int, wide: int) -> np.ndarray:
    """Samples [N, channels, H, W] with the mean of every block of so many rows and columns in its place."""
    if high * wide == 1:
        return x
    h, w = x.shape[-2] // high, x.shape[-1] // wide
    return x[..., : h * high, : w * wide].reshape(*x.shape[:-2], h, high, w, wide).mean((-3, -1))


if __name__ == "__main__":
    main()
