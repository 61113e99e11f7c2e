"""The rules for studies over a network, checked by the server and by each site, and each side's view of the
federation.

The server has no samples, and a site has only its own.

Letters: K sites.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unskew.config import Settings
from unskew.core.client import Fed
from unskew.core.method import Method
from unskew.core.trip import trip_index
from unskew.data.clients.availability import without_trace
from unskew.data.clients.federation import Federation, RemoteFederation
from unskew.data.clients.partition import Index
from unskew.data.samples.dataset import SAMPLE_WEIGHT, Dataset, target_shape
from unskew.errors import UnknownMethod, UsageError, excerpt
from unskew.federation.protocol.hello import Hello, data_difference
from unskew.formats.input_layout import Layout
from unskew.methods import registry
from unskew.methods.standardise import Standardise
from unskew.models import hf_folder
from unskew.runs.resolve import sends_weights
from unskew.scores import METRICS, metric_names

CLIP = "clip_median"
SITES = "(sites)"
"""The setting `data` of a run with samples at sites."""

SITE_CHOICES = ("data", "skew", "partition_seed", "clients", "samples", "lanes", "workers", "device")
"""Settings that a study does not decide: sites bring their samples and choose how to compute."""


def study_settings(settings: Settings) -> Settings:
    """The settings of a run over a network. Raises UsageError (E506) if they need samples at the server, or a
    file.
    """
    check_no_files(settings)
    method = registry.parse(settings.method, settings.set)
    late = "decides by the scores of a round when it is over, and those of sites come a round later"
    counts = "needs the class counts of all sites, which are not shared; give a number for each class"
    refused = [
        (settings.measure != "none", f"measure={settings.measure} needs the samples, which stay at sites"),
        (
            settings.validation,
            "validation holds samples out of the set that is dealt; those of sites are dealt",
        ),
        (settings.test_samples, "test_samples draws from one test set; every site has its own"),
        (settings.class_weights == "balanced", f"class_weights=balanced {counts}, such as [1, 5]"),
        (settings.patience, f"patience {late}; leave it out"),
        (settings.keep_best, f"keep_best {late}; leave it out"),
    ]
    for applies, text in refused:
        if applies:
            raise UsageError("E506", f"{text}.")
    for part in method.parts:
        if settings.secure and part.weights_read == "each":  # the rest is known once the model is built
            text = f"secure aggregation is not possible with '{part.name}', which reads each site's weights"
            raise UsageError("E108", f"{text}; leave it out, or set secure_aggregation=off.")
        if part.reserve:
            text = f"'{part.name}' holds back {part.reserve} samples of each class at the server"
            raise UsageError("E506", f"{text}, which has none.")
        for trip in part.trips:
            try:
                trip_index(trip, part.trips)
            except ValueError as error:
                text = f"'{part.name}' cannot run over a network: {error}, so that sites could not tell them"
                raise UsageError("E506", f"{text} apart; give each a function of its own.") from None
    return settings.replace(
        method=str(method), set={}, data=SITES, lanes="1", device="cpu", samples=None, skew="iid"
    )


def with_clipping(settings: Settings) -> Settings:
    """The study with updates clipped to their median norm, the default of `unskew run --on`.

    Unchanged if only a sum is read, or if the method merges or clips by itself or sends no weights.
    """
    method = registry.parse(settings.method)
    if settings.secure_aggregation != "off" or method.merger or method.protector or not sends_weights(method):
        return settings
    return settings.replace(method=str(registry.parse(f"{method}+{CLIP}")))


def site_settings(settings: Settings, model: str | None) -> Settings:
    """Settings as a site runs them: one lane, no trace, and the site's own model in place of one from a file
    or folder.

    model: FILE.py:FUNCTION or hf(path=FOLDER), as the site's operator allows it. Raises UsageError (E506):
    a coordinator must not name the Python file that a site loads or the folder that it reads, nor change a
    method by arguments that its text does not show. A trace is a file of the coordinator, which alone
    selects clients by it.
    """
    check_no_files(settings)
    if settings.set:
        text = f"the study changes '{settings.method}' by the setting 'set', which an operator would not read"
        raise UsageError("E506", f"{text}; a coordinator writes all arguments into the method.")
    if ":" in settings.model or hf_folder.is_on_disk(settings.model):
        if model is None:
            own = "FILE.py:FUNCTION" if ":" in settings.model else "\"hf(path='FOLDER')\""
            text = f"the study's model is {settings.model}; to allow your own"
            raise UsageError("E506", f"{text}, start the site with --model {own}.")
        settings = settings.replace(model=model)
    return settings.replace(lanes="1", workers=1, availability=without_trace(settings.availability))


def site_method(text: str) -> Method:
    """A study's method at a site. Raises UsageError (E102) if the method is not installed there."""
    try:
        return registry.parse(text)
    except UnknownMethod as error:
        remedy = f"if a package brings '{error.name}', install it here, too, in the coordinator's version"
        raise UsageError("E102", f"there is no method '{error.name}' at this site; {remedy}.") from None


