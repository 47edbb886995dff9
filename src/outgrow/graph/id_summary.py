"""What is kept of the ids of a graph to say later how many nodes another graph shares with it.

A summary has the least hashes of ids, a bottom-k sketch (Cohen, Kaplan: Summarizing data using bottom-k sketches,
PODC 2007): the share of the least hashes of two sets together that both have estimates what share of all their ids both
have. Sets no larger than the sketch are compared exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outgrow.graph.node_ids import NodeIds
from outgrow.ops.id_table import hash_ids, pack_integers

_LEAST = 256
_BLOCK = 1 << 18


def summarize_ids(ids: NodeIds) -> dict[str, Any]:
    """Return a record of some ids: how many they are, whether texts, the sum of their hashes and the least of these."""
    least: NDArray[np.uint64] = np.empty(0, np.uint64)
    total = 0
    for hashes in _read_hashes(ids):
        total += int(hashes.sum(dtype=np.uint64))
        least = np.unique(np.concatenate([least, hashes]))[:_LEAST]
    return {
        "count": len(ids),
        "text": ids.are_text,
        "sum": f"{total % 2**64:016x}",
        "least": [f"{value:016x}" for value in least.tolist()],
    }


def compare_summaries(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return how many nodes are new, gone and the same, in words."""
    if (before["count"], before["sum"], before["least"]) == (now["count"], now["sum"], now["least"]):
        return f"the same {now['count']:,} ids, of other nodes"
    first, second = ({int(value, 16) for value in record["least"]} for record in (before, now))
    # Only of the least hashes of the union is known whether both have them.
    joined = sorted(first | second)[:_LEAST]
    is_exact = max(before["count"], now["count"]) <= _LEAST
    share = len(first & second & set(joined)) / len(joined) if joined else 0.0
    same = len(first & second) if is_exact else round(share * (before["count"] + now["count"]) / (1 + share))
    same = min(same, before["count"], now["count"])
    about = "" if is_exact else "about "
    return f"{about}{now['count'] - same:,} nodes are new, {before['count'] - same:,} gone, {same:,} the same"


def _read_hashes(ids: NodeIds) -> Iterator[NDArray[np.uint64]]:
    for first in range(0, len(ids), _BLOCK):
        if ids.hashes is not None:
            yield ids.hashes[first : first + _BLOCK].numpy().view(np.uint64)
            continue
        assert ids.values is not None
        values = ids.values[first : first + _BLOCK].numpy()
        hashes = np.empty(len(values), np.uint64)
        hash_ids(pack_integers(values), 0, hashes)
        yield hashes
