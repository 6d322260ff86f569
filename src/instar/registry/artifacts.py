"""The folder of versions. A version is there wholly or not at all, and is checked before every load.

versions/
  .lock            held while a version is published
  .v8-3fa2…        being written; swept away if its writer died
  v7/              manifest.json, adapter_model.safetensors, …
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from filelock import FileLock, Timeout

from instar.errors import ArtifactError
from instar.records import Manifest
from instar.registry.manifest import FILE, FILE_NAME, VERSION_NAME, parse, render, version_number

_CHUNK_BYTES = 2**20
_MAX_MANIFEST_BYTES = 64 * 2**20
_LOCK_TIMEOUT_S = 60.0


class FolderRegistry:
    """`ports.Registry` in a folder. Several processes may share it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        with _explained(f"The folder of versions {root} cannot be used"):
            root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = FileLock(root / ".lock", timeout=_LOCK_TIMEOUT_S, mode=0o600)
        self._sweep()

    def publish(self, work_dir: Path, manifest: Manifest) -> Path:
        """Take over the files of `work_dir` as a version; durable on return, and `work_dir` is emptied.

        `manifest.files` is filled in here; what it already holds must be true. Publishing the same update again
        returns what is there. Raises ArtifactError, and then nothing of it is to be seen.
        """
        version_number(manifest.name)
        final = self.root / manifest.name
        with _explained(f"{manifest.name} cannot be published"), self._locked():
            if os.path.lexists(final):
                self._same_update(manifest)
            else:
                self._write(work_dir, manifest, final)
            _sync_folder(self.root)
            _empty(work_dir, self.manifest(manifest.name))
        return final

    def verify(self, version: str) -> Path:
        """The version's folder, after every byte in it was compared with its sha256. Raises ArtifactError."""
        manifest = self.manifest(version)
        folder = self.root / version
        with _explained(f"{version} cannot be read"):
            found = {entry.name for entry in os.scandir(folder)}
            if found != {FILE, *manifest.files}:
                odd = sorted(found ^ {FILE, *manifest.files})[0]
                raise ArtifactError(f"{version} is damaged: {odd!r} is missing or does not belong to it.")
            for name, digest in manifest.files.items():
                if _sha256(folder / name) != digest:
                    raise ArtifactError(f"{version} is damaged: {name} is not what was published.")
        return folder

    def manifest(self, version: str) -> Manifest:
        version_number(version)
        folder = self.root / version
        try:
            mode = os.lstat(folder).st_mode
        except FileNotFoundError:
            raise ArtifactError(f"There is no version {version}.") from None
        if not stat.S_ISDIR(mode):
            raise ArtifactError(f"{version} is damaged: it is not a folder.")
        with _explained(f"{version} cannot be read"), _open(folder / FILE) as fd:
            if os.fstat(fd).st_size > _MAX_MANIFEST_BYTES:
                raise ArtifactError(f"{version} is damaged: its manifest is too large.")
            data = b"".join(_chunks(fd))
        return parse(data, version)

    def versions(self) -> list[str]:
        with _explained(f"The folder of versions {self.root} cannot be read"):
            names = [entry.name for entry in os.scandir(self.root) if entry.is_dir(follow_symlinks=False)]
        return sorted(filter(VERSION_NAME.fullmatch, names), key=version_number)

    def _same_update(self, manifest: Manifest) -> None:
        there = self.manifest(manifest.name)
        if there.update_id != manifest.update_id:
            raise ArtifactError(
                f"{manifest.name} was published by another update ({there.update_id}); a version is never replaced."
            )
        self.verify(manifest.name)

    def _write(self, work_dir: Path, manifest: Manifest, final: Path) -> None:
        names = _publishable(work_dir)
        hidden = self.root / f".{manifest.name}-{secrets.token_hex(6)}"
        hidden.mkdir(mode=0o700)
        try:
            digests = {name: _copy(work_dir / name, hidden / name) for name in names}
            _compare(manifest.files, digests)
            _put(hidden / FILE, render(replace(manifest, files=digests)))
            _sync_folder(hidden)
            os.rename(hidden, final)
        except BaseException:
            shutil.rmtree(hidden, ignore_errors=True)
            raise

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            with self._lock:
                yield
        except Timeout as error:
            raise ArtifactError(
                f"Another process has been publishing into {self.root} for {_LOCK_TIMEOUT_S:.0f} s."
            ) from error

    def _sweep(self) -> None:
        """Remove what dead writers left. A living one holds the lock, and is left alone."""
        with contextlib.suppress(Timeout, OSError), self._lock.acquire(timeout=0):
            for entry in os.scandir(self.root):
                if entry.name.startswith(".v") and entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        place = f" ({error.filename})" if error.filename else ""
        raise ArtifactError(f"{what}: {error.strerror or error}{place}.") from error


def _publishable(work_dir: Path) -> list[str]:
    """Names of the files of an update. Raises ArtifactError for anything that is not plain data."""
    names = []
    for entry in os.scandir(work_dir):
        if not entry.is_file(follow_symlinks=False) or FILE_NAME.fullmatch(entry.name) is None:
            raise ArtifactError(
                f"{entry.name!r} cannot be part of a version: only safetensors and JSON files can."
            )
        if entry.name != FILE:
            names.append(entry.name)
    if not names:
        raise ArtifactError(f"There is nothing to publish in {work_dir}.")
    return sorted(names)


def _compare(claimed: dict[str, str], found: dict[str, str]) -> None:
    for name, digest in claimed.items():
        if found.get(name) != digest:
            raise ArtifactError(f"{name} changed after it was computed; nothing was published.")


def _empty(work_dir: Path, manifest: Manifest) -> None:
    """The version is safe: remove what it was made from. What cannot be removed does no harm."""
    for name in (*manifest.files, FILE):
        with contextlib.suppress(OSError):
            (work_dir / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        work_dir.rmdir()


@contextlib.contextmanager
def _open(path: Path) -> Iterator[int]:
    """A file for reading, never through a symbolic link. Raises ArtifactError if it is not a plain file."""
    if path.is_symlink():
        raise ArtifactError(f"{path.name} is a symbolic link; a version holds its own files.")
    fd = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ArtifactError(f"{path.name} is not a plain file.")
        yield fd
    finally:
        os.close(fd)


def _chunks(fd: int) -> Iterator[bytes]:
    while chunk := os.read(fd, _CHUNK_BYTES):
        yield chunk


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with _open(path) as fd:
        for chunk in _chunks(fd):
            digest.update(chunk)
    return digest.hexdigest()


def _copy(source: Path, target: Path) -> str:
    """Copy durably. Returns the sha256 of what was written.

    Copied, not moved: a writer that dies in the middle leaves the work whole, and nothing else keeps a hold on
    the bytes of a published version.
    """
    digest = hashlib.sha256()
    with _open(source) as fd, _durable(target) as out:
        for chunk in _chunks(fd):
            digest.update(chunk)
            _write_all(out, chunk)
    return digest.hexdigest()


def _put(path: Path, data: bytes) -> None:
    with _durable(path) as out:
        _write_all(out, data)


@contextlib.contextmanager
def _durable(path: Path) -> Iterator[int]:
    """A new private file, on the disk when the block ends."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        yield fd
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
