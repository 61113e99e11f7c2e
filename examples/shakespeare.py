"""Fine-tune a small language model across Shakespeare's roles, each of which keeps its text: only adapters
leave.

    python examples/shakespeare.py input.txt [FOLDER]

It needs the extra [hf], half a minute of one core, and a text in which a line `ROLE:` comes before what a
role says, such as data/tinyshakespeare/input.txt of https://github.com/karpathy/char-rnn. No model is
downloaded: a tiny one is made, and learns to write from half of the roles in one place. Then the ten longest
of the other roles fine-tune it together, as hospitals would a model that somebody published. Every place of a
window of text is learnt from: its label is the character that follows. FOLDER is where the model is kept;
default: a temporary one.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import unskew

TOKENS, ROLES, STEPS = 48, 10, 300
SPEECH = re.compile(r"\n\n(?=[A-Z][^\n:]{0,40}:\n)")


def main(text: str, folder: str) -> None:
    vocabulary = sorted(set(text))
    said = roles_of(text, vocabulary)
    published(np.concatenate(list(said.values())[1::2]), len(vocabulary), folder)

    clients = {}
    for name, words in list(said.items())[: 2 * ROLES : 2]:
        windows = np.lib.stride_tricks.sliding_window_view(words, TOKENS + 1)[::TOKENS]
        held_out = len(windows) // 5
        x, y = windows[:, :-1], windows[:, 1:]
        clients[name] = unskew.data.arrays(
            x[:-held_out], y[:-held_out], x[-held_out:], y[-held_out:], classes=vocabulary
        )
    result = unskew.run(
        "fedavg", clients, model=f"hf(path={folder!r}, answers='next', lora_rank=4)",
        rounds=4, epochs=1, batch=32, optimiser="adamw", lr=0.003, lanes="10",
    )  # fmt: skip
    print(result)
    for t, value in zip(*result.record.series("global", "perplexity")):
        print(f"round {t}: perplexity {value:.2f}")


def roles_of(text: str, vocabulary: list[str]) -> dict[str, np.ndarray]:
    """What every role with a thousand characters or more says, the longest first, as numbers of its
    characters."""
    said: dict[str, str] = {}
    for speech in SPEECH.split(text):
        role, _, words = speech.partition(":\n")
        said[role] = said.get(role, "") + words + "\n"
    longest = sorted((role for role in said if len(said[role]) >= 1000), key=lambda role: -len(said[role]))
    number = {character: i for i, character in enumerate(vocabulary)}
    return {role: np.array([number[character] for character in said[role]], np.int64) for role in longest}


def published(text: np.ndarray, words: int, folder: str) -> None:
    """A model that has read this text in one place, saved as people publish models."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=words, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
        intermediate_size=128, max_position_embeddings=TOKENS + 1, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.003)
    windows = torch.from_numpy(text).unfold(0, TOKENS + 1, 1)
    for _ in range(STEPS):
        batch = windows[torch.randint(len(windows), (32,))]
        loss = model(input_ids=batch, labels=batch).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    model.save_pretrained(folder)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        main(Path(sys.argv[1]).read_text(encoding="utf-8"), sys.argv[2] if len(sys.argv) > 2 else place)
