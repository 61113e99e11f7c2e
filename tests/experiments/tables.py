"""Small tables that tests run: of accuracies, of attacks, and one with privacy to account for."""

from pathlib import Path

SMALL = """
title: "A small table"
paper: "Nobody, 2026"
measure: best
settings: {data: digits, clients: 4, samples: 60, rounds: 4, epochs: 3, lr: 0.3}
methods: {FedAvg: fedavg, Still: "fedprox(mu=1000000.0)"}
overrides: {Still: {lr: 0.0000001}}
rows:
  even: {settings: {data: digits, skew: iid}, published: {FedAvg: 50.0}, note: "made up"}
  lost: {settings: {data: cifar10}}
claims:
  - {text: "learning helps", better: FedAvg, than: all}
  - {text: "standing still helps", better: Still, than: [FedAvg], by: 1}
open: ["everything"]
finding: "Standing still gets nowhere."
"""


PRIVATE = """
title: "A noisy table"
paper: "Nobody, 2026"
measure: best
settings: {data: digits, clients: 4, samples: 60, rounds: 2, epochs: 1, skew: "classes:3"}
methods: {FedAvg: fedavg, Noisy: "feddpms(alpha=5, width=8)"}
rows: {one: {settings: {data: digits}}}
"""


LEAKING = """
title: "A table with attacks"
paper: "Nobody, 2026"
measure: last
settings: {data: digits, clients: 3, samples: 40, skew: iid, rounds: 1, epochs: 1, model: "mlp(hidden=[8])"}
methods: {FedAvg: fedavg, Pairs: fedmix(group=2), Fours: fedmix(group=4)}
rows:
  accuracy: {settings: {lr: 0.1}}
  pairs: {attack: {name: context, of: 60 own samples, metric: accuracy, settings: {marker: 2, own: [40, 60], steps: 20}}}
  fewer: {attack: {name: context, of: 40 own samples, metric: accuracy, settings: {marker: 2, own: [40, 60], steps: 20}}}
claims:
  - {text: "averages of more samples tell less", better: Pairs, than: [Fours]}
"""


def written(folder: Path, name: str, text: str) -> str:
    """A table's file, as a user's own would lie; its path is what the command takes."""
    path = folder / f"{name}.yaml"
    path.write_text(text)
    return str(path)
