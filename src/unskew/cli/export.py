"""`unskew export`: export a run's model for use without unskew."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from unskew.cli.options import ModelOptions, with_options
from unskew.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Arguments(ModelOptions):
    """The options of the command."""

    out: Annotated[Path, "the new folder to write"]
    format: Annotated[
        Literal["safetensors", "torch-export", "onnx", "hub"],
        "weights alone, a graph for PyTorch, one for ONNX Runtime (pip install 'unskew[export]'), or a folder"
        " for the Hugging Face Hub, which unskew opens again",
    ] = "safetensors"
    license: Annotated[str, "SPDX's name of the licence, for the card of --format hub"] = ""


@with_options(Arguments)
def command(arguments: Arguments) -> None:
    """Write a run's model as a folder that can be used without unskew: the model, model.json, the model card,
    and how to load it.

    No code in the run's folder is executed, and the training samples are not needed.
    """
    from unskew.results import PublishedModel

    result = arguments.result()
    if isinstance(result, PublishedModel):
        raise UsageError("E160", f"{arguments.run} is an export already; export from the run it came from.")
    for path in result.export(arguments.out, arguments.format, arguments.whose, arguments.license):
        print(path)
    if arguments.format == "hub":
        print(f"next  hf upload NAME/MODEL {shlex.quote(str(arguments.out))}")
    else:
        print(f"next  python -i {shlex.quote(str(arguments.out / 'load.py'))}")
