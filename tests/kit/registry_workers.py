"""A process that publishes versions: `python -m tests.kit.registry_workers REGISTRY WORK FIRST`."""

from __future__ import annotations

import random
import sys
from pathlib import Path

from instar.records import Manifest
from instar.registry import FolderRegistry

FILES = ("adapter_config.json", "adapter_model.safetensors", "optimizer.safetensors")


def content(number: int, name: str) -> bytes:
    return random.Random(f"{number} {name}").randbytes(300_000)


def work(folder: Path, number: int) -> tuple[Path, Manifest]:
    """What update `number` leaves, the same each time it is computed."""
    place = folder / str(number)
    place.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        (place / name).write_bytes(content(number, name))
    manifest = Manifest(f"v{number}", "base", 1.0, f"upd{number}", "starter", "00", {}, [], {}, {}, {}, {})
    return place, manifest


def main() -> None:
    root, folder, number = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    registry = FolderRegistry(root)
    print("ready", flush=True)
    while True:
        place, manifest = work(folder, number)
        print("begins", number, flush=True)
        registry.publish(place, manifest)
        print("published", number, flush=True)
        number += 1


if __name__ == "__main__":
    main()
