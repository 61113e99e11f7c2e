"""FAKE run folders, for tests of the report: the files of a run, with invented numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from unskew.system.disk import slug

PLATEAU = {
    "fedavg": 0.80,
    "fedprox(mu=0.01)": 0.812,
    "fedproto": 0.86,
    "flea": 0.894,
    "rebafl": 0.902,
    "centralised": 0.972,
}
LOCAL = "local"


def fake_run(
    at: Path,
    method: str = "fedavg",
    seed: int = 0,
    *,
    clients: int = 20,
    rounds: int = 40,
    classes: int = 10,
    away: float = 0.3,
    plateau: float | None = None,
    histograms: bool = False,
    per_client: bool = True,
    **config: Any,
) -> Path:
    """A run folder with every file of the contract but the weights; returns it.

    away: share of clients that do not answer. per_client: rows of every client in every round, not the last
    alone. Other arguments become settings in its config.yaml.
    """
    at.mkdir(parents=True)
    law = np.random.default_rng([seed, clients, classes])
    labels = _labels(law, clients, classes)
    settings = {"method": method, "data": "digits", "skew": "dirichlet:0.1", "clients": clients}
    settings |= {"availability": f"bernoulli:{away}", "rounds": rounds, "epochs": 5, "batch": 32}
    settings |= {"optimiser": "sgd", "lr": 0.05, "seed": seed, **config}
    (at / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    test = np.maximum(labels.sum(1) // 4, 2)
    federation = {
        "name": "digits",
        "classes": [str(c) for c in range(classes)],
        "clients": clients,
        "names": [f"client-{k}" for k in range(clients)],
        "sizes": {"train": labels.sum(1).tolist(), "val": [], "test": test.tolist()},
        "labels": labels.tolist(),
        "test": int(test.sum()),
        "skew": settings["skew"],
        "shape": [1, 8, 8],
    }
    (at / "federation.json").write_text(json.dumps(federation))
    (at / "env.json").write_text(
        json.dumps({"unskew": "0.1.0", "python": "3.11.7", "torch": "2.13.0", "device": "cpu", "cores": 2})
    )
    events = _events(law, clients, rounds, away)
    _lines(at / "events.jsonl", events)
    top = plateau if plateau is not None else PLATEAU.get(method, 0.8)
    noise = np.random.default_rng([seed, sum(map(ord, method))])
    _lines(at / "metrics.jsonl", _metrics(noise, method, rounds, top, labels, test, per_client))
    _lines(at / "ledger.jsonl", _ledger(method, events) if method != LOCAL else [])
    if histograms:
        buffer = labels.sum(0)
        written = {
            "buffer": buffer.tolist(),
            "local": labels[:3].tolist(),
            "mixed": (labels[:3] + buffer / clients).tolist(),
        }
        (at / "measures.json").write_text(json.dumps({"histograms": written}))
    return at


def fake_comparison(at: Path, methods: list[str], seeds: int = 3, **options: Any) -> Path:
    """A folder of fake runs, as `unskew compare` leaves it."""
    at.mkdir(parents=True)
    shared = {"data": "digits", "rounds": options.get("rounds", 40)}
    described = {"methods": methods, "seeds": list(range(seeds)), "settings": shared}
    (at / "compare.yaml").write_text(yaml.safe_dump(described, sort_keys=False))
    for method in methods:
        for seed in range(seeds):
            fake_run(at / f"{slug(method)}--s{seed}", method, seed, histograms=method == "flea", **options)
    return at


def _labels(law: np.random.Generator, clients: int, classes: int) -> np.ndarray:
    """[K, C] samples, Dirichlet(0.1) per class, at least one sample a client."""
    share = law.dirichlet(np.full(clients, 0.1 if clients > 4 else 1.0), size=classes)
    found = (share.T * 70 * clients / classes * law.uniform(0.7, 1.3, size=classes)).astype(int)
    found[found.sum(1) == 0, 0] = 1
    return found


def _events(law: np.random.Generator, clients: int, rounds: int, away: float) -> list[dict[str, Any]]:
    everybody, found = list(range(clients)), []
    for t in range(1, rounds + 1):
        here = [k for k in everybody if law.random() >= away] or [0]
        found.append({"t": t, "code": "round", "asked": everybody, "answered": here})
    text = "client-3 round 1: 'head.weight' is [10, 64], expected [10, 32]. Reply dropped."
    found.insert(1, {"t": 1, "code": "E303", "text": text})
    return found


def _metrics(
    law: np.random.Generator,
    method: str,
    rounds: int,
    top: float,
    labels: np.ndarray,
    test: np.ndarray,
    every_round: bool,
) -> list[dict[str, Any]]:
    found, alone, clients = [], method == LOCAL, len(test)
    own = law.normal(0, 0.13, clients) - 0.25 / np.sqrt(labels.sum(1))
    top = top + law.normal(0, 0.008)
    for t in range(rounds + 1):
        rising = 1 - np.exp(-t / (rounds / 7))
        accuracy = float(np.clip(0.1 + (top - 0.1) * rising + law.normal(0, 0.02) * (t > 0), 0, 1))
        scores = {
            "global@client": np.clip(accuracy + own, 0, 1),
            "personal@client": np.clip(accuracy + 0.5 * own + 0.02, 0, 1),
        }
        if alone:
            scores = {"personal@client": np.clip(0.88 * rising + 0.6 * own, 0, 1)}
        else:
            of_all = {"accuracy": accuracy, "macro_f1": accuracy * 0.97, "worst_class": accuracy * 0.6}
            found += [_metric(t, "global", None, metric, value) for metric, value in of_all.items()]
        for scope, values in scores.items():
            values = np.round(values * test) / test
            for metric, value in (("mean", values.mean()), ("worst", values.min()), ("std", values.std())):
                found.append(_metric(t, scope, None, metric, value))
            if t == rounds or (every_round and scope == "global@client"):
                found += [_metric(t, scope, k, "accuracy", v) for k, v in enumerate(values)]
    return found


def _metric(t: int, scope: str, client: int | None, metric: str, value: float) -> dict[str, Any]:
    return {"t": t, "scope": scope, "client": client, "metric": metric, "value": round(float(value), 6)}


def _ledger(method: str, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = []
    weights = {
        "share": "w",
        "bytes": 6_100 if method == "fedproto" else 61_440,
        "reads": "sum",
        "guarantee": "none",
    }
    for e in events:
        if e["code"] != "round":
            continue
        up = {"t": e["t"], "way": "up", "clients": e["answered"]}
        found += [{"t": e["t"], "way": "down", "clients": e["asked"], **weights}, {**up, **weights}]
        if method == "flea":
            sizes = [1_000 + 37 * k for k in e["answered"]]
            found.append(
                up | {"share": "flea/features", "bytes": sizes, "reads": "each", "guarantee": "empirical"}
            )
        if method == "rebafl":
            counts = {"share": "rebafl/counts", "bytes": 40, "reads": "sum", "guarantee": "dp", "shape": [10]}
            found.append(up | counts)
    return found


def _lines(at: Path, rows: list[dict[str, Any]]) -> None:
    at.write_text("".join(json.dumps(r, separators=(",", ":")) + "\n" for r in rows))
