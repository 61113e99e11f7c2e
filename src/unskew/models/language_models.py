"""Hugging Face language models from a folder, with low-rank adapters (LoRA, Hu et al., ICLR 2022).

The input is token ids; the output is one answer per sequence or per token. Attention receives an additive
mask [B, 1, T, T], because most architectures accept this form unchanged, also when clients train side by
side. The library transformers reads a temporary folder that holds a cleaned config.json and links to the
.safetensors files, so it cannot find code, pickles or adapters; nothing is downloaded.

Letters: B batch, T tokens, D features, C classes or words of the vocabulary.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unskew.core.modules import evaluation_mode
from unskew.errors import MissingPackage, UsageError
from unskew.models import hf_folder
from unskew.system import disk, python_files


@dataclass(frozen=True)
class LocalAttention:
    """Layers in which a token sees only near tokens. reach: the distance of the farthest visible token, in
    places.

    mixed: whether other layers of the model see all tokens; the model then takes one mask for each kind, by
    name.
    """

    reach: int
    mixed: bool

    def mask(self, sees: Tensor) -> Tensor | dict[str, Tensor]:
        """The mask or masks for the model. sees: which tokens each token would see without a window, bool [B,
        1, T, T]."""
        place = torch.arange(sees.shape[-1], device=sees.device)
        near = additive_mask(sees & ((place[:, None] - place).abs() <= self.reach))
        return {"full_attention": additive_mask(sees), "sliding_attention": near} if self.mixed else near


class Transformer(nn.Module):
    """A transformer and its attention pattern. padding: the id of tokens that do not count, or None.

    causal: whether a token sees only itself and the tokens before it. window: the layers with local
    attention, if any.
    """

    buffers_stay = True

    def __init__(
        self, model: nn.Module, padding: int | None, causal: bool, window: LocalAttention | None = None
    ):
        super().__init__()
        self.model, self.padding, self.causal, self.window = model, padding, causal, window

    def known(self, ids_BT: Tensor) -> Tensor:
        """Which tokens count, bool [B, T]."""
        return torch.ones_like(ids_BT, dtype=torch.bool) if self.padding is None else ids_BT != self.padding

    def answer(self, ids_BT: Tensor) -> Any:
        """The transformer's output for these token ids."""
        T = ids_BT.shape[1]
        sees = self.known(ids_BT)[:, None, None, :].expand(-1, 1, T, T)
        if self.causal:
            sees = sees & torch.ones(T, T, dtype=torch.bool, device=ids_BT.device).tril()
        mask = self.window.mask(sees) if self.window else additive_mask(sees)
        return self.model(input_ids=ids_BT, attention_mask=mask)


class MeanPooling(Transformer):
    """The mean of the last layer's outputs over the tokens that count, [B, D]."""

    def forward(self, x: Tensor) -> Tensor:
        ids_BT = to_token_ids(x)
        h_BTD, known = self.answer(ids_BT).last_hidden_state, self.known(ids_BT)[:, :, None]
        return (h_BTD * known).sum(1) / known.sum(1).clamp(min=1)


class LastToken(Transformer):
    """The last layer's output at the last token that counts, [B, D]."""

    def forward(self, x: Tensor) -> Tensor:
        ids_BT = to_token_ids(x)
        h_BTD, known = self.answer(ids_BT).last_hidden_state, self.known(ids_BT)
        is_last = known & (known.cumsum(1) == known.sum(1, keepdim=True))
        return (h_BTD * is_last[:, :, None]).sum(1)


class EveryToken(Transformer):
    """The last layer's output at every token, [B, T, D]."""

    def forward(self, x: Tensor) -> Tensor:
        return self.answer(to_token_ids(x)).last_hidden_state


class SequenceModel(nn.Sequential):
    """A body that reads tokens, and a dense head with one answer per sequence or per token.

    vocabulary: the number of known tokens. fresh: name prefixes of layers without weights in the folder.
    """

    dense, cut, folds = False, "body", False

    def __init__(self, body: Transformer, head: nn.Linear, vocabulary: int, brings_head: bool = False):
        """brings_head: whether the head's weights also come from the folder."""
        super().__init__()
        self.add_module("body", body)
        self.add_module("head", head)
        self.vocabulary = vocabulary
        self.fresh = fresh_adapter_weights(self) if brings_head else fresh_adapter_weights(self, "head")

    def at_every_token(self) -> SequenceModel:
        """A copy of the model with an answer at every token, [B, T, C]."""
        body = self.body
        assert isinstance(body, Transformer)
        self.body, self.dense = EveryToken(body.model, body.padding, body.causal, body.window), True
        return self


