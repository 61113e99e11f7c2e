"""What is computed from the measured rounds, and how it is shown."""

from pathlib import Path
from statistics import median

import numpy as np

NOISY = 0.15  # cores

# The largest difference of one weight that float rounding may explain. MobileNetV2 is badly conditioned at
# its start: after two steps float32 stands 1e-4 from float64, and another kernel 3e-4.
SAME = 1e-4
SAME_MOBILENET = 1e-3


def bars(model: str) -> dict[str, float]:
    """At least so many times as fast; for `central` at most so many times its time."""
    lenet = model == "rebafl_fmnist"
    usual = {"rebafl_fmnist": 3.0, "harnet": 2.2, "mlp": 4.0}.get(model, 1.4)
    central = 1.0 if model in ("rebafl_fmnist", "harnet") else 1.3
    return {"usual": usual, "pfl": 2.0 if lenet else 1.2, "flwr": 4.0 if lenet else 2.4, "central": central}


def measured(results: dict[str, dict]) -> dict[str, dict]:
    return {name: result for name, result in results.items() if "seconds" in result}


def agreement(folder: Path, results: dict[str, dict]) -> dict[str, float]:
    """Largest difference of any weight to the usual loop's on one thread. Centralised training is other
    work."""
    weights = {
        name: np.load(folder / f"{name}.npy") for name in measured(results) if not name.startswith("central")
    }
    usual = weights.get("usual-1")
    if usual is None:
        return {}
    return {name: float(np.abs(w - usual).max()) for name, w in weights.items()}


def ratios(model: str, cores: int, results: dict[str, dict]) -> dict[str, dict]:
    """Ours on all cores against each: ratio of the medians; least and most over the repeats, paired.

    pfl counts with the faster of its two forms. `central` is ours' time over its time, so lower is better.
    """
    rows = measured(results)
    if f"ours-{cores}" not in rows:
        return {}
    ours = rows[f"ours-{cores}"]["seconds"]
    found = {}
    for other, bar in bars(model).items():
        forms = {"pfl": [f"pfl-1x{cores}", f"pfl-{cores}x1"]}.get(other, [f"{other}-{cores}"])
        candidates = [rows[name]["seconds"] for name in forms if name in rows]
        if not candidates:
            continue
        theirs = min(candidates, key=median)
        slow, fast = (ours, theirs) if other == "central" else (theirs, ours)
        paired = [a / b for a, b in zip(slow, fast, strict=True)]
        ratio = median(slow) / median(fast)
        met = ratio <= bar if other == "central" else ratio >= bar
        found[other] = {"ratio": ratio, "least": min(paired), "most": max(paired), "bar": bar, "met": met}
    return found


def print_model(entry: dict, repeats: int, cores: int) -> None:
    work, results = entry["work"], entry["variants"]
    size = (
        f"{work['clients']} clients x {work['samples']} samples, batch {work['batch']}, {work['epochs']}"
        " epochs"
    )
    print(f"\n{work['model']}: {size}; {cores} cores, medians of {repeats}")
    print(f"  {'':12}{'clients/s':>10}{'s a round':>11}{'least-most':>16}{'difference':>12}")
    for name, result in results.items():
        if "skipped" in result:
            print(f"  {name:12}skipped: {result['skipped']}")
            continue
        seconds = result["seconds"]
        spread = f"{min(seconds):.3f}-{max(seconds):.3f}"
        difference = f"{result['difference']:.0e}" if "difference" in result else "-"
        print(
            f"  {name:12}{result['clients_per_s']:10.2f}{median(seconds):11.3f}{spread:>16}{difference:>12}"
        )
    for other, r in entry["ratios"].items():
        what = f"time of ours over {other}'s" if other == "central" else f"ours times as fast as {other}"
        bar = (
            f"{'at most' if other == 'central' else 'at least'} {r['bar']:g}:"
            f" {'met' if r['met'] else 'MISSED'}"
        )
        print(f"  {what:30}{r['ratio']:6.2f}  ({r['least']:.2f}-{r['most']:.2f})  {bar}")
    for warning in warnings(work["model"], results):
        print(f"  ! {warning}")


def warnings(model: str, results: dict[str, dict]) -> list[str]:
    found = []
    same = SAME_MOBILENET if model == "mobilenet_v2" else SAME
    for name, result in measured(results).items():
        if result.get("difference", 0.0) > same:
            found.append(f"{name}: weights differ from the usual loop's by {result['difference']:.1e}")
        load = max(answer.get("other_load", 0.0) for answer in result["rounds"])
        if load > NOISY:
            found.append(f"{name}: something else kept {load:.2f} cores busy during a round; measure again")
    return found
