"""The folder of an exported model: a graph for PyTorch, which needs neither unskew nor the model's source.

model.pt2     the graph, from a raw sample to the model's output (the format of torch.export)
model.json    everything that a program needs to use it
load.py       a few lines that load it

Settings and Parts together scale each channel by a mean and a deviation. An exported model has these two rows
in place of their sources: FedRDN's table has the statistics of every site, but its global model needs only
their mean. Samples of a folder of images are in [0, 1] already, so their `divided_by` is 1. Letters: N
samples, C classes, channels or columns of a table.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim

from unskew.core import module_inputs
from unskew.core.client import Client, replace_fields
from unskew.core.network import Network
from unskew.core.part import Part
from unskew.core.trees import Weights, tree_map
from unskew.data.clients.federation import Federation, RemoteFederation
from unskew.data.column_statistics import numbers_of_rows
from unskew.data.kinds.features import indicator_name
from unskew.errors import UsageError
from unskew.formats.specs import without_folders
from unskew.models.blocks import outputs
from unskew.round.clients import Broadcast
from unskew.round.evaluation import Evaluation
from unskew.round.precision import torch_defaults
from unskew.round.samples import load_samples
from unskew.round.trainer import Trainer
from unskew.runs import predictions
from unskew.runs.assemble import trainer_of
from unskew.runs.predictions import RemoteRows, TrainedRun
from unskew.system import disk
from unskew.version import revision

GRAPH = "model.pt2"
LINEAR_TOLERANCE = 1e-9
"""The largest relative deviation from a linear function in double precision."""


@dataclass(frozen=True)
class InputScaling:
    """Scales inputs to (x / divided_by - mean) / std by channel.

    divided_by: the largest number of the samples' type. mean, std: float64 [C].
    """

    divided_by: float
    mean: Tensor
    std: Tensor

    def apply(self, x: Tensor) -> Tensor:
        """The float32 inputs of the model for raw samples [N, C, ...]."""
        row = (1, -1, *[1] * (x.dim() - 2))
        mean, std = (values.to(x.device, torch.float32).reshape(row) for values in (self.mean, self.std))
        return (x.to(torch.float32) / self.divided_by - mean) / std


def input_scaling(
    prepare: Callable[[Tensor], Tensor], shape: tuple[int, ...], divided_by: float
) -> InputScaling:
    """The constants of a function `prepare` of samples [1, *shape] in natural units.

    Raises UsageError (E160) for a function that does more than shift and scale each channel.
    """
    nothing, one = (torch.full((1, *shape), value, dtype=torch.float64) for value in (0.0, 1.0))
    shift, scale = prepare(nothing), prepare(one) - prepare(nothing)
    sample = torch.linspace(-3, 3, math.prod(shape), dtype=torch.float64).reshape(1, *shape)
    expected = scale * sample + shift
    straight = torch.allclose(prepare(sample), expected, rtol=LINEAR_TOLERANCE, atol=LINEAR_TOLERANCE)
    shift_CP, scale_CP = shift.reshape(shape[0], -1), scale.reshape(shape[0], -1)
    alike = bool((shift_CP == shift_CP[:, :1]).all() and (scale_CP == scale_CP[:, :1]).all())
    if not straight or not alike or not bool((scale_CP[:, 0] != 0).all()):
        text = (
            "this method does more to its inputs than to shift and scale each channel, which no export holds"
        )
        raise UsageError("E160", f"{text}; predict with unskew (unskew.load, unskew predict).")
    return InputScaling(divided_by, -shift_CP[:, 0] / scale_CP[:, 0], 1 / scale_CP[:, 0])


@dataclass(frozen=True)
class EmptyCells:
    """Fills NaN in rows of a table as empty cells of a file are filled.

    medians: float32 [C], NaN for a column that is not filled. sources: int64 [C], the column that an
    indicator of missing values is of; for other columns their own number.
    """

    medians: Tensor
    sources: Tensor

    @staticmethod
    def of(federation: Federation) -> EmptyCells | None:
        """The medians in the form of a table; None if nothing is filled."""
        form = dict(federation.intake.form) if federation.intake else {}
        if form.get("kind") != "table" or "missing" not in form:
            return None
        places = {name: start for name, kinds, start, _ in numbers_of_rows(federation) if not kinds}
        medians, sources = torch.full(federation.shape, math.nan), torch.arange(*federation.shape)
        for name, median in form["missing"].items():
            if name in places:
                medians[places[name]] = median
            if (mark := places.get(indicator_name(name))) is not None and name in places:
                medians[mark], sources[mark] = 0.0, places[name]
        return EmptyCells(medians, sources)

    def apply(self, x: Tensor) -> Tensor:
        """The rows without NaN in columns of numbers, each indicator 1 where its column was NaN."""
        empty, x = x.isnan(), x.to(torch.float32)
        x = torch.where(empty, self.medians, x)
        marked = empty.index_select(1, self.sources) & (self.sources != torch.arange(len(self.sources)))
        return torch.where(marked, 1.0, x)


class ExportedModel(nn.Module):
    """A module from raw samples [N, *shape] to logits [N, C, ...].

    model: a plain module with the weights. weights: by the run's names. inputs: the scaling of samples, None
    if the model looks them up. empty: how NaN is filled, None if it is not. answers: Parts that change the
    logits, with the client that each sees. client: the name of the client with this model, "" for the global
    one.
    """

    def __init__(
        self,
        net: Network,
        w: Weights,
        inputs: InputScaling | None,
        answers: Mapping[Part, Client] | None = None,
        client: str = "",
        empty: EmptyCells | None = None,
    ):
        super().__init__()
        self.model, self.weights = net.module_with(w), w
        module_inputs.attach_layout(self.model, None)
        self._net, self.inputs, self.answers, self.client = net, inputs, answers or {}, client
        self.empty = empty

    def forward(self, x: Tensor) -> Tensor:
        x = self.empty.apply(x) if self.empty else x
        x = self.inputs.apply(x) if self.inputs else x.to(torch.float32)
        tensors = dict(self.model.named_parameters(remove_duplicate=False))
        z, h = self._net.run(tensors | dict(self.model.named_buffers(remove_duplicate=False)), x)
        for part, client in self.answers.items():
            z = part.scores(z, h, replace_fields(client, inputs=x))
        return z


def export_model(trained: TrainedRun, client: int | str | None = None) -> ExportedModel:
    """The model of a run on the CPU, in evaluation mode.

    client: name or number of the client with the model; default: the global model. Raises UsageError: E131 if
    the model is not here, E109 for an unknown client, E160 for a model that contains more than weights.
    """
    federation = trained.run.federation
    if federation.layout:
        text = "samples have several inputs, and an exported model takes one"
        raise UsageError("E160", f"{text}; predict with unskew, or use result.model in your own code.")
    k = predictions.client_number(federation, client)
    name = federation.name_of(k) if k >= 0 else ""
    trainer = trainer_of(trained.run)
    try:
        private = trained.private(trainer, k)
        if isinstance(federation, RemoteFederation):
            trainer.samples = replace(trainer.samples, rows=RemoteRows())
        empty = load_samples(np.zeros((0, *federation.shape), np.float32), trainer.device)
        evaluation = Evaluation(trainer, empty, np.zeros(0, np.int64), [])
        with trainer.evaluating():
            w = _on_cpu(evaluation.weights_of(k, trained.end, private, own=k >= 0))
            if others := sorted(w.keys() - trainer.net.initial.keys()):
                text = f"the own model of {name} holds '{others[0]}', which is made of its training samples"
                raise UsageError("E160", f"{text}; it stays where they are: use Result.predict there.")
            start = replace(trained.end, weights=w, down=_on_cpu(trained.end.down))
            seen = trainer.client(k, start, "", w, _on_cpu(private))
            seen = replace_fields(seen, counts=seen.counts.cpu())
            seen_by = {
                p: replace_fields(seen, down=start.down.get(p.name, {})) for p in trainer.hooks["scores"]
            }
            scaling = _scaling_of(trained, trainer, seen, start)
            return ExportedModel(trainer.net, w, scaling, seen_by, name, EmptyCells.of(federation)).eval()
    finally:
        trainer.close()


def _scaling_of(trained: TrainedRun, trainer: Trainer, seen: Client, start: Broadcast) -> InputScaling | None:
    """The scaling of samples by settings and Parts; None if the model looks up whole numbers."""
    federation = trained.run.federation
    if trainer.net.embeds:
        return None

    def prepare(x: Tensor) -> Tensor:
        mean, std = (torch.tensor(v, dtype=torch.float64) for v in federation.applied or ((0.0,), (1.0,)))
        row = (1, -1, *[1] * (x.dim() - 2))
        return trainer.prepared((x - mean.reshape(row)) / std.reshape(row), seen, start)

    return input_scaling(prepare, federation.shape, predictions.input_facts(federation)["divided_by"])


def _on_cpu(tree: Any) -> Any:
    return tree_map(lambda t: t.detach().cpu(), dict(tree))


TRIED_SAMPLES = 3
"""The number of samples that check an export; not 2, the number with which a graph is traced."""
WHOLE_TYPES = {"uint8": torch.uint8, "uint16": torch.uint16}


def sample_type(dtype: str, whole: ExportedModel) -> str:
    """The type of an exported model's input. dtype: of the training samples.

    Bytes and 16-bit numbers keep their type if they are divided; whole numbers for a lookup are int64.
    """
    if whole.inputs is None:
        return "int64"
    return dtype if dtype in WHOLE_TYPES and whole.inputs.divided_by > 1 else "float32"


def example_samples(whole: ExportedModel, shape: tuple[int, ...], dtype: str, count: int) -> Tensor:
    """Deterministic samples [count, *shape] of this type, spread over the range of the training samples."""
    even = (torch.arange(count * math.prod(shape)) * 0.6180339887498949 % 1).reshape(count, *shape)
    if whole.inputs is None:
        tables = (m for m in whole.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag))
        return (even * min((m.num_embeddings for m in tables), default=2)).long()
    if dtype in WHOLE_TYPES:
        return (even * whole.inputs.divided_by).round().to(WHOLE_TYPES[dtype])
    row = (1, -1, *[1] * (len(shape) - 1))
    mean, std = (v.reshape(row) for v in (whole.inputs.mean, whole.inputs.std))
    return ((even * 4 - 2) * std + mean).float()


def _graph_of(whole: ExportedModel, x: Tensor) -> bytes:
    """The content of a file with the model's graph for any number of samples. x: two samples."""
    buffer = io.BytesIO()
    try:
        with torch.no_grad(), _quiet():
            program = torch.export.export(whole, (x,), dynamic_shapes={"x": {0: Dim("N")}}, strict=False)
    except Exception as error:  # torch raises many kinds, for models that it cannot trace
        reason = str(error).partition("\n")[0]
        text = (
            f"torch.export cannot follow this model for any number of samples ({type(error).__name__}:"
            f" {reason[:200]})"
        )
        raise UsageError("E160", f"{text}; `unskew.load(RUN).model` is the module.") from error
    for weight in program.parameters():
        weight.requires_grad_(False)  # outputs are then plain tensors without a gradient graph
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)
    torch.export.save(program, buffer)
    return buffer.getvalue()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the output of torch about graphs; failures raise errors instead."""
    level, sink = logging.root.manager.disable, io.StringIO()
    logging.disable(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(sink),
            contextlib.redirect_stderr(sink),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


LOGITS = "logits; their softmax over axis 1 are the probabilities of the classes, in this order"
TOKENS = (
    "logits; their softmax over axis 2 are the probabilities of the classes at every token, in this order"
)
SEVERAL = (
    "logits; the logistic function of each is the probability that the sample has this label, in this order"
)

FILLED = "NaN in a column of numbers is filled by the model, with the median in form.missing"
UNFILLED = "NaN is not filled, and answers are then NaN"


def model_facts(trained: TrainedRun, whole: ExportedModel, dtype: str) -> dict[str, Any]:
    """The content of model.json. dtype: of the model's input. `form` says how files became samples."""
    run, constants = trained.run, whole.inputs
    federation, inputs = run.federation, predictions.input_facts(run.federation)
    shape = outputs(federation.shape, federation.n_classes, tuple(run.task.pixels(federation.shape)))
    return {
        "method": without_folders(str(run.method)),
        "data": federation.name,
        "task": run.task.name,
        "round": trained.end.t,
        "client": whole.client or None,
        "inputs": {
            "name": "x",
            "dtype": dtype,
            "shape": ["N", *federation.shape],
            "divided_by": constants.divided_by if constants else 1,
            "mean": constants.mean.tolist() if constants else None,
            "std": constants.std.tolist() if constants else None,
            "scaled": "by the model",
            **({"form": inputs["form"]} if "form" in inputs else {}),
            **({"missing": FILLED if whole.empty else UNFILLED} if len(federation.shape) == 1 else {}),
        },
        "outputs": {"name": "logits", "shape": ["N", *shape], "meaning": _meaning(federation)},
        **({"target": inputs["target"]} if federation.target else {"classes": list(federation.classes)}),
        "model": without_folders(run.settings.model),
        "versions": {"unskew": revision(), "torch": torch.__version__},
    }