def additive_mask(sees: Tensor) -> Tensor:
    """0 for visible tokens, and the lowest finite float32 elsewhere."""
    return torch.zeros_like(sees, dtype=torch.float32).masked_fill(~sees, torch.finfo(torch.float32).min)


def to_token_ids(x: Tensor) -> Tensor:
    """Token ids as whole numbers; batches hold them as float32."""
    return x.round().long() if x.is_floating_point() else x


def fresh_adapter_weights(module: nn.Module, *others: str) -> tuple[str, ...]:
    """The names of the adapters' first layers, which are initialised at random (the second layers are zero),
    and of `others`."""
    return (*others, *(n for n, _ in module.named_modules() if ".lora_A." in n))


SIZE_MARGIN = 1 << 26
"""Bytes by which a model may exceed the size of its files."""
UNUSED_WEIGHTS = ("pooler.",)
"""Name prefixes of layers that no forward pass here runs."""


def libraries() -> tuple[Any, Any]:
    """(transformers, peft). Raises UsageError (E133) if they are not installed."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        import peft  # pyright: ignore[reportMissingImports]
        import transformers  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingPackage(f"hf ({error})", "transformers and peft", "hf") from error
    return transformers, peft


def load_model(path: str, causal: bool) -> Any:
    """Load the model in a folder in float32: with a next-token head (`causal`), or the body without a head.

    Raises UsageError: E133 without the libraries, E104 for a folder without such a model or with missing
    weights.
    """
    facts, files = hf_folder.config(path), hf_folder.weights(path)
    transformers, _ = libraries()
    kind = transformers.AutoModelForCausalLM if causal else transformers.AutoModel
    if str(facts.get("model_type")) not in transformers.CONFIG_MAPPING:
        text = (
            f"{path}: transformers {transformers.__version__} knows no model_type {facts.get('model_type')!r}"
        )
        raise UsageError("E104", f"{text}, and code that comes with a model is never run.")
    if causal and fills_in(facts):
        text = f"{path} holds a {facts['model_type']} model, which fills in words within a text"
        raise UsageError(
            "E104", f"{text}; answers=next needs one that goes on writing, such as GPT-2 or Llama."
        )
    with _silence_libraries(), _clean_folder(facts, files) as clean:
        try:
            options = {"local_files_only": True, "trust_remote_code": False}
            config = transformers.AutoConfig.from_pretrained(clean, **options)
            _check_size(path, kind, config, files)
            model, report = kind.from_pretrained(
                clean, config=config, use_safetensors=True, dtype=torch.float32, attn_implementation="eager",
                output_loading_info=True, **options,
            )  # fmt: skip
        except UsageError:
            raise
        except Exception as error:
            raise UsageError(
                "E104", f"{path} cannot be read as a model: {python_files.one_line(error)}."
            ) from error
    lacks = [
        n
        for n in (*report["missing_keys"], *map(str, report["mismatched_keys"]))
        if not n.startswith(UNUSED_WEIGHTS)
    ]
    if lacks:
        what = "a head for the next token" if causal and all("head" in n for n in lacks) else f"'{lacks[0]}'"
        raise UsageError(
            "E104", f"{path} has no weights of {what} for a {facts['model_type']} model; give all of it."
        )
    model.config.use_cache = False
    if getattr(model, "pooler", None) is not None:
        model.pooler = None
    return model


def fills_in(facts: Mapping[str, Any]) -> bool:
    """Whether config.json describes a model with attention in both directions, such as a masked language
    model."""
    transformers, _ = libraries()
    known = transformers.models.auto.modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    both_ways = facts["model_type"] in known or facts.get("use_bidirectional_attention") is True
    return both_ways and not facts.get("is_decoder")


def local_attention(config: Any, causal: bool) -> LocalAttention | None:
    """The model's layers with local attention; None if it has none."""
    size = getattr(config, "sliding_window", None)
    if not size:
        return None
    # These architectures exclude the token at the bound.
    bounded = causal or getattr(config, "use_bidirectional_attention", False)
    return LocalAttention(size - 1 if bounded else size, mixed=bool(getattr(config, "layer_types", None)))


