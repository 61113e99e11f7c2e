"""Checks of a site before it takes part in a run: key, connection, policy, data, versions."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

from unskew.data.data_overview import value_range
from unskew.data.samples.dataset import Dataset
from unskew.data.standardisation import why_standardise
from unskew.errors import UnskewError
from unskew.federation.protocol.hello import versions
from unskew.federation.site.handshake import Finding, network
from unskew.federation.site.policy import Policy
from unskew.federation.site.site_folder import SiteFolder
from unskew.federation.site.study_review import Study, check_study
from unskew.federation.site_data import load


def check_site(folder: Path, data: str, classes: Sequence[str], for_study: bool = False) -> list[Finding]:
    """All checks, or, with `for_study`, those that a study needs before there is a site.

    Raises UsageError (E503) if the folder has to be a site's and is not.
    """
    if for_study:
        text = f"{folder} is no site's yet, so its key, network and policy are not checked"
        return [Finding("folder", True, text), _data(data, classes), _versions()]
    joined = SiteFolder.open(folder)
    return [_key(joined), *network(joined), _policy(folder), _data(data, classes), _versions()]


def policy_finding(folder: Path, study: Study) -> Finding:
    """The check of a study against the site's policy."""
    try:
        check_study(Policy.read(folder), study)
    except UnskewError as error:
        return Finding("study", False, str(error))
    return Finding("study", True, f"{study.method}: the policy allows it")


def _policy(folder: Path) -> Finding:
    try:
        policy = Policy.read(folder)
    except UnskewError as error:
        return Finding("policy", False, str(error))
    text = f"{', '.join(policy.shares)} may leave; at least {policy.least_samples} samples behind a number"
    return Finding("policy", True, text)


def _key(joined: SiteFolder) -> Finding:
    try:
        return Finding("key", True, f"mode 0600, fingerprint {joined.key.public.fingerprint}")
    except UnskewError as error:
        return Finding("key", False, str(error))


def _data(text: str, classes: Sequence[str]) -> Finding:
    try:
        dataset = load(text, classes)
    except UnskewError as error:
        return Finding("data", False, str(error))
    counts = f"{len(dataset.y):,} training samples, {len(dataset.y_test):,} test samples"
    form = f"each {dataset.layout or list(dataset.shape)}; {_labels(dataset)}"
    low, high = value_range(dataset)
    scale = why_standardise(dataset) if dataset.intake else ""
    remarks = [text for _, text in (dataset.intake.notes if dataset.intake else ())]
    if scale:
        alike = (
            "sites are not standardised unless the study's method does it, so scale the samples at all sites"
            " alike"
        )
        remarks.append(f"{scale}: {alike}")
    return Finding("data", True, "; ".join([f"{counts}, {form}; values {low:.3g} to {high:.3g}", *remarks]))


def _labels(dataset: Dataset) -> str:
    """The labels in words: how many classes have samples and which have none; or the target's range."""
    if target := dataset.target:
        span = f"{dataset.y.min():.5g} to {dataset.y.max():.5g}"
        return f"target {target.name} from {span}, learnt as (y - {target.center:.5g}) / {target.scale:.5g}"
    if dataset.several:
        counts = dataset.y.sum(0)
        lacks = ",".join([n for n, count in zip(dataset.classes, counts) if not count][:5])
        return f"{len(dataset.classes)} labels, several a sample{f' (none of {lacks})' if lacks else ''}"
    labels = np.unique(dataset.y[dataset.y >= 0])
    missing = [name for i, name in enumerate(dataset.classes) if i not in labels]
    lacks = f" (none of {','.join(missing[:5])})" if missing else ""
    return f"{len(dataset.classes) - len(missing)} classes{lacks}"


def _versions() -> Finding:
    try:
        installed = {**versions(), "flwr": version("flwr")}
        return Finding("versions", True, ", ".join(f"{name} {number}" for name, number in installed.items()))
    except PackageNotFoundError:
        return Finding("versions", False, "E133 Flower is not installed: pip install 'unskew[flower]'")
