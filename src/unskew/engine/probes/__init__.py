"""The probes, one file each: every one applies a pure measure to what a round left. docs/measures.md is about them."""

from __future__ import annotations

from collections.abc import Sequence

from unskew.config import Settings
from unskew.engine.client.trainer import Trainer
from unskew.engine.disk.record import Record
from unskew.engine.probes.correlation import Correlation
from unskew.engine.probes.cross_site import CrossSite
from unskew.engine.probes.diversity import Diversity
from unskew.engine.probes.exposure import Exposed
from unskew.engine.probes.histograms import Histograms
from unskew.engine.probes.probe import Lens, Measures, Probe
from unskew.engine.probes.received import Received
from unskew.engine.probes.separation import Separation
from unskew.engine.probes.tsne import TSNE
from unskew.engine.server.scores import Evaluation
from unskew.errors import UsageError
from unskew.measures import names_in


def probes_of(
    settings: Settings, trainer: Trainer, scoring: Evaluation, record: Record, names: Sequence[str]
) -> Measures | None:
    """What the setting `measure` names; None for "none". Raises UsageError (E130) for what cannot be taken here."""
    wanted = names_in(settings.measure)
    lens = Lens(trainer, scoring, record, names)
    made = {name: PROBES[name](lens) for name in wanted}
    for name, probe in made.items():
        if reason := probe.refuse():
            raise UsageError("E130", f"'{name}' cannot be measured of {trainer.method} here: {reason}.")
    return Measures(made) if made else None


PROBES: dict[str, type[Probe]] = {
    "separation": Separation,
    "diversity": Diversity,
    "correlation": Correlation,
    "exposure": Exposed,
    "histograms": Histograms,
    "received": Received,
    "cross_site": CrossSite,
    "tsne": TSNE,
}
