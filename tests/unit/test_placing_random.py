"""Many clients at once, by lot: what is said of which answer is known by the one who acts, and must be what is stored.

Each client keeps its own books in the plainest way: which answer it has before it, which steps led to it, what was
answered to the same request. It shares no code with what it checks.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from instar.flow.kinds import Hints
from instar.records import Kind, Message, Turn
from tests.kit.desk import Desk, assistant, tool, user
from tests.kit.openclaw import calls

QUEUED = (
    "[Queued user message from a previous active turn; preserved as context only. "
    "Continue with the active prompt below.]"
)
GO_ON = "Continue the current task from the existing transcript, preserving completed work. Do not restart."
NOTE = "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\nConversation data {}\n<<<END_OPENCLAW_INTERNAL_CONTEXT>>>"
BEAT = "Follow the heartbeat monitor scratch context when provided."
SUMMARY = (
    "The conversation history before this point was compacted into the following summary:\n\n"
    "<summary>\n{}\n</summary>"
)

Heard = dict[str, list[tuple[str, str]]]


@dataclass
class Exchange:
    """What a user said, the steps that answered it, and the messages of it all. `stamp` is the minute it was said."""

    said: str
    stamp: str
    steps: list[Turn] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    answered: list[Turn] = field(default_factory=list)  # first steps, also of tries that were thrown away


@dataclass
class Client:
    """One conversation as its client sees it. `stock` clients name no session but in the Runtime line."""

    desk: Desk
    name: str
    lot: random.Random
    expected: Heard
    agent: bool
    stock: bool = False
    chat: bool = False
    exchanges: list[Exchange] = field(default_factory=list)
    begun: list[Message] = field(default_factory=list)  # a summary, after a compaction
    generation: int = 0
    minute: int = 0
    woken: bool = False

    @property
    def session(self) -> dict[str, Any]:
        if self.chat:
            return {"session_id": self.name, "hints": Hints(chat_id=True)}
        named = self.agent and not self.stock
        return {"session_id": f"{self.name}:{self.generation}"} if named else {}

    # ── messages as this client writes them ──────────────────────────────────────────────────────────────
    def as_said(self, text: str, stamp: str, first: bool) -> Message:
        if not self.agent:
            return user(text)
        runtime = f"\n\nRuntime: agent=main | session=agent:main:main | sessionId={self.name} | host=machine"
        return user(f"{stamp}{text}{runtime if first else ''}")

    def tick(self) -> str:
        self.minute += 1
        return f"[Mon 2026-11-30 {self.minute // 60 % 24:02}:{self.minute % 60:02} UTC] "

    def history(self, until: int | None = None) -> list[Message]:
        shown = self.exchanges[:until]
        return [*self.begun, *(message for exchange in shown for message in exchange.messages)]

    def sent(self, messages: list[Message]) -> list[Message]:
        return [*messages, user(NOTE.format(self.lot.random()))] if self.stock else messages

    def echoed(self, answer: Message) -> Message:
        """As clients send a step back: other ids, other blanks."""
        back = json.loads(json.dumps(answer).replace("call_", "call"))
        for call in back["tool_calls"]:
            call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]), indent=1)
        return {**back, "content": None}

    # ── what it does ─────────────────────────────────────────────────────────────────────────────────────
    async def say(self) -> None:
        await self.run(Exchange(f"{self.name} says {self.lot.random()}", self.tick()), len(self.exchanges))

    async def run(self, exchange: Exchange, place: int, again: bool = False) -> None:
        """Have an exchange answered that stands at `place`; all behind it is thrown away."""
        reply_to = self.exchanges[place - 1] if place else None
        behind = self.exchanges[place] if place < len(self.exchanges) else None
        self.exchanges = self.exchanges[:place]
        asked = self.as_said(exchange.said, exchange.stamp, first=not self.begun and place == 0)
        exchange.messages, exchange.steps = [asked], []
        for step in reply_to.steps if reply_to else []:
            self.expect(step, "user_reply", exchange.said)
        if behind and not again and (reply_to or self.chat):
            self.expect(behind.answered[-1], "edit", exchange.said)
        if again and (reply_to or self.session):
            self.expect(exchange.answered[-1], "regenerate", "")
        for n in range(self.lot.choice([0, 0, 1, 3])):
            await self.call_tools(exchange, n)
        await self.answer(exchange, f"answer {self.lot.random()}")
        exchange.answered.append(exchange.steps[0])
        if self.woken and self.exchanges:
            parts = f"{exchange.stamp}[OpenClaw heartbeat poll]", exchange.said
            exchange.messages[0] = {"role": "user", "content": [{"type": "text", "text": p} for p in parts]}
        self.woken = False
        self.exchanges.append(exchange)

    async def call_tools(self, exchange: Exchange, step: int) -> None:
        asked = [
            ("exec", {"b": k, "a": f"{step} {self.lot.random()}"}) for k in range(self.lot.choice([1, 2]))
        ]
        answer = calls(*asked)
        await self.answer(exchange, answer)
        results = [self.lot.choice(["ok", "error: no", f"text {self.lot.random()}"]) for _ in asked]
        for k, text in enumerate(results):
            exchange.messages.append(tool(answer["tool_calls"][k]["id"].replace("_", ""), text))
            self.expect(exchange.steps[-1], "tool_result", text, once=False)

    async def answer(self, exchange: Exchange, answer: str | Message) -> None:
        """One step, perhaps only at the second or third try."""
        before = self.history()
        tries = self.lot.choice([0, 0, 0, 1, 2]) if self.agent else 0
        for n in range(tries):
            await self.desk.ask(self.sent(self.tried(before, exchange, n)), fault=True, **self.session)
        messages = self.sent(self.tried(before, exchange, tries))
        turn = await self.desk.ask(messages, answer, **self.session)
        fresh = not exchange.steps
        kind = Kind.RETRY if tries else Kind.MAIN if fresh else Kind.TOOL_STEP
        assert turn.kind is kind
        if fresh:
            last = self.exchanges[-1].steps[-1] if self.exchanges else None
            assert (turn.parent_id, turn.episode_id) == (last.id if last else None, turn.id)
        else:
            assert turn.parent_id == exchange.steps[-1].id
            assert turn.episode_id == exchange.steps[0].id
        exchange.steps.append(turn)
        back = assistant(answer + "  ") if isinstance(answer, str) else self.echoed(answer)
        exchange.messages.append(back)

    def tried(self, before: list[Message], exchange: Exchange, n: int) -> list[Message]:
        if n == 0:
            return [*before, *exchange.messages]
        if len(exchange.messages) > 1:
            return [*before, *exchange.messages, user(f"{self.tick()}{GO_ON}")]
        first = not self.exchanges and not self.begun
        wrapped = self.as_said(f"{QUEUED}\n{exchange.said}\n\n{GO_ON}", self.tick(), first)
        return [*before, wrapped]

    async def regenerate(self) -> None:
        if self.exchanges and not self.agent:
            await self.run(self.exchanges[-1], len(self.exchanges) - 1, again=True)

    async def edit(self) -> None:
        if self.exchanges and not self.agent:
            place = self.lot.randrange(
                0 if self.chat and len(self.exchanges) == 1 else 1, len(self.exchanges) + 1
            )
            if place < len(self.exchanges):
                old = self.exchanges[place]
                changed = Exchange(f"{old.said}, changed", "", answered=list(old.answered))
                await self.run(changed, place)

    async def wake(self) -> None:
        if self.agent:
            turn = await self.desk.ask(self.sent([*self.history(), user(BEAT)]), "NO_REPLY", **self.session)
            assert turn.reason == "heartbeat"
            self.woken = True

    async def compact(self) -> None:
        if self.agent and len(self.exchanges) > 1:
            asked = [
                {"role": "system", "content": "You are a context summarization assistant."},
                user("<c>…</c>"),
            ]
            turn = await self.desk.ask(asked, "They spoke.", session_id=self.name)
            assert turn.reason == "compaction"
            runtime = f"\n\nRuntime: agent=main | sessionId={self.name} | host=machine"
            self.begun = [user(SUMMARY.format(self.lot.random()) + runtime)]
            self.exchanges = self.exchanges[-1:]
            self.exchanges[0].messages[0] = user(self.exchanges[0].stamp + self.exchanges[0].said)
            self.generation += 1

    async def restart(self) -> None:
        if self.agent:
            self.exchanges, self.begun, self.woken = [], [], False
            self.generation += 1

    def expect(self, turn: Turn, kind: str, text: str, once: bool = True) -> None:
        heard = self.expected[turn.id]
        if not once or (kind, text) not in heard:
            heard.append((kind, text))


ACTS = ["say"] * 8 + ["regenerate", "regenerate", "edit", "edit", "wake", "wake", "compact", "restart"]


@pytest.mark.parametrize("seed", range(3))
async def test_everyone_is_heard_by_whom_they_answer(tmp_path: Path, seed: int) -> None:
    await check(tmp_path, seed, acts=30)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 140))
async def test_everyone_is_heard_for_long(tmp_path: Path, seed: int) -> None:
    await check(tmp_path, seed, acts=150)


async def check(tmp_path: Path, seed: int, acts: int) -> None:
    desk, lot, expected = Desk(tmp_path), random.Random(seed), defaultdict(list)
    clients = [
        Client(desk, "plain", lot, expected, agent=False),
        Client(desk, "other", lot, expected, agent=False),
        Client(desk, "window", lot, expected, agent=False, chat=True),
        Client(desk, "claw", lot, expected, agent=True),
        Client(desk, "stock", lot, expected, agent=True, stock=True),
    ]
    for _ in range(acts):
        await getattr(lot.choice(clients), lot.choice(ACTS))()
    heard = desk.heard()
    assert {key: sorted(heard.get(key, [])) for key in expected} == {
        key: sorted(states) for key, states in expected.items()
    }
    assert heard.keys() <= expected.keys()
    kinds = {kind for states in heard.values() for kind, _ in states}
    assert kinds >= {"user_reply", "tool_result"}
    assert acts < 100 or kinds >= {"regenerate", "edit"}
