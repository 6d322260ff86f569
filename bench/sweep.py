"""Find the recipe: the product's own methods and trainer, without HTTP, one cell after another.

    python -m bench.sweep --model DIR --cell '{"lr": 3e-4}' --seeds 0,1,2 --out FILE

A cell is a set of training settings. A simulated user talks for N fresh sessions of question, answer, reaction;
every `batch_size` reactions make an update; held-out questions are answered before and after. The score is the
wish's own check, so that learning is measured without the judge; the hint is always the user's raw words.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from bench.measures import coherent, logp_floor, relevant
from bench.prompts import HELDOUT, TRAIN, UNRELATED
from bench.users import WISHES, RandomReactions, User, WishUser
from instar.chat_format import ChatFormat
from instar.config import GateSettings, TrainSettings
from instar.flow.prompts import ChatTeacherPrompts
from instar.flow.train_step import HISTORY
from instar.methods import get_method, opd
from instar.records import JudgedAnswer, Message, Origin, Sample, Source, UpdateJob
from instar.trainers.gate import Gate
from instar.trainers.local import run_update
from instar.trainers.policy import Policy
from instar.trainers.revise import Reviser
from instar.trainers.sampling import sample


@dataclass(frozen=True, slots=True)
class Cell:
    """One experiment: settings beside the defaults, who talks, how long, which seed."""

    settings: dict[str, Any] = field(default_factory=dict)
    user: str = "two_sentences"
    interactions: int = 48
    seed: int = 0
    max_tokens: int = 128
    eval_repeats: int = 2
    eval_at: tuple[int, ...] = ()


class Bench:
    """The model, and the measures of its answers relative to base."""

    def __init__(self, model_dir: Path, settings: TrainSettings, *, gated: bool) -> None:
        self.model_dir = model_dir
        self.chat = ChatFormat(model_dir)
        self.policy = Policy(model_dir, rank=settings.rank, alpha=settings.alpha)
        self.policy.reset(0)
        self.gate = Gate(self.policy) if gated else None
        self.reviser = Reviser(self.policy, max_tokens=settings.revision_tokens)
        self._cache = Path(tempfile.gettempdir()) / "instar-sweep-base.json"
        self._base: dict[str, Any] = json.loads(self._cache.read_text()) if self._cache.is_file() else {}

    def prompt(self, question: str) -> list[int]:
        return self.chat.encode_prompt([{"role": "user", "content": question}])

    def answers(self, conversations: list[list[Message]], cell: Cell, seed: int) -> list[Any]:
        return sample(
            self.policy,
            [self.chat.encode_prompt(messages) for messages in conversations],
            stop_ids=self.chat.stop_ids,
            max_tokens=cell.max_tokens,
            temperature=0.7,
            seed=seed,
        )

    @torch.no_grad()
    def base_logp(self, question: str, ids: list[int]) -> float | None:
        """Mean log-prob of the answer under base, stop token left out."""
        body = [i for i in ids if i not in self.chat.stop_ids]
        if not body:
            return None
        prompt = self.prompt(question)
        token_T = torch.as_tensor(body)[:, None]
        with self.policy.as_base():
            logp_TV = self.policy.logp_NV(self.policy.hidden_ND([[*prompt, *body]], [len(prompt)]))
        return float(logp_TV.gather(1, token_T).mean())

    @torch.no_grad()
    def unrelated_kl(self) -> float:
        """KL(π ‖ base) a token over the unrelated prompts and base's own greedy answers' first tokens."""
        rows = [self.prompt(q) for q in UNRELATED]
        key = "unrelated"
        if key not in self._base:
            with self.policy.as_base():
                found = sample(
                    self.policy, rows, stop_ids=self.chat.stop_ids, max_tokens=24, temperature=0.0, seed=0
                )
            self._base[key] = [a.ids for a in found]
        total, count = 0.0, 0
        for prompt, answer in zip(rows, self._base[key], strict=True):
            row = [*prompt, *answer]
            now = self.policy.logp_NV(self.policy.hidden_ND([row], [len(prompt)]))
            with self.policy.as_base():
                then = self.policy.logp_NV(self.policy.hidden_ND([row], [len(prompt)]))
            total += float((now.exp() * (now - then)).sum())
            count += len(answer)
        return total / count

    def measure(self, cell: Cell, *, base: bool = False) -> dict[str, Any]:
        """Shares over the held-out questions, `eval_repeats` answers each."""
        wish = WISHES.get(cell.user, WISHES["two_sentences"])
        flags: dict[str, list[bool]] = {"kept": [], "relevant": [], "both": [], "cut": []}
        lengths, logps, shown = [], [], []
        for repeat in range(cell.eval_repeats):
            found = self.answers([[_said(q)] for q in HELDOUT], cell, seed=9000 + 100 * cell.seed + repeat)
            for question, answer in zip(HELDOUT, found, strict=True):
                text = self.chat.decode(answer.ids)
                logp = self.base_logp(question, answer.ids)
                kept, on = wish.check(text), relevant(question, text, HELDOUT)
                logps.append(logp)
                flags["kept"].append(kept)
                flags["relevant"].append(on)
                flags["both"].append(kept and on)
                flags["cut"].append(not answer.ended)
                lengths.append(len(answer.ids))
                shown.append(text)
        if base:
            self._base["floor"] = logp_floor([x for x in logps if x is not None])
        flags["coherent"] = [coherent(t, x, self._base["floor"]) for t, x in zip(shown, logps, strict=True)]
        result: dict[str, Any] = {k: round(sum(v) / len(v), 3) for k, v in flags.items()}
        result.update(length=sum(lengths) / len(lengths), kl=round(self.unrelated_kl(), 4), shown=shown[:6])
        return result

    def base_measure(self, cell: Cell) -> dict[str, Any]:
        """Base's own figures, computed once for each user and answer length."""
        key = f"{cell.user}/{cell.max_tokens}/{cell.eval_repeats}"
        if key not in self._base:
            self.policy.reset(0)
            self._base[key] = self.measure(cell, base=True)
            self._cache.write_text(json.dumps(self._base))
        found: dict[str, Any] = self._base[key]
        return found


