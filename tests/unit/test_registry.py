from __future__ import annotations

import errno
import json
import os
import random
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from instar.errors import ArtifactError
from instar.records import Manifest
from instar.registry import FolderRegistry, artifacts
from instar.registry.manifest import parse, render


def make_manifest(name: str = "v1", **changes: Any) -> Manifest:
    values: dict[str, Any] = {
        "name": name, "parent": "base", "created_at": 1.5, "update_id": f"update of {name}", "base_model": "starter",
        "base_sha256": "ab" * 32, "files": {}, "turn_ids": ["t1", "t2"], "settings": {"lr": 3e-4, "rank": 16},
        "metrics": {"loss": [0.5, 0.25]}, "gate": {"passed": True}, "runtime": {"python": "3.11"},
    }  # fmt: skip
    return Manifest(**(values | changes))


def make_work(folder: Path, seed: int = 0) -> Path:
    folder.mkdir(parents=True)
    (folder / "adapter_model.safetensors").write_bytes(random.Random(seed).randbytes(5000))
    (folder / "adapter_config.json").write_text('{"r": 16}')
    return folder


@pytest.fixture
def registry(tmp_path: Path) -> FolderRegistry:
    return FolderRegistry(tmp_path / "versions")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    return make_work(tmp_path / "work")


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def hidden(registry: FolderRegistry) -> list[str]:
    return [p.name for p in registry.root.iterdir() if p.name.startswith(".v")]


def test_what_was_computed_is_what_is_served(registry: FolderRegistry, work: Path) -> None:
    before = contents(work)
    manifest = make_manifest()
    folder = registry.publish(work, manifest)
    assert folder == registry.root / "v1" == registry.verify("v1")
    after = contents(folder)
    text = after.pop("manifest.json").decode("ascii")
    assert after == before
    found = registry.manifest("v1")
    assert replace(found, files={}) == manifest
    assert set(found.files) == set(before)
    assert registry.versions() == ["v1"]
    assert not work.exists(), "moved, not copied"
    assert text.count("\n") > 20, "for people to read"
    assert json.loads(text)["parent"] == "base"
    assert {stat.S_IMODE(p.stat().st_mode) for p in folder.iterdir()} == {0o600}


def test_the_same_update_again_is_fine_another_one_is_not(registry: FolderRegistry, tmp_path: Path) -> None:
    folder = registry.publish(make_work(tmp_path / "w1"), make_manifest(created_at=1.0))
    before = contents(folder)
    assert registry.publish(make_work(tmp_path / "w2"), make_manifest(created_at=2.0)) == folder
    assert registry.publish(tmp_path / "gone", make_manifest()) == folder
    with pytest.raises(ArtifactError, match="never replaced"):
        registry.publish(make_work(tmp_path / "w3", seed=1), make_manifest(update_id="another"))
    assert contents(folder) == before
    assert (tmp_path / "w3" / "adapter_model.safetensors").exists()


def test_versions_in_the_order_of_their_numbers(registry: FolderRegistry, tmp_path: Path) -> None:
    for n in (10, 2, 1):
        registry.publish(make_work(tmp_path / f"w{n}"), make_manifest(f"v{n}"))
    (registry.root / "notes").mkdir()
    (registry.root / "v3").write_text("a file")
    assert registry.versions() == ["v1", "v2", "v10"]


NO_NAMES = ["base", "", "v0", "v01", "v-1", "v1/", "../v1", "v1/../v1", "/etc", "v1\n", "V1", "v1.", "v１",
            "v" + "9" * 40, ".v1", "v1\x00"]  # fmt: skip


