"""Settings of a run. The dataclass is the configuration: a field has the same name in Python, YAML and on the command line."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt

from unskew import documents, measures, own
from unskew.errors import StateError, UsageError, suggestion

Positive = Annotated[int, Gt(0)]
Whole = Annotated[int, Ge(0)]
NotNegative = Annotated[float, Ge(0)]
Share = Annotated[float, Ge(0), Le(1)]


def _field(default: Any, help: str) -> Any:
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata={"help": help})
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class Settings:
    """Everything that determines a run. Equal settings, data and code give equal bits on one machine."""

    method: str = _field(
        "fedavg", "Parts joined by +, arguments in brackets: fedprox(mu=0.01)+fedrdn; a Part of your own is file.py"
    )
    data: str = _field("digits", "a named set, or a path to an .npz file or a folder of class folders")
    skew: str = _field(
        "dirichlet:0.1", "how data are dealt out: iid, dirichlet:A, classes:Q, pathological:CxM, domain, column:NAME"
    )
    clients: Positive = _field(20, "number of clients (ignored by domain and column)")
    samples: Positive | None = _field(None, "training samples per client on average; default: all there are")
    availability: str = _field(
        "full", "who answers: full, sample:F, bernoulli:P, persistent:PxT, clustered:P-P, trace:FILE; add ,drop:P"
    )
    rounds: Positive = _field(50, "rounds")
    epochs: Positive = _field(5, "local epochs")
    batch: Positive = _field(32, "local batch size")
    optimiser: Literal["sgd", "adam", "sign"] = _field(
        "sgd", "local optimiser, fresh in every round; sign: Adam fresh at every step"
    )
    lr: Annotated[float, Gt(0)] = _field(0.05, "local learning rate")
    lr_decay: Annotated[float, Gt(0), Le(1)] = _field(1.0, "factor on the learning rate per round")
    lr_min: NotNegative = _field(0.0, "the learning rate does not fall below this")
    momentum: Annotated[float, Ge(0), Le(0.9999)] = _field(0.0, "momentum of local SGD")
    weight_decay: NotNegative = _field(0.0, "L2 penalty, added to the gradient")
    loss: Literal["auto", "ce", "dice", "ce+dice"] = _field(
        "auto", "what clients minimise; auto: ce, or ce+dice for masks"
    )
    drop_last: bool = _field(False, "leave out an epoch's short last batch")
    model: str = _field("auto", "a model by name, or file.py:function(input_shape, classes)")
    normalise: Literal["auto", "dataset", "none"] = _field(
        "auto", "standardise inputs by the data set's constants; auto: unless a Part does"
    )
    seed: Whole = _field(0, "seed of initialisation, cohorts, batches and noise")
    partition_seed: Whole | None = _field(None, "seed of the partition; default: seed")
    eval_every: Positive = _field(1, "evaluate every so many rounds (and after the last)")
    validation: Annotated[float, Ge(0), Lt(1)] = _field(
        0.0, "score on this share of the training samples, held out, and never on the test set: for choosing settings"
    )
    measure: str = _field("none", f"what to measure beside scores, joined by commas: {', '.join(measures.NAMES)}")
    lanes: str = _field("auto", "clients side by side: auto, 1, or the most")
    workers: Whole = _field(0, "threads, one core each; 0: all cores")
    device: str = _field("auto", "auto, cpu, cuda, cuda:1")
    set: dict[str, dict[str, Any]] = _field({}, "arguments of Parts: {flea: {alpha: 0.1}}")

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def replace(self, **changes: Any) -> Settings:
        return build({**self.as_dict(), **changes})

    @property
    def seed_of_partition(self) -> int:
        return self.seed if self.partition_seed is None else self.partition_seed

    def fingerprint(self) -> str:
        """Equal for runs that must give equal bits; where and how fast a run computes is left out.

        So are `measure` and `validation` where nothing is asked of them: what was run before keeps its name. What a
        file of a user's own holds counts, where the method or the model is in one.
        """
        left_out = {"workers", "device"} | ({"measure"} if self.measure == measures.NONE else set())
        left_out |= set() if self.validation else {"validation"}
        kept = {n: v for n, v in self.as_dict().items() if n not in left_out}
        if code := own.digests(self.method, self.model):
            kept["code"] = code
        return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]


FIELDS = {f.name: f for f in dataclasses.fields(Settings)}


MEANT = {
    "learning_rate": "lr", "optimizer": "optimiser", "batch_size": "batch", "local_epochs": "epochs", "dataset": "data",
    "n_clients": "clients", "num_clients": "clients", "n_rounds": "rounds", "num_rounds": "rounds", "partition": "skew",
    "algorithm": "method", "strategy": "method", "participation": "availability", "random_seed": "seed", "net": "model",
}  # fmt: skip
"""What a setting is called elsewhere, and here."""


def meant(key: str) -> str:
    """' Did you mean 'lr'?' for a key that is no setting, also where it is misspelt and called so elsewhere; else ''."""
    near = difflib.get_close_matches(key, [*FIELDS, *MEANT], n=1, cutoff=0.6)
    return f" Did you mean '{MEANT.get(near[0], near[0])}'?" if near else ""


def build(values: dict[str, Any], lines: dict[str, int] | None = None) -> Settings:
    """Settings from a mapping. Raises UsageError: E101 for an unknown key, E109 for a value that does not fit."""
    from pydantic import TypeAdapter, ValidationError

    def where(key: str) -> str:
        return f" at line {lines[key]}" if lines and key in lines else ""

    for key in values:
        if key not in FIELDS:
            raise UsageError("E101", f"unknown key '{key}'{where(key)}.{meant(key)}")
    try:
        return _measuring(TypeAdapter(Settings).validate_python(values), where("measure"))
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        message = documents.in_words(first["msg"].removeprefix("Input should be "))
        raise UsageError("E109", f"{key}{where(key)} should be {message}, got {values.get(key)!r}.") from None


def _measuring(made: Settings, where: str) -> Settings:
    """The same, with its measures in one spelling. Raises UsageError (E130) for one that does not exist."""
    try:
        return dataclasses.replace(made, measure=measures.written(measures.names_in(made.measure)))
    except KeyError as unknown:
        name, known = str(unknown.args[0]), ", ".join(measures.NAMES)
        near = suggestion(name, measures.NAMES)
        raise UsageError("E130", f"unknown measure '{name}'{where}.{near} Measures: {known}.") from None


def load(path: Path) -> Settings:
    """Settings from a YAML file; errors name the line."""
    return build(given(path), _lines(path))


def given(path: Path) -> dict[str, Any]:
    """The keys and values a YAML file sets, checked; what it leaves out is left out."""
    values = documents.load(documents.text_of(Path(path)), str(path), "E111") or {}
    if not isinstance(values, dict):
        raise UsageError("E111", f"{path} must hold keys and values, like `rounds: 50`.")
    build(values, _lines(path))
    return values


def _lines(path: Path) -> dict[str, int]:
    import yaml

    node = yaml.compose(Path(path).read_text(), Loader=yaml.SafeLoader)
    return {k.value: k.start_mark.line + 1 for k, _ in node.value} if node is not None else {}


def dump(settings: Settings) -> str:
    import yaml

    return yaml.safe_dump(settings.as_dict(), sort_keys=False)


def check_same(before: Settings, now: Settings, folder: Path) -> None:
    """Raises StateError (E112), naming every changed field, unless both must give the same bits."""
    if before.fingerprint() == now.fingerprint():
        return
    old, new = before.as_dict(), now.as_dict()
    changed = ", ".join(
        f"{n} was {old[n]!r}, is {new[n]!r} now" for n in old if old[n] != new[n] and n not in ("workers", "device")
    )
    raise StateError("E112", f"{folder} holds another run: {changed}. Choose another --name, or resume it as it was.")
