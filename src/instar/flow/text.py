"""Sampled ids to the text that the client sees, ending at a stop string."""

from __future__ import annotations

from collections.abc import Sequence

from instar.answers.search import overlap
from instar.chat_format import StreamDecoder


class TextAssembler:
    """Emits text as ids come; holds back what may be the beginning of a stop string."""

    def __init__(self, decoder: StreamDecoder, stop: Sequence[str]) -> None:
        self._decoder = decoder
        self._stop = [s for s in stop if s]
        self._held = ""
        self.text = ""
        self.stop_string: str | None = None

    @property
    def stopped(self) -> bool:
        return self.stop_string is not None

    def push(self, ids: Sequence[int]) -> str:
        """The text that may be shown now. Sets `stop_string` when one was reached."""
        return self._emit(self._decoder.push(ids), last=False)

    def finish(self) -> str:
        """The rest, when sampling ended."""
        return "" if self.stopped else self._emit(self._decoder.finish(), last=True)

    def _emit(self, added: str, *, last: bool) -> str:
        pending = self._held + added
        ends = [(at, s) for s in self._stop if (at := pending.find(s)) >= 0]
        if ends:
            keep, self.stop_string = min(ends)
        else:
            keep = len(pending) if last else len(pending) - overlap(pending, self._stop)
        self._held = "" if self.stopped else pending[keep:]
        self.text += pending[:keep]
        return pending[:keep]