@pytest.mark.parametrize("name", NO_NAMES)
def test_a_name_that_is_none_never_reaches_the_disk(
    registry: FolderRegistry, work: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for touch in ("lstat", "open", "scandir", "mkdir", "rename"):
        monkeypatch.setattr(os, touch, lambda *_a, **_k: pytest.fail("the disk was touched"))
    uses: list[Callable[[], object]] = [
        lambda: registry.verify(name),
        lambda: registry.manifest(name),
        lambda: registry.publish(work, make_manifest(name)),
    ]
    for use in uses:
        with pytest.raises(ArtifactError, match="not the name of a version"):
            use()


def test_a_version_that_is_not_there(registry: FolderRegistry) -> None:
    with pytest.raises(ArtifactError, match="no version v7"):
        registry.verify("v7")


def test_a_hundred_flipped_bytes_are_a_hundred_refusals(registry: FolderRegistry, work: Path) -> None:
    folder = registry.publish(work, make_manifest())
    chance = random.Random(3)
    files = sorted(folder.iterdir())
    refused = 0
    for n in range(100):
        path = files[n % len(files)]
        good = path.read_bytes()
        bad = bytearray(good)
        bad[chance.randrange(len(bad))] ^= 1 << chance.randrange(8)
        path.write_bytes(bad)
        with pytest.raises(ArtifactError, match="damaged"):
            registry.verify("v1")
        refused += 1
        path.write_bytes(good)
    registry.verify("v1")
    assert refused == 100


def damage_by(name: str) -> Callable[[Path], object]:
    model = "adapter_model.safetensors"
    return {
        "a file is missing": lambda f: (f / model).unlink(),
        "a file was added": lambda f: (f / "more.json").write_text("{}"),
        "a pickle was added": lambda f: (f / "weights.bin").write_bytes(b"\x80\x04."),
        "a folder was added": lambda f: (f / "more").mkdir(),
        "a file was cut": lambda f: os.truncate(f / model, 100),
        "a file is longer": lambda f: (f / model).write_bytes((f / model).read_bytes() + b"\x00"),
        "the manifest is missing": lambda f: (f / "manifest.json").unlink(),
        "the manifest is empty": lambda f: (f / "manifest.json").write_bytes(b""),
        "the manifest is no object": lambda f: (f / "manifest.json").write_bytes(b"[]"),
        "the manifest is nested": lambda f: (f / "manifest.json").write_bytes(b"[" * 100_000),
        "a file is a link": lambda f: _link(f / model),
        "the manifest is a link": lambda f: _link(f / "manifest.json"),
        "a file is a pipe": lambda f: ((f / model).unlink(), os.mkfifo(f / model)),
        "the folder is a link": lambda f: _link(f),
    }[name]


def _link(path: Path) -> None:
    elsewhere = path.with_name("elsewhere") if path.is_dir() else path.parent.parent / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


@pytest.mark.parametrize(
    "name",
    ["a file is missing", "a file was added", "a pickle was added", "a folder was added", "a file was cut",
     "a file is longer", "the manifest is missing", "the manifest is empty", "the manifest is no object",
     "the manifest is nested", "a file is a link", "the manifest is a link", "a file is a pipe",
     "the folder is a link"],
)  # fmt: skip
def test_a_version_is_refused_when(registry: FolderRegistry, work: Path, name: str) -> None:
    folder = registry.publish(work, make_manifest())
    damage_by(name)(folder)
    with pytest.raises(ArtifactError):
        registry.verify("v1")


def forged(registry: FolderRegistry, **changes: Any) -> None:
    """A manifest that is consistent with itself and yet not what a version may say."""
    path = registry.root / "v1" / "manifest.json"
    path.write_bytes(render(replace(registry.manifest("v1"), **changes)))


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "v2"},
        {"files": {"../../secret.json": "0" * 64}},
        {"files": {"model.pt": "0" * 64}},
        {"files": {"manifest.json": "0" * 64}},
        {"files": {"a.json": "no hash"}},
        {"files": {"a.json": None}},
        {"files": []},
        {"turn_ids": "t1"},
        {"created_at": "today"},
    ],
)
def test_a_manifest_that_lies_is_refused(
    registry: FolderRegistry, work: Path, changes: dict[str, Any]
) -> None:
    registry.publish(work, make_manifest())
    forged(registry, **changes)
    with pytest.raises(ArtifactError, match="damaged"):
        registry.manifest("v1")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"  ", b"   "),
        (b"1e-05", b"1E-05"),
        (b"\\u00e9", b"\\u00E9"),
        (b"}\n", b"}"),
        (b'"r": 1', b'"r": 2, "r": 1'),
    ],
)
def test_a_manifest_that_means_the_same_in_other_bytes_is_refused(old: bytes, new: bytes) -> None:
    data = render(make_manifest(settings={"lr": 1e-5, "é": 0, "r": 1}))
    assert old in data
    assert parse(data, "v1").settings["lr"] == 1e-5
    with pytest.raises(ArtifactError, match="checksum"):
        parse(data.replace(old, new, 1), "v1")


@pytest.mark.parametrize(
    "name", ["weights.bin", "adapter.pt", "x.pkl", "README.md", ".hidden.json", "a b.json"]
)
def test_only_data_is_published(registry: FolderRegistry, work: Path, name: str) -> None:
    (work / name).write_bytes(b"x")
    with pytest.raises(ArtifactError, match="only safetensors and JSON"):
        registry.publish(work, make_manifest())
    assert registry.versions() == []
    assert hidden(registry) == []


