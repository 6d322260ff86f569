"""`instar chat`: a conversation in the terminal, with judgements a word away."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from instar.cli.client import Server, find_server
from instar.cli.terminal import ApiKey, DataDir, Url, complain, out
from instar.errors import UserError
from instar.runtime import new_id

HELP = """\
  /good [why]          the last answer was right
  /bad [what instead]  the last answer was wrong
  /fix <text>          the last answer should have been this
  /new                 begin a new conversation
  /version             which version answers, and which is served now
  /help                this list
  /quit                leave (so does Ctrl-D)
Plain words teach too: "shorter, please" after an answer is a judgement of it."""


@dataclass(slots=True)
class Conversation:
    """What has been said, and what the last answer was."""

    server: Server
    console: Console
    model: str
    max_tokens: int | None = None
    messages: list[dict[str, Any]] = field(default_factory=list)
    session_id: str = field(default_factory=lambda: new_id("chat"))
    turn_id: str = ""
    version: str = ""

    def say(self, text: str) -> None:
        """Send a message, print the answer as it comes. A failed exchange leaves no trace in the history."""
        asked = [*self.messages, {"role": "user", "content": text}]
        body: dict[str, Any] = {"model": self.model, "messages": asked, "stream": True}
        if self.max_tokens is not None:
            body["max_tokens"] = self.max_tokens
        pieces: list[str] = []
        stopped = False
        with self.server.stream("/v1/chat/completions", body, {"X-Session-Id": self.session_id}) as answer:
            try:
                for piece in answer.texts():
                    pieces.append(piece)
                    self.console.out(piece, end="", highlight=False)
                    self.console.file.flush()
            except KeyboardInterrupt:  # Ctrl-C ends the answer, not the chat
                stopped = True
            self.turn_id, self.version = answer.turn_id, answer.version
        note = f"[{self.version}]" + (" stopped" if stopped else "")
        self.console.print(Text(f"\n{note}", style="dim"))
        self.messages = [*asked, {"role": "assistant", "content": "".join(pieces)}]

    def judge(self, score: int, **words: str) -> None:
        """Send feedback on the last answer."""
        if not self.turn_id:
            raise UserError("There is no answer to judge yet.")
        given = {name: text for name, text in words.items() if text}
        taken = self.server.post("/v1/feedback", {"turn": self.turn_id, "score": score, **given})
        why = taken.get("why")
        told = f"noted as your verdict, but not learned from: {why}" if why else "noted, thank you"
        self.console.print(Text(told, style="dim"))

    def good(self, words: str) -> None:
        self.judge(1, comment=words)

    def bad(self, words: str) -> None:
        self.judge(-1, comment=words)

    def fix(self, words: str) -> None:
        if not words:
            raise UserError("Write the answer you wanted: /fix <text>")
        self.judge(-1, correction=words)

    def new(self, _words: str = "") -> None:
        self.messages, self.turn_id, self.version = [], "", ""
        self.session_id = new_id("chat")
        self.console.print(Text("a new conversation", style="dim"))

    def tell_version(self, _words: str = "") -> None:
        active = self.server.get("/v1/status").get("active_version", "?")
        last = f"the last answer came from {self.version}; " if self.version else ""
        self.console.print(Text(f"{last}{active} is served now", style="dim"))

    def tell_help(self, _words: str = "") -> None:
        self.console.print(Text(HELP))

    def handle(self, line: str) -> bool:
        """Act on one line of input. False when the person wants to leave."""
        text = line.strip()
        if not text:
            return True
        if not text.startswith("/"):
            self.say(text)
            return True
        word, _, words = text[1:].partition(" ")
        if word in {"quit", "exit", "q"}:
            return False
        commands: dict[str, Callable[[str], None]] = {
            "good": self.good,
            "bad": self.bad,
            "fix": self.fix,
            "new": self.new,
            "version": self.tell_version,
            "help": self.tell_help,
        }
        if word not in commands:
            raise UserError(f"There is no /{word}; /help lists what there is.")
        commands[word](words.strip())
        return True


def chat(
    data_dir: DataDir = None,
    url: Url = None,
    api_key: ApiKey = None,
    model: Annotated[
        str | None, typer.Option("--model", help="Pin a version, such as instar@v7 or instar@base.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", min=1, help="Longest answer, in tokens.")
    ] = None,
) -> None:
    """Talk to the running server in the terminal."""
    server = find_server(data_dir, url, api_key)
    served = server.get("/v1/models").get("data") or [{"id": "instar"}]
    conversation = Conversation(server, out(), model or str(served[0]["id"]), max_tokens)
    interactive = sys.stdin.isatty()
    if interactive:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  arrow keys and history for input()
        conversation.console.print(
            Text(f"{conversation.model} at {server.url}. /help lists commands.", style="dim")
        )
    while True:
        try:
            line = input("you> " if interactive else "")
        except (EOFError, KeyboardInterrupt):
            return
        try:
            if not conversation.handle(line):
                return
        except UserError as error:
            complain(str(error))
            if not interactive:
                raise typer.Exit(2) from error
