"""What the kernel says about a process: memory and descriptors. Linux only."""

from __future__ import annotations

import os
from pathlib import Path


def forget_peak(pid: int) -> int:
    """Begin to measure the peak anew. Returns bytes resident now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return _status_bytes(pid, "VmRSS")


def peak_bytes(pid: int) -> int:
    """Most bytes that were resident since `forget_peak`."""
    return _status_bytes(pid, "VmHWM")


def resident_bytes(pid: int) -> int:
    return _status_bytes(pid, "VmRSS")


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def _status_bytes(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no {name} of process {pid}")
