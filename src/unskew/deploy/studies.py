"""What may run over a network, as the server and each site judge it for themselves."""

from __future__ import annotations

from unskew.config import Settings
from unskew.core.client import Fed
from unskew.core.method import Method
from unskew.core.part import Part
from unskew.core.trip import place
from unskew.data.availability import without_trace
from unskew.data.dataset import Dataset
from unskew.engine.resolve import sends_weights
from unskew.errors import UnknownMethod, UsageError
from unskew.methods import registry
from unskew.models import folder
from unskew.privacy import secure
from unskew.scores import METRICS, named_in

CLIP = "clip_median"
SITES = "(sites)"
"""The setting `data` of a run whose samples are at sites."""

OF_SITES = ("data", "skew", "partition_seed", "clients", "samples", "lanes", "workers", "device")
"""Settings that a study does not decide: sites bring their samples and choose how to compute."""


def study(settings: Settings) -> Settings:
    """The settings of a run over a network. Raises UsageError (E506) for what needs samples at the server, or a file."""
    check_not_from_a_file(settings.method)
    method = registry.parse(settings.method, settings.set)
    check_metrics_not_own(settings.metrics)
    if settings.measure != "none":
        text = f"'{settings.measure}' is measured on the samples, which stay at sites; set measure to none."
        raise UsageError("E506", text)
    if settings.validation:
        text = "validation holds samples out before they are dealt to clients; the samples of sites are dealt already."
        raise UsageError("E506", text)
    summed = secure.parse(settings.secure_aggregation)
    if settings.patience or settings.keep_best:
        name = "patience" if settings.patience else "keep_best"
        text = f"{name} decides by the scores of a round when it is over, and those of sites come a round later"
        raise UsageError("E506", f"{text}; leave it out.")
    for part in method.parts if summed else ():
        if part.weights_read == "each":  # the rest is known once the model is built
            text = f"secure aggregation is not possible with '{part.name}', which reads each site's weights"
            raise UsageError("E134", f"{text}; leave it out, or set secure_aggregation=off.")
    for part in method.parts:
        if part.reserve:
            text = f"'{part.name}' holds back {part.reserve} samples of each class at the server, which has none."
            raise UsageError("E506", text)
        _check_trips(part)
    return settings.replace(method=str(method), set={}, data=SITES, lanes="1", device="cpu", samples=None, skew="iid")


def clipped(settings: Settings) -> Settings:
    """The study with updates clipped to their median norm, as `unskew run --on` has it unless told otherwise. As it is where only
    a sum is read, and where the method merges or clips by itself or sends no weights."""
    method = registry.parse(settings.method)
    if settings.secure_aggregation != "off" or method.merger or method.protector or not sends_weights(method):
        return settings
    return settings.replace(method=str(registry.parse(f"{method}+{CLIP}")))


def _check_trips(part: Part) -> None:
    """Raises UsageError (E506) for a Part with a trip that a site could not tell from another."""
    for trip in part.trips:
        try:
            place(trip, part.trips)
        except ValueError as error:
            text = f"'{part.name}' cannot run over a network: {error}, so that sites could not tell them apart"
            raise UsageError("E506", f"{text}; give each a function of its own.") from None


def allowed(settings: Settings, model: str | None) -> Settings:
    """Settings as a site runs them: one lane, no trace, and in place of a model from a file or folder its own.

    model: FILE.py:FUNCTION or hf(path=FOLDER), which the site's operator allows. Raises UsageError (E506), because a
    coordinator must not name the Python file that a site loads or the folder that it reads, nor change a method by arguments
    that its text does not show. A trace is a file of the coordinator, who alone needs it to choose whom to ask.
    """
    check_not_from_a_file(settings.method)
    check_metrics_not_own(settings.metrics)
    if settings.set:
        text = f"the study changes '{settings.method}' by the setting 'set', which its operator would not read"
        raise UsageError("E506", f"{text}; a coordinator writes all arguments into the method.")
    if ":" in settings.model or folder.is_on_disk(settings.model):
        if model is None:
            own = "FILE.py:FUNCTION" if ":" in settings.model else "\"hf(path='FOLDER')\""
            text = f"the study's model is {settings.model}; to allow your own, start the site with --model {own}."
            raise UsageError("E506", text)
        settings = settings.replace(model=model)
    return settings.replace(lanes="1", workers=1, availability=without_trace(settings.availability))


def known_here(text: str) -> Method:
    """A study's method at a site. Raises UsageError (E102) for one that only the coordinator has installed."""
    try:
        return registry.parse(text)
    except UnknownMethod as error:
        mend = f"if a package brings '{error.name}', install it here, too, in the coordinator's version"
        raise UsageError("E102", f"there is no method '{error.name}' at this site; {mend}.") from None


def check_not_from_a_file(method: str) -> None:
    """Raises UsageError (E506) for a method from a file, before it is parsed, because parsing would run the file."""
    if ".py" in method:  # anywhere in it, so that no other way of reading the text can find a file
        text = f"the study's method {method!r} is in a file, and no site loads a file that a coordinator names"
        remedy = "install it everywhere as a package that declares it as an entry point of unskew.methods."
        raise UsageError("E506", f"{text}; {remedy}")


def check_metrics_not_own(metrics: str) -> None:
    """Raises UsageError (E506) for a metric that is a user's own function, before its file is looked for."""
    own = [name for name in named_in(metrics) if name not in METRICS]
    if own:
        text = f"the metric '{own[0]}' is a function of your own, and no site loads a file that a coordinator names"
        raise UsageError("E506", f"{text}; over a network metrics are {', '.join(METRICS)}.")


def check_noise(method: Method, fed: Fed) -> None:
    """Raises UsageError (E506) for a Share whose privacy guarantee rests on noise drawn from the study's seed.

    The seed makes a run repeatable, and the server knows it; noise that the reader can draw again protects nothing.
    """
    for part in method.parts:
        shares = part.shares(fed) | {n: s for trip in part.trips for n, s in trip.shares(fed).items()}
        if private := [name for name, share in shares.items() if share.guarantee == "dp"]:
            text = f"'{part.name}/{private[0]}' is protected by noise from the study's seed, which the server knows"
            raise UsageError("E506", f"{text}: over a network that guarantee would be false.")


def prepared(data: Dataset, settings: Settings) -> Dataset:
    """The data, standardised by the set's own constants if the study asks for that and the set has such constants.

    Raises UsageError (E506) where the study asks for it and the set has none: each site's own would differ.
    """
    if settings.normalise == "dataset" and data.mean is None and data.applied is None:
        text = "the study sets normalise=dataset, and a site's own samples have no constants that all sites know"
        raise UsageError(
            "E506", f"{text}; scale samples before, add +standardise to the method, or set normalise=none."
        )
    method = registry.parse(settings.method, settings.set)
    standardise = settings.normalise == "dataset" or (settings.normalise == "auto" and not method.normalises)
    return data.standardised() if standardise and data.mean is not None else data
