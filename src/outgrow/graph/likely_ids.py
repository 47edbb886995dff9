"""Ids that a user may have meant by one that no node has."""

from __future__ import annotations

import difflib
from typing import Any

_MOST_COMPARED = 5000
_LETTERS = 3


def find_likely_ids(texts: Any, name: str) -> list[str]:
    """Return up to three ids that are like a name: equal but for case and blanks, or with few other letters.

    Only ids that contain the name, or begin with the same letters, are compared, and not more than a few thousand.

    Args:
        texts: ``[V]`` Arrow array of texts.
        name: What was asked for.
    """
    from pyarrow import compute

    wanted = name.strip()
    for pattern, match in ((wanted, compute.match_substring), (wanted[:_LETTERS], compute.starts_with)):
        if not pattern:
            continue
        near = texts.filter(match(texts, pattern, ignore_case=True)).slice(0, _MOST_COMPARED).to_pylist()
        folded = {each.strip().casefold(): each for each in reversed(near)}
        found = difflib.get_close_matches(wanted.casefold(), list(folded), n=3, cutoff=0.5)
        if found:
            return [folded[each] for each in found]
    return []
