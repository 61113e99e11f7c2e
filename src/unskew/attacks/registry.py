"""The attacks by name, read from the source of their files so that a list does not load torch.

This file also says who reads a method's payloads, what they disclose in clear, and which attacks measure the
rest.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from unskew.errors import UsageError, suggestion
from unskew.formats import arguments
from unskew.system import python_files

if TYPE_CHECKING:
    from unskew.attacks.attack import Attack
    from unskew.core.client import Fed
    from unskew.core.method import Method
    from unskew.core.part import Part
    from unskew.core.shares import Share

FOLDER = Path(__file__).parent / "kinds"
NOT_MEASURED = "not measured"
EXTREMES = ("TPR", "share above", "MSE of the worst client")
"""The beginnings of metrics that are shown with a mean, because a mean hides single samples and clients."""
HEAD = "what it tells       "


def names() -> dict[str, str]:
    """The first line of the file of every attack, by name."""
    return {path.stem: python_files.summary(path) for path in python_files.module_files(FOLDER)}


def kind_of(name: str) -> type[Attack]:
    """The class of an attack by name. Raises UsageError (E126) for an unknown name."""
    from unskew.attacks.attack import Attack

    known = names()
    if name not in known:
        near = suggestion(name, known)
        raise UsageError("E126", f"there is no attack '{name}'.{near} Attacks: {', '.join(known)}.")
    module = importlib.import_module(f"unskew.attacks.kinds.{name}")
    return next(
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Attack) and value.name == name
    )


def attack_of(name: str, settings: Mapping[str, object]) -> Attack:
    """The attack with these settings. Raises UsageError (E126) for an unknown name or a wrong setting."""
    kind = kind_of(name)
    return kind(**arguments.check(kind, settings, f"attack '{name}'", "E126"))


def attacks_on(share: str, looked_up: str = "") -> list[str]:
    """The attacks that apply to a payload, the audit last.

    share: its name in the ledger. looked_up: whether the model looks up whole numbers, as
    `module_inputs.table_exposure` says.
    """
    reading = [n for n in names() if share in python_files.constant(FOLDER / f"{n}.py", "READS", ())]
    fitting = [n for n in reading if looked_up in kind_of(n).lookups]
    return sorted(fitting, key=lambda name: name == "audit")


def commands(attacks: Sequence[str], run: str, several: bool) -> list[str]:
    """The commands that make these attacks on a run. several: whether its samples have several inputs, which
    some attacks do not read."""
    able = [name for name in attacks if not (several and kind_of(name).one_input)]
    return [f"unskew audit {run}" if name == "audit" else f"unskew attack {run} {name}" for name in able]


def readers_lines(method: Method, fed: Fed, run: str = "RUN") -> list[str]:
    """A line on each payload: its readers, and what it discloses or the commands that measure it."""
    from unskew.core import module_inputs
    from unskew.core.part import overrides

    looked_up = module_inputs.table_exposure(fed.net.module, fed.shared)

    def measured_by(payload: str) -> str:
        attacks = attacks_on(payload, looked_up)
        if how := ", ".join(commands(attacks, run, fed.net.layout is not None)):
            return f"{NOT_MEASURED} (measure it: {how})"
        return f"{NOT_MEASURED}, and no attack here reads it"

    single = next((p.handed_on for p in method.parts if p.handed_on), "")
    lines = [f"weights: seen by {readers(True, single)}; {measured_by('w')}"] if fed.shared else []
    for part, payload, share in _payloads(method, fed):
        clear = clear_disclosure(share.discloses, share.samples) or measured_by(payload)
        handed_on = bool(part.trips) or overrides(part, "server") or overrides(part, "server_init")
        lines.append(f"{payload}: seen by {readers(handed_on)}; {clear}")
    return [(HEAD if i == 0 else " " * len(HEAD)) + line for i, line in enumerate(dict.fromkeys(lines))]


def _payloads(method: Method, fed: Fed) -> Iterator[tuple[Part, str, Share]]:
    """(Part, name of the payload, Share) of every Share of a method."""
    for part in method.parts:
        for declared in (part.shares(fed), *(trip.shares(fed) for trip in part.trips)):
            for leaf, share in declared.items():
                yield part, f"{part.name}/{leaf.partition('/')[0]}", share


def readers(handed_on: bool, single: str = "", sum_of: int = 0) -> str:
    """The readers of a payload, in words.

    handed_on: whether the server broadcasts a result of it. single: the data of single clients that the
    server sends to others. sum_of: with secure aggregation, the least number of clients in a sum; else 0.
    """
    server = f"the server, in sums of {sum_of} or more clients" if sum_of else "the server"
    if single:
        return f"{server}, and other clients, who are sent {single}"
    return f"{server}, and what it makes of it by every client" if handed_on else server


def clear_disclosure(kind: str, samples: int | str) -> str:
    """The private data that a payload contains in clear; "" if an attack is needed.

    kind, samples: the fields of its Share.
    """
    if kind == "labels":
        return "labels, in clear" if samples == 1 else "labels, averaged"
    return "raw inputs, in clear" if kind == "inputs" and samples == 1 else ""
