"""Layer-wise sampling: its distribution, its blocks, and that sums are right in the mean."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from rivals.layer_sampler import LayerSampler, column_shares

from outgrow.core.errors import InputError
from outgrow.graph.topology import Topology
from support import dense_adjacency, random_topology, topology_of, with_relations


@pytest.fixture(scope="module")
def topology() -> Topology:
    return random_topology(60, 900, weighted=True)


def normalised(topology: Topology) -> np.ndarray:
    root = np.maximum(topology.degree.numpy(), np.equal(topology.degree.numpy(), 0)) ** -0.5
    return root[:, None] * dense_adjacency(topology) * root


def test_shares_are_those_of_squared_columns() -> None:
    simple = topology_of(5, [(0, 1), (0, 2), (1, 2), (3, 1), (4, 4)], weighted=True)
    norm = (normalised(simple) ** 2).sum(0)
    np.testing.assert_allclose(column_shares(simple).numpy(), norm / norm.sum(), rtol=1e-12)


def test_blocks_hold_the_edges_from_one_set(topology: Topology) -> None:
    views = [topology.with_self_loops, topology]
    seeds = torch.tensor([7, 3, 59, 12])
    blocks = LayerSampler(views, [9, 14], 5).blocks(seeds, 1, 2)
    assert torch.equal(blocks[1].dst_nodes, seeds)
    assert torch.equal(blocks[0].dst_nodes, blocks[1].src_nodes)
    for block, view, size in zip(blocks, views, (14, 9), strict=True):
        edges, dst = block.edges, block.dst_nodes.tolist()
        assert block.edge_ids is not None
        assert block.sample_weight is not None
        assert torch.equal(block.src_nodes[: len(dst)], block.dst_nodes)
        assert len(set(block.src_nodes.tolist())) == edges.num_src <= len(dst) + size
        assert torch.equal(block.src_nodes[edges.indices.long()], view.indices[block.edge_ids].long())
        assert torch.equal(block.src_degree, view.degree[block.src_nodes])
        assert edges.weight is not None
        assert view.weight is not None
        assert torch.equal(edges.weight, view.weight[block.edge_ids])
        times = block.sample_weight * size * column_shares(view)[view.indices[block.edge_ids].long()]
        torch.testing.assert_close(times, times.round())
        drawn = set(view.indices[block.edge_ids].tolist())
        every = [e for v in dst for e in range(*view.indptr[v : v + 2].tolist()) if int(view.indices[e]) in drawn]
        assert block.edge_ids.tolist() == every
        assert edges.indptr.diff().tolist() == [
            sum(int(u) in drawn for u in view.indices[slice(*view.indptr[v : v + 2].tolist())]) for v in dst
        ]


def test_the_set_does_not_depend_on_the_seeds(topology: Topology) -> None:
    sampler = LayerSampler([topology], [8], 0)
    whole = sampler.blocks(topology.nodes, 0, 3)[0].edge_ids
    parts = [sampler.blocks(part, 0, 3)[0].edge_ids for part in topology.nodes.split(7)]
    assert whole is not None
    assert torch.equal(torch.cat([part for part in parts if part is not None]), whole)
    others = [sampler.blocks(topology.nodes, *when)[0].edge_ids for when in ((1, 3), (0, 4))]
    assert all(other is not None and not torch.equal(other, whole) for other in others)


def test_sums_are_right_in_the_mean(topology: Topology) -> None:
    x_V = torch.randn(60, dtype=torch.float64, generator=torch.manual_seed(0))
    wanted, sampler = torch.from_numpy(dense_adjacency(topology)) @ x_V, LayerSampler([topology], [20], 0)
    sums = []
    for step in range(3000):
        (block,) = sampler.blocks(topology.nodes, 0, step)
        assert block.edges.weight is not None
        assert block.sample_weight is not None
        row = torch.repeat_interleave(block.edges.indptr.diff())
        value = block.edges.weight * block.sample_weight * x_V[block.src_nodes[block.edges.indices.long()]]
        sums.append(torch.zeros(60, dtype=torch.float64).index_add_(0, row, value))
    every = torch.stack(sums)
    error = (every.mean(0) - wanted) / (every.std(0) / 3000**0.5).clamp_min(1e-12)
    assert error.abs().max() < 4
    assert error.square().mean() < 2


@pytest.mark.parametrize("sizes", [[5], [5, 0], [5, 5, 5]])
def test_sizes_that_do_not_fit_are_refused(topology: Topology, sizes: list[int]) -> None:
    with pytest.raises(InputError, match="one size of at least 1"):
        LayerSampler([topology, topology], sizes, 0)


def test_graphs_that_cannot_be_drawn_from_are_refused(topology: Topology) -> None:
    for view in (
        topology_of(3, []),
        with_relations(topology, 2),
        replace(topology, weight=torch.zeros(topology.num_edges)),
    ):
        with pytest.raises(InputError, match="without relations"):
            LayerSampler([view], [5], 0)
