"""Start a worker in a process of its own, read what it says, and kill it."""

from __future__ import annotations

import subprocess
import sys
from types import TracebackType
from typing import Self

SIGKILLED = -9


class Worker:
    """`with Worker("tests.kit.store_workers", "record", path) as worker:`; dead when the block ends."""

    def __init__(self, module: str, *arguments: object) -> None:
        command = [sys.executable, "-m", module, *map(str, arguments)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.lines: list[str] = []

    def read(self) -> str:
        """The next line, or "" at the end."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline().rstrip("\n")
        if line:
            self.lines.append(line)
        return line

    def kill(self) -> list[str]:
        """kill -9. Returns every line it ever said."""
        self.process.kill()
        return self.finish(SIGKILLED, 0)

    def finish(self, *codes: int) -> list[str]:
        """Wait for its end, which must be one of these codes (0)."""
        out, err = self.process.communicate(timeout=120)
        assert self.process.returncode in (codes or (0,)), err
        self.lines += [line for line in out.split("\n")[: out.count("\n")] if line]
        return self.lines

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
