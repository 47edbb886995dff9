"""What columns of edge tables are, by their names."""

from __future__ import annotations

import re
from collections.abc import Sequence

ROLES = ("src", "dst", "relation", "weight")
"""Roles that a column of an edge table may have."""
SKIPPED = "_"
"""Given as the column of a role, it says that no column has it."""
WEIGHT_LIKE = (
    "rating",
    "value",
    "amount",
    "score",
    "count",
    "strength",
    "distance",
    "combinedscore",
)
"""Columns that may be weights, but are not taken for them unasked."""

# Words of an earlier line go before those of a later one, which may mean something else beside them.
_TIERS = (
    (("src", "source", "from", "u"), ("dst", "dest", "destination", "target", "to", "v")),
    (("head", "subject"), ("tail", "object")),
    (("start",), ("end",)),
    (("h",), ("t",)),
    (("s",), ("o",)),
)
_WORDS = re.compile("nodeid|vertexid|entityid|node|vertex|entity|id$|^id(?=[a-z])")
_NUMBERED = re.compile(r"(.*[^\d])([12])")
_RELATIONS = ("relation", "rel", "edgetype", "etype", "relationship", "predicate", "relationtype", "relationid", "type")
# One letter says something only beside the words that belong to it.
_LETTERS = {"h": "r", "head": "r", "s": "p", "subject": "p"}
_WEIGHTS = ("weight", "edgeweight", "weights", "w", "wt")


def assign_column_roles(names: Sequence[str]) -> dict[str, list[str]]:
    """Return the columns that may have each role, by their names; a clear table has one for each role that it has.

    Source and destination are words such as ``source`` and ``target``, ``h`` and ``t``, or two names that differ in
    ``1`` and ``2`` alone. Case, blanks and punctuation do not matter, nor do ``node`` and ``id`` beside such a word.

    Args:
        names: Name of each column.
    """
    plain = {name: _simplify(name) for name in names}
    bare = {name: _WORDS.sub("", short) or short for name, short in plain.items()}
    found: dict[str, list[str]] = {role: [] for role in ROLES}
    pairs = [[[name for name in names if bare[name] in words] for words in tier] for tier in _TIERS]
    pairs.append([*_find_numbered(plain)])
    # Where no pair is whole, half of one is what an error can name.
    best = [pair for pair in pairs if all(pair)] or [pair for pair in pairs[:2] if any(pair)] or [[[], []]]
    found["src"], found["dst"] = best[0]
    letters = {_LETTERS.get(bare[name]) for name in found["src"]}
    found["relation"] = [name for name in names if plain[name] in _RELATIONS or plain[name] in letters]
    found["weight"] = [name for name in names if plain[name] in _WEIGHTS]
    return found


def is_weight_like(name: str) -> bool:
    """Whether a column may be a weight, which only its owner can tell."""
    return _simplify(name) in WEIGHT_LIKE


def looks_like_name(word: str) -> bool:
    """Whether a word in a first line of a text file is the name of a column rather than a value."""
    plain = _simplify(word)
    if plain in _RELATIONS or plain in _WEIGHTS or is_weight_like(word):
        return True
    return bool(
        re.fullmatch(
            r"(\w+[ _.:]?)?(id|ids|name|node|nodes|user|item|label|key|class|split)[12]?", word.lower().strip()
        )
    )


def _find_numbered(plain: dict[str, str]) -> tuple[list[str], list[str]]:
    stems: dict[str, dict[str, str]] = {}
    for name, short in plain.items():
        if match := _NUMBERED.fullmatch(short):
            stems.setdefault(match[1], {})[match[2]] = name
    both = [ends for ends in stems.values() if len(ends) == 2]
    # Several pairs, such as id_1, id_2, name_1, name_2: that of the ids.
    if len(both) > 1:
        both = [ends for ends in both if "id" in _simplify(ends["1"]) or "node" in _simplify(ends["1"])] or both
    return [ends["1"] for ends in both], [ends["2"] for ends in both]


def _simplify(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
