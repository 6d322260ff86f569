"""One short answer over the real API, as a client gets it: does it come, from whom, and how fast?"""

from __future__ import annotations

import time
from dataclasses import dataclass

from instar.cli.client import Server
from instar.errors import UserError

QUESTION = "Say hello in one short sentence."
ANSWER_TOKENS = 32
SILENCE_S = 300.0  # as long as OpenClaw waits for a local server


@dataclass(frozen=True, slots=True)
class Probe:
    """What came. Times are in seconds from the request on; `pieces` counts the parts in which the text arrived."""

    url: str
    model: str
    version: str
    turn: str
    text: str
    pieces: int
    first_s: float
    total_s: float


def probe(server: Server, model: str) -> Probe:
    """Ask once. The turn is kept out of learning and of conversations. Raises UserError that says what to do."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": QUESTION}],
        "stream": True,
        "temperature": 0.0,
        "max_tokens": ANSWER_TOKENS,
    }
    aside = {"X-Turn-Type": "side", "X-Instar-Learn": "off"}
    begun, first_s, pieces = time.monotonic(), 0.0, []
    with server.stream("/v1/chat/completions", body, aside, silence_s=SILENCE_S) as answer:
        for piece in answer.texts():
            first_s = first_s or time.monotonic() - begun
            pieces.append(piece)
        turn, version = answer.turn_id, answer.version
    text = "".join(pieces)
    if not text.strip():
        raise UserError(
            f"Version {version or '?'} answered without a word. `instar versions show {version}` tells how it came to "
            "be, `instar versions rollback` takes it back."
        )
    return Probe(server.url, model, version, turn, text, len(pieces), first_s, time.monotonic() - begun)
