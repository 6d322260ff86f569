"""The serving version and the proposed one on turns that neither was trained on.

What one turn says of a version is a number, and only its difference between the two counts:

    praised      mean log-prob a token of the praised answer
    corrected    where it is known what the user wanted: mean log-prob of that, less that of the rejected answer;
                 otherwise the version answers anew, and base tells how well its answer shows the user's words, as in
                 trainers/revise.py: mean over tokens of log p(answer | words + request) − log p(answer | request)

A rejection without words says nothing of what would be better and is left out. Long prompts are read once a look, and
what they have in common with the one before is not read again (PrefixCache).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from instar.flow.evidence import ENOUGH, MARGIN, not_worse, win
from instar.records import GateReport, HeldBackTurn
from instar.trainers.canaries import Canaries, token_logp
from instar.trainers.policy import Policy, PrefixCache, is_long
from instar.trainers.sampling import sample

ANSWER_TOKENS = 32
EXAMPLES = 5
"""Answers of both versions that are shown side by side."""
SCALE = 0.25
"""Nats a token by which a version is preferred three times out of four or so (`evidence.win`)."""
ROWS = 8
ROOM = 2**28
"""Bytes of keys and values that are kept of long prompts, while one is read after the other."""
NO_ANSWER = -5.0
"""What an empty answer shows of the user's words, in nats a token: less than any other."""


@dataclass(slots=True)
class Look:
    """What was seen of one version: a number a turn, and its answers to the questions that are shown."""

    scores: dict[str, float] = field(default_factory=dict)
    shown: list[list[int]] = field(default_factory=list)


def usable(turn: HeldBackTurn) -> bool:
    return bool(turn.response_ids) and (turn.score == 1 or bool(turn.wanted_ids or turn.hinted_ids))


