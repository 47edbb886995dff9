"""Chunks of a graph: some destinations with all their in-edges, as edges whose sources are rows of a buffer.

The view with self-loops is never built: a pass over it extracts one chunk of its edges at a time.

Letters: ``V`` nodes of the graph, ``n`` destinations of a chunk, ``E`` their edges.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from outgrow.core.block import Edges
from outgrow.graph.topology import Topology
from outgrow.ops.backend import as_numpy, as_tensor
from outgrow.ops.rows.edge_rows import edge_row_bytes
from outgrow.ops.rows.gather import concat_ranges
from outgrow.ops.subgraph import (
    add_self_loops,
    count_loops_before,
    in_subgraph,
    mark_sources,
    row_slices,
    subgraph_degrees,
)
from outgrow.ops.subgraph_kernels import IS_SOURCE, NOT_PRESENT

# Sorting the sources of a small chunk is cheaper than a pass over a table of all nodes.
_MANY = 8


class ChunkGraph:
    """A topology, or its view with one self-loop per node, as a source of chunks. Final.

    It stores a few numbers per node, and none per edge.

    Args:
        topology: In-edges of all nodes, in memory or memory-mapped.
        self_loops: Whether to extract chunks of `Topology.with_self_loops`.
    """

    def __init__(self, topology: Topology, *, self_loops: bool) -> None:
        self.self_loops = self_loops
        self.num_nodes = topology.num_nodes
        self._edges = Edges(
            indptr=topology.indptr,
            indices=topology.indices,
            num_src=topology.num_nodes,
            relation=topology.relation,
            weight=topology.weight,
            features=topology.edge_features,
            feature_sizes=topology.feature_sizes,
        )
        self._loops_before = count_loops_before(topology.indptr, topology.indices) if self_loops else None

    @property
    def edge_row_bytes(self) -> int:
        """Bytes of the features of an edge; 0 if edges have none."""
        return edge_row_bytes(self._edges.features)

    @cached_property
    def degree(self) -> Tensor:
        """``[V]`` float64: weighted in-degree of every node."""
        return subgraph_degrees(self._edges, torch.arange(self.num_nodes), self._loops_before)

    @cached_property
    def _sources_mask(self) -> Tensor:
        return torch.full((self.num_nodes,), NOT_PRESENT, dtype=torch.int32)

    def source_ids(self, nodes: Tensor) -> Tensor:
        """Return the ids of all sources of the in-edges of some nodes, ascending.

        Args:
            nodes: ``[n]`` int64, ascending.
        """
        rows = row_slices(self._edges.indptr, nodes)
        loop_sources = nodes if self.self_loops else nodes[:0]
        if _MANY * rows.num_edges < self.num_nodes:
            listed = self._edges.indices[concat_ranges(rows.start, rows.indptr.diff())].long()
            return unique_sorted(torch.cat([listed, loop_sources]))
        mark_sources(rows, self._edges.indices, self._sources_mask)
        self._sources_mask[loop_sources] = IS_SOURCE
        found = (self._sources_mask == IS_SOURCE).nonzero()[:, 0]
        # Only the entries of this chunk are reset, so that the table can be reused without a full pass.
        self._sources_mask[found] = NOT_PRESENT
        return found

    def row_sizes(self, nodes: Tensor) -> Tensor:
        """Return ``[n]`` int64: the number of in-edges of each node, including loops that the view replaces."""
        ends = self._edges.indptr
        return ends[nodes + 1] - ends[nodes] + int(self.self_loops)

    def count_in_edges(self, nodes: Tensor) -> int:
        """Return the total number of in-edges of some nodes in the view."""
        before = self._loops_before
        replaced = 0 if before is None else int((before[nodes + 1] - before[nodes]).sum())
        return int(self.row_sizes(nodes).sum()) - replaced

    def extract_chunk(self, nodes: Tensor, place_V: Tensor, num_src: int) -> tuple[Edges, Tensor]:
        """Return the in-edges of some nodes, and where each destination's edges begin in the graph.

        Args:
            nodes: ``[n]`` int64, ascending.
            place_V: ``[V]`` int32, the source row of each node that is a source.
            num_src: Number of source rows.

        Returns:
            The edges, and ``[n]`` int64: the id in the view of the first edge of each destination.
        """
        rows = row_slices(self._edges.indptr, nodes)
        looped = None if self._loops_before is None else add_self_loops(rows, self._loops_before)
        edges = in_subgraph(self._edges, rows, looped, place_V, num_src)
        if looped is not None:
            # The self-loop is the last edge of its row; its source is not among the edges of the graph.
            edges.indices[looped.indptr[1:] - 1] = place_V[nodes].to(edges.indices.dtype)
        return edges, (rows if looped is None else looped).start


def unique_sorted(nodes: Tensor) -> Tensor:
    """Return ``[m]``: the distinct numbers, ascending."""
    return as_tensor(np.unique(as_numpy(nodes)))
