"""The header of a safetensors file, read and checked without torch."""

from __future__ import annotations

import json
import struct
from pathlib import Path

_MAX_HEADER_BYTES = 200 * 2**20


def tensor_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Tensor name → shape. Raises ValueError, with the reason, if the file is cut, damaged or missing."""
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > min(size - 8, _MAX_HEADER_BYTES):
                raise ValueError("its header is cut")
            header = json.loads(stream.read(length))
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        shapes = {name: tuple(map(int, entry["shape"])) for name, entry in entries.items()}
        end = max((int(entry["data_offsets"][1]) for entry in entries.values()), default=0)
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from error
    except (struct.error, KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError("its header is damaged") from error
    if size != 8 + length + end:
        raise ValueError("it is cut, or longer than its header says")
    return shapes
