"""The folder for what does not fit into memory: where it may lie, and that it goes away."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from outgrow.core.errors import InputError
from outgrow.runtime.storage.scratch_dir import is_in_memory, scratch_directory


class Mount(NamedTuple):
    mountpoint: str
    fstype: str


def mounted(monkeypatch: pytest.MonkeyPatch, *mounts: tuple[str | Path, str]) -> None:
    """Let the system have these mounts."""
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: [Mount(str(where), kind) for where, kind in mounts])


@pytest.fixture
def on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that counts as one on a disk, whatever the tests run on."""
    mounted(monkeypatch, ("/", "ext4"))
    return tmp_path


def test_it_is_made_and_removed(on_disk: Path) -> None:
    with scratch_directory(on_disk, 1000) as first, scratch_directory(on_disk, 0) as second:
        assert first != second
        for folder in (first, second):
            assert folder.parent == on_disk
            assert folder.name.startswith("outgrow-offload-")
            (folder / "deep").mkdir()
            (folder / "deep" / "rows").write_bytes(b"x")
    assert not list(on_disk.iterdir())


def test_it_is_removed_after_an_error(on_disk: Path) -> None:
    def use() -> None:
        with scratch_directory(on_disk, 0) as folder:
            (folder / "rows").write_bytes(b"x")
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        use()
    assert not list(on_disk.iterdir())


def test_it_may_be_gone_already(on_disk: Path) -> None:
    with scratch_directory(on_disk, 0) as folder:
        shutil.rmtree(folder)
    assert not list(on_disk.iterdir())


def test_by_default_it_lies_with_temporary_files(on_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(on_disk))
    with scratch_directory(None, 0) as folder:
        assert folder.parent == on_disk


@pytest.mark.parametrize("kind", ["tmpfs", "ramfs"])
def test_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    mounted(monkeypatch, ("/", "ext4"), (tmp_path, kind))
    with pytest.raises(InputError, match=r"scratch: .* in memory") as caught, scratch_directory(tmp_path, 0):
        pass
    assert kind in caught.value.got
    assert not list(tmp_path.iterdir())


def test_the_nearest_mount_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, disk = tmp_path / "memory", tmp_path / "memory" / "disk"
    disk.mkdir(parents=True)
    (tmp_path / "memory2").mkdir()
    (tmp_path / "link").symlink_to(memory)
    mounted(monkeypatch, (disk, "xfs"), (memory, "ext4"), (memory, "tmpfs"), ("/", "ext4"))
    assert is_in_memory(memory)
    assert is_in_memory(memory / "not there yet")
    assert is_in_memory(tmp_path / "link")
    assert not is_in_memory(disk / "rows")
    assert not is_in_memory(tmp_path / "memory2")
    assert not is_in_memory(tmp_path)


def test_shared_memory_is_memory() -> None:
    kinds = {mount.mountpoint: mount.fstype for mount in psutil.disk_partitions(all=True)}
    if kinds.get("/dev/shm") != "tmpfs":
        pytest.skip("needs a tmpfs on /dev/shm")
    with pytest.raises(InputError, match="in memory"), scratch_directory(Path("/dev/shm"), 0):
        pass


def test_too_little_room(on_disk: Path) -> None:
    with pytest.raises(InputError, match="too little room") as caught, scratch_directory(on_disk, 1 << 60):
        pass
    assert caught.value.needed == f"{1 << 60:,} bytes"
    assert not list(on_disk.iterdir())


def test_no_such_folder(on_disk: Path) -> None:
    (on_disk / "file").touch()
    for place in (on_disk / "nowhere", on_disk / "file"):
        with pytest.raises(InputError, match="is no folder"), scratch_directory(place, 0):
            pass


def test_a_folder_that_cannot_be_written(on_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_disk.chmod(0o500)
    if os.access(on_disk, os.W_OK):  # the superuser may write anywhere, but not into a folder of the kernel
        on_disk = Path("/proc/self")
    with pytest.raises(InputError, match="cannot be written"), scratch_directory(on_disk, 0):
        pass
