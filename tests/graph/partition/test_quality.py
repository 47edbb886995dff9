"""The figures of a partition, against a count with sets."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import random_topology, topology_of

from outgrow.core.errors import InputError
from outgrow.graph.partition import quality
from outgrow.graph.partition.methods import ChunkedPartitioner, HashPartitioner, RangePartitioner
from outgrow.graph.partition.partition import Partition
from outgrow.graph.partition.quality import measure_quality
from outgrow.graph.topology import Topology


def check(topology: Topology, partition: Partition) -> None:
    src = topology.indices.tolist()
    dst = torch.repeat_interleave(topology.indptr.diff()).tolist()
    part, count = partition.part.tolist(), partition.num_parts
    pairs = [(part[u], part[v], u) for u, v in zip(src, dst, strict=True)]
    cut = sum(a != b for a, b, _ in pairs)
    halo = tuple(len({u for a, b, u in pairs if b == p != a}) for p in range(count))
    nodes = tuple(part.count(p) for p in range(count))
    edges = tuple(sum(b == p for _, b, _ in pairs) for p in range(count))
    got = measure_quality(topology, partition)
    assert (got.edge_cut, got.halo, got.nodes, got.edges) == (cut, halo, nodes, edges)
    assert got.cut_share == pytest.approx(cut / max(1, len(src)))
    assert got.node_balance == pytest.approx(max(nodes) * count / len(part))
    assert got.edge_balance == pytest.approx(max(edges) * count / len(src) if src else 1)
    assert got.replication_factor == pytest.approx((sum(nodes) + sum(halo)) / len(part))


@settings(deadline=None)
@given(st.integers(1, 50), st.integers(0, 300), st.sampled_from([1, 2, 8, 9, 64, 65, 130]), st.integers(0, 9))
def test_figures_are_those_of_a_count(num_nodes: int, num_edges: int, num_parts: int, seed: int) -> None:
    topology = random_topology(num_nodes, num_edges, seed=seed)
    part = torch.randint(num_parts, (num_nodes,), generator=torch.Generator().manual_seed(seed))
    check(topology, Partition.from_assignment(part, num_parts, allow_empty=True))


@pytest.mark.parametrize("num_parts", [2, 7, 100])
def test_large_enough_for_several_shares_and_a_heavy_row(num_parts: int) -> None:
    star = [(u, 0) for u in range(1, 3000)] + [(u, (7 * u) % 3000) for u in range(3000)]
    topology = topology_of(3000, star, index=torch.int64)
    check(topology, HashPartitioner().partition_nodes(topology, num_parts))


def test_little_memory_changes_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality, "_MASK_BYTES", 1)
    topology = random_topology(500, 4000)
    check(topology, HashPartitioner().partition_nodes(topology, 5))


def test_chunks_are_counted_like_parts() -> None:
    topology = random_topology(300, 2000)
    made = ChunkedPartitioner(chunks=3, first=RangePartitioner()).partition_nodes(topology, 4)
    assert measure_quality(topology, made.chunks_as_parts).edge_cut > measure_quality(topology, made).edge_cut
    check(topology, made.chunks_as_parts)


def test_a_partition_of_another_graph_is_refused() -> None:
    with pytest.raises(InputError, match="not one of this graph"):
        measure_quality(topology_of(4, []), RangePartitioner().partition_nodes(topology_of(5, []), 2))
