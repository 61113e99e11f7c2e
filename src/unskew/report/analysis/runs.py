"""Runs as reports see them, read from the folders of runs and comparisons.

`read_run`, `read_comparison` and `read_runs` return RunData: the settings of a run, its series of scores over
rounds, each client's last value, and the bytes that its clients moved. The records themselves are dropped as
they are read, so that a comparison with millions of lines fits in memory. A file that cannot be parsed raises
StateError (E111), which names it.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from unskew.errors import StateError, printable
from unskew.records import client_lists, record, schema
from unskew.round.run import is_reference
from unskew.runs.coverage import (
    FIRST_STAGE,
    MANY_DROPPED,
    Coverage,
    UsedReplies,
    clipping_doubt,
    exchange_doubt,
    incomplete_coverage,
    metric_doubt,
)
from unskew.scores import MAIN
from unskew.system import disk

TUNED = "tuning.json"
"""In a comparison's folder: what its tuning tried and found."""
Record = dict[str, Any]
"""One line of a .jsonl file."""


class _Loader(yaml.SafeLoader):
    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> str:
        return printable(str(super().construct_scalar(node)).strip())


def _printable(value: Any) -> Any:
    """A JSON value with its texts made printable, except for keys."""
    if isinstance(value, dict):
        return {key: _printable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_printable(item) for item in value]
    return printable(value) if isinstance(value, str) else value


def read_yaml(path: Path) -> dict[str, Any]:
    """The keys and values of a YAML file. Raises StateError (E111) if it is not YAML or holds anything
    else."""
    try:
        content = _Loader(path.read_text(encoding="utf-8")).get_single_data()
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise StateError("E111", f"{path} is not YAML: {' '.join(str(error).split())}.") from None
    if not isinstance(content, dict):
        raise StateError("E111", f"{path} must hold keys and values.")
    return content


def read_json(path: Path) -> dict[str, Any]:
    """The content of a JSON file, {} if there is none. Raises StateError (E111) if it is not JSON."""
    if not path.is_file():
        return {}
    try:
        content = _printable(json.loads(path.read_bytes()))
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise StateError("E111", f"{path} is not JSON: {why}.") from None
    if not isinstance(content, dict):
        raise StateError("E111", f"{path} must hold keys and values.")
    return content


def read_facts(path: Path) -> dict[str, Any]:
    """The content of federation.json, {} if there is none. Raises StateError (E111) if it is not what it
    should be."""
    return schema.parse_federation(path, path.read_bytes()) if path.is_file() else {}


def read_records(path: Path) -> list[Record]:
    """The records of a JSON-lines file, [] if there is none.

    A run that is killed while it writes leaves an incomplete last line, which is skipped. Raises StateError
    (E111) with the number of any other line that is not what it should be.
    """
    if not path.is_file():
        return []
    complete, _, _ = path.read_bytes().rpartition(b"\n")
    return schema.parse_rows(path, [line for line in complete.split(b"\n") if line.strip()])


Series = tuple[np.ndarray, np.ndarray]
"""(rounds, values), both [T], rounds rising."""
EVALUATED = ("global", "global@client", "personal@client")
"""The scopes in which models are scored."""
EMPTY: Series = (np.array([], dtype=int), np.array([], dtype=float))


