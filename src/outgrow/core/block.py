"""`Block`: the bipartite slice of a graph that a layer computes on.

Letters: ``Vs`` source rows, ``Vd`` destination rows, ``E`` edges.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from outgrow.core.deprecation import renamed_members


@renamed_members(derived="cache")
@dataclass(frozen=True, kw_only=True, eq=False)
class Edges:
    """In-edges of ``Vd`` destinations in compressed sparse columns (CSC), in graph order.

    Attributes:
        indptr: ``[Vd + 1]`` int64; the in-edges of destination ``v`` are ``indptr[v]`` to ``indptr[v + 1]``.
        indices: ``[E]`` int32 or int64; source row of each edge.
        num_src: ``Vs``, the number of source rows.
        relation: ``[E]`` integer, relation of each edge; None if edges are untyped.
        weight: ``[E]`` floating, weight of each edge in the graph; None if all weights are 1.
        features: ``[E, De]`` floating, or integer codes of categories; None if edges have no features. A
            self-loop that was added has zeros, or codes of -1.
        feature_sizes: Number of categories of each column of codes; empty if features are numbers.
        cache: Arrays that kernels derive from the topology and reuse, such as its transpose.
    """

    indptr: Tensor
    indices: Tensor
    num_src: int
    relation: Tensor | None = None
    weight: Tensor | None = None
    features: Tensor | None = None
    feature_sizes: tuple[int, ...] = ()
    cache: dict[str, object] = field(default_factory=dict, repr=False)

    @property
    def num_dst(self) -> int:
        """Number of destination rows, ``Vd``."""
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        """Number of edges, ``E``."""
        return len(self.indices)

    @property
    def num_features(self) -> int:
        """Inputs that the features of an edge are to a layer: columns, or categories of all columns of codes."""
        return sum(self.feature_sizes) or (0 if self.features is None else self.features.shape[1])

    def to(self, device: torch.device) -> Edges:
        """Return the edges on a device; these edges if they are already there."""
        if self.indptr.device == device:
            return self
        # Derived arrays are on the old device, so the copy starts with an empty cache.
        return dataclasses.replace(self, **_move_tensors(self, device), cache={})


@renamed_members(stands_for="sample_weight", destinations="slice_destinations", keyed="with_rng_key")
@dataclass(frozen=True, kw_only=True, eq=False)
class Block:
    """Destination nodes, source nodes and the in-edges between them.

    Degrees are those in the *graph*: degrees inside a block depend on how nodes were grouped into blocks.

    Attributes:
        edges: In-edges between local rows.
        src_nodes: ``[Vs]`` int64, global id of each source row.
        dst_nodes: ``[Vd]`` int64, global id of each destination row.
        src_degree: ``[Vs]`` float64, weighted in-degree of each source in the graph.
        dst_degree: ``[Vd]`` float64, weighted in-degree of each destination in the graph.
        first_edge: Global id of the first edge, if edge ids are consecutive.
        edge_ids: ``[E]`` int64, global edge ids; None if they are consecutive from ``first_edge``.
        sample_weight: ``[E]`` float32, number of the destination's in-edges that each sampled edge
            represents, itself included; None if in-edges were not sampled.
        relation_degree: ``[E]`` float64, total weight in the graph of the in-edges with the same destination
            and relation; None if the block holds them all.
        edge_scores: ``[E, K]`` result of `outgrow.nn.layer.Conv.edge_scores` where the features of edges are held
            elsewhere; None to compute it from the edges.
        key: Key of this layer's random draws in this step (`with_rng_key`); None for no draws (evaluation).
    """

    edges: Edges
    src_nodes: Tensor
    dst_nodes: Tensor
    src_degree: Tensor
    dst_degree: Tensor
    first_edge: int = 0
    edge_ids: Tensor | None = None
    sample_weight: Tensor | None = None
    relation_degree: Tensor | None = None
    edge_scores: Tensor | None = None
    key: int | None = None

    @property
    def edge_features(self) -> Tensor | None:
        """``[E, De]`` features of the edges; see `Edges`."""
        return self.edges.features

    def slice_destinations(self, first: int, last: int) -> Block:
        """Return the block of destination rows ``first`` to ``last - 1``, their in-edges and all sources."""
        edges = self.edges
        low = int(edges.indptr[first])
        high = int(edges.indptr[last])
        # CSC keeps the edges of consecutive destinations together, so every slice below is a view, not a
        # copy.
        part = Edges(
            indptr=edges.indptr[first : last + 1] - low,
            indices=edges.indices[low:high],
            num_src=edges.num_src,
            relation=None if edges.relation is None else edges.relation[low:high],
            weight=None if edges.weight is None else edges.weight[low:high],
            features=None if edges.features is None else edges.features[low:high],
            feature_sizes=edges.feature_sizes,
        )
        return dataclasses.replace(
            self,
            edges=part,
            dst_nodes=self.dst_nodes[first:last],
            dst_degree=self.dst_degree[first:last],
            # Random draws are functions of edge ids, so ids must not depend on the slicing.
            first_edge=self.first_edge + low,
            edge_ids=None if self.edge_ids is None else self.edge_ids[low:high],
            sample_weight=None if self.sample_weight is None else self.sample_weight[low:high],
            relation_degree=None if self.relation_degree is None else self.relation_degree[low:high],
            edge_scores=None if self.edge_scores is None else self.edge_scores[low:high],
        )

    def to(self, device: torch.device) -> Block:
        """Return the block on a device; this block if it is already there."""
        if self.dst_nodes.device == device:
            return self
        return dataclasses.replace(self, **_move_tensors(self, device), edges=self.edges.to(device))

    def with_rng_key(self, key: int | None) -> Block:
        """Return a block with another key; tensors and derived arrays are shared."""
        return dataclasses.replace(self, key=key)


def _move_tensors(given: object, device: torch.device) -> dict[str, Any]:
    """Return the tensors of a record on a device, by name."""
    return {name: value.to(device) for name, value in vars(given).items() if isinstance(value, Tensor)}
