"""Layer-wise sampling: one set of nodes for each layer of a step, whatever the seeds are.

Chen, Ma, Xiao: FastGCN: fast learning with graph convolutional networks via importance sampling, ICLR 2018. Strategies
do not promise each other's numbers with it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from outgrow.core.block import Block, Edges
from outgrow.core.errors import InputError
from outgrow.graph.topology import Topology
from outgrow.ops.backend import as_numpy, as_tensor
from outgrow.ops.edge_weight import scale_edge_weight
from outgrow.ops.rng import NEIGHBOURS, fold_in
from outgrow.ops.sampling.uniform import fill_uniform


class LayerSampler:
    """Draws blocks in which edges come from one set of nodes for each layer. Final.

    The set of a layer is ``t`` draws with replacement by `column_shares`, a pure function of (seed, epoch, step,
    layer). An edge from a node of share ``q`` that was drawn ``m`` times stands for ``m / (t q)``: so a sum over
    in-edges is, in the mean, that over all of them. Looks through all in-edges of each destination.

    Args:
        views: The topology as each layer of the model wants it, the first layer first; with edges, without relations.
        sizes: ``t`` for each hop from the seeds outward, so the first is that of the last layer.
        seed: Key of all draws.

    Raises:
        InputError: Not one size of at least 1 for each view, or a view with relations or without edges that weigh.
    """

    def __init__(self, views: Sequence[Topology], sizes: Sequence[int], seed: int) -> None:
        known = all(view.relation is None and bool(view.degree.any()) for view in views)
        if len(sizes) != len(views) or min(sizes, default=0) < 1 or not known:
            raise InputError(
                "these layers cannot be sampled as sets of nodes",
                needed="one size of at least 1 for each layer, and edges of some weight without relations",
                got=f"sizes {tuple(sizes)} for {len(views)} layers",
                repair="change the sizes, or sample the neighbours of each node",
            )
        self.views, self.sizes, self.seed = tuple(views), tuple(sizes), seed
        self._shares = {view: column_shares(view) for view in set(views)}

    def blocks(self, seeds: Tensor, epoch: int, step: int) -> list[Block]:
        """The blocks of a batch, one for each layer; the first source nodes of each are its destinations.

        Args:
            seeds: ``[n]`` int64, distinct. The destinations of the last block.
            epoch: Part of the key.
            step: Part of the key.
        """
        nodes, blocks = seeds, list[Block]()
        for size, (layer, view) in zip(self.sizes, reversed([*enumerate(self.views)]), strict=True):
            share_V = self._shares[view]
            drawn, times = _draw(share_V, size, fold_in(self.seed, epoch, step, layer + 1, NEIGHBOURS))
            blocks.append(_block(view, nodes, drawn, times / (size * share_V[drawn])))
            nodes = blocks[-1].src_nodes
        return blocks[::-1]


def column_shares(view: Topology) -> Tensor:
    """``[V]`` float64 with sum 1: shares of the squared norms of the normalised adjacency's columns.

    That of ``u`` is the sum over its out-edges ``u -> v`` of ``(weight / sqrt(degree[u] degree[v]))^2``; a degree of 0
    counts as 1, so that whoever is heard may be drawn.
    """
    root = torch.where(view.degree > 0, view.degree, 1).rsqrt()
    value = torch.empty(view.num_edges, dtype=torch.float64)
    scale_edge_weight(view.indptr, view.indices, view.weight, root, root, value)
    norm = torch.bincount(view.indices, value.square_(), minlength=view.num_nodes)
    return norm / norm.sum()


def _draw(share_V: Tensor, size: int, key: int) -> tuple[Tensor, Tensor]:
    """The nodes that were drawn, ascending, and how many times."""
    uniform, bounds = np.empty(size), np.cumsum(as_numpy(share_V))
    fill_uniform(np.uint64(key), uniform)
    drawn, times = np.unique(np.searchsorted(bounds / bounds[-1], uniform, side="right"), return_counts=True)
    return as_tensor(drawn), as_tensor(times)


def _block(view: Topology, dst_nodes: Tensor, drawn: Tensor, stands_for: Tensor) -> Block:
    """The in-edges of the destinations that come from the nodes that were drawn, ascending."""
    first, count = view.indptr[dst_nodes], view.indptr[dst_nodes + 1] - view.indptr[dst_nodes]
    row = torch.repeat_interleave(count)
    edge = torch.arange(len(row)) + (first - count.cumsum(0) + count)[row]
    place = torch.searchsorted(drawn, view.indices[edge].long()).clamp_(max=len(drawn) - 1)
    kept = drawn[place] == view.indices[edge]
    row, edge, place = row[kept], edge[kept], place[kept]
    src_nodes = torch.cat([dst_nodes, drawn[torch.isin(drawn, dst_nodes, invert=True)]])
    ordered, order = src_nodes.sort()
    indptr = torch.zeros(len(dst_nodes) + 1, dtype=torch.int64)
    torch.cumsum(row.bincount(minlength=len(dst_nodes)), 0, out=indptr[1:])
    edges = Edges(
        indptr=indptr,
        indices=order[torch.searchsorted(ordered, drawn)[place]].to(torch.int32),
        num_src=len(src_nodes),
        weight=None if view.weight is None else view.weight[edge],
    )
    return Block(
        edges=edges,
        src_nodes=src_nodes,
        dst_nodes=dst_nodes,
        src_degree=view.degree[src_nodes],
        dst_degree=view.degree[dst_nodes],
        edge_ids=edge,
        sample_weight=stands_for[place].float(),
    )
