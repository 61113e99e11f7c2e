"""The models of this package, one for each file in `networks/`, and the choice for `model=auto`.

Descriptions are read from source, so that models can be listed without loading torch.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from unskew.errors import UsageError
from unskew.system import python_files

FOLDER = Path(__file__).parent / "networks"


@cache
def files() -> dict[str, Path]:
    """The file of every model by name, in alphabetical order."""
    return {path.stem: path for path in python_files.module_files(FOLDER)}


@cache
def aliases() -> dict[str, str]:
    """The name of the model for each alias."""
    return {
        alias: name for name, path in files().items() for alias in python_files.constant(path, "ALIASES", ())
    }


def names() -> tuple[str, ...]:
    """The names and aliases of all models, in alphabetical order."""
    return tuple(sorted([*files(), *aliases()]))


def describe() -> dict[str, str]:
    """A line with the description and arguments of each model, by name."""
    lines = {name: _described(name, path) for name, path in files().items()}
    lines |= {alias: f"another name for {name}" for alias, name in aliases().items()}
    return dict(sorted(lines.items()))


def _described(name: str, path: Path) -> str:
    return "; ".join(filter(None, (python_files.summary(path), ", ".join(python_files.defaults(path, name)))))


def default_for(shape: tuple[int, ...], pixels: tuple[int, ...] = ()) -> str:
    """The text of a model that fits samples of this shape.

    pixels: the shape of a sample's mask, () where a sample has one label. Raises UsageError (E123) for labels
    of tokens.
    """
    if pixels and len(shape) == 1:
        text = (
            "no model that comes with unskew answers at every token; give a module of your own that returns"
            " logits"
        )
        raise UsageError("E123", f"{text} [samples, tokens, classes], or model='hf(path=FOLDER)'.")
    if pixels:
        return "unet"
    if shape == (1, 128, 3):
        return "harnet"
    if len(shape) == 3 and shape[0] <= 2 and shape[1] == 64 != shape[2] and shape[2] >= 16:
        return "audionet"  # mono or stereo, 64 mel bands over time
    if len(shape) == 3 and shape[1:] == (28, 28):
        return "rebafl_fmnist"
    if len(shape) == 3 and shape[1:] == (32, 32):
        return "rebafl_cifar"
    if len(shape) == 3 and min(shape[1:]) >= 48:
        return "alexnet_bn(width=1024)"
    return "cnn_small" if len(shape) == 3 and min(shape[1:]) >= 4 else "mlp"