def check_no_files(settings: Settings) -> None:
    """Raises UsageError (E506) for a method, loss or metric from a file, which reading it would run."""
    rule = "and no site loads a file that a coordinator names"
    if ".py" in settings.method:  # anywhere in it, so that no other way of reading the text can find a file
        remedy = "install it everywhere as a package that declares it as an entry point of unskew.methods."
        raise UsageError("E506", f"the study's method {settings.method!r} is in a file, {rule}; {remedy}")
    if ":" in settings.loss:
        text = f"the loss {excerpt(settings.loss)} is a function of your own, {rule}"
        raise UsageError("E506", f"{text}; over a network take a loss that unskew has.")
    own = [name for name in metric_names(settings.metrics) if name not in METRICS]
    if own:
        text = f"the metric '{own[0]}' is a function of your own, {rule}"
        raise UsageError("E506", f"{text}; over a network metrics are {', '.join(METRICS)}.")


def check_noise(method: Method, fed: Fed) -> None:
    """Raises UsageError (E506) for a Share with a privacy guarantee that rests on noise drawn from the
    study's seed.

    The server knows the seed, which makes runs repeatable, so it could draw the noise again and remove it.
    """
    for part in method.parts:
        shares = part.shares(fed) | {n: s for trip in part.trips for n, s in trip.shares(fed).items()}
        if private := [name for name, share in shares.items() if share.guarantee == "dp"]:
            text = f"'{part.name}/{private[0]}' is protected by noise from the study's seed"
            false = "which the server knows: over a network that guarantee would be false."
            raise UsageError("E506", f"{text}, {false}")


def prepare(data: Dataset, settings: Settings) -> Dataset:
    """The data, standardised by the data set's own constants if the study asks for it and the set has such
    constants; not by those of a site's samples under a method whose epsilon is of single samples.

    Raises UsageError (E506) if the study asks for it and there are no constants: those of single sites
    would differ.
    """
    if settings.normalise == "dataset" and data.mean is None and data.applied is None:
        text = "the study sets normalise=dataset, and samples of sites have no constants that all sites know"
        remedy = "scale samples before, add +standardise to the method, or set normalise=none."
        raise UsageError("E506", f"{text}; {remedy}")
    method = registry.parse(settings.method, settings.set)
    standardise = settings.normalise == "dataset" or (settings.normalise == "auto" and not method.normalises)
    computed = data.intake is not None and data.mean is not None
    return data.standardised() if standardise and not (computed and method.samples_apart) else data


