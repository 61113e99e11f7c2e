"""An attack: its settings, its adversary, the runs that it fits, one attempt, and its scores; and how attacks
are made by name: attempts with all seeds, pooled scores, and the stored finding.

Each score has a floor (without the payload) and a ceiling (with the raw input).
"""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np

from unskew.attacks import registry
from unskew.attacks.target_run import NO_CODE, TargetRun
from unskew.core.module_inputs import TableExposure
from unskew.errors import UsageError
from unskew.formats import arguments
from unskew.formats.setting_ranges import Count
from unskew.records import schema
from unskew.runs.reopen import UserCode
from unskew.system.machine import one_core
from unskew.version import revision


@dataclass(frozen=True)
class Score:
    """A number that measures the success of an attack.

    payload: the attacked payload by its name in the ledger ("w", "flea/features"). of: its sender, and the
    attacker. metric: the name of the quantity. value: mean over seeds. low, high: the 95 % interval, over
    samples for one seed, else over seeds. floor: the value without the payload. ceiling: the value with the
    raw input as payload. n: samples per seed. main: whether it represents the attack in tables with one
    number per attack.
    """

    payload: str
    of: str
    metric: str
    value: float
    low: float
    high: float
    floor: float
    ceiling: float
    n: int
    main: bool = False

    @property
    def doubt(self) -> str:
        """A reason to distrust the attack: it exceeds its ceiling or floor by more than chance; else ""."""
        up = 1 if self.ceiling >= self.floor else -1
        # twice the interval is hardly ever exceeded by chance
        reach = 2 * max(self.high - self.value, self.value - self.low, 0.0)
        if up * self.value - reach > up * self.ceiling + 1e-9:
            return f"{self.of}: {self.metric} beats its ceiling, which raw inputs give"
        if up * self.value + reach < up * self.floor - 1e-9:
            return f"{self.of}: {self.metric} is worse than its floor, which no payload at all gives"
        return ""

    def as_json(self) -> dict[str, Any]:
        """The fields as JSON values; null for numbers that are not finite."""
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in asdict(self).items()
        }


@dataclass(frozen=True)
class Outcome:
    """The result of one attempt of an attack with one seed.

    auxiliary: a description of the attacker's own samples. pictures: image sheets by title, some empty.
    remarks: sentences without full stop on problems of the run or of the attack.
    """

    scores: tuple[Score, ...]
    auxiliary: str
    pictures: dict[str, Any] = field(default_factory=dict[str, Any])
    remarks: tuple[str, ...] = ()


def pool(attempts: Sequence[Outcome]) -> tuple[Score, ...]:
    """The means of scores over attempts; with several seeds, intervals are over these."""
    by_name: dict[tuple[str, str, str], list[Score]] = {}
    for attempt in attempts:
        for score in attempt.scores:
            by_name.setdefault((score.payload, score.of, score.metric), []).append(score)
    return tuple(_pool_scores(scores) for scores in by_name.values())


def _pool_scores(scores: Sequence[Score]) -> Score:
    first, k = scores[0], len(scores)
    if k == 1:
        return first
    values = np.array([s.value for s in scores])
    mean = float(values.mean())
    half = _student(k - 1) * float(values.std(ddof=1)) / math.sqrt(k)
    floor, ceiling = (float(np.mean([getattr(s, name) for s in scores])) for name in ("floor", "ceiling"))
    return replace(first, value=mean, low=mean - half, high=mean + half, floor=floor, ceiling=ceiling)


def mean_of(values: np.ndarray) -> tuple[float, float, float]:
    """(mean, low, high) of one value per sample, with Student's 95 % interval of the mean."""
    n, mean = len(values), float(values.mean())
    half = _student(n - 1) * float(values.std(ddof=1)) / math.sqrt(n) if n > 1 else math.nan
    return mean, mean - half, mean + half


def _student(freedom: int) -> float:
    """The half width of a 95 % interval in standard errors. freedom: degrees of freedom."""
    from scipy.stats import t  # which takes a second to import

    return float(t.ppf(0.975, freedom))


def share_of(hits: float, n: int) -> tuple[float, float, float]:
    """(share, low, high) of hits among n tries, with Wilson's 95 % interval; a tie counts as half a hit."""
    z, p = 1.96, hits / n
    middle, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return p, max(0.0, (middle - half) / (1 + z * z / n)), min(1.0, (middle + half) / (1 + z * z / n))


