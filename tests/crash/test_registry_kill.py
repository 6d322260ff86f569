"""kill -9 while versions are published: each is there wholly or not at all, and the next trainer goes on."""

from __future__ import annotations

import random
import time
from pathlib import Path

from instar.registry import FolderRegistry
from tests.kit.processes import Worker
from tests.kit.registry_workers import FILES, content


def test_a_version_is_there_wholly_or_not_at_all(tmp_path: Path) -> None:
    root, chance = tmp_path / "versions", random.Random(11)
    begun = promised = 0
    for life in range(8):
        with Worker("tests.kit.registry_workers", root, tmp_path / "work", promised + 1) as publisher:
            for _ in range(chance.randint(2, 6)):
                publisher.read()
            time.sleep(chance.uniform(0, 0.02))
            lines = [line.split() for line in publisher.kill()]
        begun = max([begun, *(int(line[1]) for line in lines if line[0] == "begins")])
        promised = max([promised, *(int(line[1]) for line in lines if line[0] == "published")])
        registry = FolderRegistry(root)
        there = registry.versions()
        assert there[:promised] == [f"v{n}" for n in range(1, promised + 1)], life
        assert len(there) <= begun
        for number, version in enumerate(there, start=1):
            folder = registry.verify(version)
            assert {name: (folder / name).read_bytes() for name in FILES} == {
                name: content(number, name) for name in FILES
            }
        assert {p.name for p in root.iterdir()} <= {*there, ".lock"}, "what was half written is gone"
    assert promised > 4


def test_a_registry_that_is_opened_while_another_process_publishes_does_not_disturb_it(
    tmp_path: Path,
) -> None:
    root = tmp_path / "versions"
    with Worker("tests.kit.registry_workers", root, tmp_path / "work", 1) as publisher:
        while publisher.read() != "published 6":
            for version in FolderRegistry(root).versions():
                FolderRegistry(root).verify(version)
        publisher.kill()
    assert FolderRegistry(root).versions()[:6] == [f"v{n}" for n in range(1, 7)]
