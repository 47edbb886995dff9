"""Validation of edge chunks while they are read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outgrow.core.errors import InputError
from outgrow.core.graph_schema import EdgeFeatureColumn
from outgrow.graph.builders.edge_features import EdgeFeatureCheck, EdgeFeatureForm
from outgrow.graph.readers.source import EdgeChunk, GraphSource

# The first limit keeps small graphs with many isolated nodes; the second grows with the file.
_FEW_NODES, _NODES_EACH = 1 << 23, 64


def check_node_count(num_nodes: int, num_known: int, where: str) -> None:
    """Refuse a node count that is out of all proportion to the edges or rows of a file.

    Arrays of ``V`` entries would otherwise let one huge id claim all memory.

    Args:
        num_nodes: ``V``, from the ids or from a number in the file.
        num_known: Number of edges or rows in the file.
        where: Name of the file in the error.

    Raises:
        InputError: More than 8 million nodes and more than 64 nodes per edge or row.
    """
    most = _FEW_NODES + _NODES_EACH * num_known
    if num_nodes > most:
        raise InputError(
            f"{where}: node ids leave out nearly all numbers",
            needed=f"at most {most:,} nodes where {num_known:,} edges or rows are known",
            got=f"{num_nodes:,} nodes",
            repair="relabel the ids of an edge table, or give num_nodes if there are so many nodes without edges",
        )


# A sort key holds destination and source in 32 bits each.
MAX_NODES = 2**32 - 1
# A rank marks reverse edges by adding 2^30 to their relation.
_MAX_RELATIONS = 2**30
_FEW_RELATIONS = 1000


class EdgeValidator:
    """Validator that checks edges as they pass, and records the largest node id and relation.

    After the first wrong edge the others are only counted, so that the error can give their number.

    Args:
        num_nodes: ``V``; None to take one more than the largest id.
        relation_names: Name of each relation; empty to number relations up to the largest one.
        feature_sizes: ``edge_feature_sizes`` of `NodeTableSource`.

    Attributes:
        num_edges: Number of edges read so far.
        feature_form: How the graph keeps the features of edges, after `complete`; None if they have none.
        feature_columns: Names of the columns of these, after `complete`.
        times_are_dates: Whether times are those of dates, after `complete`.
    """

    def __init__(
        self, num_nodes: int | None, relation_names: tuple[str, ...], feature_sizes: tuple[int, ...] = ()
    ) -> None:
        self.num_edges = 0
        self.feature_form: EdgeFeatureForm | None = None
        self.feature_columns: tuple[EdgeFeatureColumn, ...] = ()
        self.times_are_dates = False
        self._features = EdgeFeatureCheck(feature_sizes)
        self._given_nodes = num_nodes
        self._given_names = relation_names
        self._largest = self._largest_relation = -1
        self._typed = False
        self._bad = 0
        self._first_bad = ""
        self._bad_relations = 0
        self._first_bad_relation = ""
        self._bad_weights = 0
        self._first_bad_weight = ""

    def validate_chunks(self, chunks: Iterator[EdgeChunk]) -> Iterator[EdgeChunk]:
        """Yield the chunks before the first wrong edge.

        Raises:
            InputError: At the end, if any edge is wrong.
        """
        for chunk in chunks:
            if len(chunk.src) == 0:
                continue
            self._check_chunk(chunk)
            self.num_edges += len(chunk.src)
            # Nothing is built from a broken source, but reading goes on: the error gives the total.
            if not (self._bad or self._bad_relations or self._bad_weights or self._features.is_bad):
                yield chunk
        self._raise_errors()

    @property
    def num_nodes(self) -> int:
        """``V``, as given, or one more than the largest id."""
        return self._largest + 1 if self._given_nodes is None else self._given_nodes

    @property
    def relation_names(self) -> tuple[str, ...]:
        """Names as given, or numbers; empty if edges have no type."""
        # Names without types would make a graph that claims relations its edges do not have.
        if self.num_edges and not self._typed:
            return ()
        return self._given_names or tuple(str(r) for r in range(self._largest_relation + 1))

    def complete(self, source: GraphSource, num_ids: int | None) -> None:
        """Take what is known once all edges are read: names of relations, sizes, and how many nodes have ids.

        Raises:
            InputError: Features of edges that cannot be used.
        """
        relation_names = source.read_relation_names()
        self.feature_form = self._features.finish(source.read_edge_feature_sizes())
        if self.feature_form is not None:
            self.feature_columns = source.read_edge_columns()
        self.times_are_dates = source.has_dates()
        self._given_names = self._given_names or relation_names
        if self._given_nodes is None:
            self._given_nodes = num_ids

    def _check_chunk(self, chunk: EdgeChunk) -> None:
        # Without a given count every id up to the width of a key is allowed; gaps are judged at the end.
        limit = MAX_NODES if self._given_nodes is None else self._given_nodes
        bad = _outside_mask(chunk.src, limit) | _outside_mask(chunk.dst, limit)
        if not self._bad and bad.any():
            # The position is global: `num_edges` counts the chunks before this one.
            at = int(bad.argmax())
            self._first_bad = f"edge {self.num_edges + at}: {chunk.src[at]} -> {chunk.dst[at]}"
        self._bad += int(np.count_nonzero(bad))
        self._largest = max(self._largest, int(chunk.src.max()), int(chunk.dst.max()))
        if chunk.relation is not None:
            self._check_relation(chunk.relation)
        if chunk.weight is not None:
            bad = ~np.isfinite(chunk.weight)
            if not self._bad_weights and bad.any():
                at = int(bad.argmax())
                self._first_bad_weight = f"edge {self.num_edges + at}: {chunk.weight[at]}"
            self._bad_weights += int(np.count_nonzero(bad))
        self._features.check_rows(chunk.features, self.num_edges, len(chunk.src))

    def _check_relation(self, relation: NDArray[Any]) -> None:
        self._typed = True
        bad = _outside_mask(relation, len(self._given_names) or _MAX_RELATIONS)
        if not self._bad_relations and bad.any():
            at = int(bad.argmax())
            self._first_bad_relation = f"edge {self.num_edges + at}: relation {relation[at]}"
        self._bad_relations += int(np.count_nonzero(bad))
        self._largest_relation = max(self._largest_relation, int(relation.max()))

    def _raise_errors(self) -> None:
        if self._bad:
            known = self._given_nodes is not None
            raise InputError(
                "an edge leads to a node that does not exist" if known else "node ids cannot be used",
                needed=f"node ids from 0 to {(self.num_nodes if known else MAX_NODES) - 1}",
                got=f"{self._bad} such of {self.num_edges} edges, the first is {self._first_bad}",
                repair="correct the edges or the number of nodes, or relabel ids that are not numbered from 0",
            )
        if self._bad_relations:
            raise InputError(
                "a relation is out of range",
                needed=f"relations from 0 to {(len(self._given_names) or _MAX_RELATIONS) - 1}",
                got=f"{self._bad_relations} edges outside, the first is {self._first_bad_relation}",
                repair="correct the relations of the edges, or name all relations",
            )
        if self._bad_weights:
            raise InputError(
                "an edge weight is not a finite number",
                needed="finite weights",
                got=f"{self._bad_weights} others, the first is {self._first_bad_weight}",
                repair="replace or drop the edges of these weights",
            )
        if self._given_nodes is None:
            check_node_count(self.num_nodes, self.num_edges, "the edges")
        # Names and tables of relations grow with the largest one: a huge number must not claim all memory.
        relations = self._largest_relation + 1
        if not self._given_names and relations > max(_FEW_RELATIONS, self.num_edges):
            raise InputError(
                "relations are not numbered from 0",
                needed=f"fewer relations than edges ({self.num_edges})",
                got=f"a largest relation of {self._largest_relation}",
                repair="number the relations from 0 without gaps, or name all relations",
            )


def _outside_mask(values: NDArray[Any], limit: int) -> NDArray[np.bool_]:
    # The comparison in the type of the ids avoids a signed copy; unsigned ids are never below 0.
    return (values < 0) | (values >= limit)
