"""`unskew.load`: the model of a run, from the folder that it left behind."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from unskew.core.method import Method
from unskew.core.part import Part
from unskew.deploy.site_files import is_sites
from unskew.engine.disk.code import Code
from unskew.engine.disk.reopened import reopened
from unskew.engine.export import hub
from unskew.errors import UsageError
from unskew.failures import explained
from unskew.predicting import AtSite, Published
from unskew.results import Result


@torch.inference_mode(False)
def load(
    path: str | Path,
    *,
    model: nn.Module | str | Path | None = None,
    method: Method | Part | str | Path | None = None,
    unfinished: bool = False,
    best: bool = False,
    data: Any = None,
    classes: Sequence[str] = (),
) -> Result | Published | AtSite:
    """The result of a finished run from its folder, ready to predict; the samples it was trained on are not needed.
    A folder that `export` wrote for the hub gives a Published, which predicts and knows nothing of the run; the folder of a run
    at a site (SITE/runs/NUMBER) an AtSite, with the model that the site has.

    model, method: needed only where they are code, because nothing in the folder is run: a module that was given in Python,
    `file.py:function`, or a method with a Part in a file, each the same as in training. unfinished: also take the model
    of a run that has not come to its end. best: the global model of the best round, of a run with `keep_best`. Everything is computed on the CPU; `result.model` can be moved.
    data, classes: of the folder of a run at a site, the site's own data as it took part with them: some methods make a site's
    model with its samples (FedBABU's fine-tuning, IFCA, kNN-Per), which no folder holds.
    Raises UsageError (E109) where they are given for a folder of the hub; StateError: E111 for such a folder that somebody
    changed, E117 for no run, E155 for an unfinished one, E156 where model or method cannot be built, E112 for a
    file that has changed, E201 and E208 for damaged files; NothingUsed (E316) for a run that its clients did not train.
    """
    method = os.fspath(method) if isinstance(method, os.PathLike) else method
    model = os.fspath(model) if isinstance(model, os.PathLike) else model
    path = Path(path)
    if classes and data is None:
        raise UsageError("E109", "classes name those of the site's data; give data too, or leave classes out.")
    if hub.is_hub(path):
        if model is not None or method is not None or unfinished or best or data is not None:
            text = "leave out model, method, unfinished, best and data"
            raise UsageError("E109", f"{path} holds one finished model; {text}.")
        trained = hub.opened(path)
        return Published(trained.run, trained.run.fed.net.module_with(trained.end.weights), trained, path)
    if is_sites(path):
        if unfinished or best:
            raise UsageError("E109", f"{path} holds the weights that came last; leave out unfinished and best.")
        return _of_site(path, Code(method, model), data, classes)
    if data is not None:
        raise UsageError(
            "E109", f"{path} is no run at a site (SITE/runs/NUMBER), whose data could be given; leave out data."
        )
    opened = reopened(path, Code(method, model), unfinished, best)
    module = opened.run.fed.net.module_with(opened.weights)
    return Result(opened.run, opened.record, opened.weights, module, opened.trained, path)


def _of_site(path: Path, code: Code, data: Any, classes: Sequence[str]) -> AtSite:
    """The model in a site's folder of a run. data, classes: as `load` takes them."""
    try:
        from unskew.deploy import loaders, own_model  # which need what a site has installed
    except ModuleNotFoundError as error:
        raise explained(error) from error
    own = own_model.opened(path, code, None if data is None else loaders.at_site(data, classes))
    run, end = own.trained.run, own.trained.end
    return AtSite(run, run.fed.net.module_with(end.weights), own.trained, path, own)
