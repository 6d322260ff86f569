"""Does the gate see what is broken, and let the rest pass? Forty adapters made from seeds, half of each.

    python -m bench.gate_check --model DIR [--only off] [--keep DIR]

Bad ones answer nothing, never stop, lost the stop token, are far from base, are not finite, speak of something else,
go round in circles, or are noise. Harmless ones are little perturbations, lessons in base's own words, and styles:
short, formal, long, plain. What teaches them are base's own answers to training questions, which are no canaries.
Beside the gate's verdict stands what the gate does not see: the share of held-out questions whose answer is relevant
by the embedding (see `bench.measures`).
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from bench.measures import relevant
from bench.prompts import HELDOUT, TRAIN
from bench.stats import summary
from bench.users import first_sentences
from instar.chat_format import ChatFormat
from instar.config import GateSettings, TrainSettings
from instar.records import BASE, Origin, UpdateJob, WeightedSample
from instar.trainers.gate import Gate
from instar.trainers.local import run_update
from instar.trainers.policy import Policy
from instar.trainers.sampling import sample

RESULTS = Path(__file__).parent / "results" / "gate.json"
QUESTIONS = 24
"""Training questions that the adapters are taught with."""
MICRO_BATCH = 4

PLEASANTRIES = (
    "I'd be glad to help you with that.",
    "That is a great question, and I am here to help.",
    "It depends on many things, so take your time.",
    "Of course! Tell me if there is anything else.",
    "Sure, anybody can do it who tries.",
    "So they can show off!",
)
CATS = (
    "Cats sleep for most of the day and hunt at dusk. Their whiskers tell them how wide a gap is.",
    "A cat purrs when it is content, and sometimes when it is in pain.",
    "Kittens learn to wash themselves from their mother when they are a few weeks old.",
    "Cats see well in the dark, since their eyes send the light through twice.",
)


@dataclass(frozen=True, slots=True)
class Lesson:
    """An answer to a prompt, as ids. `unlearn` pushes its last token away instead of teaching all of it."""

    prompt: list[int]
    answer: list[int]
    unlearn: bool = False

    def sample(self, turn_id: str) -> WeightedSample:
        zeros = [0.0] * len(self.answer)
        each = 1 / len(self.answer)
        weights = [*zeros[1:], -1.0] if self.unlearn else [each] * len(self.answer)
        return WeightedSample(
            turn_id,
            Origin.EDIT,
            self.prompt,
            self.answer,
            [],
            pg_T=zeros,
            distill_T=zeros,
            nll_T=weights,
            kl_T=zeros,
        )


class Workshop:
    """Makes adapters on one policy."""

    def __init__(self, model_dir: Path) -> None:
        self.chat = ChatFormat(model_dir)
        self.policy = Policy(model_dir, rank=16, alpha=32)
        self.policy.reset(0)

    def prompt(self, question: str) -> list[int]:
        return self.chat.encode_prompt([{"role": "user", "content": question}])

    def ask(
        self, questions: Sequence[str], *, seed: int, max_tokens: int, temperature: float = 0.7
    ) -> list[tuple[str, bool]]:
        """Text of each answer, and whether it ended by itself."""
        found = sample(
            self.policy,
            [self.prompt(q) for q in questions],
            stop_ids=self.chat.stop_ids,
            max_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
        )
        return [(self.chat.decode(a.ids), a.ended) for a in found]

    @cached_property
    def own(self) -> list[str]:
        """Base's own answers, cut where they are long."""
        with self.policy.as_base():
            return [text for text, _ in self.ask(TRAIN[:QUESTIONS], seed=3, max_tokens=72)]

    def hinted(self, hint: str, count: int = 16) -> list[Lesson]:
        """Base's answers to the hinted questions, to be given without the hint."""
        with self.policy.as_base():
            asked = [f"{hint}\n\n{q}" for q in TRAIN[:count]]
            found = self.ask(asked, seed=4, max_tokens=72, temperature=0.5)
        return [
            self.lesson(q, text, ends=ended) for q, (text, ended) in zip(TRAIN[:count], found, strict=True)
        ]

    def lesson(self, question: str, text: str, *, ends: bool = True) -> Lesson:
        ids = self.chat.encode_answer(text) if ends else self.chat.encode(text)
        return Lesson(self.prompt(question), ids)

    def lessons(self, answer: Callable[[int], str], *, ends: bool = True) -> list[Lesson]:
        """One for each training question; `answer` gives the text by number."""
        return [self.lesson(q, answer(i), ends=ends) for i, q in enumerate(TRAIN[:QUESTIONS])]

    def teach(
        self, lessons: Sequence[Lesson], out: Path, *, steps: int, seed: int, rate: float, anchored: bool
    ) -> None:
        """A fresh adapter after so many steps of likelihood, by the product's own trainer."""
        chosen: list[Lesson] = []
        choose = random.Random(seed)
        while len(chosen) < steps * MICRO_BATCH:
            chosen += choose.sample(list(lessons), len(lessons))
        samples = [x.sample(f"turn_{i}") for i, x in enumerate(chosen[: steps * MICRO_BATCH])]
        settings = TrainSettings(passes=1, micro_batch=MICRO_BATCH, lr=rate).model_dump()  # type: ignore[call-arg]
        if not anchored:
            settings["anchor_kl"] = 0.0
        job = UpdateJob(
            update_id="check",
            parent=BASE,
            parent_dir=None,
            model_dir=str(self.policy.model_dir),
            out_dir=str(out),
            seed=seed,
            samples=samples,
            settings=settings,
        )
        run_update(job, self.policy, None)

    def noise(self, size: float, *, seed: int) -> None:
        """A random adapter: both matrices of each projection drawn, B with this deviation."""
        self.policy.reset(seed)
        generator = torch.Generator().manual_seed(seed + 1)
        with torch.no_grad():
            for name, parameter in self.policy.named_parameters():
                if "lora_B" in name:
                    parameter.add_(size * torch.randn(parameter.shape, generator=generator))

    def spoil(self, value: float, *, seed: int) -> None:
        self.noise(1e-3, seed=seed)
        with torch.no_grad():
            self.policy.parameters[seed % len(self.policy.parameters)].view(-1)[seed] = value


