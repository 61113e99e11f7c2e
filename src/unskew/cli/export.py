"""`unskew export`: a run's model for use without unskew."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from unskew.cli.options import with_options


@dataclass(frozen=True)
class Arguments:
    """The options of the command."""

    run: Annotated[Path, "folder of a finished run"]
    out: Annotated[Path, "the new folder to write"]
    format: Annotated[
        Literal["safetensors", "torch-export", "onnx"],
        "weights alone, a graph for PyTorch, or one for ONNX Runtime (pip install 'unskew[export]')",
    ] = "safetensors"
    client: Annotated[str | None, "export this client's own model, by name or number"] = None
    model: Annotated[str | None, "FILE.py:FUNCTION of a run whose model is in a Python file"] = None
    method: Annotated[str | None, "the method of a run of which a Part is in a Python file, with your own file"] = None
    best: Annotated[bool, "take the model of the best round, which a run with --keep-best keeps"] = False
    unfinished: Annotated[bool, "also take the model of a run that has not come to its end"] = False


@with_options(Arguments)
def command(arguments: Arguments) -> None:
    """Write a run's model as a folder that needs no unskew: the model, model.json, the model card, and how to load it.

    Nothing in the run's folder is run, and the samples it was trained on are not needed.
    """
    from unskew import api

    result = api.load(
        arguments.run,
        model=arguments.model,
        method=arguments.method,
        unfinished=arguments.unfinished,
        best=arguments.best,
    )
    client = int(arguments.client) if arguments.client and arguments.client.isdecimal() else arguments.client
    for path in result.export(arguments.out, arguments.format, client):
        print(path)
    print(f"next  python -i {arguments.out / 'load.py'}")
