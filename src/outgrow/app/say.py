"""What a user is told in words."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """Write a line to standard error, at once: standard output is for results."""
    print(text, file=sys.stderr, flush=True)