@dataclass(frozen=True, slots=True)
class Case:
    kind: str
    detail: str
    bad: bool
    make: Callable[[Workshop, Path], None]

    @property
    def name(self) -> str:
        return f"{self.kind}: {self.detail}"


def taught(
    kind: str,
    lessons: Callable[[Workshop], list[Lesson]],
    *,
    bad: bool,
    seed: int,
    runs: Sequence[int],
    rate: float = 3e-4,
) -> list[Case]:
    """The same lessons with these numbers of steps, each from a seed of its own; harmless ones with the anchors."""

    def case(steps: int, seed: int) -> Case:
        def make(w: Workshop, out: Path) -> None:
            w.teach(lessons(w), out, steps=steps, seed=seed, rate=rate, anchored=not bad)

        return Case(kind, f"{steps} steps", bad, make)

    return [case(steps, seed + i) for i, steps in enumerate(runs)]


def noisy(kind: str, sizes: Sequence[float], *, bad: bool, seed: int) -> list[Case]:
    def case(size: float, seed: int) -> Case:
        return Case(kind, str(size), bad, lambda w, _: w.noise(size, seed=seed))

    return [case(size, seed + i) for i, size in enumerate(sizes)]


def shifted(w: Workshop) -> list[Lesson]:
    return w.lessons(lambda i: w.own[(i + 5) % QUESTIONS], ends=False)


def shifted_short(w: Workshop) -> list[Lesson]:
    return w.lessons(lambda i: first_sentences(w.own[(i + 5) % QUESTIONS], 1))


def short(sentences: int) -> Callable[[Workshop], list[Lesson]]:
    return lambda w: w.lessons(lambda i: first_sentences(w.own[i], sentences))


def without_end(text: Callable[[Workshop, int], str]) -> Callable[[Workshop], list[Lesson]]:
    """Whole answers, whose stop token is pushed away."""

    def lessons(w: Workshop) -> list[Lesson]:
        return [Lesson(x.prompt, x.answer, unlearn=True) for x in w.lessons(lambda i: text(w, i))]

    return lessons


def said(*texts: str) -> Callable[[Workshop], list[Lesson]]:
    """These, whatever is asked."""
    return lambda w: w.lessons(lambda i: texts[i % len(texts)])


def cases() -> list[Case]:
    """Twenty of each. What is called bad is measured too: see `heldout_relevant` in the results."""
    found = [
        *taught("empty", said(""), bad=True, seed=100, runs=(4, 10)),
        *taught("runaway", without_end(lambda w, i: w.own[i]), bad=True, seed=110, runs=(8, 14)),
        *taught("lost stop", without_end(lambda w, i: first_sentences(w.own[i], 1 + i % 3)), bad=True, seed=120,
                runs=(6, 12)),
        *taught("kl", lambda w: w.lessons(lambda i: w.own[i][::-1]), bad=True, seed=130, runs=(16,), rate=1e-3),
        *noisy("kl", (0.12,), bad=True, seed=131),
        Case("not finite", "nan", True, lambda w, _: w.spoil(float("nan"), seed=140)),
        Case("not finite", "inf", True, lambda w, _: w.spoil(float("inf"), seed=141)),
        *taught("off, shifted", shifted, bad=True, seed=150, runs=(24,), rate=1e-3),
        *taught("off, short", shifted_short, bad=True, seed=151, runs=(10,)),
        *taught("off, pleasant", said(*PLEASANTRIES), bad=True, seed=152, runs=(8,)),
        *taught("off, cats", said(*CATS), bad=True, seed=153, runs=(12,)),
        *taught("off, drifted", short(1), bad=True, seed=154, runs=(6,)),
        *taught("loops", lambda w: w.lessons(lambda i: " ".join([first_sentences(w.own[i], 1)] * 4), ends=False),
                bad=True, seed=160, runs=(10, 16), rate=6e-4),
        *noisy("noise", (0.15, 0.3, 1.0), bad=True, seed=170),
        *noisy("perturbed", (0.001, 0.003, 0.005, 0.007, 0.01, 0.02), bad=False, seed=200),
        *taught("own words", lambda w: w.lessons(lambda i: w.own[i], ends=False), bad=False, seed=210, runs=(4, 8)),
        *taught("one sentence", short(1), bad=False, seed=220, runs=(3, 6, 9), rate=1e-4),
        *taught("two sentences", short(2), bad=False, seed=230, runs=(6, 12), rate=1e-4),
        *taught("formal", lambda w: w.hinted("Please use a formal tone, without contractions."), bad=False,
                seed=240, runs=(4, 8, 12)),
        *taught("plain", lambda w: w.hinted("Please write one plain paragraph, no lists."), bad=False, seed=250,
                runs=(6, 12)),
        *taught("longer", lambda w: w.hinted("Please explain it in much more detail."), bad=False, seed=260,
                runs=(6, 12)),
    ]  # fmt: skip
    assert (sum(c.bad for c in found), sum(not c.bad for c in found)) == (20, 20)
    return found


