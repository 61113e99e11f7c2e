"""The readers of a method's payloads, what they disclose in clear, and the attacks that measure the rest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from unskew.attacks import registry
from unskew.core import module_inputs
from unskew.core.client import Fed
from unskew.core.method import Method
from unskew.core.part import Part, overrides
from unskew.core.shares import Share

NOT_MEASURED = "not measured"
ONE_INPUT = "our attack reads samples with one input, another may read several"
EXTREMES = ("TPR", "share above", "MSE of the worst client")
"""The beginnings of metrics that stand beside a mean, because it hides single samples and clients."""
HEAD = "what it tells       "


def what_it_tells(method: Method, fed: Fed, run: str = "RUN") -> list[str]:
    """A line on each payload: its readers, and what it discloses or the commands that measure it."""
    samples = Attackable(fed.net.layout is not None, module_inputs.table_exposure(fed.net.module, fed.shared))
    single = next((p.handed_on for p in method.parts if p.handed_on), "")
    lines = (
        [f"weights: seen by {readers(True, single)}; {_measured_by('w', run, samples)}"] if fed.shared else []
    )
    for part, payload, share in _payloads(method, fed):
        clear = in_clear(share.discloses, share.samples) or _measured_by(payload, run, samples)
        handed_on = bool(part.trips) or overrides(part, "server") or overrides(part, "server_init")
        lines.append(f"{payload}: seen by {readers(handed_on)}; {clear}")
    return [(HEAD if i == 0 else " " * len(HEAD)) + line for i, line in enumerate(dict.fromkeys(lines))]


def readers(handed_on: bool, single: str = "", sum_of: int = 0) -> str:
    """The readers of a payload, in words.

    handed_on: whether the server broadcasts a result of it. single: the data of single clients that the
    server sends to others. sum_of: with secure aggregation, the least number of clients in a sum; else 0.
    """
    server = f"the server, in sums of {sum_of} or more clients" if sum_of else "the server"
    if single:
        return f"{server}, and other clients, who are sent {single}"
    return f"{server}, and what it makes of it by every client" if handed_on else server


def in_clear(kind: str, samples: int | str) -> str:
    """The private data that a payload contains in clear; "" if an attack is needed.

    kind, samples: the fields of its Share.
    """
    if kind == "labels":
        return "labels, in clear" if samples == 1 else "labels, averaged"
    return "raw inputs, in clear" if kind == "inputs" and samples == 1 else ""


@dataclass(frozen=True)
class Attackable:
    """Properties of samples that decide which attacks fit.

    several: whether a sample has several inputs. looked_up: whether the model looks up whole numbers.
    """

    several: bool = False
    looked_up: module_inputs.TableExposure = ""

    def suit(self, attack: str) -> bool:
        """Whether an attack of this kind applies, for any number of inputs."""
        return self.looked_up in registry.kind_of(attack).lookups

    def exceeds(self, attack: str) -> bool:
        """Whether a sample has more inputs than the attack of this name reads."""
        return self.several and registry.kind_of(attack).one_input


def commands(payload: str, run: str, samples: Attackable) -> dict[str, str]:
    """By attack, the command that measures what a payload of this run discloses; an audit comes last."""
    fitting = [n for n in registry.attacks_on(payload) if samples.suit(n) and not samples.exceeds(n)]
    return {
        name: f"unskew audit {run}" if name == "audit" else f"unskew attack {run} {name}"
        for name in sorted(fitting, key=lambda name: name == "audit")
    }


def _measured_by(payload: str, run: str, samples: Attackable) -> str:
    text = ", ".join(commands(payload, run, samples).values())
    left = [n for n in registry.attacks_on(payload) if samples.suit(n) and samples.exceeds(n)]
    why = f"; {', '.join(left)}: {ONE_INPUT}" if left else ""
    how = f" (measure it: {text})" if text else "" if left else ", and no attack here reads it"
    return f"{NOT_MEASURED}{how}{why}"


def _payloads(method: Method, fed: Fed) -> Iterator[tuple[Part, str, Share]]:
    """(Part, name of the payload, Share) of every Share of a method."""
    for part in method.parts:
        for declared in (part.shares(fed), *(trip.shares(fed) for trip in part.trips)):
            for leaf, share in declared.items():
                yield part, f"{part.name}/{leaf.partition('/')[0]}", share
