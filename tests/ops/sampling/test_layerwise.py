"""Importance of nodes, and the set of nodes that a layer is drawn from."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from outgrow.ops.sampling.layerwise import clear_nodes, count_kept_edges, draw_nodes, keep_marked_edges, mark_nodes
from outgrow.ops.sampling.uniform import find_row_bounds
from support import dense_adjacency, random_topology, topology_of


def test_shares_are_those_of_squared_columns() -> None:
    simple = topology_of(5, [(0, 1), (0, 2), (1, 2), (3, 1), (4, 4)], weighted=True)
    degree = simple.degree.numpy()
    root = np.where(degree > 0, degree, 1) ** -0.5
    norm = ((root[:, None] * dense_adjacency(simple) * root) ** 2).sum(0)
    shares = np.diff(simple.column_share_bounds.numpy(), prepend=0)
    np.testing.assert_allclose(shares, norm / norm.sum(), rtol=1e-12)
    assert simple.column_share_bounds[-1] == 1


@pytest.mark.parametrize("num_nodes", [0, 4])
def test_without_edges_nothing_is_drawn(num_nodes: int) -> None:
    bounds = topology_of(num_nodes, []).column_share_bounds.numpy()
    assert not bounds.any()
    assert len(draw_nodes(bounds, 5, 1).nodes) == 0


def test_a_node_counts_for_all_its_draws() -> None:
    bounds = np.array([0.5, 0.5, 0.75, 1.0])
    drawn = draw_nodes(bounds, 1000, 7)
    assert drawn.nodes.tolist() == [0, 2, 3]
    times = drawn.sample_weight * 1000 * np.array([0.5, 0.25, 0.25])
    np.testing.assert_allclose(times, times.round(), atol=1e-3)
    assert times.sum() == pytest.approx(1000)
    assert times == pytest.approx([500, 250, 250], abs=60)


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_edges_from_drawn_nodes_and_loops_are_kept(index: torch.dtype) -> None:
    topology = random_topology(100, 900, index=index)
    drawn = draw_nodes(topology.column_share_bounds.numpy(), 12, 3)
    words = np.zeros(2, dtype=np.uint64)
    mark_nodes(drawn, words)
    nodes = np.array([17, 3, 60, 0])
    rows = nodes, np.empty(4, np.int64), np.empty(4, np.int64)
    indptr, indices = topology.indptr.numpy(), topology.indices.numpy()
    find_row_bounds(rows, indptr, 1)
    weight = dict(zip(*(each.tolist() for each in drawn), strict=True))
    expected = [
        (e, 1.0 if u == v else weight[u])
        for v in nodes.tolist()
        for e, u in enumerate(indices[indptr[v] : indptr[v + 1]].tolist(), indptr[v])
        if u == v or u in weight
    ]
    assert count_kept_edges(rows, indices, words) == len(expected) > 5
    out = np.empty(5, np.int64), np.empty(len(expected), np.int64), np.empty(len(expected), np.float32)
    assert keep_marked_edges(rows, indices, *drawn, words, out) == len(expected)
    assert [*zip(out[1].tolist(), out[2].tolist(), strict=True)] == expected
    clear_nodes(drawn, words)
    assert not words.any()
