"""The topology of a graph: in-edges of every node in compressed columns (CSC)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from outgrow.core.block import Block, Edges
from outgrow.core.graph_schema import EdgeFeatureColumn
from outgrow.ops.backend import as_numpy, as_tensor
from outgrow.ops.csc import find_self_loops, in_degree, looped_in_degree, replace_self_loops
from outgrow.ops.rows.edge_rows import edge_row_bytes, gather_edge_features
from outgrow.ops.sampling.layerwise import column_share_bounds
from outgrow.ops.sampling.self_loops import GivenLoops
from outgrow.ops.sampling.time_order import NO_TIME as NO_TIME
from outgrow.ops.sampling.time_order import TimeOrder, order_by_time


@dataclass(frozen=True, kw_only=True, eq=False)
class Topology:
    """In-edges of ``V`` nodes. Arrays may be memory-mapped; they are copied only if needed.

    Rows are sorted by source, then by relation; parallel edges are allowed.

    Attributes:
        indptr: ``[V + 1]`` int64; the in-edges of node ``v`` are ``indptr[v]`` to ``indptr[v + 1]``.
        indices: ``[E]`` int32 or int64; source of each edge.
        relation: ``[E]`` integer (int8, int16 or int32); None if edges have no type. Added self-loops
            have relation -1.
        weight: ``[E]`` float32; None if all weights are 1.
        edge_features: ``[E, De]`` float16, bfloat16, float32 or float64; or integer codes of categories; None if
            edges have no features. Added self-loops have zeros, or codes of -1.
        feature_sizes: Number of categories of each column of codes; empty if features are numbers.
        feature_columns: Names of the columns that were read, and of their categories; empty if they have none. Beside
            columns of numbers each category is a column of ``edge_features``.
        edge_time: ``[E]`` int64, time of each edge, `NO_TIME` for one without; None if edges have no times. An edge
            without a time has that of its source; if that has none, it is always there.
        node_time: ``[V]`` int64, time of each node as a seed, `NO_TIME` for a node without; None if nodes have no
            times.
        times_are_dates: Whether times are microseconds since 1970, which dates were converted to; else they are numbers
            of a unit of the user.
    """

    indptr: Tensor
    indices: Tensor
    relation: Tensor | None = None
    weight: Tensor | None = None
    edge_features: Tensor | None = None
    feature_sizes: tuple[int, ...] = ()
    feature_columns: tuple[EdgeFeatureColumn, ...] = ()
    edge_time: Tensor | None = None
    node_time: Tensor | None = None
    times_are_dates: bool = False

    @property
    def num_nodes(self) -> int:
        """``V``."""
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        """``E``."""
        return len(self.indices)

    @property
    def edge_row_bytes(self) -> int:
        """Bytes of the features of an edge; 0 if edges have none."""
        return edge_row_bytes(self.edge_features)

    @cached_property
    def degree(self) -> Tensor:
        """``[V]`` float64: sum of the in-edge weights of each node; the number of in-edges without weights."""
        return in_degree(self.indptr, self.weight)

    @cached_property
    def column_share_bounds(self) -> Tensor:
        """``[V]`` float64: running sums of the shares of `outgrow.ops.sampling.layerwise.column_share_bounds`."""
        return column_share_bounds(self.indptr, self.indices, self.weight, self.degree)

    @cached_property
    def time_order(self) -> TimeOrder:
        """In-edges by time; edges without times of their own have that of their source."""
        return self._order_by_time(leave_out_loops=False)

    def adopt_time_order(self, order: TimeOrder) -> None:
        """Take the order of the in-edges by time, which a store has, instead of sorting them. Not checked."""
        vars(self)["time_order"] = order

    @property
    def known_time_order(self) -> TimeOrder | None:
        """The order of the in-edges by time, if it was adopted or computed."""
        known: TimeOrder | None = vars(self).get("time_order")
        return known

    def _order_by_time(self, *, leave_out_loops: bool) -> TimeOrder:
        edge_time, node_time = (None if each is None else as_numpy(each) for each in (self.edge_time, self.node_time))
        graph = as_numpy(self.indptr), as_numpy(self.indices)
        return order_by_time(graph, edge_time, node_time, leave_out_loops=leave_out_loops)

    @cached_property
    def nodes(self) -> Tensor:
        """``[V]`` int64: all node ids."""
        return torch.arange(self.num_nodes, device=self.indptr.device)

    def view(self, *, self_loops: bool) -> Topology:
        """Return the graph with exactly one self-loop per node, or unchanged."""
        return self.with_self_loops if self_loops else self

    def sampling_view(self, *, self_loops: bool) -> GraphView:
        """Return the graph with exactly one self-loop per node, or unchanged, for samplers of mini-batches."""
        return self._self_loop_view if self_loops else self

    @cached_property
    def _self_loop_view(self) -> SelfLoopView:
        return SelfLoopView(self)

    @cached_property
    def with_self_loops(self) -> Topology:
        """The graph with exactly one self-loop per node, at the end of its row.

        An existing self-loop keeps its weight and features, of several the last; an added one has weight 1, as
        published for GCN and as in PyG's ``add_remaining_self_loops``, and features of zeros, or codes of -1. If edges
        have relations, that of every such loop is -1.
        """
        indptr, indices, weight = replace_self_loops(self.indptr, self.indices, self.weight)
        relation = None
        if self.relation is not None:
            # The same pass moves relations as if they were weights; the loops then get -1.
            *_, relation = replace_self_loops(self.indptr, self.indices, self.relation)
            assert relation is not None
            relation[indptr[1:] - 1] = -1
        features = None
        if self.edge_features is not None:
            # Positions of edges are moved likewise, counted from 2: an added loop, which has "weight" 1, gets -1.
            number = torch.arange(2, self.num_edges + 2, device=self.indices.device)
            *_, moved = replace_self_loops(self.indptr, self.indices, number)
            assert moved is not None
            features = gather_edge_features(self.edge_features, moved - 2)
        return Topology(
            indptr=indptr,
            indices=indices,
            relation=relation,
            weight=weight,
            edge_features=features,
            feature_sizes=self.feature_sizes,
        )

    @property
    def edge_bytes(self) -> int:
        """Bytes of the edges, with all that they have."""
        optional = self.weight, self.relation, self.edge_features, self.edge_time
        return self.indptr.nbytes + self.indices.nbytes + sum(each.nbytes for each in optional if each is not None)

    @cached_property
    def without_edge_features(self) -> Topology:
        """The graph as layers see it that do not read the features of edges."""
        if self.edge_features is None:
            return self
        made = replace(self, edge_features=None, feature_sizes=())
        if self.known_time_order is not None:
            made.adopt_time_order(self.known_time_order)
        return made

    @cached_property
    def block(self) -> Block:
        """The whole graph as one block: every node is source and destination."""
        edges = Edges(
            indptr=self.indptr,
            indices=self.indices,
            num_src=self.num_nodes,
            relation=self.relation,
            weight=self.weight,
            features=self.edge_features,
            feature_sizes=self.feature_sizes,
        )
        return Block(
            edges=edges,
            src_nodes=self.nodes,
            dst_nodes=self.nodes,
            src_degree=self.degree,
            dst_degree=self.degree,
        )

    def slice_destinations(self, first: int, last: int) -> Block:
        """Return the block of destinations ``first`` to ``last - 1`` with all in-edges; every node is a source row."""
        return self.block.slice_destinations(first, last)


class SelfLoopView:
    """The graph with exactly one self-loop per node, as `Topology.with_self_loops`, without the edges in memory. Final.

    Args:
        graph: The graph.
    """

    def __init__(self, graph: Topology) -> None:
        self.graph = graph

    @cached_property
    def given_loops(self) -> GivenLoops:
        """The self-loops that the graph has; found by one pass over its edges."""
        edges = as_numpy(find_self_loops(self.graph.indptr, self.graph.indices))
        return GivenLoops(as_numpy(self.graph.indices)[edges].astype(np.int64), edges)

    @cached_property
    def time_order(self) -> TimeOrder:
        """In-edges of the graph by time, without its self-loops."""
        return self.graph._order_by_time(leave_out_loops=True) if len(self.given_loops.nodes) else self.graph.time_order

    @property
    def num_nodes(self) -> int:
        """``V``."""
        return self.graph.num_nodes

    @property
    def num_edges(self) -> int:
        """Edges of the graph that are no self-loops, and one for each node."""
        return self.graph.num_edges - len(self.given_loops.edges) + self.graph.num_nodes

    @cached_property
    def degree(self) -> Tensor:
        """``[V]`` float64: sum of the in-edge weights of each node, that of the self-loop included."""
        graph = self.graph
        if graph.weight is not None:
            return looped_in_degree(graph.indptr, graph.indices, graph.weight)
        given = torch.bincount(as_tensor(self.given_loops.nodes), minlength=graph.num_nodes)
        return graph.degree + 1 - given


GraphView = Topology | SelfLoopView
"""A graph as a sampler uses it: as it is, or with self-loops."""
