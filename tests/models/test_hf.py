"""Models of Hugging Face from a folder: what of a folder is read, what trains and leaves, and that no folder
runs code.

The tests that take `folders` need the extra [hf] and are skipped without it; `make test-hf` runs all of them.
"""

from __future__ import annotations

import importlib.util
import json
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import unskew
from unskew import data, models
from unskew.config import build
from unskew.core import module_inputs
from unskew.core.random_keys import key
from unskew.errors import DataError, UsageError
from unskew.federation.protocol.study_rules import site_settings
from unskew.models import hf_folder

N, T, WORDS, CLASSES = 48, 10, 60, 3
Y = np.arange(N) % CLASSES
X = np.random.default_rng(1).integers(1, 20, (N, T)) + 20 * Y[:, None]
X[::2, 7:] = 0  # padding
RUN = {
    "skew": "iid",
    "rounds": 2,
    "clients": 3,
    "epochs": 2,
    "batch": 8,
    "lr": 0.01,
    "optimiser": "adamw",
    "workers": 1,
    "device": "cpu",
}


def written(place: Path, config: object, **files: bytes) -> str:
    """A folder with this config.json and these files, `model_bin` for model.bin."""
    place.mkdir()
    (place / "config.json").write_text(json.dumps(config))
    for name, content in files.items():
        (place / name.replace("_", ".", 1)).write_bytes(content)
    return str(place)


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`bert`, `gpt2` and `llama`, tiny and random, as save_pretrained writes them."""
    if not importlib.util.find_spec("transformers") or not importlib.util.find_spec("peft"):
        pytest.skip("transformers and peft are not installed: make test-hf")
    import transformers as t

    place = tmp_path_factory.mktemp("models")
    few = {"vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    with torch.random.fork_rng():
        torch.manual_seed(1)
        bert = t.BertConfig(**few, intermediate_size=32, max_position_embeddings=16, pad_token_id=0)
        t.BertModel(bert).save_pretrained(place / "bert")
        gpt2 = t.GPT2Config(
            vocab_size=WORDS, n_embd=16, n_layer=2, n_head=2, n_positions=16, bos_token_id=1, eos_token_id=1
        )
        t.GPT2LMHeadModel(gpt2).save_pretrained(place / "gpt2")
        llama = t.LlamaConfig(**few, num_key_value_heads=2, intermediate_size=32, max_position_embeddings=16)
        t.LlamaForCausalLM(llama).save_pretrained(place / "llama")
    return place


def trained(model: str, method: str = "fedavg", **options) -> unskew.Result:
    return unskew.run(method, (X, Y, X, Y), model=model, **(RUN | options))


# What needs no library


@pytest.mark.parametrize(
    ("config", "files", "words"),
    [
        ({"model_type": "bert"}, {"model_bin": b"x"}, "model.bin is a pickle, which could run code"),
        ({"model_type": "bert"}, {}, "has no model.safetensors; save the model with save_pretrained"),
        ([1], {"model_safetensors": b""}, "cannot be read as JSON .ValueError: it holds no keys"),
    ],
)
def test_a_folder_that_holds_no_model_is_refused_before_any_library_is_asked(tmp_path, config, files, words):
    with pytest.raises(UsageError, match=f"E104.*{words}"):
        models.build(f"hf(path={written(tmp_path / 'm', config, **files)!r})", (T,), CLASSES)


def test_an_index_names_no_file_elsewhere(tmp_path):
    """A stranger's index could have any file of the machine read as weights."""
    path = written(tmp_path / "m", {"model_type": "bert"})
    for name in ("../secret.safetensors", "/etc/passwd", "model.bin"):
        (tmp_path / "m" / hf_folder.INDEX).write_text(json.dumps({"weight_map": {"a": name}}))
        with pytest.raises(UsageError, match=r"E104.*which is no \.safetensors file of the folder"):
            models.build(f"hf(path={path!r})", (T,), CLASSES)


def test_without_the_extra_one_sentence_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    path = written(tmp_path / "m", {"model_type": "bert"}, model_safetensors=b"")
    with pytest.raises(UsageError, match=r"E133.*pip install 'unskew\[hf\]'"):
        models.build(f"hf(path={path!r})", (T,), CLASSES)


