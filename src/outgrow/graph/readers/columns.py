"""Names of the columns of edge tables, and ids that are not numbered from 0."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from outgrow.core.errors import InputError
from outgrow.graph.readers.source import EdgeChunk, GraphSource, Ids, NodeTableSource

SRC = ("src", "source", "from", "from_node", "fromnodeid", "u")
DST = ("dst", "dest", "destination", "target", "to", "to_node", "tonodeid", "v")
RELATION = ("relation", "rel", "edge_type", "type")
WEIGHT = ("weight", "edge_weight", "w")
_SHOWN = 20
ROLES = {**dict.fromkeys(SRC, "src"), **dict.fromkeys(DST, "dst")}
ROLES |= {**dict.fromkeys(RELATION, "relation"), **dict.fromkeys(WEIGHT, "weight")}


def assign_column_roles(names: Sequence[str], where: str) -> dict[str, int]:
    """Which column is ``src``, ``dst``, ``relation`` and ``weight``; case does not matter, other columns are ignored.

    Args:
        names: Name of each column.
        where: What to call the table in errors.

    Raises:
        InputError: No source or destination, or two columns of one role.
    """
    found: dict[str, int] = {}
    for at, name in enumerate(names):
        role = ROLES.get(name.strip().strip('"').lower())
        if role in found:
            raise _unclear_columns_error(where, names, f"two columns for {role}")
        if role is not None:
            found[role] = at
    if "src" not in found or "dst" not in found:
        raise _unclear_columns_error(where, names, "no column for " + " or ".join({"src", "dst"} - found.keys()))
    return found


@final
class RelabelledSource(GraphSource):
    """A source of edges alone, with its ids renumbered from 0 in ascending order. Reads the edges twice.

    Args:
        source: What to read; ids may be any int64.

    Attributes:
        original_ids: ``[V]`` int64, ascending: the original id of each node. Memory grows with ``V``, not with edges.
    """

    def __init__(self, source: GraphSource) -> None:
        self._source = source
        self._ids: Ids | None = None

    @property
    def name(self) -> str:
        """That of the source."""
        return self._source.name

    @property
    def original_ids(self) -> Ids:
        """Original ids; the first use reads all edges."""
        if self._ids is None:
            self._ids = _unique_ids(self._source.read_edges())
        return self._ids

    def read_tables(self) -> NodeTableSource:
        """The number of nodes."""
        return NodeTableSource(num_nodes=len(self.original_ids))

    def read_edges(self) -> Iterator[EdgeChunk]:
        """All edges, renumbered."""
        for chunk in self._source.read_edges():
            src = np.searchsorted(self.original_ids, chunk.src)
            dst = np.searchsorted(self.original_ids, chunk.dst)
            yield chunk._replace(src=src, dst=dst)


def _unique_ids(chunks: Iterator[EdgeChunk]) -> Ids:
    known = np.empty(0, dtype=np.int64)
    fresh = list[Ids]()
    waiting = 0
    for chunk in chunks:
        fresh.append(np.union1d(chunk.src, chunk.dst))
        waiting += len(fresh[-1])
        if waiting > max(len(known), 1 << 16):
            known = np.unique(np.concatenate([known, *fresh]))
            fresh = []
            waiting = 0
    return np.unique(np.concatenate([known, *fresh]))


def make_edge_chunk(column: Callable[[int], NDArray[Any]], roles: dict[str, int]) -> EdgeChunk:
    """A chunk from columns by number; ids are int64, weights become float32."""
    return EdgeChunk(
        src=column(roles["src"]),
        dst=column(roles["dst"]),
        relation=column(roles["relation"]) if "relation" in roles else None,
        weight=column(roles["weight"]).astype(np.float32, copy=False) if "weight" in roles else None,
    )


def shorten_name(name: str) -> str:
    """The beginning of a name, as an error may show it."""
    return repr(name[:40])[1:-1]


def _unclear_columns_error(where: str, names: Sequence[str], got: str) -> InputError:
    shown = ", ".join(shorten_name(name) for name in names[:_SHOWN])
    return InputError(
        f"the columns of {where} are unclear",
        needed=f"one column named {'/'.join(SRC[:3])}, one named {'/'.join(DST[:4])}; optionally relation and weight",
        got=f"{got} among {shown}{', ...' if len(names) > _SHOWN else ''}",
        repair="rename the columns, for example src,dst,weight",
    )
