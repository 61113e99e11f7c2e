"""Statistics of the columns of a table by site, and the columns that look measured in other units somewhere.

With mu_kc and sigma_kc the mean and deviation of column c at site k, it is unlike site j there if

    |mu_kc - mu_jc| > 5 sigma_jc    or    sigma_kc > 5 sigma_jc    or    sigma_kc < sigma_jc / 5

and is pointed out if it is unlike most other sites. For example, a hospital's weights in pounds lie 7
deviations away from those in kilograms. Columns of zeros and ones at both sites, columns without variation,
and sites with few rows reveal nothing about units. Where samples have one class each, the sites must be
unlike in most of the classes that both have, too: a site with other shares of the classes has other means,
but not within a class. In a network the coordinator applies the rule over all rows to what `standardise`
collects; elsewhere nothing of these statistics leaves a site.

Letters: N rows, C columns, K sites, J those other than one, L classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np

from unskew.data.clients.federation import Federation
from unskew.data.kinds.column_roles import site_column_in
from unskew.data.kinds.features import column_width
from unskew.data.samples.dataset import Dataset
from unskew.data.samples.reading_notes import abbreviate
from unskew.errors import excerpt, printable

MOST_DEVIATIONS, MOST_SPREAD = 5.0, 5.0
"""The largest distance of a mean, and the largest ratio of deviations, that are no sign of another unit."""
FEWEST = 10
"""Rows below which a site's deviation says little."""
FEWEST_OF_CLASS = 3
"""Rows below which those of a class at a site are not compared."""
MOST_NAMED = 4
"""The most columns of a site, and the most sites, that are named."""
MOST_VALUES = 1 << 22
"""The most values of a table that are read; of a larger one, rows at equal distances."""
UNIT_REMEDY = "it may be measured in other units there; ask the site, and have all sites use the same"


@dataclass(frozen=True)
class Column:
    """A column of features. kinds: its words, each with its share of the rows; () for numbers, which have a
    mean and a standard deviation. missing: by site, the number of values that were filled."""

    name: str
    mean: float
    std: float
    kinds: tuple[tuple[str, float], ...]
    missing: dict[str, int]

    def __str__(self) -> str:
        """`age 54.2 ± 12.1, 12 missing (10 at lyon)`."""
        text = f"{excerpt(self.name, 40)[1:-1]} {self.mean:.4g} ± {self.std:.3g}"
        if self.kinds:
            shares = abbreviate([f"{excerpt(kind, 20)[1:-1]} {share:.0%}" for kind, share in self.kinds], 4)
            text = f"{excerpt(self.name, 40)[1:-1]} {shares}"
        if self.missing:
            site, most = max(self.missing.items(), key=lambda item: item[1])
            where = f" ({most:,} at {printable(site)})" if site else ""
            text += f", {sum(self.missing.values()):,} missing{where}"
        return text


def site_column(dataset: Dataset | Federation) -> str:
    """The column by which the set was divided, else the first with a usual name for sites; "" without
    either."""
    column = dataset.intake.divided if dataset.intake else ""
    others = {name: values for name, values in dataset.columns.items() if name != dataset.group_column}
    return column if column in dataset.columns else site_column_in(others)


def rows_of_sites(data: Dataset | Federation) -> list[tuple[str, np.ndarray]]:
    """(name, training rows) of each site of a set with a column of sites, or of a federation with clients
    that are sites; else none."""
    if isinstance(data, Federation):
        clients = enumerate(data.train) if data.natural else ()
        return [(data.name_of(k), rows) for k, rows in clients]
    column = site_column(data)
    if not column:
        return []
    values, names = data.columns[column], data.labels.get(column)
    distinct = np.unique(values).tolist()
    return [(names[int(v)] if names else str(v), np.flatnonzero(values == v)) for v in distinct]