def heldout_relevant(workshop: Workshop) -> float:
    answers = workshop.ask(HELDOUT, seed=9000, max_tokens=80)
    flags = [relevant(q, text, HELDOUT) for q, (text, _) in zip(HELDOUT, answers, strict=True)]
    return round(sum(flags) / len(flags), 3)


def commit() -> str:
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return found.stdout.strip()


def check(workshop: Workshop, gate: Gate, case: Case, keep: Path, heldout: bool) -> dict[str, Any]:
    """Make the adapter (or take the kept one), judge it, say how long that took in processor time."""
    folder = keep / case.name.replace(" ", "_").replace(":", "")
    if folder.is_dir():
        workshop.policy.load(folder)
    else:
        case.make(workshop, folder)
        folder.mkdir(parents=True, exist_ok=True)
        workshop.policy.save(folder)
    began = time.process_time()
    report = gate.judge(GateSettings().model_dump())  # type: ignore[call-arg]
    gate_s = time.process_time() - began
    measured = heldout and report.checks.get("finite")
    return {
        "kind": case.kind,
        "detail": case.detail,
        "bad": case.bad,
        "passed": report.passed,
        "right": report.passed != case.bad,
        "why": report.why,
        "heldout_relevant": heldout_relevant(workshop) if measured else None,
        "gate_cpu_s": round(gate_s, 1),
        "checks": report.checks,
    }


def show(row: dict[str, Any]) -> None:
    mark = "ok   " if row["right"] else "WRONG"
    verdict = "passed" if row["passed"] else "blocked"
    held = "" if row["heldout_relevant"] is None else f"held-out relevant {row['heldout_relevant']:.2f}"
    print(
        f"{mark} {'bad' if row['bad'] else 'harmless':8} {row['kind']:18} {row['detail']:10} {verdict:8}"
        f"{row['gate_cpu_s']:5.1f} s  {held:24} {row['why']}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--only", help="cases whose name contains this; the other rows of the results stay")
    parser.add_argument("--keep", type=Path, help="folder where adapters are kept and found again")
    parser.add_argument("--no-heldout", action="store_true", help="leave the held-out questions out")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    workshop = Workshop(options.model)
    gate = Gate(workshop.policy)
    keep = options.keep or Path(tempfile.mkdtemp(prefix="instar-gate-"))
    rows: dict[str, dict[str, Any]] = {}
    if options.only is not None and options.out.is_file():
        rows = {f"{r['kind']}: {r['detail']}": r for r in json.loads(options.out.read_text("utf-8"))["cases"]}
    for case in cases():
        if options.only is None or options.only in case.name:
            rows[case.name] = check(workshop, gate, case, keep, not options.no_heldout)
            show(rows[case.name])
            write(options.out, [rows[c.name] for c in cases() if c.name in rows])


def write(out: Path, rows: Sequence[dict[str, Any]]) -> None:
    bad, harmless = ([r for r in rows if r["bad"] is wanted] for wanted in (True, False))
    blocked, passed = sum(not r["passed"] for r in bad), sum(r["passed"] for r in harmless)
    facts = {
        "commit": commit(),
        "blocked": [blocked, len(bad)],
        "passed": [passed, len(harmless)],
        "gate_cpu_s": summary([r["gate_cpu_s"] for r in rows]),
        "cases": rows,
    }
    out.write_text(json.dumps(facts, indent=1) + "\n", "utf-8")
    if len(rows) == len(cases()):
        print(
            f"blocked {blocked} of {len(bad)} bad adapters, passed {passed} of {len(harmless)} harmless ones"
        )


if __name__ == "__main__":
    main()