def test_links_and_folders_are_not_published(registry: FolderRegistry, tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text("secret")
    for n, spoil in enumerate(
        (lambda w: (w / "a.json").symlink_to(secret), lambda w: (w / "b.json").mkdir())
    ):
        work = make_work(tmp_path / f"w{n}")
        spoil(work)
        with pytest.raises(ArtifactError):
            registry.publish(work, make_manifest())
    assert registry.versions() == []


@pytest.mark.parametrize("files", [{"adapter_config.json": "0" * 64}, {"other.json": "0" * 64}])
def test_what_changed_after_it_was_computed_is_not_published(
    registry: FolderRegistry, work: Path, files: dict[str, str]
) -> None:
    with pytest.raises(ArtifactError, match="changed"):
        registry.publish(work, make_manifest(files=files))
    assert (registry.versions(), hidden(registry)) == ([], [])


@pytest.mark.parametrize("missing", ["folder", "files"])
def test_nothing_to_publish(registry: FolderRegistry, tmp_path: Path, missing: str) -> None:
    work = tmp_path / "empty"
    if missing == "files":
        work.mkdir()
    with pytest.raises(ArtifactError):
        registry.publish(work, make_manifest())


def test_figures_that_are_not_finite_can_be_read_by_any_json_parser(
    registry: FolderRegistry, work: Path
) -> None:
    registry.publish(work, make_manifest(metrics={"kl": float("nan"), "x": [float("inf")]}))
    assert registry.manifest("v1").metrics == {"kl": "nan", "x": ["inf"]}
    with pytest.raises(ArtifactError, match="JSON"):
        render(make_manifest(metrics={"x": object()}))


def test_text_of_any_kind_survives_in_a_manifest() -> None:
    manifest = make_manifest(settings={"hint": "두 문장 \ud800 \x00", "": None})
    assert parse(render(manifest), "v1") == manifest


# ── the disk fails ────────────────────────────────────────────────────────────────────────────────────

CALLS = ("fsync", "write", "rename", "mkdir", "open", "scandir", "read")


@contextmanager
def fails_at(monkeypatch: pytest.MonkeyPatch, call: str, nth: int) -> Iterator[list[int]]:
    """The nth call of this system function within the registry fails: the disk is full."""
    seen, real = [0], getattr(os, call)

    def fake(*arguments: Any, **named: Any) -> Any:
        seen[0] += 1
        if seen[0] == nth:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(artifacts.os, call, fake)
        yield seen


@pytest.mark.parametrize("call", CALLS)
def test_a_publish_that_fails_anywhere_shows_nothing_and_works_when_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    for nth in range(1, 60):
        root = tmp_path / f"{call}{nth}"
        registry = FolderRegistry(root / "versions")
        work = make_work(root / "work")
        before = contents(work)
        failed = False
        with fails_at(monkeypatch, call, nth) as seen:
            try:
                registry.publish(work, make_manifest())
            except ArtifactError:
                failed = True
        for version in registry.versions():
            registry.verify(version)
        assert hidden(registry) == []
        if not failed:
            assert registry.versions() == ["v1"]
            if seen[0] < nth:
                assert nth > 1, "the call was never made"
                return
        elif registry.versions() == []:
            assert contents(work) == before
        registry.publish(work, make_manifest())
        registry.verify("v1")
    pytest.fail("it never ended")


def test_the_order_that_makes_a_rename_durable(
    registry: FolderRegistry, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file, then their folder, then the rename, then the folder of versions."""
    done: list[str] = []
    fsync, rename = os.fsync, os.rename
    monkeypatch.setattr(artifacts.os, "fsync", lambda fd: (done.append(_name_of(fd)), fsync(fd)))
    monkeypatch.setattr(artifacts.os, "rename", lambda a, b: (done.append("rename"), rename(a, b)))
    registry.publish(work, make_manifest())
    assert [d.split("-")[0] for d in done] == [
        "adapter_config.json", "adapter_model.safetensors", "manifest.json", ".v1", "rename", "versions",
    ]  # fmt: skip


def _name_of(fd: int) -> str:
    return Path(os.readlink(f"/proc/self/fd/{fd}")).name


def test_leftovers_of_dead_writers_are_swept_those_of_living_ones_are_not(tmp_path: Path) -> None:
    root = tmp_path / "versions"
    FolderRegistry(root)
    (root / ".v7-abc").mkdir()
    (root / ".v7-abc" / "adapter_model.safetensors").write_bytes(b"half")
    with FileLock(root / ".lock"):
        FolderRegistry(root)
        assert (root / ".v7-abc").exists()
    assert FolderRegistry(root).versions() == []
    assert not (root / ".v7-abc").exists()


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ArtifactError, match="cannot be used"):
        FolderRegistry(tmp_path / "file" / "versions")
