"""Every sampler keeps its promises, and a mutant that breaks one is found."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outgrow.core.block import Block
from outgrow.graph.sampling.edge_sampler import FASTGCN, LABOR, NEIGHBOR, SAMPLERS, WITH_REPLACEMENT
from outgrow.graph.sampling.neighbor_sampler import NeighborSampler
from suites.samplers import (
    CHECKS,
    MUTANTS,
    SAMPLINGS,
    WEIGHTED,
    WEIGHTS,
    Sampling,
    check_batches,
    check_shared_sources,
    check_sums,
)
from support import random_topology, topologies, topology_of

both = pytest.mark.parametrize("weights", WEIGHTS)
each = pytest.mark.parametrize("name", SAMPLINGS)


@both
@each
def test_sums_are_right_on_average(name: str, weights: str) -> None:
    check_sums(SAMPLINGS[name], weights)


@pytest.mark.parametrize("weights", ["mean", "gcn"])
@each
def test_what_a_node_keeps_does_not_depend_on_its_batch(name: str, weights: str) -> None:
    check_batches(SAMPLINGS[name], weights)


def test_nodes_share_sources_by_labor() -> None:
    check_shared_sources(SAMPLINGS["labor"], "sum")


@pytest.mark.mutant
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_found(mutant: str) -> None:
    check, sampling, weights, breaks = MUTANTS[mutant]
    with breaks(), pytest.raises(AssertionError):
        CHECKS[check](SAMPLINGS[sampling], weights)


def edges_of(block: Block) -> np.ndarray:
    assert block.edge_ids is not None
    return block.edge_ids.numpy()


@given(topologies(), st.sampled_from(SAMPLERS), st.integers(1, 6), st.integers(0, 2**64 - 1))
@settings(deadline=None, max_examples=100)
def test_edges_are_distinct_ascending_and_as_many_as_asked_for(topology, sampler, fanout, seed) -> None:
    (block,) = NeighborSampler([topology], [fanout], seed, sampler=sampler).sample_blocks(topology.nodes, 0, 0)
    edges, counts, degrees = edges_of(block), block.edges.indptr.diff(), topology.indptr.diff()
    rows = np.searchsorted(topology.indptr.numpy(), edges, side="right") - 1
    assert (np.diff(edges) > 0).all()
    assert rows.tolist() == torch.arange(topology.num_nodes).repeat_interleave(counts).tolist()
    if sampler in (NEIGHBOR, LABOR):
        assert counts.tolist() == degrees.clamp(max=fanout).tolist()
    if sampler == WITH_REPLACEMENT:
        assert (counts <= degrees.clamp(max=fanout)).all()
        assert block.sample_weight is not None
        total = np.bincount(rows, block.sample_weight.double().numpy(), minlength=topology.num_nodes)
        np.testing.assert_allclose(total, degrees.numpy(), rtol=1e-5)
    if sampler == FASTGCN:
        own = topology.indices[block.edge_ids].numpy() == rows
        assert len({*topology.indices[block.edge_ids].numpy()[~own].tolist()}) <= fanout


@pytest.mark.parametrize("weighted", [False, True])
def test_labor_has_fewer_sources_than_neighbour_sampling(weighted: bool) -> None:
    topology, seeds = random_topology(2000, 60_000, weighted=True), torch.arange(200)
    found = {}
    for sampler in (NEIGHBOR, LABOR):
        sampling = Sampling(sampler, 10, weighted).of(topology, layers=2)
        blocks = [sampling.sample_blocks(seeds, 0, step) for step in range(5)]
        assert all((row[-1].edges.indptr.diff() <= 10).all() for row in blocks)
        found[sampler] = [sum(len(row[level].src_nodes) for row in blocks) for level in (0, 1)]
        found[f"{sampler} edges"] = [sum(row[1].edges.num_edges for row in blocks)]
    assert found["labor edges"] == found["neighbor edges"]
    assert all(few < 0.95 * many for few, many in zip(found[LABOR], found[NEIGHBOR], strict=True))


def test_draws_with_replacement_follow_weights() -> None:
    """How often edges are drawn, by chi square; edges of weight 0 never are."""
    topology = topology_of(6, [(u, 5) for u in range(5)])
    weight, steps, draws = torch.tensor([1.0, 0.0, 3.0, 0.5, 2.5]), 2000, 4
    weighted = type(topology)(indptr=topology.indptr, indices=topology.indices, weight=weight)
    sampler, times = Sampling(WITH_REPLACEMENT, draws, weighted=True).of(weighted), np.zeros(5)
    for step in range(steps):
        (block,) = sampler.sample_blocks(torch.tensor([5]), 0, step)
        assert block.sample_weight is not None
        share = (block.sample_weight * weight[block.edge_ids]).numpy() * draws / 7
        np.testing.assert_allclose(share, share.round(), atol=1e-4)
        times[edges_of(block)] += share.round()
    expected = steps * draws * weight.numpy() / 7
    assert times[1] == 0
    assert (((times - expected) ** 2)[expected > 0] / expected[expected > 0]).sum() < 20  # 3 degrees of freedom


def test_nodes_are_drawn_by_importance() -> None:
    """Each node is in the set of a layer as often as its share of the squared column norms says."""
    steps, draws, times = 2000, 10, np.zeros(WEIGHTED.num_nodes)
    sampler = Sampling(FASTGCN, draws).of(WEIGHTED)
    share = np.diff(WEIGHTED.column_share_bounds.numpy(), prepend=0)
    for step in range(steps):
        (block,) = sampler.sample_blocks(WEIGHTED.nodes, 0, step)
        sources = WEIGHTED.indices[block.edge_ids].numpy()
        own = sources == np.repeat(WEIGHTED.nodes.numpy(), block.edges.indptr.diff().numpy())
        times[np.unique(sources[~own])] += 1
    p = 1 - (1 - share) ** draws
    has_others = np.bincount(WEIGHTED.indices[WEIGHTED.indices != destinations()].numpy(), minlength=len(p)) > 0
    score = (times - steps * p) / np.maximum(1e-9, steps * p * (1 - p)) ** 0.5
    assert abs(score[has_others]).max() < 4.5


def destinations() -> torch.Tensor:
    return WEIGHTED.nodes.repeat_interleave(WEIGHTED.indptr.diff())
