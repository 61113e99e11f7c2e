"""Whether a study would train on samples that somebody should have scaled: over a network nobody does unless its method does so."""

from __future__ import annotations

from unskew.data.dataset import Dataset
from unskew.data.intake.scale import unscaled
from unskew.deploy.judging import Study

REMEDY = "add +standardise to the method, or have all sites scale them alike"


def looks_unscaled(data: Dataset, study: Study) -> str:
    """Why a site's samples, as the study takes them, need scaling; "" if they do not. A named set's are taken as they are."""
    itself, embeds = study.method.normalises, study.fed.net.embeds
    if data.intake is None or (embeds and not data.layout) or itself == "all" or (itself and not data.layout):
        return ""
    return unscaled(data, but_images=itself == "images")
