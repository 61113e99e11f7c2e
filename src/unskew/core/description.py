"""A Part's settings, which are checked when it is made, and its description for lists and reports."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import fields
from types import FunctionType
from typing import Any, ClassVar, Literal, Self

import numpy as np
from torch import Tensor

from unskew.core.user_parts import check_frozen
from unskew.errors import UsageError
from unskew.formats import arguments, calls

MEMORY_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
"""The memory address in Python's text of an object, which differs between processes."""


class Configured:
    """A frozen dataclass with checked settings, and its text as users write it."""

    name: ClassVar[str] = ""
    """The method's name: users ask for the Part by it, and its trees are stored under it."""
    spelling: ClassVar[str] = ""
    """For a user's own Part, how the command line refers to it: `file.py` or `file.py:Class`; else empty."""

    def __new__(cls, *_values: Any, **settings: Any) -> Self:
        """Raises UsageError: E102 for a setting that the class does not have, E121 for a class that is not a
        frozen dataclass."""
        check_frozen(cls)
        known = inspect.signature(cls.__init__).parameters
        unknown = {name: value for name, value in settings.items() if name not in known}
        if unknown and not any(p.kind is p.VAR_KEYWORD for p in known.values()):
            arguments.check(cls, unknown, cls.__name__, "E102")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        """Check every setting against its annotation and convert it to its type, as the command line does.

        Raises UsageError (E102) for a value outside its range, and for a setting that has no effect without
        another one (`With`). A subclass that checks more, such as how two settings go together, calls this
        first.
        """
        settings = {f.name: getattr(self, f.name) for f in fields(self) if f.init}  # type: ignore[arg-type]
        for name, value in arguments.check(type(self), settings, type(self).__name__, "E102").items():
            object.__setattr__(self, name, value)
        if reason := arguments.ineffective(type(self), {name: getattr(self, name) for name in settings}):
            raise UsageError("E102", f"{type(self).__name__}: {reason}")

    def __str__(self) -> str:
        """The Part as users write it, with the settings that differ from the defaults: `fedprox(mu=0.1)`."""
        settings = [
            f"{f.name}={_setting_text(getattr(self, f.name))}"
            for f in fields(self)  # type: ignore[arg-type]
            if f.init and not _is_default(getattr(self, f.name), arguments.default_of(f))
        ]
        return (self.spelling or self.name) + (f"({', '.join(settings)})" if settings else "")


def _is_default(value: Any, default: Any) -> bool:
    """Whether a setting has its default. An array, which does not compare as a whole, counts as set."""
    try:
        return value is default or bool(value == default)
    except (ValueError, RuntimeError, TypeError):
        return False


def _setting_text(value: Any) -> str:
    """A setting's value on one line, equal in every process: the shape of a tensor, the name of a function.
    Their content enters the digest that identifies a Part made in Python."""
    if isinstance(value, Tensor | np.ndarray):
        return f"{type(value).__name__.lower()} {list(value.shape)}"
    if isinstance(value, FunctionType):
        return value.__name__
    return calls.value_text(value) if isinstance(value, str) else MEMORY_ADDRESS.sub("", str(value))


Skew = Literal["labels", "features", "scarcity", "absence"]
"""A difficulty of federations: clients differ in their labels or in what their inputs look like, have few
samples, or often miss rounds."""

Family = Literal[
    "",
    "data",
    "steps",
    "classifier",
    "representation",
    "distillation",
    "merge",
    "robust",
    "fairness",
    "personalised",
    "clusters",
    "compression",
    "privacy",
    "reference",
]
"""What a method changes (the training data, the local steps, the classifier, the features, the merge) or
does: it teaches by outputs (distillation), tolerates malicious clients (robust), helps the clients with the
worst scores (fairness), gives each client (personalised) or each group of clients (clusters) a model, sends
less (compression), or limits what can be learnt from what is sent (privacy). References are for comparison.
"": the Part does not say."""


class Description(Configured):
    """Attributes of a Part for lists, reports, tuning and checks; they do not affect training."""

    use_when: ClassVar[str] = ""
    """One sentence for the method's page: when to use it."""
    family: ClassVar[Family] = ""
    """The kind of method to which it belongs."""
    against: ClassVar[tuple[Skew, ...]] = ()
    """The difficulties that it addresses; empty for all of them, or for something else."""
    needs: ClassVar[str] = ""
    """What it needs of labels that some tasks do not have, such as "class counts", for the refusal."""
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = {}
    """Other names of this Part, each with its settings: {"rbsm": {"mu": 0.0}}."""
    neutral: ClassVar[Mapping[str, object]] = {}
    """Settings with which the Part changes nothing; `unskew check` verifies that."""
    untuned: ClassVar[Mapping[str, str]] = {}
    """Settings that a search must not change, each with the reason, as a sentence without its full stop:
    {"share": "it decides how much leaves a client"}."""
    first_stage: ClassVar[str] = ""
    """The setting that says when a second stage begins: after this share of the rounds (a float, pFedSim) or
    this number of rounds (an int, CFL). A run that ends early may never reach the second stage."""

    def first_rounds(self, rounds: int) -> int:
        """The number of rounds in the first stage of a run of `rounds`; 0 for a Part with one stage."""
        first = getattr(self, self.first_stage) if self.first_stage else 0
        return first if isinstance(first, int) else round(first * rounds)

    def has_schedule(self) -> bool:
        """Whether its hooks read the number of rounds (`Fed.rounds`), so that a run cannot be continued to
        more rounds. By default where a first stage is a share of the rounds."""
        return self.first_rounds(1_000) != self.first_rounds(2_000)