def test_a_run_is_named_by_what_its_folder_holds(tmp_path):
    """A run would be resumed with another model of the same path."""
    path = written(tmp_path / "m", {"model_type": "bert"}, model_safetensors=b"one")
    settings = build({"model": f"hf(path={path!r})"})
    before = settings.fingerprint()
    assert before == settings.fingerprint()
    (tmp_path / "m" / "README.md").write_text("no weights")
    assert before == settings.fingerprint()
    (tmp_path / "m" / "model.safetensors").write_bytes(b"two")
    assert before != settings.fingerprint()


def test_no_site_reads_a_folder_that_a_coordinator_names():
    study = build({"model": "hf(path='/root/model')"})
    with pytest.raises(UsageError, match=r"E506.*start the site with --model .hf"):
        site_settings(study, None)
    assert site_settings(study, "hf(path='mine')").model == "hf(path='mine')"


class Bringing(nn.Sequential):
    """A model with weights of its own, but for its head."""

    fresh, vocabulary = ("1",), 7


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (np.array([[0.0, 7.0]]), "the samples hold token 7, and the model's vocabulary has 7, from 0 to 6"),
        (np.array([[0.0, -1.0]]), "the samples hold token -1"),
        (np.array([[0.5, 1.0]]), "the samples hold token 0.5"),
    ],
)
def test_samples_are_words_of_the_vocabulary(x, words):
    module = Bringing()
    module_inputs.check_vocabulary(module, np.array([[6, 0]]), x[:0])
    with pytest.raises(DataError, match=f"E123 .*{words}"):
        module_inputs.check_vocabulary(module, np.array([[6, 0]]), x)


# What needs the extra [hf]


@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama"])
def test_only_adapters_and_the_head_train_and_leave(folders, kind):
    result = trained(f"hf(path={str(folders / kind)!r}, lora_rank=2, padding=0)", rounds=6)
    learnt = {n for n, p in result.model.named_parameters() if p.requires_grad}
    assert all(".lora_" in n or n.startswith("head.") for n in learnt)
    assert {"head.weight", "head.bias"} < learnt
    from safetensors.torch import load_file

    given = list(load_file(folders / kind / "model.safetensors").values())
    held = {n: p for n, p in result.model.named_parameters() if not p.requires_grad}
    same = [n for n, p in held.items() if any(p.shape == t.shape and torch.equal(p, t) for t in given)]
    assert len(same) == len(held) > 5
    size = 4 * sum(p.numel() for n, p in result.model.named_parameters() if n in learnt)
    assert {row["bytes"] for row in result.record.rows["ledger"] if row["share"] == "w"} == {size}
    assert result.scores()["last"] > 0.45  # one in three by chance


