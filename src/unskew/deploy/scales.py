"""Whether a study would train on samples that somebody should have scaled: over a network nobody does unless its method does so."""

from __future__ import annotations

from collections.abc import Callable

from unskew.core.method import Method
from unskew.data.dataset import Dataset
from unskew.data.intake.scale import unscaled
from unskew.data.layout import Layout
from unskew.deploy.judging import Study
from unskew.errors import UsageError
from unskew.methods import images
from unskew.methods.standardise import Standardise

ALIKE = "have all sites scale them alike"


def remedy(method: Method, layout: Layout | None, summed: bool) -> str:
    """What a study of this method whose samples look unscaled needs, as the end of a sentence.

    layout: of samples with several inputs. summed: whether the coordinator sees sums alone. There, and where noise protects
    what leaves, nobody may send the statistics that `standardise` needs.
    """
    if summed or method.protector or method.samples_apart:
        return ALIKE
    part = Standardise(images=not (layout and layout.images and _scales_images(method)))
    try:
        Method(*method.parts, part)
    except UsageError:  # it has a Part beside which nothing else scales
        return ALIKE
    return f"add +{Method(part)} to the method, or {ALIKE}"


def looks_unscaled(data: Dataset, study: Study) -> str:
    """Why a site's samples, as the study takes them, need scaling; "" if they do not. A named set's are taken as they are."""
    itself, embeds = study.method.normalises, study.fed.net.embeds
    by_images = _scales_images(study.method)
    if data.intake is None or (embeds and not data.layout) or itself == "all":
        return ""
    if not data.layout and (itself or (by_images and images.shapes(study.fed))):
        return ""
    return unscaled(data, but_images=by_images)


def told_unscaled(data: Dataset, study: Study, say: Callable[[str], None]) -> bool:
    """Whether a site's samples need scaling for a study, which its operator is told."""
    if why := looks_unscaled(data, study):
        say(f"E527 this study takes samples as they are: {why}; {remedy(study.method, data.layout, study.summed)}")
    return bool(why)


def _scales_images(method: Method) -> bool:
    """Whether a Part scales images itself, where there are any."""
    return any(part.by_input == "images" for part in method.parts)
