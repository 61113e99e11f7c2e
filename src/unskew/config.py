"""The settings of a run. A field of the dataclass has one name in Python, in YAML and on the command line.

Some settings are texts with a grammar, such as availability, metrics and secure_aggregation. Properties of
Settings have their values, so that each text is parsed once.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from annotated_types import Ge, Gt, Le, Lt

from unskew import measures, scores
from unskew.errors import StateError, UsageError, excerpt, suggestion
from unskew.formats import arguments, calls, documents, specs
from unskew.models import hf_folder
from unskew.system import python_files

if TYPE_CHECKING:
    from unskew.data.clients.availability import Availability
    from unskew.privacy.secure_aggregation import SecureAggregation

TRACKERS = {
    "tensorboard": "tensorboard",
    "mlflow": "mlflow-skinny",
    "wandb": "wandb",
}
"""The package that each tracker needs, by the name under which it is imported."""


LOSSES = ("auto", "ce", "dice", "ce+dice", "mse", "mae")


def _canonical(key: str, value: Any, where: str) -> Any:
    """The value in its canonical spelling. where: the place of the key for messages, such as " at line 3".

    Raises UsageError: E109 for an invalid text, E126 for an unknown measure or metric.
    """
    match key:
        case "track":
            specs.names_in(str(value), list(TRACKERS), f"track{where}")
        case "metrics":
            return ",".join(scores.metric_names(str(value), where)) or scores.NONE
        case "measure":
            try:
                return measures.measures_text(measures.names_in(str(value)))
            except KeyError as unknown:
                name, known = str(unknown.args[0]), ", ".join(measures.NAMES)
                near = suggestion(name, measures.NAMES)
                text = f"unknown measure '{name}'{where}.{near} Measures: {known}."
                raise UsageError("E126", text) from None
        case "loss":
            if (text := str(value)) not in LOSSES and not python_files.names_function(text):
                known = f"Losses: {', '.join(LOSSES)}; your own is written file.py:function."
                near = suggestion(text, LOSSES)
                raise UsageError("E109", f"unknown loss {excerpt(text)}{where}.{near} {known}")
        case "class_weights":
            return _canonical_weights(str(value), where)
        case "secure_aggregation":
            from unskew.privacy import secure_aggregation

            try:
                secure_aggregation.parse(str(value))
            except UsageError as error:
                raise UsageError(error.code, error.text.replace(key, f"{key}{where}", 1)) from None
    return value


def _canonical_weights(text: str, where: str) -> str:
    """The setting `class_weights`: none, balanced, or numbers joined by commas."""
    if text in ("none", "balanced"):
        return text
    try:
        weights = [float(number) for number in text.strip("[]").split(",")]
    except ValueError:
        weights = []
    if not any(weights) or not all(0 <= weight < math.inf for weight in weights):
        expected = "none, balanced or a number of at least 0 for each class, such as [1, 5]"
        raise UsageError("E109", f"class_weights{where} should be {expected}, got {excerpt(text)}.")
    return ",".join(map(str, weights))


Positive = Annotated[int, Gt(0)]
WholeNumber = Annotated[int, Ge(0)]


OPTIONS = (
    *("data", "skew", "clients", "samples", "availability", "rounds", "epochs", "batch", "lr", "model"),
    *("metrics", "secure_aggregation", "seed", "workers", "device"),
)
"""The settings that are options of their own on the command line; the others are written --set NAME=VALUE."""


@dataclass(frozen=True)
class Settings:
    """Everything that determines a run: equal settings, data and code give the same bits on one machine.

    The annotations are the single source of the range checks, of `--help` and of the documentation.
    """

    method: Annotated[
        str,
        "Parts joined by +, with arguments in brackets: fedprox(mu=0.01)+fedrdn; file.py is a Part of"
        " your own",
    ] = "fedavg"
    data: Annotated[
        str,
        "a data set by name, or the path of a folder or of an .npz, .npy, .csv or .parquet file: see"
        " docs/data.md",
    ] = "digits"
    skew: Annotated[
        str,
        "how data are split among clients: iid, dirichlet:A, classes:Q, pathological:CxM, domain or"
        " column:NAME",
    ] = "dirichlet:0.1"
    clients: Annotated[int, Gt(0), "number of clients (ignored with skew domain or column)"] = 20
    samples: Annotated[
        Positive | None, "training samples per client on average; all there are if left out"
    ] = None
    test_samples: Annotated[
        Positive | None,
        "most test samples that are scored, drawn from every class in proportion; all there are if left out",
    ] = None
    availability: Annotated[
        str,
        "which clients answer: full, sample:F, poisson:P, bernoulli:P, persistent:PxT, clustered:P-P or"
        " trace:FILE; add ,drop:P",
    ] = "full"
    rounds: Annotated[int, Gt(0), "number of rounds"] = 50
    epochs: Annotated[int, Gt(0), "local epochs per round"] = 5
    first_epochs: Annotated[int, Ge(0), "local epochs of round 1; 0: as many as in the others"] = 0
    batch: Annotated[int, Gt(0), "samples per local batch"] = 32
    optimiser: Annotated[
        Literal["sgd", "adam", "adamw", "sign"],
        "local optimiser, reset every round; adamw: Adam with decoupled weight decay; sign: Adam, reset at"
        " every step",
    ] = "sgd"
    lr: Annotated[float, Gt(0), "local learning rate"] = 0.05
    lr_decay: Annotated[float, Gt(0), Le(1), "factor on the learning rate after every round"] = 1.0
    lr_min: Annotated[float, Ge(0), "lower bound of the learning rate"] = 0.0
    lr_rounds: Annotated[
        float,
        Ge(0),
        "rounds in which the learning rate falls evenly from lr to lr_min, instead of by lr_decay; 0: by"
        " lr_decay",
    ] = 0.0
    momentum: Annotated[float, Ge(0), Le(0.9999), "momentum of local SGD; other optimisers have none"] = 0.0
    weight_decay: Annotated[
        float, Ge(0), "L2 penalty, added to the gradient (adamw: weights shrink by the rate times this)"
    ] = 0.0
    loss: Annotated[
        str,
        "what clients minimise: ce, dice, ce+dice, mse, mae, or file.py:function, one of your own; auto: ce,"
        " ce+dice where samples have masks, mse where they have a number to predict, binary cross-entropy"
        " where they have several labels",
    ] = "auto"
    class_weights: Annotated[
        str,
        "weights of the classes in the loss: balanced (in inverse proportion to their training samples), or a"
        " number for each",
    ] = "none"
    drop_last: Annotated[bool, "skip the last batch of an epoch if it is smaller than the others"] = False
    model: Annotated[str, "a model by name, or file.py:function(input_shape, classes)"] = "auto"
    weighting: Annotated[
        Literal["auto", "equal"],
        "how the merge weighs clients; auto: as the method does, by training samples unless it says"
        " otherwise",
    ] = "auto"
    cap: Annotated[
        float, Gt(0), Le(1), "most weight of one client in the merge, as a part of the whole; 1: no bound"
    ] = 1.0
    secure_aggregation: Annotated[
        str,
        "off, or on: the server sees only sums over at least 3 clients of what they send; more in"
        " docs/privacy.md: on,clip=8,bits=32,threshold=0.8",
    ] = "off"
    normalise: Annotated[
        Literal["auto", "dataset", "none"],
        "standardise inputs by the data set's constants, or by the mean and standard deviation of your"
        " training samples; auto: your own only if they are unscaled, and none if a Part of the method scales"
        " inputs itself",
    ] = "auto"
    seed: Annotated[int, Ge(0), "seed of the initial weights, the cohorts, the batches and the noise"] = 0
    partition_seed: Annotated[WholeNumber | None, "seed of the partition; the same as seed if left out"] = (
        None
    )
    eval_every: Annotated[
        int, Gt(0), "rounds from one evaluation to the next; the last round is always evaluated"
    ] = 1
    validation: Annotated[
        float,
        Ge(0),
        Lt(1),
        "hold out this share of the training samples and score on it instead of the test set, for choosing"
        " settings",
    ] = 0.0
    patience: Annotated[
        int,
        Ge(0),
        "end the run when its main score has not risen for so many rounds; 0: never. See docs/callbacks.md",
    ] = 0
    keep_best: Annotated[
        bool, "also keep the model of the round with the best main score, best.safetensors"
    ] = False
    track: Annotated[
        str,
        "also hand every score to trackers, joined by commas: tensorboard, mlflow, wandb (offline)",
    ] = "none"
    measure: Annotated[
        str, f"what to measure beside scores, joined by commas: {', '.join(measures.NAMES)}"
    ] = measures.NONE
    metrics: Annotated[
        str,
        f"scores beside the main one, joined by commas: {', '.join(scores.METRICS)}; file.py:function is your"
        " own. See docs/metrics.md",
    ] = scores.NONE
    lanes: Annotated[
        str, "how many clients to train side by side on one core: auto, 1 or a larger number"
    ] = "auto"
    workers: Annotated[int, Ge(0), "threads, one core each; 0: all cores"] = 0
    device: Annotated[str, "auto, cpu, cuda (the first GPU) or cuda:1"] = "auto"
    precision: Annotated[
        Literal["float32", "tf32"],
        "tf32: a GPU's products and convolutions keep 10 of the factors' 23 bits, which is faster on recent"
        " ones",
    ] = "float32"
    set: Annotated[dict[str, dict[str, Any]], "arguments of Parts, such as {flea: {alpha: 0.1}}"] = field(
        default_factory=dict
    )

    def as_dict(self) -> dict[str, Any]:
        """Every setting by name, as plain values for YAML."""
        return dataclasses.asdict(self)

    def replace(self, **changes: Any) -> Settings:
        """A copy with changes. Raises UsageError as `build` does."""
        return build({**self.as_dict(), **changes})

    @cached_property
    def attendance(self) -> Availability:
        """The setting `availability` as a value. Raises UsageError (E111, E124) and DataError (E124) as
        `Availability.parse` does."""
        from unskew.data.clients.availability import Availability

        return Availability.parse(self.availability)

    @cached_property
    def secure(self) -> SecureAggregation | None:
        """The setting `secure_aggregation` as a value; None where the server sees every reply."""
        from unskew.privacy import secure_aggregation

        return secure_aggregation.parse(self.secure_aggregation)

    @cached_property
    def metric_names(self) -> tuple[str, ...]:
        """The names in the setting `metrics`."""
        return scores.metric_names(self.metrics)

    @cached_property
    def model_file(self) -> str:
        """The Python file in the setting `model`; "" if it names none. Raises UsageError (E104) for a text
        that cannot be parsed."""
        given = self.model == python_files.GIVEN_OBJECT
        return "" if given else calls.parse(self.model, "model", "E104").file

    @cached_property
    def trackers(self) -> tuple[str, ...]:
        """The names in the setting `track`."""
        return specs.names_in(self.track, list(TRACKERS), "track")

    @cached_property
    def fixed_lanes(self) -> int | None:
        """The setting `lanes` as a number; None for `auto`. Raises UsageError (E109) for another text."""
        if self.lanes == "auto":
            return None
        if not re.fullmatch("[1-9][0-9]{0,4}", self.lanes):
            text = f"lanes should be auto or a whole number from 1 to 99999, got {excerpt(self.lanes)}."
            raise UsageError("E109", text)
        return int(self.lanes)

    @property
    def seed_of_partition(self) -> int:
        """The seed of the partition."""
        return self.seed if self.partition_seed is None else self.partition_seed

    def epochs_in(self, t: int) -> int:
        """The local epochs of round t."""
        return self.first_epochs if t == 1 and self.first_epochs else self.epochs

    @property
    def passes(self) -> int:
        """The local epochs of all rounds together, for a client that answers in every round."""
        return self.epochs_in(1) + self.epochs * (self.rounds - 1)

    def lr_in(self, t: int) -> float:
        """The learning rate of round t; before round 1 that of round 1."""
        later = max(t, 1) - 1
        if self.lr_rounds:
            return max(self.lr - (self.lr - self.lr_min) * min(1.0, later / self.lr_rounds), self.lr_min)
        return max(self.lr * self.lr_decay**later, self.lr_min)

    def files(self) -> dict[str, str]:
        """Digests of the user's files that the settings name (Parts, model or its folder, loss, metrics,
        trace) and of the user's modules that they import, by file."""
        digests = python_files.digests_with_imports(self.method, self.model, self.loss, *self.metric_names)
        availability = specs.parse(self.availability, "availability", "E124")
        if availability.kind == "trace" and (trace := Path(str(availability.value)).expanduser()).is_file():
            digests[str(availability.value)] = python_files.digest(trace)
        return digests | hf_folder.digests(self.model)

    def code(self) -> dict[str, list[str]]:
        """The Python files in the settings method, model, loss and metrics, by setting."""
        files = [name.rpartition(":")[0] for name in self.metric_names]
        by_setting = {
            "method": [call.file for call in calls.parse_sum(self.method) if call.file],
            "model": [file for file in [self.model_file] if file],
            "loss": [file for file in [self.loss.rpartition(":")[0]] if file.endswith(".py")],
            "metrics": [file for file in files if file.endswith(".py")],
        }
        return {name: named for name, named in by_setting.items() if named}

    def check_code(self) -> None:
        """Check the Python files before another process imports them. Raises UsageError (E506) for a file
        that only a document names."""
        for files in self.code().values():
            for file in files:
                python_files.check_named(file)

    def files_of_metrics(self) -> set[str]:
        """The files that only the metrics need, which cannot change any weight."""
        return {*python_files.digests_with_imports(*self.metric_names)} - {
            *python_files.digests_with_imports(self.method, self.model, self.loss)
        }

    def fingerprint(self) -> str:
        """16 hexadecimal digits that are equal for runs that must give equal bits.

        Settings that change no bit are ignored. Settings of LATER count only with a value other than the
        default, so that older runs keep their fingerprints. The content of the user's files counts.
        """
        left_out = {*NO_EFFECT, *(name for name in LATER if getattr(self, name) == FIELDS[name].default)}
        counted: dict[str, Any] = {
            name: value for name, value in self.as_dict().items() if name not in left_out
        }
        counted |= {"code": files} if (files := self.files()) else {}
        return hashlib.sha256(json.dumps(counted, sort_keys=True).encode()).hexdigest()[:16]


