"""How the settings to try are chosen from a grid: in random order, or by Optuna."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from unskew.errors import UsageError

Point = dict[str, Any]
"""One value for everything that is tuned, by name."""
Space = Mapping[str, Sequence[Any]]
"""The values to choose from, by name."""


class Sampler(Protocol):
    """Proposes points and is told the score of each."""

    def ask(self) -> Point | None:
        """The next point to try; None once every point of the grid has been proposed."""
        ...

    def tell(self, point: Point, score: float) -> None:
        """Report the score of a point that was proposed; higher is better."""
        ...


class Shuffled:
    """The whole grid in a random order that never changes, beginning with the table's own setting."""

    def __init__(self, space: Space, first: Point):
        points = [dict(zip(space, values)) for values in itertools.product(*space.values())]
        order = np.random.default_rng(0).permutation(len(points))
        self._remaining = [first, *(points[i] for i in order if points[i] != first)]

    def ask(self) -> Point | None:
        return self._remaining.pop(0) if self._remaining else None

    def tell(self, point: Point, score: float) -> None:
        pass


class Parzen:
    """Optuna's tree-structured Parzen estimator (Bergstra et al., NeurIPS 2011) on the same grid and first point."""

    def __init__(self, space: Space, first: Point):
        try:
            import optuna  # pyright: ignore[reportMissingImports]  (an extra: unskew[sweep])
        except ImportError as error:
            raise UsageError("E109", "the sampler tpe needs Optuna: pip install 'unskew[sweep]'.") from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._space = space
        self._open: dict[tuple[tuple[str, Any], ...], Any] = {}
        self._study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
        self._study.enqueue_trial(first)

    def ask(self) -> Point | None:
        trial = self._study.ask()
        point = {name: trial.suggest_categorical(name, list(values)) for name, values in self._space.items()}
        self._open[tuple(point.items())] = trial
        return point

    def tell(self, point: Point, score: float) -> None:
        self._study.tell(self._open.pop(tuple(point.items())), score)


SAMPLERS: dict[str, Callable[[Space, Point], Sampler]] = {"random": Shuffled, "tpe": Parzen}
"""By the name that the option `sampler` takes."""
