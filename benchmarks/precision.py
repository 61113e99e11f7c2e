"""What fewer bits cost: the accuracy of three settings with precision=float32 and bf16, paired by seed, and
the time they took.

UNSKEW_DATA=... python benchmarks/precision.py --seeds 3 --out precision.json

Runs take turns, so that what else the machine does falls on both. Seconds are the processor's. On a machine
with a GPU, `--precisions float32 tf32 --device cuda` compares these.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

import unskew

SETTINGS: dict[str, dict[str, Any]] = {
    "fashion_mnist": {
        "method": "rebafl",
        "skew": "classes:2",
        "clients": 20,
        "samples": 100,
        "lr": 0.05,
        "rounds": 20,
    },
    "cifar10": {
        "method": "fedavg",
        "skew": "dirichlet:0.5",
        "clients": 10,
        "samples": 200,
        "lr": 0.05,
        "rounds": 15,
    },
    "uci_har": {
        "method": "fedavg",
        "skew": "dirichlet:0.5",
        "clients": 10,
        "samples": 60,
        "lr": 0.01,
        "rounds": 15,
    },
}
SCOPE = "global"


def measured(data: str, precision: str, seed: int, device: str) -> dict[str, Any]:
    options = dict(SETTINGS[data])
    method = options.pop("method")
    began = time.process_time()
    result = unskew.run(
        method,
        data,
        precision=precision,
        seed=seed,
        device=device,
        epochs=2,
        batch=32,
        workers=1,
        eval_every=5,
        **options,
    )
    return {
        "data": data,
        "method": method,
        "precision": precision,
        "seed": seed,
        "accuracy": round(100 * result.scores(SCOPE)["last"], 2),
        "seconds": round(time.process_time() - began, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--precisions", nargs="+", default=["float32", "bf16"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for data in options.data:
        for seed in range(options.seeds):
            for precision in options.precisions:
                rows.append(measured(data, precision, seed, options.device))
                print(json.dumps(rows[-1]), flush=True)
                if options.out:
                    options.out.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=1))
        for precision in options.precisions:
            own = [r for r in rows if r["data"] == data and r["precision"] == precision]
            mean, seconds = (statistics.fmean(r[k] for r in own) for k in ("accuracy", "seconds"))
            print(f"{data:14} {precision:8} {mean:6.2f} %  {seconds:6.1f} s")


if __name__ == "__main__":
    main()