@dataclass(frozen=True)
class Attack:
    """A way to learn about the samples of clients from their payloads.

    A subclass is a frozen dataclass in a file of `attacks/kinds` with the name of the attack. Its fields are
    settings, each `Annotated` with range and meaning. READS in that file has the attacked payloads, by their
    names in the ledger.
    """

    samples: Annotated[Count, "the most samples that are attacked"] = 500
    name: ClassVar[str] = ""
    adversary: ClassVar[str] = ""
    """A description of the adversary: what it reads and knows."""
    asks: ClassVar[str] = ""
    """The question that the attack answers, for readers without knowledge of attacks."""
    alone: ClassVar[str] = ""
    """Why the attack runs only by name, as the end of a sentence; "" if it runs together with all others."""
    on_merged: ClassVar[bool] = False
    """Whether the merged model is enough, so that no round must be repeated."""
    quick: ClassVar[Mapping[str, object]] = {}
    """Settings for comparisons of many runs: it ends in seconds and attacks only payloads that were sent."""

    one_input: ClassVar[bool] = True
    """Whether samples must have one input, because the attack recovers or compares a sample as a whole."""
    lookups: ClassVar[Collection[TableExposure]] = ("", "kept", "sent")
    """The models that it fits, by whether they look up whole numbers and send the table."""

    def refuse(self, target: TargetRun) -> str | None:
        """Why the attack does not fit this run, as the end of a sentence; None if it fits. It is cheap."""
        raise NotImplementedError

    def attempt(self, target: TargetRun, seed: int) -> Outcome:
        """Attack the run. seed: of the attacker's random draws, not of the run."""
        raise NotImplementedError

    def __post_init__(self) -> None:
        """Check and convert every setting. Raises UsageError (E126)."""
        settings = {f.name: getattr(self, f.name) for f in fields(self)}
        for name, value in arguments.check(type(self), settings, f"attack '{self.name}'", "E126").items():
            object.__setattr__(self, name, value)

    def changed(self) -> dict[str, object]:
        """The settings that differ from their defaults."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}


Say = Callable[[str], None]
Settings = Mapping[str, object]


def perform(
    opening: Callable[[], TargetRun], name: str | None, settings: Settings, seeds: int, say: Say
) -> dict[str, dict[str, Any]]:
    """The finding of each attack by its name; each is written to the run's privacy.json at once.

    opening: opens the run after the attack and its settings were checked; the run is closed at the end.
    name: of the attack, or None for all that fit the run. settings: of the attack, or of all.
    say: receives a line for each attack that does not fit, and for each finding.
    Raises UsageError: E126 for an unknown attack or setting, E151 if no attack fits; and the errors of
    TargetRun.
    """
    attacks = [registry.attack_of(n, settings) for n in ([name] if name else registry.names())]
    with closing(opening()) as target:
        return {a.name: _stored_finding(target, a, seeds, say) for a in _fitting(target, attacks, say)}


def quick_attacks(path: Path, say: Say, code: UserCode = NO_CODE) -> None:
    """Run every attack that fits a run and has no finding in privacy.json, with its quick settings.

    code: as for a TargetRun. say: receives the reason if an attack fails; other attacks go on. Raises the
    errors of TargetRun.
    """
    done = schema.read_privacy(path).get(schema.ATTACKS, {})
    kinds = {name: registry.kind_of(name) for name in registry.names() if name not in done}
    left = [registry.attack_of(name, kind.quick) for name, kind in kinds.items() if not kind.alone]
    if not left:
        return
    with closing(TargetRun(path, code=code)) as target:
        for attack in left:
            if not _reason(target, attack, True):
                try:
                    _stored_finding(target, attack, 1, lambda _: None)
                except UsageError as reason:
                    say(f"{attack.name}: not measured; {reason}")


def finding_on(path: Path, code: UserCode, name: str, settings: Settings, say: Say) -> dict[str, Any]:
    """The finding of one attempt of an attack on the run in `path`, without writing to it.

    code: as for a TargetRun. Raises as `perform` does.
    """
    attack = registry.attack_of(name, settings)
    with closing(TargetRun(path, code=code)) as target:
        _fitting(target, [attack], say)
        return _finding(target, attack, 1, say)


def _fitting(target: TargetRun, attacks: Sequence[Attack], say: Say) -> list[Attack]:
    named = len(attacks) == 1
    reasons = {a.name: _reason(target, a, named) for a in attacks}
    fitting = [attack for attack in attacks if not reasons[attack.name]]
    if named and not fitting:
        text = f"attack '{attacks[0].name}' does not fit {target.path}: {reasons[attacks[0].name]}."
        raise UsageError("E151", text)
    for name, reason in reasons.items():
        if reason:
            say(f"{name}: left out, {reason}")
    if not fitting:
        raise UsageError("E151", f"no attack fits what the clients of {target.path} send.")
    return fitting


def _reason(target: TargetRun, attack: Attack, named: bool) -> str | None:
    """Why an attack does not run here, as the end of a sentence; None if it does."""
    if attack.alone and not named:
        return attack.alone
    if target.merged_only and not attack.on_merged:
        return (
            "it reads what single clients send, and only the merged model can be attacked, because"
            f" {target.merged_only}"
        )
    if target.federation.layout and attack.one_input:
        return "it recovers a sample as one input, and a sample here has several"
    return attack.refuse(target)


def _stored_finding(target: TargetRun, attack: Attack, seeds: int, say: Say) -> dict[str, Any]:
    finding = _finding(target, attack, seeds, say)
    with target.folder.locked():
        schema.put_attack(target.path, attack.name, finding)
    return finding


def _finding(target: TargetRun, attack: Attack, seeds: int, say: Say) -> dict[str, Any]:
    began = time.monotonic()
    with one_core():
        attempts = [attack.attempt(target, seed) for seed in range(seeds)]
    finding = finding_of(attack, attempts, command_of(target.words(), attack, seeds))
    finding |= {"only": target.remark} if target.remark else {}
    finding["seconds"] = round(time.monotonic() - began, 1)
    say(finding_text(attack, finding))
    return finding


def finding_of(attack: Attack, attempts: Sequence[Outcome], command: str) -> dict[str, Any]:
    """The entry of an attack in privacy.json."""
    scores = pool(attempts)
    # an audit beyond its ceiling refutes the claim and is no doubt
    doubts = [score.doubt for score in scores if score.doubt and not attack.alone]
    return {
        "command": command,
        "asks": attack.asks,
        "adversary": attack.adversary,
        "auxiliary": attempts[0].auxiliary,
        "seeds": len(attempts),
        "scores": [score.as_json() for score in scores],
        "doubts": list(dict.fromkeys([*(remark for a in attempts for remark in a.remarks), *doubts])),
        "pictures": {"images": {t: s for t, s in attempts[0].pictures.items() if s}},
        "unskew": revision(),
    }


def command_of(run: Sequence[str], attack: Attack, seeds: int) -> str:
    """The command that repeats the attack. run: the words that name the run."""
    settings = attack.changed()
    words = ["unskew", "attack", run[0], attack.name, *run[1:]]
    words += [f"--samples={settings.pop('samples')}"] if "samples" in settings else []
    words += [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    return shlex.join([*words, *([f"--seeds={seeds}"] if seeds > 1 else [])])


def finding_text(attack: Attack, finding: Mapping[str, Any]) -> str:
    """A finding as text for the command line."""
    scores = finding["scores"]
    width = max((len(f"{s['payload']}  {s['of']}") for s in scores), default=0)
    metric = max((len(s["metric"]) for s in scores), default=0)
    rows = [
        f"  {s['payload'] + '  ' + s['of']:<{width}}  {s['metric']:<{metric}}  {_number(s['value']):>8}"
        f"  [{_number(s['low'])}, {_number(s['high'])}]"
        f"  without payload {_number(s['floor'])}, raw input {_number(s['ceiling'])}  n = {s['n']}"
        for s in scores
    ]
    head = f"{attack.name}: {attack.adversary}; the attacker's own data: {finding['auxiliary']}"
    only = [f"  Note: {finding['only']}."] if finding.get("only") else []
    return "\n".join([head, *rows, *only, *(f"  Doubt: {doubt}." for doubt in finding["doubts"])])


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
