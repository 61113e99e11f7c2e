"""Reading the folders of runs and comparisons for reports.

`read_run`, `read_comparison` and `read_runs` return RunData: the settings of a run, its series of scores over
rounds, the last value of each client, and the bytes of its messages. Records are summarised while they are
read, so that a comparison with millions of lines fits in memory. A file that cannot be parsed raises
StateError (E111) with its name.
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
from unskew.runs.score_coverage import (
    FIRST_STAGE,
    MANY_DROPPED,
    Coverage,
    UsedReplies,
    events_doubt,
    incomplete_coverage,
)
from unskew.scores import MAIN
from unskew.system import disk

TUNED = "tuning.json"
"""The file in a comparison's folder with the trials of its tuning."""
Record = dict[str, Any]
"""One line of a .jsonl file."""


class _Loader(yaml.SafeLoader):
    """Reads every YAML value as text, with control characters escaped."""

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
    """The keys and values of a YAML file. Raises StateError (E111) for anything else."""
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


def read_records(path: Path) -> list[Record]:
    """The records of a JSON-lines file, [] if there is none.

    An incomplete last line, left by a killed run, is skipped. Raises StateError (E111) with the number of any
    other invalid line.
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
    """The traffic of all clients for one share in one direction.

    way: "up" (sent by clients) or "down". reads: whether the server needs each client's tensor ("each") or
    only their sum ("sum"). rounds, bytes: [T] rounds and bytes of all clients in them. most: the most bytes
    of one client in one round. shape: of a share with a single tensor, such as "3×4". kind, samples: the
    disclosure and the samples behind a number of a share that is sent up, from its Share; "" in old runs.
    encoded: the Part that encoded weights, or "". sum_of: with secure aggregation, the fewest clients of a
    sum; else 0. hands_on: the data of single other clients in a share that is sent down, or "".
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
        """The name of the share in words."""
        name = "weights" if self.share == "w" else self.share
        return f"{name}, encoded by {self.encoded}" if self.encoded else name

    @property
    def total(self) -> int:
        """The bytes of the whole run."""
        return int(self.bytes.sum())


@dataclass(frozen=True)
class Attendance:
    """The clients that a round asked, and those with used replies.

    received: the number of replies, or None if all were used.
    """

    t: int
    asked: Sequence[int]
    answered: Sequence[int]
    received: int | None = None

    @property
    def came(self) -> int:
        """The number of replies, including dropped ones."""
        return len(self.answered) if self.received is None else self.received


@dataclass(frozen=True)
class RunData:
    """One run, read from its folder.

    config, federation, env: config.yaml, federation.json and env.json. metrics: the series of each (scope,
    metric).
    clients: by (scope, metric), each client's value in the last round that has them. events: events.jsonl.
    label: the name in reports in place of the method, if runs of one method differ in a setting. altered: the
    names of records that are missing or were changed after the run.
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
        """The name of the run's folder."""
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
        """The run's seed."""
        return int(self.config.get("seed", 0))

    @property
    def rounds(self) -> int:
        """The last round that was evaluated or in which anything was sent."""
        last = [int(t[-1]) for t, _ in self.metrics.values()] + [int(s.rounds[-1]) for s in self.traffic]
        return max(last, default=0)

    @property
    def asked(self) -> int:
        """The number of rounds in the settings."""
        return int(self.config.get("rounds", self.rounds))

    @property
    def evaluated(self) -> bool:
        """Whether any round after round 0 was evaluated, in any scope."""
        return any(t[-1] > 0 for (scope, _), (t, _) in self.metrics.items() if scope in EVALUATED and len(t))

    @property
    def planned(self) -> int:
        """The number of rounds in the settings, or fewer if a budget or a callback ended the run."""
        left = [int(event["last"]) for event in self.events if "last" in event]
        return min([self.asked, *left])

    @property
    def finished(self) -> bool:
        """Whether the run has reached its last round."""
        return self.rounds >= self.planned

    @property
    def metric(self) -> str:
        """The main score of the task, such as "accuracy"."""
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
        """Each client's value in the last round with such values. metric: default: the main score."""
        return self.clients.get((scope, metric or self.metric), {})

    def client_rows(self) -> list[dict[str, Any]]:
        """A row for each client in federation.json: number, name, numbers of training and test samples, and
        last score, by its own model if the run has such scores."""
        scores, sizes = self.per_client("personal@client") or self.per_client(), self.federation["sizes"]
        clients = enumerate(zip(self.federation["names"], sizes["train"], sizes["test"]))
        return [
            {"client": k, "name": name, "train": train, "test": test, self.metric: scores.get(k)}
            for k, (name, train, test) in clients
        ]

    @property
    def scored_at(self) -> Coverage | None:
        """The clients of the last scores, if these were not all clients with test samples; else None."""
        tests = self.federation.get("sizes", {}).get("test", ())
        if len(tests) < self.K:  # federation.json lists only the first of very many clients
            return None
        scored: dict[str, set[int]] = {}
        for (scope, _), scores in self.clients.items():
            scored.setdefault(scope, set()).update(scores)
        return incomplete_coverage(
            {scope: len(clients) for scope, clients in scored.items()}, sum(n > 0 for n in tests)
        )

    def bytes_by_round(self, way: str | None = None) -> Series:
        """(rounds, cumulative bytes of all clients). way: None for both directions."""
        parts = [s for s in self.traffic if way in (None, s.way)]
        if not parts:
            return EMPTY
        rounds = np.unique(np.concatenate([s.rounds for s in parts]))
        total = np.zeros(len(rounds))
        for s in parts:
            total[np.searchsorted(rounds, s.rounds)] += s.bytes
        return rounds, np.cumsum(total)

    @property
    def K(self) -> int:
        """The number of clients in federation.json, or an upper bound if it has none."""
        return clients_of(self.federation)

    @cached_property
    def attendance(self) -> list[Attendance]:
        """The clients that were asked and that answered, by round."""
        rounds = (e for e in self.events if e.get("code") == "round")
        lists = (([client_lists.clients_in(e[k], self.K) for k in ("asked", "answered")], e) for e in rounds)
        return [Attendance(e["t"], asked, answered, e.get("received")) for (asked, answered), e in lists]

    @cached_property
    def replies(self) -> UsedReplies:
        """The numbers of received and of used replies."""
        return UsedReplies.of(self.events, self.K)

    @property
    def doubt(self) -> str:
        """A reason to distrust the scores: many replies were dropped (E316), an exchange was left out,
        numbers were clipped (E322), a metric was changed (E112), or the run may have ended in the first stage
        of its method (E139)."""
        texts = {e.get("code"): str(e.get("text", "")) for e in self.events}
        return texts.get(MANY_DROPPED) or events_doubt(self.replies) or texts.get(FIRST_STAGE, "")

    @cached_property
    def privacy(self) -> dict[str, Any]:
        """The privacy accounts of noisy releases by Part; {} without any."""
        return {
            part: account
            for part, account in schema.read_privacy(self.path).items()
            if part != schema.ATTACKS
        }

    @cached_property
    def attacks(self) -> dict[str, Any]:
        """The findings of attacks on this run by name; {} without any."""
        return schema.read_privacy(self.path).get(schema.ATTACKS, {})

    @cached_property
    def measures(self) -> dict[str, Any]:
        """Matrices and pictures of the last round by measure; {} without any."""
        path = self.path / "measures.json"
        return schema.parse_measures(path, path.read_bytes()) if path.is_file() else {}


