"""What is to be on the disk, and not on its way there, before the next thing is done."""

from __future__ import annotations

import errno
import os
from pathlib import Path

_CANNOT = (errno.EINVAL, errno.ENOTSUP)


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk; some network file systems cannot with a folder.

    Raises:
        OSError: The disk has failed, or is full.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if not (path.is_dir() and error.errno in _CANNOT):
            raise
    finally:
        os.close(handle)
