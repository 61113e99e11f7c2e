"""`make campaign`: attacks on a federation of real processes, and faults in it.

Processes are killed, networks cut, disks filled and clocks moved while studies run; strangers, admitted sites
that lie and a coordinator that cannot be trusted try what they can. A run ends with the SHA-256 that the
simulator has with those who answered, its journal holds, whoever breaks the rules is refused and named, and
nothing is left running.

    python -m tests.campaign.harness --seed 1 --kills 12 --only kills --only cuts --json campaign.json
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.campaign import cases, cuts, disks, kills, times
from tests.campaign.attacks import coordinator, sites, strangers
from tests.campaign.cases import RIGHT, Campaign, CannotTry, Case, check
from tests.campaign.ground import Ground
from unskew.version import revision

Family = Callable[[Ground, argparse.Namespace, random.Random], Iterator[Case]]
FAMILIES: dict[str, Family] = {
    kills.FAMILY: lambda ground, options, rng: kills.cases(ground, options.kills, rng),
    cuts.FAMILY: lambda ground, options, rng: cuts.cases(ground, options.cuts, rng),
    disks.FAMILY: lambda ground, options, rng: disks.cases(ground, rng),
    times.FAMILY: lambda ground, options, rng: times.cases(ground, rng),
    strangers.FAMILY: lambda ground, options, rng: strangers.cases(ground, rng),
    sites.FAMILY: lambda ground, options, rng: sites.cases(ground, rng),
    coordinator.FAMILY: lambda ground, options, rng: coordinator.cases(ground, rng),
}


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign.harness")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--cuts", type=int, default=10)
    parser.add_argument(
        "--patience", type=float, default=1.0, help="by which factor everything may take longer"
    )
    parser.add_argument(
        "--only", action="append", choices=FAMILIES, help="a family; may be given several times"
    )
    parser.add_argument("--json", type=Path, help="where all lines are written")
    parser.add_argument(
        "--folder", type=Path, help="where the federation is kept; default: a folder that is removed"
    )
    return parser.parse_args(arguments)


def ground_at(root: Path, say: Callable[[str], None]) -> Ground:
    """A federation on disks that can be full, whose clocks can be moved, as far as this machine can do
    that."""
    try:
        disks.alone()
        disks.small(root)
    except CannotTry as error:
        say(f"without disks of its own: {error}")
    try:
        return Ground(root, movable_clocks=True)
    except CannotTry as error:
        say(f"without clocks that can be moved: {error}")
        return Ground(root)


def conducted(root: Path, options: argparse.Namespace) -> Campaign:
    """Try everything that was asked for, in one federation; whatever happens, its processes are ended."""
    campaign = Campaign(lambda text: print(text, flush=True))
    ground = ground_at(root, campaign.say)
    try:
        campaign.take(
            [
                Case(
                    "federation",
                    "begins",
                    lambda: ground.begin() or "three sites are connected",
                    counts=False,
                )
            ]
        )
        for name in options.only or FAMILIES:
            if campaign.lines[0].verdict != RIGHT:
                break
            campaign.take(FAMILIES[name](ground, options, random.Random(f"{options.seed} {name}")))
    finally:
        campaign.take([Case("federation", "ends", lambda: ended(ground), counts=False)])
        disks.remove(root)
    return campaign


def ended(ground: Ground) -> str:
    left = ground.close()
    check(not left, f"still running: {left}")
    return "nothing is left running"


def main(arguments: list[str]) -> int:
    """The exit code: 1 if anything was wrong."""
    options, began = parsed(arguments), time.monotonic()
    cases.PATIENCE.factor = options.patience
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended, too
    with tempfile.TemporaryDirectory(prefix="unskew-campaign-") as folder:
        root = options.folder or Path(folder)
        root.mkdir(parents=True, exist_ok=True)
        campaign = conducted(root, options)
    print(f"\n{campaign.table()}\n")
    minutes = (time.monotonic() - began) / 60
    print(
        f"{len(campaign.wrong)} wrong of {len(campaign.lines)} lines, in {minutes:.0f} minutes; seed"
        f" {options.seed}"
    )
    if options.json:
        facts = {
            "unskew": revision(),
            "seed": options.seed,
            "patience": options.patience,
            "minutes": round(minutes, 1),
            "lines": campaign.as_json(),
        }
        options.json.write_text(json.dumps(facts, indent=1) + "\n")
    return int(bool(campaign.wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
