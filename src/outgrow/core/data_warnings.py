"""Warnings on a user's data: what of it is not used, or is used otherwise than its type or name suggests."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

_PACKAGE = str(Path(__file__).parents[1])


class DataWarning(UserWarning):
    """Part of the data is not used, or is used otherwise than its type or name suggests."""


def warn_about_data(text: str) -> None:
    """Warn at the line of the user's code that led here; on the command line, write ``text`` to standard error."""
    stacklevel = 1
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
        stacklevel += 1
    warnings.warn(text, DataWarning, stacklevel=stacklevel)