class CompareOptions(TypedDict, total=False):
    """The settings that `compare` takes as further keywords, for editors and type checkers; their meanings
    are those of Settings."""

    skew: str
    clients: int
    samples: int | None
    test_samples: int | None
    availability: str
    rounds: int
    epochs: int
    first_epochs: int
    batch: int
    optimiser: Literal["sgd", "adam", "adamw", "sign"]
    lr: float
    lr_decay: float
    lr_min: float
    lr_rounds: float
    momentum: float
    weight_decay: float
    class_weights: str | Sequence[float]
    drop_last: bool
    weighting: Literal["auto", "equal"]
    cap: float
    secure_aggregation: str | bool
    normalise: Literal["auto", "dataset", "none"]
    partition_seed: int | None
    eval_every: int
    validation: float
    patience: int
    keep_best: bool
    track: str
    measure: str
    lanes: str | int
    workers: int
    device: str
    precision: Literal["float32", "tf32"]
    set: dict[str, dict[str, Any]]


class RunOptions(CompareOptions, total=False):
    """The settings that `run` takes as further keywords."""

    seed: int


FIELDS = {f.name: f for f in dataclasses.fields(Settings)}
NO_EFFECT = ("workers", "device", "keep_best", "track")
"""Settings that change no bit."""
LATER = (
    "measure",
    "test_samples",
    "validation",
    "weighting",
    "cap",
    "secure_aggregation",
    "first_epochs",
    "lr_rounds",
    "patience",
    "metrics",
    "class_weights",
)
"""Settings that were added later; their defaults change nothing."""
SYNONYMS = {
    "learning_rate": "lr",
    "optimizer": "optimiser",
    "batch_size": "batch",
    "local_epochs": "epochs",
    "dataset": "data",
    "n_clients": "clients",
    "num_clients": "clients",
    "n_rounds": "rounds",
    "num_rounds": "rounds",
    "partition": "skew",
    "algorithm": "method",
    "strategy": "method",
    "participation": "availability",
    "random_seed": "seed",
    "net": "model",
}
"""The names of settings in other libraries, and here."""