@dataclass(frozen=True)
class Traffic:
    """What all clients moved of one share in one direction.

    way: "up" (sent by clients) or "down". reads: whether the server needs each client's tensor ("each") or
    only their sum ("sum"). rounds, bytes: [T] rounds and bytes of all clients in them. most: the largest
    number of bytes that one
    client moved in one round. shape: of a share that is a single tensor, as "3×4". kind, samples: what a
    share that is sent up discloses and how many samples stand behind its numbers, as the Share says; "" in
    runs from before they did.
    encoded: the Part by which weights were encoded, "" where they travelled as they are.
    sum_of: with secure aggregation the fewest clients of a sum, which was all that the server saw; else 0.
    hands_on: of what is sent down, what of single other clients is in it; "" where it is made of all.
    """

    way: str
    share: str
    reads: str
    guarantee: str
    rounds: np.ndarray
    bytes: np.ndarray
    most: int
    shape: str = ""
    kind: str = ""
    samples: int | str = ""
    sum_of: int = 0
    encoded: str = ""
    hands_on: str = ""

    @property
    def name(self) -> str:
        """What it is, in words."""
        name = "weights" if self.share == "w" else self.share
        return f"{name}, encoded by {self.encoded}" if self.encoded else name

    @property
    def total(self) -> int:
        """Bytes in the whole run."""
        return int(self.bytes.sum())


@dataclass(frozen=True)
class Attendance:
    """The clients that a round asked, and those whose replies were used. received: replies that came, None
    for no others."""

    t: int
    asked: Sequence[int]
    answered: Sequence[int]
    received: int | None = None

    @property
    def came(self) -> int:
        """How many replies came, those that were dropped among them."""
        return len(self.answered) if self.received is None else self.received


