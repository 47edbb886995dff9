"""Bringing files and the names in folders to the disk."""

import errno
import os
import re
from pathlib import Path

import pytest

from outgrow.core.files import sync


def test_files_and_folders(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("something")
    handles = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    sync(file)
    sync(tmp_path)
    if handles:
        assert len(os.listdir("/proc/self/fd")) == handles


@pytest.mark.parametrize("reason", [errno.EINVAL, errno.EIO, errno.ENOSPC])
def test_what_a_disk_says(reason: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("something")

    def refuse(handle: int) -> None:
        raise OSError(reason, os.strerror(reason))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match=re.escape(os.strerror(reason))):
        sync(tmp_path / "file")
    if reason == errno.EINVAL:
        sync(tmp_path)  # a file system that knows no such thing
    else:
        with pytest.raises(OSError, match=re.escape(os.strerror(reason))):
            sync(tmp_path)
