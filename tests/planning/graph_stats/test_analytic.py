"""Spread of degrees, and what is expected of samples and parts, beside what is counted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outgrow.engine.batches import BatchConfig
from outgrow.graph import datasets
from outgrow.graph.partition.methods import WITHOUT_CHUNKS
from outgrow.graph.partition.partition_cache import load_or_make_partition
from outgrow.graph.partition.symmetrize import count_neighbours, symmetrize
from outgrow.graph.sampling.edge_sampler import FASTGCN, LABOR, NEIGHBOR, SAMPLERS, WITH_REPLACEMENT
from outgrow.graph.store.reader import write_store
from outgrow.planning.batch_stats import SamplingSpec
from outgrow.planning.graph_stats.counted import (
    CountedGraph,
    bfs_ball,
    internal_edge_share,
    interpolate_edge_share,
    sketch_graph,
)
from outgrow.planning.graph_stats.degree_distribution import DegreeDistribution
from outgrow.planning.graph_stats.partition_counts import estimate_neighbours

GRAPHS = ("products@0.01", "reddit@0.02", "arxiv@0.1")


def test_counted_degrees_keep_nodes_and_edges() -> None:
    values = torch.randint(0, 5000, (20_000,), generator=torch.Generator().manual_seed(0))
    found = DegreeDistribution.from_degrees(values)
    assert len(found.degree) <= 256
    assert found.num_nodes == 20_000
    assert found.num_edges == pytest.approx(float(values.sum()))
    assert (np.diff(found.degree) > 0).all()


@given(st.integers(1000, 10**9), st.floats(2, 200), st.floats(2.1, 3.5))
@settings(max_examples=50, deadline=None)
def test_a_power_law_has_its_nodes_and_edges(nodes: int, mean: float, exponent: float) -> None:
    found = DegreeDistribution.from_power_law(nodes, mean * nodes, exponent, largest=max(1000.0, 20 * mean))
    assert found.num_nodes == pytest.approx(nodes)
    assert found.num_edges == pytest.approx(mean * nodes)
    assert found.degree[-1] <= max(1000.0, 20 * mean) * 1.01


@given(
    st.integers(1, 5000), st.lists(st.sampled_from([-1, 1, 5, 25]), min_size=1, max_size=4), st.sampled_from(SAMPLERS)
)
@settings(max_examples=100, deadline=None)
def test_neighbourhoods_grow(seeds: int, hops: list[int], sampler: str) -> None:
    degrees = DegreeDistribution.from_power_law(10_000, 200_000, 2.5, None)
    levels = degrees.neighborhood_levels(seeds, hops, sampler=sampler)
    rows = [degrees.count_nodes(level.share) for level in levels]
    assert rows[0] == pytest.approx(min(seeds, 10_000))
    assert rows == sorted(rows)
    assert all((level.share >= 0).all() and (level.share <= 1).all() for level in levels)
    for below, level, hop in zip(levels, levels[1:], hops, strict=False):
        if sampler == FASTGCN and hop > 0:
            assert degrees.count_nodes(level.share) <= degrees.count_nodes(below.share) + hop
            continue
        assert level.edges <= degrees.count_nodes(below.share) * max(hop, degrees.degree[-1] if hop < 0 else hop) + 1e-6


def test_the_hottest_are_as_many_as_asked_for() -> None:
    degrees = DegreeDistribution.from_power_law(10_000, 200_000, 2.5, None)
    share = degrees.hottest_share(1234.5, degrees.degree)
    assert degrees.count_nodes(share) == pytest.approx(1234.5)
    assert (np.diff(share) >= -1e-12).all()  # those with more edges first


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize(
    ("fanout", "sampler"),
    [
        ((10, 10), NEIGHBOR),
        ((25, 10, 5), NEIGHBOR),
        ((10, 10), WITH_REPLACEMENT),
        ((25, 10, 5), LABOR),
        ((1000, 500), FASTGCN),
    ],
)
def test_neighbourhoods_are_expected_as_they_are_drawn(name: str, fanout: tuple[int, ...], sampler: str) -> None:
    graph = datasets.load_graph(name)
    batches = BatchConfig(size=512, fanout=fanout, sampler=sampler)
    drawing = SamplingSpec(batches, (False,) * len(fanout), 0, "metis")
    expected, counted = (
        known.batch_stats(drawing, 1).neighborhood for known in (sketch_graph(graph), CountedGraph(graph))
    )
    assert expected.rows == pytest.approx(counted.rows, rel=0.25)
    assert expected.edges == pytest.approx(counted.edges, rel=0.25)


@pytest.mark.parametrize("name", GRAPHS)
def test_rows_that_cross_are_expected_within_a_factor(name: str) -> None:
    graph = datasets.load_graph(name)
    drawing = SamplingSpec(BatchConfig(size=512, fanout=(10, 10)), (False, False), 0, "metis")
    model, truth = sketch_graph(graph), CountedGraph(graph)
    for expected, counted in (
        (model.partition_stats("metis", 4).halo.sum(), truth.partition_stats("metis", 4).halo.sum()),
        (
            model.batch_stats(drawing, 4).gather.remote_rows.sum(),
            truth.batch_stats(drawing, 4).gather.remote_rows.sum(),
        ),
        (
            sum(each.sources.sum() for each in model.split_batch_stats(drawing, 4).cross_edges[0]),
            np.mean(
                [sum(each.sources.sum() for each in batch) for batch in truth.split_batch_stats(drawing, 4).cross_edges]
            ),
        ),
    ):
        assert counted / 2 < expected < 2 * counted


@pytest.mark.parametrize("hot_ratio", [0.1, 0.3])
def test_hot_nodes_are_expected_as_they_are_counted(hot_ratio: float) -> None:
    graph = datasets.load_graph("products@0.01")
    drawing = SamplingSpec(BatchConfig(size=128, fanout=(10, 10)), (False, False), 0, "metis")
    expected, counted = (
        known.orchestrate_stats(drawing, 1, hot_ratio, 4) for known in (sketch_graph(graph), CountedGraph(graph))
    )
    assert expected.warm.rows == pytest.approx(counted.warm.rows, rel=0.25)
    assert expected.hot.nodes == pytest.approx(counted.hot.nodes, rel=0.25)
    assert expected.warm.rows < expected.cold.rows


@pytest.mark.parametrize("by", ["degree", "presampling"])
def test_cached_rows_of_own_nodes_are_expected_as_they_are_counted(by: str) -> None:
    graph = datasets.load_graph("products@0.01")
    drawing = SamplingSpec(
        BatchConfig(size=256, fanout=(5, 5)), (False, False), 0, "metis", cache_rows=2000, cache_by=by
    )
    expected, counted = (known.split_batch_stats(drawing, 2) for known in (sketch_graph(graph), CountedGraph(graph)))
    assert expected.cached_share == pytest.approx(counted.cached_share, rel=0.25)
    # Hot rows are read more often than others.
    assert counted.cached_share > 2 * 2000 / graph.num_nodes
    none = CountedGraph(graph).split_batch_stats(drawing._replace(cache_rows=0), 2)
    assert none.cached_share == 0
    assert none.neighborhood.rows == pytest.approx(counted.neighborhood.rows)


@pytest.mark.parametrize(("name", "near"), [("products@0.01", 0.02), ("wordnet", 0.05), ("it-2004@0.001", 0.25)])
def test_neighbours_are_estimated_from_some_edges(name: str, near: float) -> None:
    """Too many only where edges are parallel, as on it-2004."""
    topology = datasets.load_graph(name).topology
    counted = int(count_neighbours(symmetrize(topology)).sum())
    assert estimate_neighbours(topology) == pytest.approx(counted, rel=near)


def test_a_partition_that_the_store_has_takes_no_memory_to_make(tmp_path: Path) -> None:
    graph = datasets.load_graph("products@0.01")
    store = tmp_path / "graph"
    write_store(graph, store)
    made = sketch_graph(graph, store=store).partition_stats("metis", 2).making_bytes
    # Two numbers of eight bytes for each neighbour, at least.
    assert made > 16 * graph.num_edges
    assert sketch_graph(graph).partition_stats("metis", 2).making_bytes == made
    assert sketch_graph(graph, store=store).partition_stats("hash", 2).making_bytes == 0
    load_or_make_partition(graph.topology, WITHOUT_CHUNKS["metis"], 2, store=store)
    assert sketch_graph(graph, store=store).partition_stats("metis", 2).making_bytes == 0
    assert sketch_graph(graph, store=store).partition_stats("metis", 3).making_bytes > 0


def test_a_part_of_a_graph_is_cut_as_well_as_the_whole() -> None:
    """Communities that are smaller than the part are all that matters."""
    graph = datasets.load_graph("products@0.05")
    ball = bfs_ball(graph.topology)
    assert ball.num_nodes <= 30_000
    kept = internal_edge_share(ball, 4)
    cut = CountedGraph(graph)._node_owners("metis", 4).long()
    target = torch.arange(graph.num_nodes).repeat_interleave(graph.topology.indptr.diff())
    whole = float((cut[graph.topology.indices.long()] == cut[target]).double().mean())
    assert kept == pytest.approx(whole, abs=0.1)


@pytest.mark.parametrize("name", ["products@0.02", "wordnet"])
def test_shares_between_measured_numbers_of_parts_are_as_if_measured(name: str) -> None:
    ball = bfs_ball(datasets.load_graph(name).topology)
    for parts in (1, 2, 3, 4, 16, 64):
        assert interpolate_edge_share(ball, parts) == internal_edge_share(ball, parts)
    for parts in (6, 12, 24):
        assert interpolate_edge_share(ball, parts) == pytest.approx(internal_edge_share(ball, parts), abs=0.08)


def test_many_numbers_of_parts_take_few_runs_of_metis(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []

    def share(ball: object, parts: int) -> float:
        measured.append(parts)
        return 1 / parts

    monkeypatch.setattr("outgrow.planning.graph_stats.counted.internal_edge_share", share)
    ball = bfs_ball(datasets.load_graph("products@0.01").topology)
    found = [interpolate_edge_share(ball, parts) for parts in range(1, 300)]
    assert set(measured) == {1, 2, 3, 4, 16, 64, 256, 1024}
    assert found == sorted(found, reverse=True)