@dataclass(frozen=True)
class RunData:
    """One run, read from its folder.

    config, federation, env: config.yaml, federation.json and env.json. metrics: the series of each (scope,
    metric).
    clients: by (scope, metric), each client's value in the last round that has them. events: events.jsonl.
    label: what reports call the run instead of its method, where two runs of one method differ in a setting.
    altered: names of its records that are missing or are not as the run wrote them.
    """

    path: Path
    config: dict[str, Any]
    federation: dict[str, Any]
    env: dict[str, Any]
    metrics: dict[tuple[str, str], Series] = field(repr=False)
    clients: dict[tuple[str, str], dict[int, float]] = field(repr=False)
    traffic: tuple[Traffic, ...] = field(repr=False)
    events: list[Record] = field(repr=False)
    label: str = ""
    altered: Sequence[str] = ()

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def method(self) -> str:
        """The name under which reports group runs: the same for all seeds of a method."""
        return self.label or str(self.config["method"])

    @property
    def is_reference(self) -> bool:
        """Whether this is a reference, which does not compete, rather than a federated method."""
        return is_reference(str(self.config.get("method")))

    @property
    def seed(self) -> int:
        return int(self.config.get("seed", 0))

    @property
    def rounds(self) -> int:
        """The last round that was evaluated or in which anything was sent."""
        last = [int(t[-1]) for t, _ in self.metrics.values()] + [int(s.rounds[-1]) for s in self.traffic]
        return max(last, default=0)

    @property
    def asked(self) -> int:
        """The number of rounds that the settings ask for."""
        return int(self.config.get("rounds", self.rounds))

    @property
    def evaluated(self) -> bool:
        """Whether any round that was trained was evaluated, in any scope."""
        return any(t[-1] > 0 for (scope, _), (t, _) in self.metrics.items() if scope in EVALUATED and len(t))

    @property
    def planned(self) -> int:
        """The number of rounds that the settings ask for, or that a budget or a callback has left of them."""
        left = [int(event["last"]) for event in self.events if "last" in event]
        return min([self.asked, *left])

    @property
    def finished(self) -> bool:
        return self.rounds >= self.planned

    @property
    def metric(self) -> str:
        """The task's main score: that of the task which federation.json names; else "dice" where every pixel
        has a label, and "accuracy"."""
        return MAIN[self.task]

    @property
    def task(self) -> str:
        """The name of the task."""
        by_unit = {"pixels": "segmentation", "tokens": "tokens"}
        return str(
            self.federation.get("task") or by_unit.get(str(self.federation.get("unit")), "classification")
        )

    def series(self, scope: str, metric: str) -> Series:
        """(rounds, values) of a metric over all clients; empty if it was never written."""
        return self.metrics.get((scope, metric), EMPTY)

    def per_client(self, scope: str = "global@client", metric: str = "") -> dict[int, float]:
        """Each client's value in the last round that has them; of the main score unless `metric` names
        another."""
        return self.clients.get((scope, metric or self.metric), {})

    @property
    def scored_at(self) -> Coverage | None:
        """At how many clients the last scores were taken, where that was not all that have test samples."""
        tests = self.federation.get("sizes", {}).get("test", ())
        if len(tests) < self.K:  # of very many clients federation.json lists the first alone
            return None
        there: dict[str, set[int]] = {}
        for (scope, _), scores in self.clients.items():
            there.setdefault(scope, set()).update(scores)
        return incomplete_coverage(
            {scope: len(clients) for scope, clients in there.items()}, sum(n > 0 for n in tests)
        )

    def bytes_by_round(self, way: str | None = None, share: str | None = None) -> Series:
        """(rounds, bytes of all clients up to and including that round), in both directions and of all shares
        unless `way` or `share` names one."""
        parts = [s for s in self.traffic if way in (None, s.way) and share in (None, s.share)]
        if not parts:
            return EMPTY
        rounds = np.unique(np.concatenate([s.rounds for s in parts]))
        total = np.zeros(len(rounds))
        for s in parts:
            total[np.searchsorted(rounds, s.rounds)] += s.bytes
        return rounds, np.cumsum(total)

    @cached_property
    def bytes_up(self) -> Series:
        return self.bytes_by_round("up")

    @cached_property
    def bytes_down(self) -> Series:
        return self.bytes_by_round("down")

    @property
    def K(self) -> int:
        """How many clients it has, as federation.json says; more than any run has where that does not say."""
        return clients_of(self.federation)

    @cached_property
    def attendance(self) -> list[Attendance]:
        """Who was asked and who answered, by round."""
        rounds = (e for e in self.events if e.get("code") == "round")
        whose = (([client_lists.clients_in(e[k], self.K) for k in ("asked", "answered")], e) for e in rounds)
        return [Attendance(e["t"], asked, answered, e.get("received")) for (asked, answered), e in whose]

    @cached_property
    def replies(self) -> UsedReplies:
        """How many replies came and how many were used."""
        return UsedReplies.of(self.events, self.K)

    @property
    def doubt(self) -> str:
        """Why the run's scores say little: many replies were dropped (E317), an exchange was left out,
        numbers were cut (E322), a metric was changed (E327), or the run ended in the first stage of its
        method (E139)."""
        said = {e.get("code"): str(e.get("text", "")) for e in self.events if e["t"]}
        other = exchange_doubt(self.replies) or clipping_doubt(self.replies) or metric_doubt(self.replies)
        return said.get(MANY_DROPPED) or other or said.get(FIRST_STAGE, "")

    @property
    def histograms(self) -> dict[str, Any]:
        """Class histograms, if they were measured: {"buffer": [C], "local": [[C]...], "mixed": [[C]...]}."""
        return self.measures.get("histograms", {})

    @cached_property
    def privacy(self) -> dict[str, Any]:
        """By part, what its noisy release amounts to as differential privacy; {} if nothing is noisy."""
        return {
            part: account
            for part, account in schema.read_privacy(self.path).items()
            if part != schema.ATTACKS
        }

    @cached_property
    def attacks(self) -> dict[str, Any]:
        """By name, what attacks on this run have measured; {} if nobody has attacked it."""
        return schema.read_privacy(self.path).get(schema.ATTACKS, {})

    @cached_property
    def measures(self) -> dict[str, Any]:
        """Matrices and pictures of the last round, by measure; {} if nothing was measured."""
        path = self.path / "measures.json"
        return schema.parse_measures(path, path.read_bytes()) if path.is_file() else {}


def clients_of(federation: Mapping[str, Any]) -> int:
    """How many clients federation.json speaks of; more than any run has where it does not say."""
    clients = federation.get("clients")
    return (
        min(clients, client_lists.MOST_CLIENTS)
        if isinstance(clients, int) and clients > 0
        else client_lists.MOST_CLIENTS
    )