def odd(place: Path, kind: str) -> str:
    """A tiny model of an architecture that sees its tokens in a way of its own."""
    import transformers as t

    few = {"vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    few |= {"intermediate_size": 32, "max_position_embeddings": 16, "pad_token_id": 0}
    gemma = {"num_key_value_heads": 2, "head_dim": 8}
    mixed = {"layer_types": ["full_attention", "sliding_attention"]}
    config = {
        "modernbert": lambda: t.ModernBertConfig(**few, local_attention=4, global_attn_every_n_layers=2),
        "mistral": lambda: t.MistralConfig(**few, num_key_value_heads=2, sliding_window=3),
        "gemma3": lambda: t.Gemma3TextConfig(**few, **gemma, **mixed, sliding_window=3),
        "gemma3 both ways": lambda: t.Gemma3TextConfig(
            **few, **gemma, **mixed, sliding_window=4, use_bidirectional_attention=True
        ),
        "qwen2": lambda: t.Qwen2Config(**few, num_key_value_heads=2),
        "bert as a decoder": lambda: t.BertConfig(**few, is_decoder=True),
        "bloom": lambda: t.BloomConfig(vocab_size=WORDS, hidden_size=16, n_layer=2, n_head=2),
        "xlnet": lambda: t.XLNetConfig(vocab_size=WORDS, d_model=16, n_layer=2, n_head=2, d_inner=32),
    }[kind]()
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = t.AutoModel.from_config(config)
        for weight in model.parameters():
            weight.data.mul_(4 if weight.ndim > 1 else 1)  # so that it matters which tokens are seen
        model.save_pretrained(place)
    return str(place)


ODD = ["modernbert", "mistral", "gemma3", "gemma3 both ways", "qwen2", "bert as a decoder"]


@pytest.mark.parametrize("kind", ODD)
def test_tokens_see_what_the_model_lets_them_see(folders, tmp_path, kind):
    """Some layers see near tokens only, some decoders both ways; another mask gives other answers."""
    import transformers as t

    path = odd(tmp_path / "m", kind)
    module = models.build(f"hf(path={path!r}, padding=0)", (T,), CLASSES, (T,)).eval()
    ids = torch.as_tensor(X[:4])
    with torch.no_grad():
        h = t.AutoModel.from_pretrained(path).eval()(ids, attention_mask=(ids != 0).long()).last_hidden_state
        torch.testing.assert_close(module[0](ids.float())[ids != 0], h[ids != 0], atol=1e-4, rtol=1e-4)
    assert module[0].causal == (kind in ("mistral", "gemma3", "qwen2", "bert as a decoder"))


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_the_next_token_is_answered_as_the_model_itself_answers(folders, kind):
    """By the last token that counts, with the head of the folder, which stays as it is beside adapters."""
    import transformers as t

    path = str(folders / kind)
    module = models.build(f"hf(path={path!r}, answers='next', padding=0)", (T,), WORDS - 5).eval()
    models.initialise(module, key("test"))
    ids = torch.as_tensor(X[:4])
    with torch.no_grad():
        z = t.AutoModelForCausalLM.from_pretrained(path).eval()(ids, attention_mask=(ids != 0).long()).logits
        theirs = z[torch.arange(4), (ids != 0).sum(1) - 1, : WORDS - 5]
        torch.testing.assert_close(module(ids.float()), theirs, atol=1e-5, rtol=0)
    assert {n for n, p in module.named_parameters() if p.requires_grad and ".lora_" not in n} == set()
    whole = models.build(f"hf(path={path!r}, answers='next', lora_rank=0)", (T,), WORDS)
    assert all(p.requires_grad for p in whole.parameters())
    with pytest.raises(UsageError, match=r"E123 the labels have 61 classes, and .* knows 60 words"):
        models.build(f"hf(path={path!r}, answers='next')", (T,), WORDS + 1)


@pytest.mark.parametrize("rank", [0, 4])
def test_a_model_learns_the_next_token_at_every_place(folders, rank):
    """Fewer windows teach more than with one label each; padding is neither seen nor scored."""
    ids = (np.arange(T + 1) * 3 + np.arange(60)[:, None]) % (WORDS - 1) + 1
    x, y = ids[:, :-1].copy(), ids[:, 1:].copy()
    x[::3, 6:], y[::3, 5:] = 0, -100
    text = f"hf(path={str(folders / 'llama')!r}, answers='next', lora_rank={rank}, padding=0)"
    given = data.arrays(x, y, x, y, classes=[str(i) for i in range(WORDS)])
    result = unskew.run("fedavg", given, model=text, **(RUN | {"rounds": 4}))
    _, values = result.record.series("global", "perplexity")
    assert values[0] == pytest.approx(WORDS, rel=0.1)
    assert values[-1] < (0.35 if rank == 0 else 1.0) * values[0]
    learnt = [p.numel() for n, p in result.model.named_parameters() if rank == 0 or ".lora_" in n]
    assert {row["bytes"] for row in result.record.rows["ledger"] if row["share"] == "w"} == {4 * sum(learnt)}
    changed = x.copy()
    changed[0, 7:] = 9  # behind what counts
    assert np.allclose(
        result.predict_proba(x[:1])[:, :6], result.predict_proba(changed[:1])[:, :6], atol=1e-6
    )


def test_no_folder_runs_code(folders, tmp_path):
    """A stranger's folder with a pickle, code of its own and kernels from elsewhere, beside sound weights."""
    ran = tmp_path / "ran"
    place = tmp_path / "m"
    place.mkdir()
    (place / "model.safetensors").write_bytes((folders / "bert" / "model.safetensors").read_bytes())
    config = json.loads((folders / "bert" / "config.json").read_text())
    code = {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}
    hostile = config | {
        "auto_map": code,
        "_attn_implementation": "somebody/kernels",
        "attn_implementation": "a/b",
    }
    (place / "evil.py").write_text(
        f"open({str(ran)!r}, 'w')\nfrom transformers import BertConfig as Config, BertModel as Model\n"
    )

    class Evil:
        def __reduce__(self):
            return open, (str(ran), "w")

    (place / "pytorch_model.bin").write_bytes(pickle.dumps(Evil()))
    (place / "adapter_config.json").write_text(
        json.dumps({"base_model_name_or_path": "somebody/else", "peft_type": "LORA"})
    )
    (place / "config.json").write_text(json.dumps(hostile))
    assert trained(f"hf(path={str(place)!r})").scores()["last"] > 0.3
    (place / "config.json").write_text(json.dumps(hostile | {"model_type": "evil"}))
    with pytest.raises(UsageError, match=r"E104.*knows no model_type 'evil'"):
        trained(f"hf(path={str(place)!r})")
    (place / "model.safetensors").unlink()
    (place / "config.json").write_text(json.dumps(hostile))
    with pytest.raises(UsageError, match=r"E104.*pytorch_model.bin is a pickle"):
        trained(f"hf(path={str(place)!r})")
    assert not ran.exists()


def test_what_does_not_fit_the_model_is_one_sentence(folders):
    path = str(folders / "bert")
    with pytest.raises(DataError, match=r"E123 .*hold token 60, and the model's vocabulary has 60"):
        unskew.run("fedavg", (X + 1, Y, X, Y), model=f"hf(path={path!r})", **RUN)
    with pytest.raises(UsageError, match=r"E123 the model in .* reads 16 tokens at most, and samples have"):
        unskew.run("fedavg", (np.tile(X, 3), Y), model=f"hf(path={path!r})", **RUN)
    with pytest.raises(
        UsageError,
        match=r"E104 model 'hf': no layer for an adapter is called atention.*dense layers are: dense, key",
    ):
        trained(f"hf(path={path!r}, targets=('atention',))")


@pytest.mark.usefixtures("folders")
@pytest.mark.parametrize("form", ["arrays", "Trainer"])
def test_a_model_for_a_trainer_ends_where_its_own_loss_leads(form):
    """One client and one batch an epoch, so that a plain loop over the model's own loss says the weights."""
    import transformers as t

    torch.manual_seed(3)
    few = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = t.BertConfig(**few, **still, vocab_size=WORDS, max_position_embeddings=16, num_labels=CLASSES)
    model, mask = t.BertForSequenceClassification(config), (X != 0).astype(np.int64)
    inputs = {"input_ids": X, "attention_mask": mask}
    train: object = (inputs, Y, inputs, Y)
    if form == "Trainer":
        items = [{"input_ids": list(map(int, x)), "attention_mask": m} for x, m in zip(X, mask)]
        items = [item | {"labels": int(y)} for item, y in zip(items, Y)]
        train = {"train": Items(items), "test": Items(items)}
    plain = {"clients": 1, "skew": "iid", "rounds": 1, "epochs": 4, "batch": N, "lr": 0.5, "momentum": 0}
    result = unskew.run("fedavg", train, model=model, **plain, weight_decay=0, device="cpu", workers=1)
    twin = model.train()
    step = torch.optim.SGD(twin.parameters(), lr=0.5)
    tensors = {name: torch.as_tensor(values) for name, values in inputs.items()}
    for _ in range(4):
        step.zero_grad()
        twin(**tensors, labels=torch.as_tensor(Y)).loss.backward()
        step.step()
    for name, p in twin.named_parameters():
        assert torch.allclose(result.model.get_parameter(name), p, atol=1e-5), name
    assert result.model(**tensors).logits.shape == (N, CLASSES)
    assert np.array_equal(result.predict(inputs), twin.eval()(**tensors).logits.argmax(1).numpy())


class Items(torch.utils.data.Dataset):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def test_a_run_is_kept_resumed_and_loaded(folders, tmp_path):
    text = f"hf(path={str(folders / 'bert')!r}, lora_rank=2, lora_dropout=0.2)"
    whole = trained(text, rounds=3)

    def stop(state, _):
        if state.t == 1:
            raise KeyboardInterrupt

    kept = {"name": "tiny", "folder": tmp_path, "rounds": 3}
    with pytest.raises(KeyboardInterrupt):
        trained(text, shown=stop, **kept)
    assert trained(text, **kept).digest == whole.digest
    guess = unskew.load(tmp_path / "tiny").predict(X)
    assert np.array_equal(guess, whole.predict(X))