@dataclass(frozen=True, slots=True)
class FormPrompts:
    """Teacher prompts in a form under test."""

    chat: ChatFormat
    form: str

    def hinted(self, sample: Sample, hint: str) -> list[int]:
        *before, last = sample.request_messages
        asked = last["content"]
        turns = {
            "line": [{"role": "user", "content": f"{asked} {hint}"}],
            "prefix": [{"role": "user", "content": f"{hint}\n\n{asked}"}],
            "agreed": [
                {"role": "user", "content": hint},
                {"role": "assistant", "content": "Understood. I will do that from now on."},
                {"role": "user", "content": asked},
            ],
        }
        return self.chat.encode_prompt([*before, *turns[self.form]])

    def encode_answer(self, text: str) -> list[int]:
        return self.chat.encode_answer(text)


def user_of(cell: Cell) -> User:
    if cell.user == "random":
        return RandomReactions(cell.seed)
    return WishUser(WISHES[cell.user], cell.seed)


def collect(
    bench: Bench, cell: Cell, questions: list[str], user: User, at: int, version: str
) -> list[Sample]:
    """One batch of interactions: answers under the current policy, the user's reactions, the answers to these."""
    asked = bench.answers([[_said(q)] for q in questions], cell, seed=1000 * cell.seed + at)
    reactions = [user.react(bench.chat.decode(answer.ids)) for answer in asked]
    histories = [
        [_said(q), {"role": "assistant", "content": bench.chat.decode(a.ids)}, _said(r.text)]
        for q, a, r in zip(questions, asked, reactions, strict=True)
    ]
    retries = bench.answers(histories, cell, seed=1000 * cell.seed + at + 500)
    return [
        Sample(
            turn_id=f"turn_{at + i}",
            learner="me",
            version=version,
            source=Source.USER,
            origin=Origin.SAMPLED,
            request_messages=[_said(question)],
            prompt_ids=bench.prompt(question),
            response_ids=answer.ids,
            logprobs=answer.logprobs,
            score=reaction.meant,
            hint=reaction.text if reaction.meant < 0 else None,
            retry_ids=retry.ids if retry.ended and reaction.meant < 0 else [],
            was_cut=not answer.ended,
        )
        for i, (question, answer, reaction, retry) in enumerate(
            zip(questions, asked, reactions, retries, strict=True)
        )
    ]


def _said(text: str) -> Message:
    return {"role": "user", "content": text}


def _verdict(sample: Sample, chat: ChatFormat) -> JudgedAnswer:
    question = sample.request_messages[-1]["content"]
    return JudgedAnswer(
        sample.learner, question, chat.decode(sample.response_ids), sample.score or 0, sample.hint
    )