def numbers_of_rows(data: Dataset | Federation) -> list[tuple[str, tuple[str, ...], int, int]]:
    """(name of a column, its words, the first and last position of its numbers in a row) of each column; ()
    for samples that are no rows of a table."""
    if data.layout or data.masks or len(data.shape) != 1:
        return []
    form = data.intake.form if data.intake else {}
    if form.get("kind") != "table":
        return [(str(c), (), c, c + 1) for c in range(data.shape[0])]
    places, start = list[tuple[str, tuple[str, ...], int, int]](), 0
    for name, kinds in form["columns"]:
        end = start + column_width(kinds)
        places.append((name, tuple(kinds), start, end))
        start = end
    return places


def quoted(name: str) -> str:
    """The name of a column in a sentence: `'age'`, or `3` for the position in an array."""
    return name if name.isdecimal() else excerpt(name, 40)


def columns_of(data: Dataset | Federation) -> list[Column]:
    """The columns of the training rows; [] for samples that are no rows of a table."""
    places = numbers_of_rows(data)
    if not places:
        return []
    mean_C, std_C = _moments(data, np.arange(len(data.x)), 1)
    gaps = data.intake.gaps if data.intake else {}
    columns = list[Column]()
    for name, kinds, start, end in places:
        shares = mean_C[start:end] if end - start > 1 else np.array([1 - mean_C[start], mean_C[start]])
        by_kind = tuple(zip(kinds, shares.tolist()))
        columns.append(
            Column(name, float(mean_C[start]), float(std_C[start]), by_kind, dict(gaps.get(name, {})))
        )
    return columns


