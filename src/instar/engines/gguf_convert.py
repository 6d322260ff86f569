"""Turn a GGUF file into a Hugging Face folder in bf16. Run as a process of its own:

    python -m instar.engines.gguf_convert FILE.gguf OUT_DIR

A process of its own, since the caller is often the supervisor, which must stay small: torch, the file and the
weights would otherwise stay in its memory for as long as the server runs.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def convert(gguf: Path, out: Path) -> None:
    """Write model.safetensors (bf16), config, generation config, tokenizer and chat template into `out`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(
        str(gguf.parent),
        gguf_file=gguf.name,
        quantization_config=GgufConfig(dequantize=True),  # else the weights stay packed and cannot be saved
        dtype=torch.bfloat16,
    )
    model.save_pretrained(str(out))
    tokenizer.save_pretrained(str(out))
    template = out / "chat_template.jinja"
    if not template.is_file() and tokenizer.chat_template:
        template.write_text(tokenizer.chat_template, "utf-8")


def main() -> None:
    """Everything is local: with the hub off, a machine without a network does not wait for it."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    convert(Path(sys.argv[1]), Path(sys.argv[2]))


if __name__ == "__main__":
    main()