def by_method(runs: Sequence[RunData]) -> dict[str, list[RunData]]:
    """The runs of each method, one per seed, in the order given."""
    groups: dict[str, list[RunData]] = {}
    for run in runs:
        groups.setdefault(run.method, []).append(run)
    return groups


NOT_A_CONFIGURATION = ("method", "seed", "workers", "device", "lanes")
"""Settings that make a run a repeat (another seed, another machine) rather than another experiment."""


def label_runs(runs: Sequence[RunData]) -> list[RunData]:
    """The runs, each with a label that only its own seeds share.

    Runs of a method that differ in settings are labelled with those settings, `flea (lr 0.1)`; runs that
    differ in nothing at all, not even the seed, with the names of their folders, `flea [runs-1]`.
    """
    labels: dict[int, str] = {}
    for method, group in by_method(runs).items():
        configurations = [_configuration(r) for r in group]
        differing = sorted(
            {
                k
                for c in configurations
                for k, v in c.items()
                if any(v != other.get(k) for other in configurations)
            }
        )
        identities = [(r.seed, *(str(c.get(k)) for k in differing)) for r, c in zip(group, configurations)]
        for run, configuration, identity in zip(group, configurations, identities):
            if identities.count(identity) > 1:
                labels[id(run)] = f"{method} [{run.name}]"
            elif differing:
                labels[id(run)] = f"{method} ({', '.join(f'{k} {configuration.get(k)}' for k in differing)})"
    return [replace(r, label=labels[id(r)]) if id(r) in labels else r for r in runs]


def _configuration(run: RunData) -> dict[str, Any]:
    return {k: v for k, v in run.config.items() if k not in NOT_A_CONFIGURATION}


Key = tuple[str, str]
"""(scope, metric) of a score, (way, share) of traffic."""


def scores_of(records: Sequence[Record]) -> tuple[dict[Key, Series], dict[Key, dict[int, float]]]:
    """By (scope, metric): the series over all clients, and each client's value in the last round that has
    them.

    A round that was written twice, as happens when a run is resumed, counts once, with the later value. A
    client whose value is no number has none.
    """
    series: dict[Key, dict[int, float]] = defaultdict(dict)
    last_round: dict[Key, int] = {}
    clients: dict[Key, dict[int, float]] = {}
    for row in records:
        key, t = (row["scope"], row["metric"]), row["t"]
        if row["client"] is None:
            series[key][t] = row["value"]
        elif t >= last_round.get(key, -1):
            if t > last_round.get(key, -1):
                last_round[key], clients[key] = t, {}
            if not math.isnan(row["value"]):
                clients[key][row["client"]] = row["value"]
    return {key: _series(values) for key, values in series.items()}, clients


def _series(values: dict[int, float]) -> Series:
    rounds = sorted(values)
    return np.array(rounds, int), np.array([values[t] for t in rounds], float)


def traffic_of(records: Sequence[Record], clients: int = client_lists.MOST_CLIENTS) -> tuple[Traffic, ...]:
    """What moved, by direction and share, in the order of first appearance. clients: of the run."""
    by_share: dict[Key, list[Record]] = defaultdict(list)
    for row in records:
        by_share[row["way"], row["share"]].append(row)
    return tuple(_traffic(way, share, group, clients) for (way, share), group in by_share.items())


