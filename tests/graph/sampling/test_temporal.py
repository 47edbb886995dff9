"""Temporal draws: rows are pairs of a node and the time of its seed, and only in-edges before that time exist."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.graph.sampling.plain_temporal import EPOCH, SEED, STEP, Case, cases, check_case, timed_graph

from outgrow.core.block import Block
from outgrow.core.errors import InputError
from outgrow.graph.sampling.batch_numbers import BatchRows, PairNumbers
from outgrow.graph.sampling.edge_sampler import FASTGCN, LABOR, WITH_REPLACEMENT, SampledEdges
from outgrow.graph.sampling.neighbor_sampler import NeighborSampler
from outgrow.graph.sampling.temporal_sampler import LAST, UNIFORM
from outgrow.graph.topology import Topology
from outgrow.ops.sampling import temporal, time_order
from support import random_topology


@settings(max_examples=150)
@given(cases())
def test_blocks_are_those_of_plain_python(case: Case) -> None:
    check_case(case)


@settings(max_examples=30)
@given(cases(), st.randoms(use_true_random=False))
def test_a_row_does_not_depend_on_the_batch(case: Case, random: Any) -> None:
    seeds = [*case.seeds]
    random.shuffle(seeds)
    cut = len(seeds) // 2
    whole = kept_of(case.sample())
    for part in (seeds[:cut], seeds[cut:]):
        for layer, rows in enumerate(kept_of(case._replace(seeds=part).sample())):
            for node, kept in rows.items():
                assert whole[layer][node] >= kept


def kept_of(blocks: list[Block]) -> list[dict[int, set[tuple[int, ...]]]]:
    """By layer and node, the sets of edges that rows of the node keep."""
    found = []
    for block in blocks:
        assert block.edge_ids is not None
        rows: dict[int, set[tuple[int, ...]]] = {}
        for number, node in enumerate(block.dst_nodes.tolist()):
            ends = block.edges.indptr[number : number + 2].tolist()
            rows.setdefault(node, set()).add(tuple(block.edge_ids[slice(*ends)].tolist()))
        found.append(rows)
    return found


def test_threads_draw_the_same() -> None:
    graph = timed_graph(60, 900, 3, weighted=True)
    view = graph.sampling_view(self_loops=True)
    make = partial(NeighborSampler, [view, view], (3, -1), SEED, temporal_strategy=UNIFORM)
    batches = list(torch.arange(60).split(7))
    alone = [make().sample_blocks(batch, 0, step) for step, batch in enumerate(batches)]
    together = make()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda step: together.sample_blocks(batches[step], 0, step), range(len(batches))))
    for mine, others in zip(alone, found, strict=True):
        for one, other in zip(mine, others, strict=True):
            assert torch.equal(one.src_nodes, other.src_nodes)
            assert torch.equal(one.edges.indices, other.edges.indices)
            assert torch.equal(one.src_degree, other.src_degree)


def test_a_subgraph_has_the_edges_of_the_blocks() -> None:
    graph = timed_graph(40, 400, 1)
    sampler = NeighborSampler([graph, graph], (3, 3), SEED, temporal_strategy=UNIFORM)
    seeds = torch.arange(9)
    found = sampler.sample_subgraph(seeds, EPOCH, STEP)
    assert found.times is not None
    assert graph.node_time is not None
    assert graph.edge_time is not None
    assert torch.equal(found.times[:9], graph.node_time[seeds])
    source, target = found.edge_index
    assert torch.equal(graph.indices[found.edge_ids].long(), found.nodes[source])
    assert torch.equal(found.times[source], found.times[target])
    assert (graph.edge_time[found.edge_ids] < found.times[target]).all()
    pairs = [*zip(found.nodes.tolist(), found.times.tolist(), strict=True)]
    assert len({*pairs}) == len(pairs) > len({*found.nodes.tolist()})


def test_features_of_edges_are_those_of_the_edges() -> None:
    graph = timed_graph(30, 300, 5)
    graph = replace(graph, edge_features=torch.arange(graph.num_edges, dtype=torch.float32)[:, None] + 1)
    for looped in (False, True):
        case = Case(graph, [*range(20)], (4, 4), UNIFORM, looped)
        for block in case.sample():
            assert block.edge_features is not None
            assert block.edge_ids is not None
            held = graph.with_self_loops if looped else graph
            expected = held.edge_features
            assert expected is not None
            rows = expected[block.edge_ids]
            if looped:
                # A self-loop of the graph may be later than the row: it counts as one that was added.
                rows[held.indices[block.edge_ids] == block.dst_nodes.repeat_interleave(block.edges.indptr.diff())] = 0
            assert torch.equal(block.edge_features, rows)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"sampler": LABOR}, "sampler labor"),
        ({"sampler": FASTGCN}, "sampler fastgcn"),
        ({"weighted": True}, "weighted=True"),
        ({"sampler": WITH_REPLACEMENT, "temporal_strategy": LAST}, "temporal_strategy=last"),
        ({"temporal_strategy": "recent"}, "temporal_strategy"),
    ],
)
def test_what_cannot_be_drawn_is_refused(options: dict[str, Any], part: str) -> None:
    graph = timed_graph(9, 30, 0, weighted=True)
    with pytest.raises(InputError) as error:
        NeighborSampler([graph], (2,), 0, **{"temporal_strategy": UNIFORM, **options})
    assert part in str(error.value)


def test_times_are_needed() -> None:
    graph = random_topology(9, 30)
    with pytest.raises(InputError, match="temporal draws need times"):
        NeighborSampler([graph], (2,), 0, temporal_strategy=UNIFORM)
    timed = replace(graph, edge_time=torch.zeros(graph.num_edges, dtype=torch.int64))
    with pytest.raises(InputError, match="a node without a time cannot be a seed"):
        NeighborSampler([timed], (2,), 0, temporal_strategy=UNIFORM).sample_blocks(torch.arange(2), 0, 0)


@pytest.mark.parametrize("seeds", [[0, 0], [0, 9], [-1]])
def test_seeds_are_distinct_nodes(seeds: list[int]) -> None:
    graph = timed_graph(9, 30, 0)
    with pytest.raises(InputError, match="cannot be the seeds"):
        NeighborSampler([graph], (2,), 0, temporal_strategy=UNIFORM).sample_blocks(torch.tensor(seeds), 0, 0)


@contextmanager
def time_of_the_destination() -> Iterator[None]:
    """Sources are drawn for the time of the node whose in-neighbours they are, not for that of the seed."""
    right = PairNumbers.number_sources

    def number(
        self: PairNumbers, layer: int, sampled: SampledEdges, expanded: BatchRows, known: BatchRows
    ) -> tuple[BatchRows, Any]:
        view = self._sampling.views[0]
        assert isinstance(view, Topology)
        assert view.node_time is not None
        times = view.node_time.numpy()[expanded.nodes]
        return right(self, layer, sampled, expanded._replace(times=times), known)

    with patch.object(PairNumbers, "number_sources", number):
        yield


@contextmanager
def degrees_of_the_whole_graph() -> Iterator[None]:
    """Means and normalisations are over in-edges of any time."""

    def degrees(self: PairNumbers, layer: int, rows: BatchRows) -> torch.Tensor:
        return self._sampling.views[layer].degree[torch.from_numpy(rows.nodes)]

    with patch.object(PairNumbers, "row_degrees", degrees):
        yield


@contextmanager
def edges_at_the_time() -> Iterator[None]:
    """An in-edge at the time of the seed counts as before it."""
    right = time_order.order_by_time

    def order(graph: Any, edge_time: Any, node_time: Any, *, leave_out_loops: bool) -> time_order.TimeOrder:
        found = right(graph, edge_time, node_time, leave_out_loops=leave_out_loops)
        return found._replace(times=found.times - 1)

    with patch("outgrow.graph.topology.order_by_time", order):
        yield


@contextmanager
def draws_without_the_time() -> Iterator[None]:
    """Rows of one node draw alike, whatever their times."""
    right = temporal.find_rows_before

    def find(rows: Any, row_times: Any, pairs: Any, *bounds: Any) -> tuple[int, int]:
        found = right(rows, row_times, pairs, *bounds)
        pairs[:] = rows[0]
        return found

    with patch("outgrow.graph.sampling.temporal_sampler.find_rows_before", find):
        yield


MUTANTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    each.__name__: each
    for each in (
        time_of_the_destination,
        degrees_of_the_whole_graph,
        edges_at_the_time,
        draws_without_the_time,
    )
}


@pytest.mark.mutant
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str) -> None:
    case = Case(timed_graph(25, 200, 4), [*range(9)], (2, 2), UNIFORM, looped=False)
    check_case(case)
    # Another graph object: the order of the first is kept.
    with MUTANTS[name](), pytest.raises(AssertionError):
        check_case(case._replace(topology=timed_graph(25, 200, 4)))
