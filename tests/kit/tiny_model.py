"""A model folder small enough for a unit test: bytes as tokens, ChatML as template, random weights if asked for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
STOP_ID = 2
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
"""Positions stretched as Llama 3 does it, beyond 32 tokens."""
TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def byte_tokenizer(more_special: Sequence[str] = ()) -> Tokenizer:
    """Ids 0 to 2 are the special tokens, 3 to 258 the bytes; then more tokens, if asked for.

    Of these, those whose text ends in "!" are special without it and not with it: models have both kinds.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    for text in more_special:
        token = AddedToken(text.removesuffix("!"), special=not text.endswith("!"), normalized=False)
        tokenizer.add_special_tokens([token]) if token.special else tokenizer.add_tokens([token])
    return tokenizer


def write_chat_files(
    folder: Path, context_length: int = 512, template: str = TEMPLATE, more_special: Sequence[str] = ()
) -> Path:
    """Everything of a model but its weights: enough for the gateway and the scripted engine."""
    folder.mkdir(parents=True, exist_ok=True)
    byte_tokenizer(more_special).save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(template, "utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": SPECIAL[STOP_ID]}), "utf-8")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": STOP_ID}), "utf-8")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 259 + len(more_special),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": context_length,
        "eos_token_id": STOP_ID,
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    return folder


def weightless_model(folder: Path, context_length: int = 512, template: str = TEMPLATE) -> Path:
    """A model folder that the scripted engine accepts; its weights are never read."""
    import numpy as np
    from safetensors.numpy import save_file

    write_chat_files(folder, context_length, template)
    save_file({"model.embed_tokens.weight": np.zeros((259, 64), np.float32)}, folder / "model.safetensors")
    return folder


def write_tiny_model(folder: Path, context_length: int = 512, seed: int = 0) -> Path:
    """With random weights that are exactly bf16."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    write_chat_files(folder, context_length)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).to(torch.bfloat16)
    model.save_pretrained(folder)
    return folder


def write_knowing_model(
    folder: Path, lessons: Sequence[tuple[list[int], list[int]]], steps: int = 120, seed: int = 0
) -> Path:
    """A tiny model that has learned by heart what to answer: pairs of prompt and answer, as ids.

    With random weights no answer fits its question better than another one; here each does.
    """
    import torch
    from torch.nn.functional import cross_entropy
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(write_tiny_model(folder, seed=seed), dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    longest = max(len(p) + len(a) for p, a in lessons)
    ids_BT = torch.zeros((len(lessons), longest), dtype=torch.long)
    wanted_BT = torch.full((len(lessons), longest), -100)
    for row, (prompt, answer) in enumerate(lessons):
        ids_BT[row, : len(prompt) + len(answer)] = torch.tensor([*prompt, *answer])
        wanted_BT[row, len(prompt) : len(prompt) + len(answer)] = torch.tensor(answer)
    for _ in range(steps):
        optimizer.zero_grad()
        logits_BTV = model(ids_BT).logits
        cross_entropy(logits_BTV[:, :-1].flatten(0, 1), wanted_BT[:, 1:].flatten()).backward()
        optimizer.step()
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder
