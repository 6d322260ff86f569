"""The model judge: a model that was configured for it votes m times on what followed an answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from instar.content import last_user_index
from instar.errors import JudgeUnavailable
from instar.judges.endpoint import Asker
from instar.judges.explicit import as_hint
from instar.judges.heads import what_was_said
from instar.judges.prompt import Vote, answer_text, build_prompt, draw_code, has_content, read_reply
from instar.records import Abstention, JudgeItem, Message, NextKind, Verdict
from instar.runtime import Backoff, Clock, SystemClock

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0


@dataclass(slots=True)
class Ballot:
    """What came of asking about one turn: replies that were verdicts, how many were not, and what went wrong."""

    votes: list[Vote] = field(default_factory=list)
    unreadable: int = 0
    problem: str | None = None

    def winner(self, asked_for: int) -> int | None:
        """The score that more than half of all wanted votes have; a vote that failed is nobody's."""
        scores = [vote.score for vote in self.votes]
        return next((score for score in set(scores) if 2 * scores.count(score) > asked_for), None)


class ModelLink:
    """A link of the chain that takes seconds. Blocks the calling thread up to `deadline_s` for all votes of a turn.

    It abstains where no score has more than half of the votes, and tells why. Where the server is down, errs,
    is too slow, or only sends what is no verdict, it is left alone for a pause that doubles up to a minute;
    meanwhile the link abstains at once (`paused`). Votes are asked for one after the other: a local server would
    queue them anyway, and the prompt that they share is then computed once.
    """

    name = "model"

    def __init__(
        self,
        asker: Asker,
        *,
        votes: int = 3,
        deadline_s: float = 30.0,
        max_chars: int = 6000,
        max_tokens: int = 512,
        clock: Clock | None = None,
        draw: Callable[[], str] = draw_code,
    ) -> None:
        self._asker, self._votes, self._deadline_s = asker, votes, deadline_s
        self._max_chars, self._max_tokens = max_chars, max_tokens
        self._clock, self._draw = clock or SystemClock(), draw
        self._backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        self._resume_at = 0.0
        self._problem: str | None = None
        self._asked = self._spoke = 0
        self._loop = asyncio.new_event_loop()
        self._thread: threading.Thread | None = None

    # ── the verdict ─────────────────────────────────────────────────────────────────────────────────────
    def judge(self, item: JudgeItem) -> Verdict | Abstention | None:
        """Raises concurrent.futures.CancelledError when `close` is called meanwhile."""
        code = self._draw()
        prompt = build_prompt(item, code, self._max_chars)
        if prompt is None:
            return None
        if self.paused:
            return Abstention(f"the model judge is left alone for {self.resumes_in_s:.0f} s: {self._problem}")
        ballot: Ballot = self._run(self._collect(prompt, code))
        verdict = self._count(ballot, item)
        self._remember(ballot, isinstance(verdict, Verdict))
        return verdict

    async def _collect(self, prompt: list[Message], code: str) -> Ballot:
        ballot = Ballot()
        try:
            async with asyncio.timeout(self._deadline_s):
                for seed in range(self._votes):
                    reply = await self._asker.ask(prompt, seed=seed, max_tokens=self._max_tokens)
                    vote = read_reply(reply, code)
                    if vote is None:
                        ballot.unreadable += 1
                    else:
                        ballot.votes.append(vote)
        except TimeoutError:
            ballot.problem = f"{self._asker.name} did not give {self._votes} votes in {self._deadline_s:g} s"
        except JudgeUnavailable as error:
            ballot.problem = str(error)
        if ballot.problem is None and not ballot.votes:
            ballot.problem = f"{self._asker.name} gave no verdict in the form that was asked for"
        return ballot

    def _count(self, ballot: Ballot, item: JudgeItem) -> Verdict | Abstention:
        score = ballot.winner(self._votes)
        if score is None:
            return Abstention(f"the model judge has no majority ({self._tally(ballot)})")
        if score > 0 and not has_content(answer_text(item.turn.answer)):
            return Abstention("the model judge praised an answer without content, which is not believed")
        return Verdict(
            score=score,
            votes=tuple(vote.score for vote in ballot.votes),
            hint=_hint(ballot, item) if score < 0 else None,
            why=f"{self._asker.name} judged what followed ({self._tally(ballot)})",
        )

    def _tally(self, ballot: Ballot) -> str:
        """All that happened, in words: `votes +1 −1, 1 reply was no verdict`."""
        said = " ".join(f"{vote.score:+d}" for vote in ballot.votes).replace("-", "−").replace("+0", "0")
        parts = [f"votes {said}" if said else "no votes"]
        parts += [f"{ballot.unreadable} unreadable"] if ballot.unreadable else []
        return "; ".join([*parts, *([ballot.problem] if ballot.problem else [])])

    # ── the server's health ─────────────────────────────────────────────────────────────────────────────
    @property
    def resumes_in_s(self) -> float:
        return max(0.0, self._resume_at - self._clock.monotonic())

    @property
    def paused(self) -> bool:
        return self.resumes_in_s > 0

    @property
    def problem(self) -> str | None:
        """What went wrong the last time, in words; None where nothing did."""
        return self._problem

    def facts(self) -> dict[str, Any]:
        """For `status`. Counts are of turns, since this process began."""
        return {
            "asks": self._asker.name,
            "votes": self._votes,
            "asked": self._asked,
            "spoke": self._spoke,
            "problem": self._problem,
            "resumes_in_s": round(self.resumes_in_s, 1),
        }

    def _remember(self, ballot: Ballot, spoke: bool) -> None:
        self._asked += 1
        self._spoke += spoke
        self._problem = ballot.problem
        if ballot.problem is None or spoke:  # one late vote of three does no harm
            self._backoff.reset()
        else:
            self._resume_at = self._clock.monotonic() + self._backoff.fail()

    # ── the event loop in which the client lives ────────────────────────────────────────────────────────
    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop.run_forever, name="judge-model", daemon=True)
            self._thread.start()
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        """Break off what is being asked, and close the client. Nothing may be asked afterwards."""
        if self._thread is None:
            self._loop.close()
            return
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._thread = None
        self._loop.close()

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._asker.close()


def _hint(ballot: Ballot, item: JudgeItem) -> str | None:
    """The fullest hint of the votes that said −1; where a tool had its say, the user's own words instead, if any.

    The hint goes into the teacher's prompt, and a page that a tool has fetched must not get there in the judge's words.
    """
    if _a_tool_spoke(item):
        said = what_was_said(item.next_states)
        return as_hint(said.text) if said else None
    hints = [as_hint(vote.hint or "") for vote in ballot.votes if vote.score < 0]
    return max((hint for hint in hints if hint), key=len, default=None)


def _a_tool_spoke(item: JudgeItem) -> bool:
    """After the answer, or before it in its episode: then the answer may repeat it."""
    messages = item.turn.messages
    since = messages[last_user_index(messages) or 0 :]
    before = any(message.get("role") == "tool" for message in since)
    return before or any(state.kind is NextKind.TOOL_RESULT for state in item.next_states)
