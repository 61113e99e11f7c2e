"""Running attacks by name: attempts with all seeds, pooled scores, and the stored finding."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from unskew.attacks import registry
from unskew.attacks.attack import Attack, Outcome, pool
from unskew.attacks.scene import NO_CODE, Scene
from unskew.errors import UsageError
from unskew.records import schema
from unskew.runs.reopen import UserCode
from unskew.system.machine import one_core
from unskew.version import revision

Say = Callable[[str], None]
Settings = Mapping[str, object]


def perform(
    opening: Callable[[], Scene], name: str | None, settings: Settings, seeds: int, say: Say
) -> dict[str, dict[str, Any]]:
    """The finding of each attack by its name; each is written to the run's privacy.json at once.

    opening: opens the run after the attack and its settings were checked; the run is closed at the end.
    name: of the attack, or None for all that fit the run. settings: of the attack, or of all.
    say: receives a line for each attack that does not fit, and for each finding.
    Raises UsageError: E126 for an unknown attack or setting, E151 if no attack fits; and the errors of Scene.
    """
    attacks = [registry.attack_of(n, settings) for n in ([name] if name else registry.names())]
    with closing(opening()) as scene:
        return {a.name: _stored_finding(scene, a, seeds, say) for a in _fitting(scene, attacks, say)}


def quickly(path: Path, say: Say, code: UserCode = NO_CODE) -> None:
    """Run every attack that fits a run and has no finding in privacy.json, with its quick settings.

    code: as for a Scene. say: receives the reason if an attack fails; other attacks go on. Raises the errors
    of Scene.
    """
    done = schema.read_privacy(path).get(schema.ATTACKS, {})
    kinds = {name: registry.kind_of(name) for name in registry.names() if name not in done}
    left = [registry.attack_of(name, kind.quick) for name, kind in kinds.items() if not kind.alone]
    if not left:
        return
    with closing(Scene(path, code=code)) as scene:
        for attack in left:
            if not _reason(scene, attack, True):
                try:
                    _stored_finding(scene, attack, 1, lambda _: None)
                except UsageError as reason:
                    say(f"{attack.name}: not measured; {reason}")


def finding_on(path: Path, code: UserCode, name: str, settings: Settings, say: Say) -> dict[str, Any]:
    """The finding of one attempt of an attack on the run in `path`, without writing to it.

    code: as for a Scene. Raises as `perform` does.
    """
    attack = registry.attack_of(name, settings)
    with closing(Scene(path, code=code)) as scene:
        _fitting(scene, [attack], say)
        return _finding(scene, attack, 1, say)


def _fitting(scene: Scene, attacks: Sequence[Attack], say: Say) -> list[Attack]:
    named = len(attacks) == 1
    reasons = {a.name: _reason(scene, a, named) for a in attacks}
    fitting = [attack for attack in attacks if not reasons[attack.name]]
    if named and not fitting:
        text = f"attack '{attacks[0].name}' does not fit {scene.path}: {reasons[attacks[0].name]}."
        raise UsageError("E151", text)
    for name, reason in reasons.items():
        if reason:
            say(f"{name}: left out, {reason}")
    if not fitting:
        raise UsageError("E151", f"no attack fits what the clients of {scene.path} send.")
    return fitting


def _reason(scene: Scene, attack: Attack, named: bool) -> str | None:
    """Why an attack does not run here, as the end of a sentence; None if it does."""
    if attack.alone and not named:
        return attack.alone
    if scene.merged_only and not attack.on_merged:
        return (
            "it reads what single clients send, and only the merged model can be attacked, because"
            f" {scene.merged_only}"
        )
    if scene.federation.layout and attack.one_input:
        return "it recovers a sample as one input, and a sample here has several"
    return attack.refuse(scene)


def _stored_finding(scene: Scene, attack: Attack, seeds: int, say: Say) -> dict[str, Any]:
    finding = _finding(scene, attack, seeds, say)
    with scene.folder.locked():
        schema.put_attack(scene.path, attack.name, finding)
    return finding


def _finding(scene: Scene, attack: Attack, seeds: int, say: Say) -> dict[str, Any]:
    began = time.monotonic()
    with one_core():
        attempts = [attack.attempt(scene, seed) for seed in range(seeds)]
    finding = finding_of(attack, attempts, command_of(scene.words(), attack, seeds))
    finding |= {"only": scene.told} if scene.told else {}
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
        "pictures": attempts[0].pictures,
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