def from_dict(values: Mapping[str, Any]) -> Settings:
    """The settings of which `Settings.as_dict` made these values, in a message or in somebody else's file.

    In contrast to `build`, no file that they name is looked at. Raises UsageError as `build` does.
    """
    return build({"skew": Settings.skew, **values})


def build(values: Mapping[str, Any], lines: Mapping[str, int] | None = None) -> Settings:
    """Settings from keys and values, with defaults for the rest. lines: the line of each key in a file, for
    messages.

    Raises UsageError: E109 for an unknown key or a value of the wrong type or out of range, E126 for
    an unknown measure, E126 for an unknown metric.
    """
    from unskew.data.registry import divided_by

    converted: dict[str, Any] = {}
    data = values.get("data")
    if "skew" not in values and isinstance(data, str) and (column := divided_by(data)):
        converted["skew"] = (
            f"column:{column}"  # of a table with a site column, or a folder of the sites' tables
        )
    for key, value in values.items():
        where = f" at line {lines[key]}" if lines and key in lines else ""
        if key not in FIELDS:
            near = difflib.get_close_matches(str(key), [*FIELDS, *SYNONYMS], n=1, cutoff=0.6)
            meant = f" Did you mean '{SYNONYMS.get(near[0], near[0])}'?" if near else ""
            raise UsageError("E109", f"unknown key {excerpt(key)}{where}.{meant}")
        converted[key] = _convert(key, value, where)
    settings = Settings(**converted)
    if settings.lr_rounds and settings.lr_decay != 1:
        raise UsageError(
            "E109", "lr_rounds and lr_decay are two ways to lower the learning rate; give one of them."
        )
    if (low := settings.lr_min) > settings.lr:
        raise UsageError(
            "E109", f"lr_min={low:g} is above lr={settings.lr:g}, and would replace it; lower lr_min."
        )
    if settings.momentum and settings.optimiser != "sgd":
        raise UsageError(
            "E109", f"momentum is that of optimiser=sgd; {settings.optimiser} has none, so leave it out."
        )
    return settings


