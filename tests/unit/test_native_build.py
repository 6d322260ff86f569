"""The native step's library: made once, kept whole, and never in the way when it cannot be made."""

from __future__ import annotations

import shutil
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from instar.engines.embedded.native import build
from instar.engines.embedded.native.abi import Library
from instar.engines.embedded.native.build import Build, NativeUnavailable
from tests.kit.native import needs_compiler, real_library


@dataclass
class Compiler:
    """A program that behaves like a compiler, and writes down each call that compiles."""

    path: Path
    calls: Path

    @property
    def count(self) -> int:
        return len(self.calls.read_text().split()) if self.calls.exists() else 0

    def build(self) -> Build:
        return Build(compilers=(str(self.path),))


def compiler(folder: Path, does: str, version: str = "1.0") -> Compiler:
    """`does`: shell lines in which $out is the file to write."""
    found = Compiler(folder / "compiler", folder / "calls")
    found.path.write_text(
        f"""#!/bin/sh
if [ "$1" = --version ]; then echo "fake {version}"; exit; fi
echo call >> {found.calls}
while [ "$1" != -o ]; do shift; done
out=$2
{does}
"""
    )
    found.path.chmod(0o755)
    return found


def copying(folder: Path, version: str = "1.0") -> Compiler:
    return compiler(folder, f"cp {real_library()} $out", version)


def kept(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ── where it cannot be made ─────────────────────────────────────────────────────────────────────────────


def test_without_a_compiler_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(NativeUnavailable, match=r"no C\+\+ compiler \(no-such-compiler\)"):
        Build(compilers=("no-such-compiler",)).library(tmp_path)


def test_what_the_compiler_says_last_is_the_reason(tmp_path: Path) -> None:
    fake = compiler(tmp_path, "echo first >&2; echo 'error: no such option' >&2; exit 3")
    home = tmp_path / "home"
    with pytest.raises(NativeUnavailable, match=r"compiler failed with 3: error: no such option"):
        fake.build().library(home)
    assert kept(home) == []


def test_compiler_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_COMPILE_S", 0.2)
    with pytest.raises(NativeUnavailable, match="took more than"):
        compiler(tmp_path, "exec sleep 30").build().library(tmp_path / "home")


@pytest.mark.parametrize("does", ["echo rubbish > $out", "true"], ids=["rubbish", "nothing"])
def test_what_is_no_library_is_not_kept(tmp_path: Path, does: str) -> None:
    home = tmp_path / "home"
    with pytest.raises(NativeUnavailable):
        compiler(tmp_path, does).build().library(home)
    assert kept(home) == []


@needs_compiler
@pytest.mark.parametrize(
    ("body", "says"),
    [("__builtin_trap();", "failed with -"), ("return;", "variant 0 gives 0.0 for 64")],
    ids=["not an instruction", "not the numbers"],
)
def test_library_that_ends_its_process_or_gives_nothing_is_not_kept(
    tmp_path: Path, body: str, says: str
) -> None:
    """An instruction that a virtual machine announces and does not have would end the engine, again and again."""
    source = tmp_path / "broken.c"
    source.write_text(f"int instar_variants(void) {{ return 1; }} void instar_multiply(void) {{ {body} }}")
    home = tmp_path / "home"
    with pytest.raises(NativeUnavailable, match=says):
        compiler(tmp_path, f"{shutil.which('gcc')} -shared -fPIC -o $out {source}").build().library(home)
    assert kept(home) == []


@needs_compiler
def test_folder_that_others_may_write_into_is_not_used(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o777)
    with pytest.raises(NativeUnavailable, match="others may write into"):
        copying(tmp_path).build().library(home)


def test_folder_that_cannot_be_made_is_a_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NativeUnavailable, match="cannot be used"):
        compiler(tmp_path, "true").build().library(tmp_path / "file" / "home")


# ── kept ────────────────────────────────────────────────────────────────────────────────────────────────


@needs_compiler
def test_made_once_and_used_again(tmp_path: Path) -> None:
    fake, home = copying(tmp_path), tmp_path / "home"
    first = fake.build().library(home)
    assert fake.build().library(home) == first
    assert fake.count == 1
    assert kept(home) == [first.name]
    assert Library(first).variants


@needs_compiler
@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "digest only"])
def test_damaged_file_is_made_again(tmp_path: Path, damage: str) -> None:
    fake, home = copying(tmp_path), tmp_path / "home"
    place = fake.build().library(home)
    whole = place.read_bytes()
    changed = bytes([whole[0], *(255 - value for value in whole[1:200]), *whole[200:]])
    damaged = {"cut": whole[:-5_000], "changed": changed, "empty": b"", "digest only": whole[-32:]}
    place.write_bytes(damaged[damage])
    assert fake.build().library(home) == place
    assert fake.count == 2
    assert place.read_bytes() == whole


@needs_compiler
def test_another_compiler_source_or_processor_makes_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    places = {copying(tmp_path).build().library(home)}
    places.add(copying(tmp_path, version="2.0").build().library(home))
    places.add(Build((str(tmp_path / "compiler"),), tune="-O1").library(home))
    with monkeypatch.context() as patch:
        patch.setattr(build, "processor", lambda: "another")
        places.add(copying(tmp_path).build().library(home))
    source = tmp_path / "step.cpp"
    source.write_text(build.SOURCE.read_text("utf-8") + "\n// another\n")
    monkeypatch.setattr(build, "SOURCE", source)
    places.add(copying(tmp_path).build().library(home))
    assert len(places) == 5
    assert copying(tmp_path).count == 5


@needs_compiler
def test_two_that_start_together_both_get_a_whole_one(tmp_path: Path) -> None:
    slow, home = compiler(tmp_path, f"sleep 0.3; cp {real_library()} $out"), tmp_path / "home"
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(slow.build().library(home))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    assert kept(home) == [found[0].name]
    assert Library(found[0]).variants


@needs_compiler
def test_the_folder_is_a_variable_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = copying(tmp_path)
    monkeypatch.setenv("INSTAR_NATIVE_DIR", str(tmp_path / "mine"))
    assert fake.build().library().parent == tmp_path / "mine"
