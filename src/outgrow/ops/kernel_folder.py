"""Where compiled kernels are kept: known without importing what compiles them."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER_VARIABLE = "OUTGROW_KERNEL_CACHE"
STATE_PREFIX = "kernels-"
"""Of folders that stand for one state of all that compiled code depends on."""


def kernel_folder() -> Path:
    """Return ``$OUTGROW_KERNEL_CACHE``, ``$XDG_CACHE_HOME/outgrow/kernels`` or ``~/.cache/outgrow/kernels``.

    The first whose variable is set.

    Raises:
        RuntimeError: The user has no home.
    """
    given, base = os.environ.get(FOLDER_VARIABLE), os.environ.get("XDG_CACHE_HOME")
    if given:
        return Path(given).absolute()
    return (Path(base) if base else Path.home() / ".cache") / "outgrow" / "kernels"


def has_kernels() -> bool:
    """Whether kernels were compiled in any state.

    Raises:
        RuntimeError: The user has no home.
    """
    return any(kernel_folder().glob(f"{STATE_PREFIX}*"))