class Trial:
    """`look` at the serving version, train, `look` again, `compare`."""

    def __init__(
        self, policy: Policy, canary: Canaries, held_back: Sequence[HeldBackTurn], *, seed: int
    ) -> None:
        self._policy, self._canary, self._seed = policy, canary, seed
        self._turns = [t for t in held_back if usable(t)]
        self._left_out = len(held_back) - len(self._turns)
        self._is_enough = len(self._turns) >= ENOUGH
        answered = [t for t in self._turns if t.score == -1 and not t.wanted_ids]
        self._answered = answered if self._is_enough else answered[:EXAMPLES]
        places = range(max(0, EXAMPLES - len(self._answered)))
        self._canaries = [i for i, _ in zip(range(len(canary.prompts)), places, strict=False)]

    def look(self) -> Look:
        """The version that the policy is now. Without enough turns to conclude anything, only what is shown."""
        found, prefixes = Look(), PrefixCache(self._policy, ROOM)
        answers = self._answers(prefixes)
        found.shown = [*answers[: min(EXAMPLES, len(self._answered))], *answers[len(self._answered) :]]
        if self._is_enough:
            self._score_given(found, prefixes)
            self._score_answers(found, answers[: len(self._answered)])
        return found

    def _answers(self, prefixes: PrefixCache) -> list[list[int]]:
        """To the turns that are answered anew, then to the canary questions that are shown."""
        prompts = [t.prompt_ids for t in self._answered] + [self._canary.prompts[i] for i in self._canaries]
        short = [i for i, p in enumerate(prompts) if not is_long(len(p))]
        found = dict(zip(short, self._sample([prompts[i] for i in short], prefixes), strict=True))
        for i in sorted(range(len(prompts)), key=lambda i: prompts[i]):
            if i not in found:  # alone, since a prompt that is kept serves one batch
                (found[i],) = self._sample([prompts[i]], prefixes)
        return [found[i] for i in range(len(prompts))]

    def _sample(self, prompts: Sequence[list[int]], prefixes: PrefixCache) -> list[list[int]]:
        if not prompts:
            return []
        found = sample(
            self._policy,
            prompts,
            stop_ids=self._canary.stop_ids,
            max_tokens=ANSWER_TOKENS,
            temperature=0.7,
            seed=self._seed,
            prefixes=prefixes,
        )
        return [self._canary.body(a.ids) for a in found]

    def _score_given(self, found: Look, prefixes: PrefixCache) -> None:
        given = [t for t in self._turns if t.score == 1 or t.wanted_ids]
        corrected = [t for t in given if t.score == -1]
        rows = [(t.prompt_ids, t.response_ids) for t in given] + [
            (t.prompt_ids, t.wanted_ids) for t in corrected
        ]
        logp = self._mean_logp(rows, prefixes)
        better = dict(zip([t.turn_id for t in corrected], logp[len(given) :], strict=True))
        for turn, own in zip(given, logp[: len(given)], strict=True):
            found.scores[turn.turn_id] = own if turn.score == 1 else better[turn.turn_id] - own

    def _score_answers(self, found: Look, answers: Sequence[list[int]]) -> None:
        spoken = [(t, a) for t, a in zip(self._answered, answers, strict=True) if a]
        found.scores.update({t.turn_id: NO_ANSWER for t in self._answered})
        rows = [(t.prompt_ids, a) for t, a in spoken] + [(t.hinted_ids, a) for t, a in spoken]
        with self._policy.as_base():
            logp = self._mean_logp(rows, PrefixCache(self._policy, ROOM))
        plain, hinted = logp[: len(spoken)], logp[len(spoken) :]
        for (turn, _), before, after in zip(spoken, plain, hinted, strict=True):
            found.scores[turn.turn_id] = after - before

    def _mean_logp(self, rows: Sequence[tuple[list[int], list[int]]], prefixes: PrefixCache) -> list[float]:
        """A token of each answer, after its prompt. Those that begin alike follow each other, to be read once."""
        order = sorted(range(len(rows)), key=lambda i: rows[i][0])
        found = [0.0] * len(rows)
        for at in range(0, len(order), ROWS):
            part = order[at : at + ROWS]
            scored = token_logp(
                self._policy, [rows[i][0] for i in part], [rows[i][1] for i in part], prefixes
            )
            for i, logp_T in zip(part, scored, strict=True):
                found[i] = float(logp_T.mean())
        return found

    def compare(self, before: Look, after: Look) -> dict[str, Any]:
        """Whether the version seen last is no worse than the first: figures, verdict and a sentence."""
        scored = self._turns if self._is_enough else []
        wins = [win(after.scores[t.turn_id] - before.scores[t.turn_id], SCALE) for t in scored]
        passed, interval = not_worse(wins, self._seed)
        facts: dict[str, Any] = {
            "turns": len(self._turns),
            "left_out": self._left_out,
            "needed": ENOUGH,
            "passed": passed,
            "bound": 0.5 - MARGIN,
        }
        if interval is not None:
            shown = asdict(interval)
            facts.update({"value": shown["mean"], "lower": shown["lower"], "upper": shown["upper"]})
        return {**facts, "why": _sentence(facts)}

    def examples(self, before: Look, after: Look, decode: Any) -> list[dict[str, str]]:
        """The same questions before and after, as text."""
        asked = [("held back", t.question) for t in self._answered[:EXAMPLES]]
        asked += [("canary", self._canary.questions[i]) for i in self._canaries]
        return [
            {"kind": kind, "question": question, "before": decode(old), "after": decode(new)}
            for (kind, question), old, new in zip(asked, before.shown, after.shown, strict=True)
        ]


def _sentence(facts: dict[str, Any]) -> str:
    if facts["passed"] is None:
        return (
            f"There is not enough evidence yet from turns that are held back ({facts['turns']} of {ENOUGH}), "
            "so the canary questions decide."
        )
    share, lower, upper = (round(100 * facts[name]) for name in ("value", "lower", "upper"))
    told = (
        f"On {facts['turns']} turns that were held back it wins {share} % against the serving version "
        f"({lower}–{upper} %)"
    )
    if facts["passed"]:
        return f"{told}: it is not worse."
    return f"{told}: it may be worse by more than {round(100 * MARGIN)} points."


def with_trial(report: GateReport, held_back: dict[str, Any], examples: list[dict[str, str]]) -> GateReport:
    """The gate's report with what the trial adds; a version must pass both."""
    checks = {**report.checks, "held_back": held_back, "examples": examples}
    worse = held_back["passed"] is False
    why = held_back["why"] if report.passed and worse else f"{report.why} {held_back['why']}"
    return GateReport(report.passed and not worse, why, checks)
