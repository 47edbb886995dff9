"""What is drawn for each layer of a model, and the block that is made of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from outgrow.core.block import Block, Edges
from outgrow.core.errors import InputError
from outgrow.graph.sampling.edge_sampler import EdgeSampler, Fanout, SampledEdges
from outgrow.graph.topology import Topology
from outgrow.ops.backend import as_numpy, as_tensor
from outgrow.ops.memory_pool import ArrayPool
from outgrow.ops.rng import NEIGHBOURS, fold_in
from outgrow.ops.sampling.bitset import Bits
from outgrow.ops.sampling.renumber import gather_values
from outgrow.ops.sampling.uniform import Array, Ids

LARGEST = (1 << 31) - 1


class LayerSampling:
    """The in-edges that nodes keep in each layer. Final; may be called from several threads at once.

    A layer whose fan-out is a number keeps so many of each node's in-edges, drawn without replacement: uniformly, or
    one after the other with probabilities by weight. One whose fan-out is a tuple keeps so many of each relation, drawn
    uniformly, and all self-loops that were added (relation -1). What is drawn by weight or from edges with relations
    takes time by the degrees of the nodes, everything else by the number of edges that are kept.

    Args:
        views: The topology as each layer of the model wants it, the first layer first.
        fanout: For each hop from the seeds outward, so the first is that of the last layer; -1 keeps all in-edges.
        seed: Key of all draws.
        weighted: Whether numbers are drawn by weight. Then ``weight * stands_for`` is the same for all drawn in-edges
            of a node, and their sum is the weight of all its in-edges.

    Raises:
        InputError: Not one fan-out for each view, views of different graphs or of 2^31 - 1 nodes or more, or what
            `EdgeSampler` refuses.
    """

    def __init__(
        self, views: Sequence[Topology], fanout: Sequence[Fanout], seed: int, *, weighted: bool = False
    ) -> None:
        _require_views(views, fanout)
        self.views = tuple(views)
        self.seed = seed
        given = zip(self.views, reversed(fanout), strict=True)
        self._samplers = [EdgeSampler(view, number, weighted=weighted) for view, number in given]
        self._degrees = [as_numpy(view.degree) for view in self.views]
        self.pool = ArrayPool()

    @property
    def num_nodes(self) -> int:
        """``V``."""
        return self.views[0].num_nodes

    @property
    def bitset_size(self) -> int:
        """How large the numbers are that `choose` needs a set for."""
        return max(choice.bitset_size for choice in self._samplers)

    @property
    def hops_from_seeds(self) -> list[int]:
        """The layers, that of the seeds first."""
        return [*reversed(range(len(self.views)))]

    def sample_layer(self, layer: int, nodes: Ids, epoch: int, step: int, bits: Bits) -> SampledEdges:
        """The in-edges that nodes keep.

        Args:
            layer: Number of the layer.
            nodes: ``[n]``.
            epoch: Part of the key.
            step: Part of the key.
            bits: An empty set for numbers below `bitset_size`; left as it was.
        """
        key = fold_in(self.seed, epoch, step, layer + 1, NEIGHBOURS)
        return self._samplers[layer].sample(nodes, key, bits, self.pool)

    def edge_sources(self, layer: int) -> Array:
        """Source of every edge of the layer's view."""
        return self._samplers[layer].indices

    def node_degrees(self, layer: int, nodes: Ids) -> Tensor:
        """``[n]``: degrees of nodes as the layer sees them."""
        return self._gather_pooled(self._degrees[layer], nodes)

    def make_block(
        self, layer: int, sampled: SampledEdges, indices: NDArray[np.int32], nodes: Tensor, degree: Tensor
    ) -> Block:
        """The block of in-edges that were chosen.

        Args:
            layer: Number of the layer.
            sampled: Its in-edges.
            indices: ``[E]`` row of each edge's source.
            nodes: ``[Vs]`` sources, of which the first are the destinations.
            degree: ``[Vs]`` their degrees.
        """
        view = self.views[layer]
        num_dst = len(sampled.indptr) - 1
        edges = Edges(
            indptr=as_tensor(sampled.indptr),
            indices=as_tensor(indices),
            num_src=len(nodes),
            relation=None if view.relation is None else self._gather_pooled(as_numpy(view.relation), sampled.edges),
            weight=None if view.weight is None else self._gather_pooled(as_numpy(view.weight), sampled.edges),
        )
        return Block(
            edges=edges,
            src_nodes=nodes,
            dst_nodes=nodes[:num_dst],
            src_degree=degree,
            dst_degree=degree[:num_dst],
            edge_ids=as_tensor(sampled.edges),
            sample_weight=None if sampled.sample_weight is None else as_tensor(sampled.sample_weight),
            relation_degree=None if sampled.relation_degree is None else as_tensor(sampled.relation_degree),
        )

    def _gather_pooled(self, values: Array, rows: Ids) -> Tensor:
        out = self.pool.empty_array(len(rows), values.dtype)
        gather_values(values, rows, out)
        return as_tensor(out)


def invalid_seed_error(node: int, position: int, num_nodes: int) -> InputError:
    """The error for a seed that is no node of the graph, or that comes twice."""
    return InputError(
        "these nodes cannot be the seeds of a batch",
        needed=f"distinct nodes, from 0 to {num_nodes - 1}",
        got=f"{node} at position {position}",
        repair="give every node of the batch once",
    )


def _require_views(views: Sequence[Topology], fanout: Sequence[Fanout]) -> None:
    if not views or len(fanout) != len(views):
        raise InputError(
            "the fan-outs do not fit the model",
            needed=f"{max(1, len(views))} of them, one for each layer",
            got=f"{len(fanout)}: {tuple(fanout)}",
            repair="give one fan-out for each layer, the last layer's first; -1 keeps all in-edges",
        )
    sizes = {view.num_nodes for view in views}
    if len(sizes) > 1 or max(sizes) >= LARGEST:
        raise InputError(
            "these graphs cannot be sampled",
            needed=f"views of one graph, of fewer than {LARGEST} nodes",
            got=f"graphs of {', '.join(map(str, sorted(sizes)))} nodes",
            repair="give the topology, or the topology with self-loops, for each layer",
        )