def _convert(key: str, value: Any, where: str) -> Any:
    """The value in the setting's type. YAML reads a bare on or off as true or false, and names may be a
    list."""
    if key == "set" and not (isinstance(value, dict) and all(isinstance(v, dict) for v in value.values())):
        text = f"set{where} must hold arguments by Part, such as {{flea: {{alpha: 0.1}}}}"
        raise UsageError("E109", f"{text}; got {excerpt(value)}.")
    if key == "secure_aggregation" and isinstance(value, bool):
        value = "on" if value else "off"
    if key in ("metrics", "class_weights") and isinstance(value, list | tuple):
        value = ",".join(map(str, value))
    if key == "lanes" and type(value) is int and abs(value) < 10**6:
        value = str(value)
    try:
        converted = _ARGUMENTS[key].convert(value)
    except ValueError as error:
        raise UsageError("E109", str(error).replace(key, f"{key}{where}", 1)) from None
    return _canonical(key, converted, where)


_ARGUMENTS = {argument.name: argument for argument in arguments.of(Settings)}


ON_SITES = {"cap": 0.5}
"""Settings with other defaults on real sites: a site's claimed sample count must not outweigh all others."""


def load(path: Path) -> Settings:
    """Settings from a YAML file. Raises UsageError as `build` does, with the line, and E111 for an unreadable
    file."""
    return _read(path)[0]