@dataclass(frozen=True)
class ServerView(RemoteFederation):
    """K sites of known sizes without their samples; perhaps a test set at the server. Sites do not send label
    counts.

    tested: number of test samples of each site, on which the site scores itself.
    """

    tested: tuple[int, ...] = ()

    @property
    def test_sizes(self) -> np.ndarray:  # type: ignore[override]
        return np.array(self.tested, np.int64)

    @staticmethod
    def of(name: str, hellos: Sequence[Hello], test: Dataset | None = None) -> ServerView:
        """A federation of clients in the order of `hellos`. Raises UsageError (E504) unless the test set fits
        their data.
        """
        first = next((h for h in hellos if h.form), hellos[0])
        if test and (text := data_difference(first, Hello.of("the server", test, first.versions))):
            raise UsageError("E504", f"{text}.")
        target, no_samples = first.learnt, np.zeros((0, *first.shape), np.float32)
        no_labels = np.zeros((0, *first.pixels), np.int64)
        if target:
            no_labels = np.zeros((0, *target_shape(first.classes)))
        if first.several:
            no_labels = np.zeros((0, len(first.classes)), bool)
        return ServerView(
            name,
            no_samples,
            no_labels,
            no_samples if test is None else test.x_test,
            no_labels if test is None else test.y_test,
            first.classes,
            Index(np.zeros(0, np.int64), np.cumsum([0, *(h.train for h in hellos)], dtype=np.int64)),
            Index.empty(len(hellos)),
            "sites",
            names=tuple(h.site for h in hellos),
            target=target,
            layout=first.layout,
            applied=first.applied,
            scaled_apart=any(h.own_scale for h in hellos),
            tested=tuple(h.test for h in hellos),
        )


@dataclass(frozen=True)
class SiteView(Federation):
    """One site's samples as client k of the federation. largest: most training samples at any site."""

    largest: int = 0

    @property
    def sizes(self) -> np.ndarray:  # type: ignore[override]
        """[K]: this site's samples, and `largest` for the others, so that bounds equal the server's."""
        own = self.train.sizes
        return np.where(own > 0, own, self.largest)

    @staticmethod
    def of(data: Dataset, k: int, clients: int, largest: int) -> SiteView:
        """This site's data as client k of `clients`."""
        return SiteView(
            data.name,
            data.x,
            data.y,
            data.x_test,
            data.y_test,
            data.classes,
            _only_client(k, clients, len(data.y)),
            _only_client(k, clients, len(data.y_test)),
            "sites",
            largest=largest,
            columns={n: v for n, v in data.columns.items() if n == SAMPLE_WEIGHT},
            target=data.target,
            layout=data.layout,
            intake=data.intake,
            applied=data.applied,
        )


def _only_client(k: int, clients: int, rows: int) -> Index:
    """An index in which client k holds rows 0 to rows - 1 and the others hold none."""
    return Index(
        np.arange(rows, dtype=np.int64), np.where(np.arange(clients + 1) > k, rows, 0).astype(np.int64)
    )


def score_names(fed: Fed) -> tuple[str, ...]:
    """The names of a task's scores of a single client, in order, without the metrics that a study names."""
    targets = (fed.classes,) if fed.task.name == "regression" and fed.classes > 1 else ()
    one = np.zeros((1, *fed.task.pixels(fed.shape), *targets), np.int64)
    return tuple(fed.task.client_scores(one, one, fed.classes))


def score_key(scope: str, metric: str) -> str:
    """The key of an additional metric in the scores that a site sends, such as `global.auroc`."""
    return f"{scope}.{metric}"


COMMON_SCALING = "have all sites scale them alike"


def scaling_remedy(method: Method, layout: Layout | None, summed: bool) -> str:
    """What a study with samples that look unscaled needs, as the end of a sentence.

    layout: layout of samples with several inputs. summed: the coordinator sees only sums. In that case, and
    with noise that protects the replies, no site may send the statistics that `standardise` needs.
    """
    if summed or method.protector or method.samples_apart:
        return COMMON_SCALING
    part = Standardise(images=not (layout and layout.images and scales_images(method)))
    try:
        Method(*method.parts, part)
    except UsageError:  # the method has a Part that excludes other scaling
        return COMMON_SCALING
    return f"add +{Method(part)} to the method, or {COMMON_SCALING}"


def scales_images(method: Method) -> bool:
    """True if a Part scales images itself."""
    return any(part.by_input == "images" for part in method.parts)