def _traffic(way: str, share: str, records: Sequence[Record], clients: int) -> Traffic:
    by_round: dict[int, int] = defaultdict(int)
    for row in records:
        by_round[row["t"]] += client_lists.total_bytes(row, clients)
    rounds = sorted(by_round)
    shapes = [row["shape"] for row in records if row.get("shape")]
    return Traffic(
        way=way,
        share=share,
        reads=records[-1].get("reads", ""),
        guarantee=records[-1].get("guarantee", ""),
        kind=records[-1].get("kind", ""),
        samples=records[-1].get("samples", ""),
        rounds=np.array(rounds, int),
        bytes=np.array([by_round[t] for t in rounds], dtype=np.int64),
        most=max(client_lists.most_bytes(row) for row in records),
        shape="×".join(map(str, shapes[-1])) if shapes else "",
        encoded=records[-1].get("encoded", ""),
        hands_on=records[-1].get("hands_on", ""),
        sum_of=min((row["sum_of"] for row in records if "sum_of" in row), default=0),
    )


COMPARISON_RUN = re.compile(r"(.+)--s(\d+)")
"""The folder of a method and seed in a comparison."""


def read_run(path: str | Path, label: str = "") -> RunData:
    """One run. label: what reports call it instead of its method.

    A run that its clients did not train has no scores: those of its weights would pass for the method's.
    Raises StateError: E117 if the folder is not a run, E111 if a file in it is damaged (an incomplete last
    line of a .jsonl file is not damage). Files that can be read and are not as the run wrote them are its
    `altered`.
    """
    path = Path(path)
    for name in ("config.yaml", "metrics.jsonl"):
        if not (path / name).is_file():
            raise disk.no_run(path, name)
    series, clients = scores_of(read_records(path / "metrics.jsonl"))
    events, federation = read_records(path / "events.jsonl"), read_facts(path / "federation.json")
    K = clients_of(federation)
    if not UsedReplies.of(events, K).enough:
        series, clients = {key: values for key, values in series.items() if key[0] == "train"}, {}
    return RunData(
        path=path,
        config=schema.parse_settings(path / "config.yaml", read_yaml(path / "config.yaml")),
        federation=federation,
        env=read_json(path / "env.json"),
        metrics=series,
        clients=clients,
        traffic=traffic_of(read_records(path / "ledger.jsonl"), K),
        events=events,
        label=label,
        altered=record.altered_files(path),
    )


def read_comparison(path: str | Path) -> list[RunData]:
    """The runs of a comparison that have begun, in the order of its methods, then of seeds. Raises StateError
    (E117) if the folder is not a comparison or none of its runs has begun."""
    path = Path(path)
    if not (path / "compare.yaml").is_file():
        raise StateError("E117", f"{path} is not a comparison: it has no compare.yaml.")
    methods = [str(m) for m in read_yaml(path / "compare.yaml").get("methods", [])]
    places = {disk.slug(method): (place, method) for place, method in enumerate(methods)}
    ordered = []
    for metrics in sorted(path.glob("*--s*/metrics.jsonl")):
        name = COMPARISON_RUN.fullmatch(metrics.parent.name)
        if name and metrics.stat().st_size:
            place, label = places.get(name[1], (len(places), ""))
            run = read_run(metrics.parent, label)
            ordered.append((place, run.method, run.seed, run))
    if not ordered:
        raise StateError("E117", f"no run of {path} has begun: it holds no <method>--s<seed>/metrics.jsonl.")
    return [run for *_, run in sorted(ordered, key=lambda entry: entry[:3])]


def requested_target(paths: Sequence[str | Path]) -> float | None:
    """The target that was asked for when these comparisons were made; None where none was, or not the same
    one for all."""
    plans = [Path(path) / "compare.yaml" for path in paths]
    asked = [read_yaml(plan).get("target") if plan.is_file() else None for plan in plans]
    same = all(target == asked[0] for target in asked)
    return float(asked[0]) if same and isinstance(asked[0], int | float) else None


def read_runs(paths: Sequence[str | Path]) -> list[RunData]:
    """The runs of any mix of run and comparison folders; runs that differ only in a setting are labelled with
    it."""
    runs: list[RunData] = []
    for path in map(Path, paths):
        runs += read_comparison(path) if (path / "compare.yaml").is_file() else [read_run(path)]
    return label_runs(runs)
