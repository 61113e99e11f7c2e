"""A language model of Hugging Face from a folder, for sequences of token ids (the extra [hf])."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Gt, Lt
from torch import nn

from unskew.errors import UsageError
from unskew.models import language_models
from unskew.models.blocks import require
from unskew.models.language_models import LastToken, MeanPooling, SequenceModel


def hf(
    shape: tuple[int, ...],
    classes: int,
    *,
    path: Annotated[
        str, "folder with config.json and .safetensors files, as save_pretrained writes them"
    ] = "",
    lora_rank: Annotated[
        int, Ge(0), "rank of the adapters, which train in place of the model; 0: all of it trains"
    ] = 8,
    lora_alpha: Annotated[float, Gt(0), "adapters are scaled by this, divided by their rank"] = 16.0,
    lora_dropout: Annotated[float, Ge(0), Lt(1), "share of an adapter's inputs that training drops"] = 0.0,
    targets: Annotated[
        tuple[str, ...], "ends of the names of dense layers that get adapters; (): every one but a head"
    ] = (),
    answers: Annotated[
        Literal["classes", "next"],
        "a new head for the labels' classes, or the model's own head for the next token",
    ] = "classes",
    padding: Annotated[
        int, Ge(-1), "id of tokens that do not count; -1: the pad_token_id of config.json"
    ] = -1,
) -> nn.Module:
    """A transformer and a dense head for classes or for the next token. Adapters and a new head train and
    leave."""
    require("hf", shape, len(shape) == 1, "[tokens], ids of words")
    model = language_models.load_model(path, causal=answers == "next")
    config = model.config.get_text_config()
    longest = getattr(config, "max_position_embeddings", None)
    if longest and 0 < longest < shape[0]:  # -1: any length
        raise UsageError(
            "E123", f"the model in {path} reads {longest} tokens at most, and samples have {shape[0]}."
        )
    ignored = config.pad_token_id if padding < 0 else padding
    head = nn.Linear(config.hidden_size, classes)
    if answers == "next":
        model, head = language_models.split_head(model, path, classes)
        head.requires_grad_(not lora_rank)
    causal = answers == "next" or not language_models.fills_in(config.to_dict())
    kind = LastToken if answers == "next" else MeanPooling
    body = kind(model, ignored, causal, language_models.local_attention(config, causal))
    language_models.check_attention(body, path, shape[0], config.vocab_size)
    if lora_rank:
        body.model = language_models.add_adapters(model, lora_rank, lora_alpha, lora_dropout, targets)
    return SequenceModel(body, head, config.vocab_size, brings_head=answers == "next")