def run_cell(bench: Bench, cell: Cell, train: TrainSettings, extra: dict[str, Any]) -> dict[str, Any]:
    """Talk, learn, measure. The result is plain JSON."""
    began = time.monotonic()
    questions = random.Random(cell.seed).sample(list(TRAIN), cell.interactions)
    user, method = user_of(cell), get_method(train.method)
    form = extra.get("form")
    prompts = FormPrompts(bench.chat, form) if form else ChatTeacherPrompts(bench.chat)
    opd.OTHER_HINTS = extra.get("other_hints", opd.OTHER_HINTS)
    state: dict[str, Any] = {}
    log: list[dict[str, Any]] = []
    history: list[JudgedAnswer] = []
    base = bench.base_measure(cell)
    bench.policy.reset(0)
    parent: Path | None = None
    work = Path(tempfile.mkdtemp(prefix="instar-sweep-"))
    settings = {**train.model_dump(), "gate": GateSettings().model_dump(), **extra}  # type: ignore[call-arg]
    for number, at in enumerate(range(0, cell.interactions, train.batch_size), start=1):
        batch = collect(bench, cell, questions[at : at + train.batch_size], user, at, f"v{number - 1}")
        weighted, state = method.weigh(batch, prompts, state)
        history += [_verdict(s, bench.chat) for s in batch]
        entry: dict[str, Any] = {"at": at + len(batch), "good": sum(s.score == 1 for s in batch)}
        if any(w.teaches for w in weighted):
            job = UpdateJob(
                update_id=f"update_{number}",
                parent=f"v{number - 1}" if parent else "base",
                parent_dir=str(parent) if parent else None,
                model_dir=str(bench.model_dir),
                out_dir=str(work / f"v{number}"),
                seed=train.seed + number + 100 * cell.seed,
                samples=weighted,
                history=history[-HISTORY:],
                settings=settings,
            )
            result = run_update(job, bench.policy, bench.gate, bench.reviser)
            entry.update(
                {
                    k: result.metrics.get(k)
                    for k in ("revise_s", "train_s", "gate_s", "lr", "mismatch", "revisions", "scorers")
                }
            )
            entry["loss"] = result.metrics.get("steps", [None])[-1]
            entry["gate"] = result.gate.checks if result.gate else None
            entry["passed"] = result.gate.passed if result.gate else None
            if result.taught and (result.gate is None or result.gate.passed):
                parent = work / f"v{number}"
            elif parent is not None:
                bench.policy.load(parent)
            else:
                bench.policy.reset(0)
        if entry["at"] in cell.eval_at:
            entry["heldout"] = bench.measure(cell)
        log.append(entry)
        print("  ", json.dumps({k: v for k, v in entry.items() if k != "gate"})[:400], flush=True)
    after = bench.measure(cell)
    shutil.rmtree(work)
    return {
        "user": cell.user,
        "seed": cell.seed,
        "interactions": cell.interactions,
        "settings": {**train.model_dump(exclude_defaults=True), **extra},
        "base": base,
        "after": after,
        "log": log,
        "seconds": time.monotonic() - began,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--cell", default="{}", help="training settings as JSON")
    parser.add_argument("--user", default="two_sentences", choices=[*WISHES, "random"])
    parser.add_argument("--interactions", type=int, default=48)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--no-gate", action="store_true", help="save the gate's time while exploring")
    parser.add_argument("--repeats", type=int, default=2, help="answers to each held-out question")
    parser.add_argument("--eval-at", default="", help="interactions after which to measure as well")
    parser.add_argument(
        "--idle", action="store_true", help="run in the idle scheduling class, as the product"
    )
    parser.add_argument("--out", type=Path, default=Path("sweep.jsonl"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.idle and hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    chosen = json.loads(options.cell)
    known = {k: v for k, v in chosen.items() if k in TrainSettings.model_fields}
    train = TrainSettings(**known)
    extra = {k: v for k, v in chosen.items() if k not in known}
    bench = Bench(options.model, train, gated=not options.no_gate)
    for seed in map(int, options.seeds.split(",")):
        at = tuple(int(x) for x in options.eval_at.split(",") if x)
        cell = Cell(chosen, options.user, options.interactions, seed, options.max_tokens, options.repeats, at)
        result = run_cell(bench, cell, train, extra)
        after, base = result["after"], result["base"]
        brief = {k: v for k, v in after.items() if k != "shown"}
        print(options.user, options.cell, "seed", seed, json.dumps(brief))
        print("   base", json.dumps({k: v for k, v in base.items() if k != "shown"}), flush=True)
        for text in after["shown"][:4]:
            print("     |", text[:160].replace("\n", " / "))
        with options.out.open("a", encoding="utf-8") as out:
            out.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