def check_attention(body: Transformer, path: str, T: int, vocabulary: int) -> None:
    """Raises UsageError (E104) unless the model gives equal outputs for T tokens with padding under our masks
    and its own.

    Architectures differ in how they interpret a mask that lists the visible tokens for each token.
    """
    ids = (torch.arange(T) % vocabulary).repeat(2, 1)
    if body.padding is not None:
        ids[ids == body.padding] = (body.padding + 1) % vocabulary
        ids[1, (T + 1) // 2 :] = body.padding
    known = body.known(ids)
    try:
        with _silence_libraries(), torch.no_grad(), evaluation_mode(body):
            ours = body.answer(ids).last_hidden_state[known]
            theirs = body.model(input_ids=ids, attention_mask=known.long()).last_hidden_state[known]
        same = torch.allclose(ours, theirs, atol=1e-4 * float(theirs.abs().max()), rtol=1e-4)
    except Exception as error:
        text = (
            f"the model in {path} cannot be told which tokens each of {T} may see"
            f" ({python_files.one_line(error)})"
        )
        raise UsageError("E104", f"{text}; give another architecture.") from error
    if not same:
        text = f"the model in {path} answers otherwise when it is told which tokens each of {T} may see"
        raise UsageError("E104", f"{text}; give shorter samples, or another architecture.")


def split_head(model: Any, path: str, classes: int) -> tuple[nn.Module, nn.Linear]:
    """(body, head) of a causal language model; the head is a copy of the rows for the words that denote the
    classes.

    Raises UsageError: E104 if the model does more to its answers than a dense layer, E123 if there are more
    classes than words.
    """
    body, words = model.base_model, model.get_output_embeddings()
    if classes > words.weight.shape[0]:
        text = (
            f"the labels have {classes} classes, and the model in {path} knows {words.weight.shape[0]} words"
        )
        raise UsageError("E123", f"{text}; a label is the id of the token that follows.")
    model.eval()
    with torch.no_grad():
        ids = torch.arange(4)[None] % words.weight.shape[0]
        whole, alone = model(input_ids=ids).logits, words(body(input_ids=ids).last_hidden_state)
    if not torch.allclose(whole, alone, atol=1e-4, rtol=1e-4):
        raise UsageError(
            "E104", f"the model in {path} does more to its answers than a dense layer, which is not served."
        )
    head = nn.Linear(words.weight.shape[1], classes, bias=words.bias is not None)
    with torch.no_grad():
        head.weight.copy_(words.weight[:classes])
        if words.bias is not None:
            head.bias.copy_(words.bias[:classes])
    return body, head


def add_adapters(
    model: nn.Module, rank: int, alpha: float, dropout: float, targets: tuple[str, ...]
) -> nn.Module:
    """The model with adapters of this rank on the layers with these names; only the adapters are trainable.

    targets: suffixes of the names of dense layers; () for all except a head. Raises UsageError (E104) if no
    layer has such a name.
    """
    _, peft = libraries()
    config = peft.LoraConfig(
        r=rank, lora_alpha=alpha, lora_dropout=dropout, target_modules=list(targets) or "all-linear",
    )  # fmt: skip
    try:
        with _silence_libraries():
            return peft.inject_adapter_in_model(config, model)
    except ValueError as error:
        dense = sorted({n.rpartition(".")[2] for n, m in model.named_modules() if isinstance(m, nn.Linear)})
        text = f"no layer for an adapter is called {' or '.join(targets) or '(any)'}"
        raise UsageError(
            "E104", f"model 'hf': {text}; dense layers are: {', '.join(dense) or 'none'}."
        ) from error


def _check_size(path: str, kind: Any, config: Any, files: list[Path]) -> None:
    """Raises UsageError (E104) if config.json describes a far larger model than the files contain."""
    with torch.device("meta"):
        described = 4 * sum(p.numel() for p in kind.from_config(config).parameters())
    held = sum(file.stat().st_size for file in files)
    if described > 4 * held + SIZE_MARGIN:
        raise UsageError(
            "E104",
            f"{path}: config.json describes a model of {described:,} bytes, and the files hold {held:,}; they"
            " are not of one model.",
        )


@contextmanager
def _clean_folder(facts: dict[str, Any], files: list[Path]) -> Iterator[str]:
    """A context with a temporary folder that contains only these facts as config.json and links to these
    files."""
    with tempfile.TemporaryDirectory(prefix="unskew-") as place:
        disk.replace_unsynced(Path(place) / hf_folder.CONFIG, json.dumps(facts).encode())
        for file in files:
            (Path(place) / file.name).symlink_to(file.resolve())
        index = files[0].parent / hf_folder.INDEX
        if index.is_file():
            disk.replace_unsynced(Path(place) / hf_folder.INDEX, index.read_bytes())
        yield place


@contextmanager
def _silence_libraries() -> Iterator[None]:
    """A context without progress bars and messages of the libraries, which also preserves torch's generator
    state."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with torch.random.fork_rng(devices=[]), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)
