"""One cell, the same on both paths: a user talks, the product learns, held-out questions and tasks are asked.

for each mark:  conversations up to it  →  nobody talks until all is learned  →  a look
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from bench.learn.api import served
from bench.learn.arms import API
from bench.learn.fast import in_process
from bench.learn.plan import ORACLE, Plan
from bench.learn.probe import Probe
from bench.learn.serving import Asking, Said, Serving
from bench.measures import relevant
from bench.prompts import QUESTIONS
from bench.talk import Message, shuffled_questions
from bench.tasks import TASKS
from bench.users import RandomReactions, Reaction, User, Wish
from instar.chat_format import ChatFormat
from instar.flow.prompts import with_hint

MEMORY = "You are a helpful assistant. Keep to what the user has told you about your answers:\n"

Row = dict[str, Any]
Say = Callable[[str], None]


def run(plan: Plan, say: Say = print, keep: Path | None = None) -> dict[str, Any]:
    """A raw cell. `keep`: put the data folder there instead of a temporary place."""
    torch.set_num_threads(1)
    open_path: Callable[[Plan, Path], AbstractContextManager[tuple[Serving, Path]]]
    open_path = served if plan.path == API else in_process
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="instar-learn-") as place:
        folder = keep / plan.name if keep else Path(place)
        folder.mkdir(parents=True, exist_ok=True)
        with open_path(plan, folder) as (serving, model_dir):
            cell = Talk(plan, serving, Probe(ChatFormat(model_dir)), say).run()
    return {**cell, "wall_s": round(time.monotonic() - began, 1)}


@dataclass(slots=True)
class Talk:
    """The conversation of one cell and the looks between."""

    plan: Plan
    serving: Serving
    probe: Probe
    say: Say = print
    user: User | None = field(init=False)
    memory: list[str] = field(default_factory=list)
    """Corrections so far, each once, for the arm that keeps them in the system prompt."""
    talk: list[Row] = field(default_factory=list)
    errors: int = 0

    def __post_init__(self) -> None:
        plan = self.plan
        if not plan.how.talks:
            self.user = None
        elif plan.how.reactions == "random":
            self.user = RandomReactions(plan.seed)
        else:
            self.user = plan.persona.user(plan.seed, plan.interactions)

    def run(self) -> dict[str, Any]:
        train, heldout = QUESTIONS[self.plan.question_set]
        questions = shuffled_questions(train, self.plan.interactions, self.plan.seed)
        looks = []
        for mark in self.plan.marks:
            while len(self.talk) < mark:
                upto = min(mark, len(self.talk) + self.serving.at_once)
                self._converse(questions[len(self.talk) : upto])
                self.serving.moment()
            settled = self.serving.settle() if mark else True
            looks.append({**self._look(mark, heldout), "settled": settled})
            self._tell(looks[-1])
        return self._document(looks)

    def _document(self, looks: list[Row]) -> dict[str, Any]:
        views = {view["id"]: view for view in self.serving.turns()}
        for row in (r for look in looks for r in (*look["heldout"], *look["tasks"])):
            view = views.get(row["turn"], {})
            row.update({name: view.get(name) for name in ("prompt_tokens", "response_tokens")})
        verdict = ("score", "link", "hint", "learned", "reason", "version")
        for row in self.talk:
            row.update({name: views.get(row["turn"], {}).get(name) for name in verdict})
        keep = ("name", "parent", "turn_ids", "metrics", "gate")
        return {
            "looks": looks,
            "talk": self.talk,
            "versions": [{name: v.get(name) for name in keep} for v in self.serving.versions()],
            "updates": self.serving.updates(),
            "errors": self.errors,
        }

    # ── conversations ─────────────────────────────────────────────────────────────────────────────────────
    def _converse(self, questions: Sequence[str]) -> None:
        """Fresh sessions side by side: question, answer, reaction, second answer, and what the user does then."""
        assert self.user is not None
        how = Asking(self.plan.max_tokens, self.plan.temperature)
        histories: list[list[Message]] = [[_user(q)] for q in questions]
        answers = self._ask(histories, how)
        self.serving.pause()
        reactions = [self.user.react(a.text, q) for q, a in zip(questions, answers, strict=True)]
        for answer, reaction in zip(answers, reactions, strict=True):
            self._tell_oracle(answer, reaction.meant, reaction.text)
        spoken = [i for i, r in enumerate(reactions) if r.text]
        for i in spoken:
            histories[i] += [_assistant(answers[i]), _user(reactions[i].text)]
        seconds = dict(zip(spoken, self._ask([histories[i] for i in spoken], how), strict=True))
        closings = self._close(questions, answers, reactions, seconds, histories)
        for i, question in enumerate(questions):
            self.talk.append(_row(question, answers[i], reactions[i], seconds.get(i), closings.get(i)))
            if reactions[i].meant < 0 and reactions[i].text not in self.memory:
                self.memory.append(reactions[i].text)
        self.serving.pause()

    def _close(
        self,
        questions: Sequence[str],
        answers: Sequence[Said],
        reactions: Sequence[Reaction],
        seconds: dict[int, Said],
        histories: list[list[Message]],
    ) -> dict[int, str]:
        """Thanks for second answers, and edits of first ones. Returns what was done, by conversation."""
        assert self.user is not None
        done: dict[int, str] = {}
        for i, second in seconds.items():
            if reactions[i].meant >= 0:
                continue
            closing = self.user.close(questions[i], answers[i].text, second.text)
            if closing.thanks:
                self._tell_oracle(second, 1, closing.thanks)
                histories[i] += [_assistant(second), _user(closing.thanks)]
                done[i] = "accepted"
            elif closing.edit and answers[i].turn:
                self.serving.feedback(
                    answers[i].turn or "", score=-1, comment=reactions[i].text, correction=closing.edit
                )
                done[i] = "edited"
        thanked = [histories[i] for i, what in done.items() if what == "accepted"]
        self._ask(thanked, Asking(self.plan.max_tokens, self.plan.temperature))
        return done

    def _tell_oracle(self, answer: Said, meant: int, words: str) -> None:
        """With the oracle, what the user means is said outright, before the words are; silence says nothing."""
        if self.plan.judge == ORACLE and meant and answer.turn:
            self.serving.feedback(answer.turn, score=meant, comment=words)

    def _ask(self, histories: Sequence[list[Message]], how: Asking) -> list[Said]:
        found = self.serving.ask([[*self._system(), *h] for h in histories], how)
        self.errors += sum(said.error is not None for said in found)
        return found

    def _system(self) -> list[Message]:
        if not (self.plan.how.remembers and self.memory):
            return []
        return [{"role": "system", "content": MEMORY + "\n".join(f"- {text}" for text in self.memory)}]

    # ── looks ─────────────────────────────────────────────────────────────────────────────────────────────
    def _look(self, mark: int, heldout: Sequence[str]) -> Row:
        began = time.monotonic()
        policy = self.serving.policy()
        rows = [row for repeat in range(self.plan.repeats) for row in self._heldout(heldout, repeat)]
        for row in rows:
            row["mean_logp"] = self.probe.base_logp(policy, row["question"], row["answer"])
            row["relevant"] = relevant(row["question"], row["answer"], heldout)
        return {
            "mark": mark,
            "version": self.serving.version(),
            "compute_s": round(self.serving.compute_s(), 2),
            "kl": round(self.probe.unrelated_kl(policy, self._system()), 5),
            "remembered": len(self.memory),
            "heldout": rows,
            "tasks": self._tasks() if self.plan.tasks else [],
            "look_s": round(time.monotonic() - began, 1),
        }

    def _heldout(self, heldout: Sequence[str], repeat: int) -> list[Row]:
        """One answer to each question. Equal seeds for all arms and marks, where the path lets us choose them."""
        seed = 9000 + 100 * self.plan.seed + repeat
        asking = Asking(self.plan.max_tokens, self.plan.temperature, learn=False, seed=seed)
        shown = [[_user(q)] for q in heldout]
        if self.plan.how.hinted:
            luck = random.Random(f"hinted/{seed}")
            words = [self._wish(q, seed).corrections for q in heldout]
            shown = [with_hint(m, luck.choice(w)) for m, w in zip(shown, words, strict=True)]
        found = self._ask(shown, asking)
        return [{"question": q, **_looked_at(said)} for q, said in zip(heldout, found, strict=True)]

    def _wish(self, question: str, seed: int) -> Wish:
        return self.plan.persona.wish.of(question)

    def _tasks(self) -> list[Row]:
        rows: list[Row] = []
        for (max_tokens, temperature), group in groupby(TASKS, lambda t: (t.max_tokens, t.temperature)):
            tasks = list(group)
            asking = Asking(max_tokens, temperature, learn=False, seed=77 + self.plan.seed)
            found = self._ask([[_user(t.prompt)] for t in tasks], asking)
            rows += [
                {"kind": t.kind, "prompt": t.prompt, "solved": t.check(said.text), **_looked_at(said)}
                for t, said in zip(tasks, found, strict=True)
            ]
        return rows

    def _tell(self, look: Row) -> None:
        last = self.talk[-8:]
        kept = sum(t["kept"] for t in last)
        self.say(
            f"{self.plan.name}: look at {look['mark']} under {look['version']}; {kept} of the last {len(last)}"
            f" answers kept the wish; KL {look['kl']:.3f}; the look took {look['look_s']} s"
        )


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _assistant(said: Said) -> Message:
    return {"role": "assistant", "content": said.text}


def _looked_at(said: Said) -> Row:
    return {
        "answer": said.text,
        "turn": said.turn,
        "version": said.version,
        "cut": said.cut,
        "error": said.error,
    }


def _row(question: str, answer: Said, reaction: Reaction, second: Said | None, closing: str | None) -> Row:
    return {
        "question": question,
        "answer": answer.text,
        "turn": answer.turn,
        "cut": answer.cut,
        "reaction": reaction.text,
        "meant": reaction.meant,
        "kept": reaction.kept,
        "second": second.text if second else None,
        "closing": closing,
    }
