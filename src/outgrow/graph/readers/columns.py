"""Column names of edge tables, and renumbering of ids that do not start at 0."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from outgrow.core.errors import InputError
from outgrow.graph.readers.conversions import to_weights
from outgrow.graph.readers.source import EdgeChunk, GraphSource, Ids, NodeTableSource

SRC = ("src", "source", "from", "from_node", "fromnodeid", "u")
DST = ("dst", "dest", "destination", "target", "to", "to_node", "tonodeid", "v")
RELATION = ("relation", "rel", "edge_type", "type")
WEIGHT = ("weight", "edge_weight", "w")
_SHOWN = 20
ROLES = {**dict.fromkeys(SRC, "src"), **dict.fromkeys(DST, "dst")}
ROLES |= {**dict.fromkeys(RELATION, "relation"), **dict.fromkeys(WEIGHT, "weight")}


def assign_column_roles(names: Sequence[str], where: str) -> dict[str, int]:
    """Return the column number of each of ``src``, ``dst``, ``relation`` and ``weight``.

    Case does not matter; other columns have no role (see `unread_columns`).

    Args:
        names: Name of each column.
        where: Name of the table in errors.

    Raises:
        InputError: No source or destination, or two columns with the same role.
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


def unread_columns(names: Sequence[str], roles: dict[str, int]) -> tuple[str, ...]:
    """Return the names of the columns without a role; an underscore is one that the caller skips on purpose."""
    return tuple(shorten_name(name) for at, name in enumerate(names) if at not in roles.values() and name != "_")


@final
class RelabelledSource(GraphSource):
    """Source that renumbers the ids of a source of edges from 0 in ascending order. Reads the edges twice.

    Args:
        source: The source to read; ids may be any int64.

    Attributes:
        original_ids: ``[V]`` int64, ascending: the original id of each node. Memory grows with ``V``, not
            with ``E``.
    """

    def __init__(self, source: GraphSource) -> None:
        self._source = source
        self._ids: Ids | None = None

    @property
    def name(self) -> str:
        """Name of the source."""
        return self._source.name

    @property
    def original_ids(self) -> Ids:
        """Original id of each node; the first access reads all edges."""
        if self._ids is None:
            self._ids = _unique_ids(self._source.read_edges())
        return self._ids

    def read_tables(self) -> NodeTableSource:
        """Return the number of nodes."""
        return NodeTableSource(num_nodes=len(self.original_ids))

    def read_edges(self) -> Iterator[EdgeChunk]:
        """Yield all edges, renumbered."""
        for chunk in self._source.read_edges():
            src = np.searchsorted(self.original_ids, chunk.src)
            dst = np.searchsorted(self.original_ids, chunk.dst)
            yield chunk._replace(src=src, dst=dst)

    def list_unread(self) -> tuple[str, ...]:
        """Return what the source that is renumbered does not read."""
        return self._source.list_unread()


def _unique_ids(chunks: Iterator[EdgeChunk]) -> Ids:
    known = np.empty(0, dtype=np.int64)
    fresh = list[Ids]()
    num_fresh = 0
    for chunk in chunks:
        fresh.append(np.union1d(chunk.src, chunk.dst))
        num_fresh += len(fresh[-1])
        # Merging when the new ids outnumber the known ones bounds memory by V, and each id is sorted few
        # times.
        if num_fresh > max(len(known), 1 << 16):
            known = np.unique(np.concatenate([known, *fresh]))
            fresh = []
            num_fresh = 0
    return np.unique(np.concatenate([known, *fresh]))


def make_edge_chunk(column: Callable[[int], NDArray[Any]], roles: dict[str, int]) -> EdgeChunk:
    """Make a chunk from columns by number; ids are int64, weights become float32.

    Raises:
        InputError: A weight that float32 cannot hold.
    """
    return EdgeChunk(
        src=column(roles["src"]),
        dst=column(roles["dst"]),
        relation=column(roles["relation"]) if "relation" in roles else None,
        weight=to_weights(column(roles["weight"]), "weight of the edges") if "weight" in roles else None,
    )


def shorten_name(name: str) -> str:
    """Return the beginning of a name, escaped for an error message."""
    return repr(name[:40])[1:-1]


def _unclear_columns_error(where: str, names: Sequence[str], got: str) -> InputError:
    shown = ", ".join(shorten_name(name) for name in names[:_SHOWN])
    return InputError(
        f"the columns of {where} are unclear",
        needed=f"one column named {'/'.join(SRC[:3])}, one named {'/'.join(DST[:4])}; optionally relation and weight",
        got=f"{got} among {shown}{', ...' if len(names) > _SHOWN else ''}",
        repair="rename the columns, for example src,dst,weight",
    )
