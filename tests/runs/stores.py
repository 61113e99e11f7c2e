"""Stand-ins for the packages of trackers, which keep what they are told."""

from __future__ import annotations

import sys
from collections import namedtuple
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

Metric = namedtuple("Metric", "key value timestamp step")
Param = namedtuple("Param", "key value")


class MLflow:
    """One store, whatever its address."""

    def __init__(self) -> None:
        self.experiments: dict[str, str] = {}
        self.metrics: list[tuple[str, float, int, str]] = []
        """(name, value, round, number of the entry)."""
        self.params: list[tuple[str, str, str]] = []
        self.names: dict[str, str] = {}
        self.status: dict[str, str] = {}
        self.calls: list[int] = []
        """How many metrics or parameters each call brought."""
        self.uris: list[str] = []

    def MlflowClient(self, tracking_uri: str) -> MLflow:
        self.uris.append(tracking_uri)
        return self

    def get_experiment_by_name(self, name: str) -> Any:
        return SimpleNamespace(experiment_id=self.experiments[name]) if name in self.experiments else None

    def create_experiment(self, name: str) -> str:
        return self.experiments.setdefault(name, f"experiment {len(self.experiments)}")

    def create_run(self, experiment: str, run_name: str) -> Any:
        assert experiment in self.experiments.values()
        number = f"run {len(self.names)}"
        self.names[number], self.status[number] = run_name, "RUNNING"
        return SimpleNamespace(info=SimpleNamespace(run_id=number))

    def update_run(self, number: str, status: str) -> None:
        self.status[number] = status

    set_terminated = update_run

    def log_batch(self, number: str, metrics: Any = (), params: Any = ()) -> None:
        assert self.status[number] == "RUNNING"
        self.calls.append(len([*metrics, *params]))
        self.metrics += [(m.key, m.value, m.step, number) for m in metrics]
        self.params += [(p.key, p.value, number) for p in params]


class WandB:
    def __init__(self) -> None:
        self.begun: list[dict[str, Any]] = []
        self.logged: list[dict[str, Any]] = []
        self.axes: list[tuple[str, str]] = []
        self.codes: list[int] = []

    def Settings(self, **settings: Any) -> dict[str, Any]:
        return settings

    def init(self, **settings: Any) -> Any:
        self.begun.append(settings)
        return SimpleNamespace(
            id=settings["id"] or f"entry{len(self.begun)}",
            define_metric=lambda name, step_metric: self.axes.append((name, step_metric)),
            log=self.logged.append,
            finish=lambda exit_code: self.codes.append(exit_code),
        )


class Board:
    """The event files of one folder, as TensorBoard shows them: a process that begins at a round hides what
    stands there on."""

    def __init__(self) -> None:
        self.scalars: list[tuple[str, float, int]] = []
        self.texts: list[tuple[str, str]] = []
        self.folders: list[str] = []
        self.open = 0

    def SummaryWriter(self, folder: str, purge_step: int) -> Any:
        self.folders.append(folder)
        self.open += 1
        self.scalars = [scalar for scalar in self.scalars if scalar[2] < purge_step]
        return SimpleNamespace(
            add_scalar=lambda *scalar: self.scalars.append(scalar),
            add_text=lambda *text: self.texts.append(text),
            flush=lambda: None,
            close=self._close,
        )

    def _close(self) -> None:
        self.open -= 1


def mlflow(monkeypatch: pytest.MonkeyPatch) -> MLflow:
    store = MLflow()
    entities = SimpleNamespace(Metric=Metric, Param=Param)
    _plant(monkeypatch, "mlflow", MlflowClient=store.MlflowClient, entities=entities)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return store


def wandb(monkeypatch: pytest.MonkeyPatch) -> WandB:
    store = WandB()
    _plant(monkeypatch, "wandb", init=store.init, Settings=store.Settings)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    return store


def tensorboard(monkeypatch: pytest.MonkeyPatch) -> Board:
    store = Board()
    _plant(monkeypatch, "tensorboard")
    _plant(monkeypatch, "torch.utils.tensorboard", SummaryWriter=store.SummaryWriter)
    return store


def _plant(monkeypatch: pytest.MonkeyPatch, name: str, **parts: Any) -> None:
    module = ModuleType(name)
    vars(module).update(parts)
    monkeypatch.setitem(sys.modules, name, module)