def clients_of(federation: Mapping[str, Any]) -> int:
    """The number of clients in federation.json, or an upper bound if it has none."""
    clients = federation.get("clients")
    if isinstance(clients, int) and clients > 0:
        return min(clients, client_lists.MOST_CLIENTS)
    return client_lists.MOST_CLIENTS


def by_method(runs: Sequence[RunData]) -> dict[str, list[RunData]]:
    """The runs of each method, one per seed, in order."""
    groups: dict[str, list[RunData]] = {}
    for run in runs:
        groups.setdefault(run.method, []).append(run)
    return groups


NOT_A_CONFIGURATION = ("method", "seed", "workers", "device", "lanes")
"""Settings that make a run a repeat (another seed, another machine) rather than another experiment."""


def label_runs(runs: Sequence[RunData]) -> list[RunData]:
    """The runs, each with a label that only its own seeds share.

    Runs of a method with different settings are labelled with these, `flea (lr 0.1)`; runs with equal
    settings and seed are labelled with their folders, `flea [runs-1]`.
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
    """By (scope, metric): the series over all clients, and each client's value in the last such round.

    A round that was written twice by a resumed run counts once, with the later value. NaN values of clients
    are left out.
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
    """The traffic by direction and share, in order of first appearance. clients: number of the run."""
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
"""The name of a run's folder in a comparison: method and seed."""


def read_run(path: str | Path, label: str = "") -> RunData:
    """The run in a folder. label: its name in reports in place of the method.

    A run without enough used replies has no scores, because they would be those of untrained weights. Raises
    StateError: E117 if the folder is not a run, E111 if a file is damaged (an incomplete last line of a
    .jsonl file is not damage). Readable files that were changed after the run are in `altered`.
    """
    path = Path(path)
    for name in ("config.yaml", "metrics.jsonl"):
        if not (path / name).is_file():
            raise disk.no_run(path, name)
    series, clients = scores_of(read_records(path / "metrics.jsonl"))
    events, facts = read_records(path / "events.jsonl"), path / "federation.json"
    federation = schema.parse_federation(facts, facts.read_bytes()) if facts.is_file() else {}
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
    """The begun runs of a comparison, in the order of its methods, then of seeds.

    Raises StateError (E117) if the folder is not a comparison or has no begun run.
    """
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
    """The common target in the settings of these comparisons, or None."""
    plans = [Path(path) / "compare.yaml" for path in paths]
    asked = [read_yaml(plan).get("target") if plan.is_file() else None for plan in plans]
    equal = all(target == asked[0] for target in asked)
    return float(asked[0]) if equal and isinstance(asked[0], int | float) else None


def read_runs(paths: Sequence[str | Path]) -> list[RunData]:
    """The runs of run and comparison folders, labelled by `label_runs`."""
    runs: list[RunData] = []
    for path in map(Path, paths):
        runs += read_comparison(path) if (path / "compare.yaml").is_file() else [read_run(path)]
    return label_runs(runs)