def load_partial(path: Path) -> dict[str, Any]:
    """The settings in a YAML file without defaults. Raises UsageError as `load` does."""
    return _read(path)[1]


def _read(path: Path) -> tuple[Settings, dict[str, Any]]:
    text = documents.text_of(Path(path))
    values = documents.load(text, str(path), "E111") or {}
    if not isinstance(values, dict):
        raise UsageError("E111", f"{path} must hold keys and values, such as `rounds: 50`.")
    return build(values, documents.lines_of(text)), values


def dump(settings: Settings) -> str:
    """The settings as YAML, for `load`."""
    return documents.dump(settings.as_dict())


def resume_command(path: Path, *runs: Settings) -> str:
    """The command that resumes the run or comparison in a folder. runs: its settings, because the command
    must name their Python files."""
    named = dict.fromkeys((name, str(getattr(run, name))) for run in runs for name in run.code())
    return shlex.join(
        ["unskew", "resume", str(path), *(word for name, text in named for word in (f"--{name}", text))]
    )


def check_same(before: Settings, now: Settings, folder: Path) -> None:
    """Check that a folder's run has the requested settings, except for those that change no bit.

    Raises StateError (E112) with every setting that differs.
    """
    if before.fingerprint() == now.fingerprint():
        return
    old, new = before.as_dict(), now.as_dict()
    differences = ", ".join(
        f"{name} was {old[name]!r}, is {new[name]!r} now"
        for name in old
        if old[name] != new[name] and name not in NO_EFFECT
    )
    remedy = "Choose another --name, or resume it with its own settings."
    raise StateError("E112", f"{folder} holds another run: {differences}. {remedy}")
