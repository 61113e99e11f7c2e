"""docs/models.md: every model with its size, what it computes, what leaves it at its cut, and its
arguments."""

from __future__ import annotations

import math

import torch
from torch import nn

from unskew.core.modules import children, evaluation_mode
from unskew.formats import calls
from unskew.formats.markdown import arguments_table, table
from unskew.models.blocks import Example
from unskew.models.registry import build, files, maker_of, module_of

_INTRODUCTION = """\
Any `torch.nn.Module` works: a name from this page, `file.py:function`, or in Python a module or a function. The function in
your file is called with the shape of a sample and the number of classes, `function(shape, classes)`, and further
arguments may follow in the text: `file.py:function(width=64)`.

## Several inputs

A module whose forward takes several inputs trains on samples whose `x` is a dictionary, whose entries are its keyword
arguments, or a tuple, whose entries are its positional ones ([Data](data.md#several-inputs-a-sample)). The function in a
file is then called with the shape of each, `function({"scan": (1, 64, 64), "age": ()}, classes)`. A result's `model` takes
the inputs as your own module does.

## Freezing

Parameters with `requires_grad=False` are constants of the run: they are neither trained nor sent, no client stores them,
and clients that train side by side read one copy. Batch normalisation
of which every parameter is frozen runs in evaluation mode, also in training: it uses the running statistics that came
with the model and does not update them. A model's own buffers of floats are averaged over clients; its forward pass
must update them in place (`self.centre.copy_(...)`). An attribute that a forward changes at every pass, such as a counter, is
neither saved nor sent, and is refused (E123); so are a forward that changes weights (`clamp_`, `max_norm` of an embedding)
and a weight that a list or a function holds beside its layer, where clients' weights would not reach it.
Refused, too, are layers in a plain list (`nn.ModuleList` holds them), tensors that require gradients but are no `nn.Parameter`,
a buffer that changes in evaluation mode, and `torch.utils.checkpoint`. Lazy layers take their shapes from the data.

## Head and features

The head is the layer whose outputs are the logits: of an `nn.Sequential` its last block with a matrix of weights, else the
dense layer, or where there is none the convolution, that was called last with a number for each class. Methods that keep,
compare or re-train a head mean this layer. What it receives are a sample's features; a head that is a convolution receives
a map, whose numbers stand in one row. A layer behind the head that changes its outputs, a softmax say, is no hindrance to
most methods; those that train the head alone, from features, say so (E108).

## What training does with your layers

A round trains your model as a plain loop of torch on the same batches does. Five things to know:

- Layers with `inplace=True` run with `inplace=False`. A model that goes on with what such a layer has changed, as in
  `self.conv(self.relu(h)) + h`, would be another one then and is refused (E123).
- Dropout draws its masks from a key of the client's own, sample by sample. Where the first axis of what it is given is not
  the batch (time before batch, weights), it draws from torch's generator under a seed of the client's, and clients train
  one after another.
- Where `nn.BatchNorm` normalises batches, a last batch of one sample is left out, unless the client has no other: such a batch
  has no variance.
- A model that computes statistics of the batch by itself trains one client after another, because batches of
  clients that train side by side are padded. `nn.BatchNorm` and `F.batch_norm` leave padding out.
- Random numbers have to be torch's. Those of Python's `random` and of `numpy.random` are refused (E123): no seed of a run
  reaches them.

## torchvision

Models of torchvision train as they come, `unskew.run("fedavg", data, model=torchvision.models.resnet18(num_classes=10))`, and so
do its sets and transforms. Tried with torchvision 0.29: ResNet, MobileNet V2 and V3, SqueezeNet, ShuffleNet, EfficientNet, VGG,
DenseNet, ConvNeXt, RegNet, MNASNet, GoogLeNet, ViT and Swin. Those with auxiliary outputs need them switched off or a wrapper
that returns the logits alone (E123). Those that draw which blocks are passed by (EfficientNet, ConvNeXt, Swin), ShuffleNet and
DenseNet train one client after another; a run says so. `nn.GroupNorm` in place of batch normalisation is
`norm_layer=lambda channels: nn.GroupNorm(2, channels)`.

## Language models

`hf(path='FOLDER')` reads a model of Hugging Face from a folder and trains adapters beside it (the extra `[hf]`):
[Language models](guides/language-models.md).

## Using the trained model

`result.predict(x)` takes samples as they were given for training, before any scaling, and returns classes;
`result.predict_proba(x)` returns probabilities. `result.model` is an ordinary module in evaluation mode that expects
samples as they were scaled for training: 8-bit numbers are divided by 255, unscaled columns and channels are
standardised, and a Part such as `fedrdn` or `norm` normalises them itself. The constants are in the metadata
of `model.safetensors` ([how to read them](files.md#modelsafetensors)); mean and standard deviation also in `federation.json`.

## Models by name"""


HEAD = (
    *(
        "model",
        "sample",
        "classes",
        "parameters",
        "default cut",
        "numbers there",
        "features",
    ),
    "source",
)


def page() -> str:
    """docs/models.md as Markdown."""
    rows = [_row(name, example) for name in files() for example in module_of(name).EXAMPLES]
    arguments = arguments_table("model", {name: maker_of(name) for name in files()})
    return f"# Models\n\n{_INTRODUCTION}\n\n{table(HEAD, rows)}\n\n## Arguments\n\n{arguments}\n"


def _row(name: str, example: Example) -> tuple[str, ...]:
    """The table's line on an example of a model."""
    shape, classes = example.shape, example.classes
    with torch.device("meta"):  # shapes alone: nothing is allocated or computed
        module = build(name, shape, classes, shape[1:] if example.masks else (), **example.arguments)
        before_head = [child for child, _ in children(module)][-2]
        cut = str(module.cut)
        cut_shape = shape_at(module, shape, cut)
        return (
            f"`{calls.call_text(name, example.arguments)}`",
            _by(shape),
            str(classes),
            f"{sum(p.numel() for p in module.parameters()):,}",
            f"`{cut}` {_by(cut_shape)}",
            f"{math.prod(cut_shape):,}",
            f"{math.prod(shape_at(module, shape, before_head)):,}",
            example.source,
        )


def shape_at(module: nn.Module, shape: tuple[int, ...], cut: str) -> tuple[int, ...]:
    """The shape of one sample's activation after a block. Raises KeyError if there is no such block."""
    shapes: list[torch.Size] = []
    hook = dict(children(module))[cut].register_forward_hook(lambda _m, _x, h: shapes.append(h.shape))
    try:
        with torch.no_grad(), evaluation_mode(module):
            module(torch.zeros(2, *shape))
    finally:
        hook.remove()
    return tuple(shapes[0][1:])


def _by(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))