def _meaning(federation: Federation) -> str:
    """The meaning of the outputs."""
    if (target := federation.target) and federation.n_classes > 1:
        names = ", ".join(federation.classes)
        return f"one number for each of {names}: {target.scale!r} times these, plus {target.center!r}"
    if target:
        return f"one number, of which '{target.name}' is {target.scale!r} times, plus {target.center!r}"
    if federation.several:
        return SEVERAL
    return TOKENS if federation.tokens else LOGITS


LOGIT_TOLERANCE = 1e-4
"""The largest difference of logits relative to the largest logit; graphs sum in another order."""
LOAD = '''"""The model in model.pt2, for torch alone. It takes samples as model.json describes them."""
from pathlib import Path
import torch

def load():
    """A function of samples, a tensor [N, *shape]. Load no .pt2 file that you do not trust."""
    return torch.export.load(Path(__file__).parent / "model.pt2").module()
'''
"""The content of load.py."""


@torch_defaults()
def write_export(trained: TrainedRun, out: Path, client: int | str | None = None) -> list[Path]:
    """Write a run's model into the new folder `out`; returns its files.

    client: name or number of the client with the model; default: the global model. Raises UsageError: E109
    for an unknown client, E131 if the model is not here, E160 if it cannot be exported, E161 if `out` exists
    or cannot be made.
    """
    out = out.expanduser()
    if out.exists() or out.suffix == ".pt2":
        text = "an export is a folder" if not out.exists() else "nothing is overwritten"
        raise UsageError("E161", f"{out} cannot be written, because {text}; name a new folder.")
    whole, shape = export_model(trained, client), trained.run.federation.shape
    dtype = sample_type(predictions.input_facts(trained.run.federation)["dtype"], whole)
    content = _graph_of(whole, example_samples(whole, shape, dtype, 2))
    _check_answers(content, example_samples(whole, shape, dtype, TRIED_SAMPLES), trained, client)
    facts = {"file": GRAPH, "sha256": hashlib.sha256(content).hexdigest()}
    facts |= model_facts(trained, whole, dtype)
    files: dict[str, bytes | str] = {
        GRAPH: content,
        "model.json": json.dumps(facts, indent=2) + "\n",
        "load.py": LOAD,
    }
    try:
        with disk.new_folder(out) as folder:
            for name, text in files.items():
                disk.replace(folder / name, text)
    except OSError as error:
        raise UsageError(
            "E161", f"{out} cannot be written: {error.strerror or error}. Choose another."
        ) from error
    return [out / name for name in files]


@torch.no_grad()
def _check_answers(content: bytes, x: Tensor, trained: TrainedRun, client: int | str | None) -> None:
    """Raises UsageError (E160) if the graph's outputs differ from those of the run's model."""
    ours, theirs = trained.outputs(x, client), torch.export.load(io.BytesIO(content)).module()(x)
    difference = float((ours - theirs).abs().max())
    if not difference <= LOGIT_TOLERANCE * max(1.0, float(ours.abs().max())):
        text = f"the exported model answers otherwise than the run's: logits differ by up to {difference:.3g}"
        raise UsageError("E160", f"{text}. Nothing was written.")
