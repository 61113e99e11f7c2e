"""Whether rows of other sites help at a site: a classifier of all sites' rows against one of its own.

Every number x of a table's row is standardised over all rows, and z = (x, sqrt(2) cos(x W + b)) adds D random
features (Rahimi and Recht, NeurIPS 2007), which are the same for all sites. A classifier answers

    argmax_c  z' S^-1 m_c - m_c' S^-1 m_c / 2 + log p_kc

with the means m_c of the classes, the covariance S within classes plus RIDGE, and the class shares p_kc of
site k. Rows are dealt into FOLDS parts; in each, both classifiers are scored on rows that neither has seen.
The gain is the mean over sites of the difference of accuracies. Its error is the larger one of two: the
standard error over sites, and that of the rows on which the two differ, in which the rows of a group, such as
a patient, count as one at all sites together: with the sum d_gk of differences in group g at site k of
n_k rows and G_k groups, it is sqrt(sum_g (sum_k d_gk / n_k)^2 + sum_k 1 / G_k^2) / K.

It takes sums of z and of products of z over all sites, which can be added up before anybody reads them; of
one site it takes how many rows each classifier gets right.

Letters: N rows, F features, C classes, K sites.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unskew.core.random_keys import numpy_key
from unskew.data.clients.federation import Federation
from unskew.data.column_statistics import numbers_of_rows
from unskew.diagnosis.skews import spread_over

FOLDS, RANDOM_FEATURES, RIDGE = 5, 200, 0.1
MOST_SITES, MOST_ROWS = 30, 20_000
"""The most sites at which classifiers are scored, and the most rows that are read, spread evenly."""


@dataclass(frozen=True)
class Pooling:
    """The gain of pooled rows at the sites, as a share, and its standard error."""

    gain: float
    error: float


def pooling_of(federation: Federation) -> Pooling | None:
    """The gain of pooled rows; None for samples that are no rows of a table with one class each, and where
    fewer than two sites have a row in each of two folds."""
    if federation.target or federation.several or not numbers_of_rows(federation):
        return None
    f, rows = federation, federation.train.rows
    step = max(1, len(rows) // MOST_ROWS)
    sites = [own[::step] for own in f.train]
    folds = _folds(f, sites)
    z_NF = _features(f, np.concatenate(sites))
    y_N, fold_N = f.y[np.concatenate(sites)], np.concatenate(folds)
    places = np.split(np.arange(len(y_N)), np.cumsum([len(own) for own in sites])[:-1])
    scored = [k for k in range(f.clients) if len(np.unique(folds[k])) > 1]
    scored = [scored[i] for i in spread_over(len(scored), MOST_SITES)] if scored else []
    if len(scored) < 2:
        return None
    right_N2 = np.zeros((len(y_N), 2), bool)
    for fold in range(FOLDS):
        pooled = _classifier(z_NF[fold_N != fold], y_N[fold_N != fold], f.n_classes)
        for k in scored:
            kept, held = (places[k][on] for on in (folds[k] != fold, folds[k] == fold))
            counts_C = np.bincount(y_N[kept], minlength=f.n_classes) + 0.5
            for i, (a_FC, b_C) in enumerate((pooled, _classifier(z_NF[kept], y_N[kept], f.n_classes))):
                answers = (z_NF[held] @ a_FC + b_C + np.log(counts_C / counts_C.sum())).argmax(1)
                right_N2[held, i] = answers == y_N[held]
    gains = np.array([right_N2[places[k], 0].mean() - right_N2[places[k], 1].mean() for k in scored])
    of_rows = np.sqrt(_variance(f, [sites[k] for k in scored], [right_N2[places[k]] for k in scored]))
    of_sites = gains.std(ddof=1) / np.sqrt(len(scored))
    return Pooling(float(gains.mean()), float(max(of_rows, of_sites)))


def _owners(f: Federation, rows: np.ndarray) -> np.ndarray:
    """The group of each of the rows, from 0; every row is one of its own if samples are independent."""
    if f.group_ids is None or not len(rows):
        return np.arange(len(rows))
    return np.unique(f.group_ids[rows], return_inverse=True)[1].reshape(-1)


def _folds(f: Federation, sites: list[np.ndarray]) -> list[np.ndarray]:
    """The fold of each row of each site; rows of one group, such as a patient, are in one fold at all sites,
    that of the group at the first site that has it."""
    folds, fold_of = list[np.ndarray](), dict[int, int]()
    for k, rows in enumerate(sites):
        owner, order = _owners(f, rows), numpy_key(0, k, "folds").permutation(len(rows))
        own = order[owner] % FOLDS if len(rows) else owner
        if f.group_ids is not None:
            pairs = zip(f.group_ids[rows].tolist(), own.tolist())
            own = np.array([fold_of.setdefault(group, fold) for group, fold in pairs], np.int64)
        folds.append(own)
    return folds


def _variance(f: Federation, sites: list[np.ndarray], right: list[np.ndarray]) -> float:
    """The variance of the gain by its rows. right: [n, 2] of each site."""
    shares = [(own_n2[:, 0].astype(float) - own_n2[:, 1]) / len(own_n2) for own_n2 in right]
    sums_G = np.bincount(_owners(f, np.concatenate(sites)), np.concatenate(shares))
    least = sum(1 / len(np.unique(_owners(f, own))) ** 2 for own in sites)
    return ((sums_G**2).sum() + least) / len(sites) ** 2


def _features(f: Federation, rows: np.ndarray) -> np.ndarray:
    x_ND = np.asarray(f.x[rows], np.float64)[:, spread_over(f.shape[0])]
    std_D = x_ND.std(0)
    x_ND = (x_ND - x_ND.mean(0)) / np.where(std_D > 0, std_D, 1.0)
    rng, width = numpy_key(0, "features"), x_ND.shape[1]
    weights = rng.standard_normal((width, RANDOM_FEATURES)) / np.sqrt(width)
    phases = rng.random(RANDOM_FEATURES) * 2 * np.pi
    return np.concatenate([x_ND, np.sqrt(2) * np.cos(x_ND @ weights + phases)], axis=1)


def _classifier(z_NF: np.ndarray, y_N: np.ndarray, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """(S^-1 m_c [F, C], -m_c' S^-1 m_c / 2 [C]); a class without rows is never the answer."""
    n_C, mean_CF = np.bincount(y_N, minlength=classes), np.zeros((classes, z_NF.shape[1]))
    np.add.at(mean_CF, y_N, z_NF)
    mean_CF /= np.maximum(n_C, 1)[:, None]
    apart_NF = z_NF - mean_CF[y_N]
    covariance = apart_NF.T @ apart_NF / max(1, len(z_NF)) + RIDGE * np.eye(z_NF.shape[1])
    a_FC = np.linalg.solve(covariance, mean_CF.T)
    return a_FC, np.where(n_C > 0, -(mean_CF.T * a_FC).sum(0) / 2, -np.inf)
