"""Warnings to users: what of their data or model is not used, or is used otherwise than they may expect."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

_PACKAGE = str(Path(__file__).parents[1])


class DataWarning(UserWarning):
    """Part of the data is not used, or is used otherwise than its type or name suggests."""


class ModelWarning(UserWarning):
    """Part of a model is not trained, or makes results depend on how the work is split."""


class MemoryWarning(UserWarning):
    """A device had less memory than was expected, so that training goes on in smaller pieces."""


OWN_WARNINGS = (DataWarning, ModelWarning, MemoryWarning)


def warn_about_data(text: str) -> None:
    """Warn with a `DataWarning` at the line of the user's code that led here."""
    _warn(text, DataWarning)


def warn_about_model(text: str) -> None:
    """Warn with a `ModelWarning` at the line of the user's code that led here."""
    _warn(text, ModelWarning)


def warn_about_memory(text: str) -> None:
    """Warn with a `MemoryWarning` at the line of the user's code that led here."""
    _warn(text, MemoryWarning)


def _warn(text: str, category: type[Warning]) -> None:
    stacklevel = 1
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
        stacklevel += 1
    warnings.warn(text, category, stacklevel=stacklevel)
