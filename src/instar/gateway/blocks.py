"""An answer in blocks – thought, text, calls – of which one at a time is written to."""

from __future__ import annotations

from typing import Any

from instar.answers import CallPart

Block = dict[str, Any]


class Blocks:
    """Blocks in the order in which the model made them. `call_type` is the type of those that are calls."""

    def __init__(self, call_type: str) -> None:
        self._call_type = call_type
        self._call_index: int | None = None
        self.all: list[Block] = []
        self.is_open = False

    @property
    def last(self) -> Block:
        return self.all[-1]

    @property
    def index(self) -> int:
        return len(self.all) - 1

    def continues(self, kind: str) -> bool:
        """Whether the block that is written to is of this type."""
        return self.is_open and self.last["type"] == kind

    def continues_call(self, part: CallPart) -> bool:
        """Whether the block that is written to is this part's call; asked once for each part."""
        same = self.continues(self._call_type) and part.index == self._call_index
        self._call_index = part.index
        return same

    def open(self, block: Block) -> None:
        """The last one must have been closed."""
        self.all.append(block)
        self.is_open = True

    def close(self) -> Block | None:
        """The block that was written to, and is no more; None where none was."""
        if not self.is_open:
            return None
        self.is_open = False
        return self.last