def _moments(data: Dataset | Federation, rows: np.ndarray, sites: int) -> tuple[np.ndarray, np.ndarray]:
    """(means [C], deviations [C]) of these rows, in natural units. sites: over how many the values that may
    be read are spread."""
    if not len(rows):
        return np.zeros(data.shape[0]), np.zeros(data.shape[0])
    step = max(1, len(rows) * data.shape[0] * sites // MOST_VALUES)
    x = np.asarray(data.x[rows[::step]], np.float64)
    mean, std = x.mean(0), x.std(0)
    if data.applied is None:
        return mean, std
    center, scale = (np.asarray(part) for part in data.applied)
    return mean * scale + center, std * scale


def unit_warnings(data: Dataset | Federation) -> list[str]:
    """A warning for each of the first sites at which columns look measured in other units."""
    sites = [(name, rows) for name, rows in rows_of_sites(data) if len(rows) >= FEWEST]
    places = numbers_of_rows(data) if len(sites) > 1 else []
    if not places:
        return []
    mean_KC, std_KC = (
        np.stack(part) for part in zip(*(_moments(data, rows, len(sites)) for _, rows in sites))
    )
    names = [name for name, _, start, end in places for _ in range(end - start)]
    by_class = cache(partial(_moments_by_class, data, [rows for _, rows in sites]))
    remarks = unit_remarks(mean_KC, std_KC, lambda _, c: f"column {excerpt(names[c], 40)}", by_class)
    texts = [f"{printable(sites[k][0])}: {text}" for k, text in list(remarks.items())[:MOST_NAMED]]
    more = len(remarks) - MOST_NAMED
    return [*texts, *([f"and so have {more:,} more sites"] if more > 0 else [])]


Moments = tuple[np.ndarray, np.ndarray]
"""Means and deviations."""


def _moments_by_class(data: Dataset | Federation, sites: Sequence[np.ndarray]) -> Moments:
    """The moments of the rows of each class at each site, [K, L, C]; NaN for fewer than FEWEST_OF_CLASS.
    sites: their rows. Samples without a single class count as one class."""
    single = not (data.target or data.several)
    y_N = data.y if single else np.zeros(len(data.y), np.int64)
    mean_KLC = np.full((len(sites), len(data.classes) if single else 1, *data.shape), np.nan)
    std_KLC = mean_KLC.copy()
    for k, rows in enumerate(sites):
        for c in np.unique(y_N[rows]).tolist():
            own = rows[y_N[rows] == c]
            if len(own) >= FEWEST_OF_CLASS:
                mean_KLC[k, c], std_KLC[k, c] = _moments(data, own, len(sites))
    return mean_KLC, std_KLC


def _unlike_within_classes(moments_KLC: Moments, k: int) -> np.ndarray:
    """Whether a site's columns are unlike those of most other sites in most of the classes that both have,
    bool [C]; True if it shares none with any."""
    mu, sigma = moments_KLC
    apart_JC = list[np.ndarray]()
    for j in range(len(mu)):
        shared = np.isfinite(mu[[k, j], :, 0]).all(0)
        if j != k and shared.any():
            apart_LC, _, _ = _apart(mu[k, shared], sigma[k, shared], mu[j, shared], sigma[j, shared])
            apart_JC.append(_usual(apart_LC))
    return _usual(np.stack(apart_JC)) > 1 if apart_JC else np.ones(mu.shape[-1], bool)


def unit_remarks(
    mu_KC: np.ndarray,
    sigma_KC: np.ndarray,
    name: Callable[[int, int], str],
    by_class: Callable[[], Moments] | None = None,
) -> dict[int, str]:
    """Remarks on sites with columns unlike the other sites', as ends of sentences, by site.

    name: gives the name of a site's column. by_class: gives the moments of each class, [K, L, C], if they are
    known.
    """
    texts: dict[int, str] = {}
    for k in range(len(mu_KC) if len(mu_KC) > 1 else 0):
        others = np.arange(len(mu_KC)) != k
        apart_JC, distance_JC, times_JC = _apart(mu_KC[k], sigma_KC[k], mu_KC[others], sigma_KC[others])
        distance_C, remarks = _usual(distance_JC), list[str]()
        unlike_C = _usual(apart_JC) > 1
        if by_class and unlike_C.any():
            unlike_C &= _unlike_within_classes(by_class(), k)
        for c in np.flatnonzero(unlike_C).tolist():
            text = f"{np.median(times_JC[:, c]):.3g} times the other sites' standard deviation (median)"
            if distance_C[c] > MOST_DEVIATIONS:
                text = (
                    f"a mean {np.median(distance_JC[:, c]):.3g} of the other sites' standard deviations away"
                )
                text += " from theirs (median)"
            remarks.append(f"{name(k, c)} has {text}")
        more = f" and {len(remarks) - MOST_NAMED} more" if len(remarks) > MOST_NAMED else ""
        if remarks:
            texts[k] = f"{'; '.join(remarks[:MOST_NAMED])}{more}; {UNIT_REMEDY}"
    return texts


def _apart(
    mu_C: np.ndarray, sigma_C: np.ndarray, mu_JC: np.ndarray, sigma_JC: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(how far a site lies from each other one, where 1 is the limit and 0 incomparable; the distance of its
    mean in their deviations; the ratio of its deviation to theirs), [J, C] each."""
    # rounding of a mean causes deviations up to 1e-6 of it
    comparable = (sigma_C > 1e-6 * np.abs(mu_C)) & (sigma_JC > 1e-6 * np.abs(mu_JC))
    comparable &= ~(_is_binary(mu_C, sigma_C) & _is_binary(mu_JC, sigma_JC))
    scale_JC = np.where(comparable, sigma_JC, 1.0)
    distance_JC = np.where(comparable, np.abs(mu_C - mu_JC) / scale_JC, 0.0)
    times_JC = np.where(comparable, sigma_C / scale_JC, 1.0)
    wider_JC = np.maximum(times_JC, 1 / times_JC)
    apart_JC = np.maximum(distance_JC / MOST_DEVIATIONS, wider_JC / MOST_SPREAD)
    return np.where(comparable, apart_JC, 0.0), distance_JC, times_JC


def _usual(values_JC: np.ndarray) -> np.ndarray:
    """The largest value that is reached with respect to more than half of the other sites, [C]."""
    return np.sort(values_JC, axis=0)[(len(values_JC) - 1) // 2]


def _is_binary(mean: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """True for the mean and deviation of zeros and ones."""
    return np.abs(deviation**2 - mean * (1 - mean)) < 1e-4
