"""METIS: its input, the balance that was asked for, and what becomes of its failures."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pymetis
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import random_topology, topology_of

import outgrow as og
from outgrow.core.errors import InputError
from outgrow.graph.partition import metis
from outgrow.graph.partition.methods import METHODS, ChunkedPartitioner, MetisPartitioner, make_partitioner
from outgrow.graph.partition.quality import measure_quality
from outgrow.graph.partition.symmetrize import count_neighbours, fill_neighbours, symmetrize
from outgrow.graph.topology import Topology


def grid(rows: int, columns: int) -> Topology:
    node = np.arange(rows * columns).reshape(rows, columns)
    right = zip(node[:, :-1].flat, node[:, 1:].flat, strict=True)
    down = zip(node[:-1].flat, node[1:].flat, strict=True)
    return topology_of(rows * columns, [*right, *down])


def clustered(sizes: tuple[int, ...]) -> Topology:
    """Cliques, directed from small to large ids, joined to a chain by single edges."""
    ends = np.cumsum((0, *sizes))
    inside = [(a, b) for k in range(len(sizes)) for b in range(*ends[k : k + 2]) for a in range(ends[k], b)]
    return topology_of(int(ends[-1]), [*inside, *((end - 1, end) for end in ends[1:-1])])


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(0, 150), st.integers(0, 5), st.sampled_from([torch.int32, torch.int64]))
def test_neighbours_are_those_of_the_graph_without_directions(
    num_nodes: int, num_edges: int, seed: int, index: torch.dtype
) -> None:
    topology = random_topology(num_nodes, num_edges, seed=seed, index=index)
    times = np.zeros((num_nodes, num_nodes), dtype=np.int64)
    np.add.at(times, (topology.indices.numpy(), torch.repeat_interleave(topology.indptr.diff()).numpy()), 1)
    times += times.T
    np.fill_diagonal(times, 0)
    edges = symmetrize(topology)
    count = count_neighbours(edges)
    np.testing.assert_array_equal(count, (times > 0).sum(1))
    indptr = np.concatenate(([0], np.cumsum(count)))
    neighbours, multiplicity = np.full(indptr[-1], -1), np.full(indptr[-1], -1)
    fill_neighbours(edges, indptr, neighbours, multiplicity)
    np.testing.assert_array_equal(neighbours, np.nonzero(times)[1])
    np.testing.assert_array_equal(multiplicity, times[times > 0])


@settings(max_examples=15, deadline=None)
@given(st.integers(2, 30), st.integers(0, 90), st.integers(0, 5), st.data())
def test_every_node_is_in_one_part_and_no_part_is_empty(
    num_nodes: int, num_edges: int, seed: int, data: st.DataObject
) -> None:
    topology = random_topology(num_nodes, num_edges, seed=seed)
    num_parts = data.draw(st.integers(2, num_nodes))
    method = MetisPartitioner(balance=data.draw(st.sampled_from(["nodes", "edges", "both"])))
    made = method.partition_nodes(topology, num_parts)
    assert made.num_nodes == num_nodes
    assert int(made.part_sizes.sum()) == num_nodes
    assert int(made.part_sizes.min()) > 0


@pytest.mark.parametrize(
    "topology",
    [
        topology_of(5, []),
        topology_of(5, [(v, v) for v in range(5)]),
        topology_of(5, [(0, 1)] * 50),
        topology_of(5, [(0, v) for v in range(1, 5)], index=torch.int64),
    ],
    ids=["no edges", "self-loops only", "one pair", "a star"],
)
@pytest.mark.parametrize("balance", ["nodes", "edges", "both"])
def test_odd_graphs(topology: Topology, balance: str) -> None:
    for num_parts in (1, 2, 5):
        assert int(MetisPartitioner(balance=balance).partition_nodes(topology, num_parts).part_sizes.min()) > 0


def test_one_node_is_one_part() -> None:
    assert MetisPartitioner().partition_nodes(topology_of(1, [(0, 0)]), 1).part.tolist() == [0]


@pytest.mark.parametrize("imbalance", [0.01, 0.1])
def test_parts_are_as_even_as_was_asked(imbalance: float) -> None:
    topology = grid(40, 50)
    quality = measure_quality(topology, MetisPartitioner(imbalance=imbalance).partition_nodes(topology, 5))
    assert quality.node_balance <= 1 + imbalance + 1e-9
    assert quality.cut_share < 0.08


def test_the_balance_is_of_what_was_asked() -> None:
    topology = clustered((20,) * 4 + (1,) * 300)
    mean = -(-topology.num_edges // topology.num_nodes)
    for balance in ("nodes", "edges", "both"):
        quality = measure_quality(
            topology, MetisPartitioner(balance=balance, imbalance=0.1).partition_nodes(topology, 2)
        )
        nodes, edges = torch.tensor(quality.nodes), torch.tensor(quality.edges)
        weights = {"nodes": nodes, "edges": edges, "both": edges + mean * nodes}
        even = {name: bool(weight.max() <= 1.1 * weight.sum() / 2) for name, weight in weights.items()}
        assert even == {name: name == balance for name in weights}, (balance, weights)


def test_parallel_edges_are_kept_together() -> None:
    ring = [(v, (v + 1) % 12) for v in range(12)]
    doubled = [edge for edge in ring if edge[0] not in (2, 8)] * 9
    part = MetisPartitioner().partition_nodes(topology_of(12, ring + doubled), 2).part.tolist()
    assert part[2] != part[3]
    assert part[8] != part[9]


def test_the_same_seed_gives_the_same_partition() -> None:
    topology = random_topology(600, 4000, seed=3)
    one, again, other = (MetisPartitioner(seed=seed).partition_nodes(topology, 4).part for seed in (5, 5, 6))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_two_levels_of_metis_and_ranges() -> None:
    topology = grid(20, 20)
    made = ChunkedPartitioner(chunks=4, first=MetisPartitioner()).partition_nodes(topology, 3)
    assert torch.equal(made.part, MetisPartitioner().partition_nodes(topology, 3).part)
    assert int(made.chunks_as_parts.part_sizes.min()) > 20


def test_too_little_memory_is_refused_before_metis_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    topology = random_topology(600, 4000)
    neighbours = int(count_neighbours(symmetrize(topology)).sum())
    needed = metis.estimate_metis_bytes(600, neighbours, pymetis.zero_copy_dtype().itemsize)
    assert MetisPartitioner(memory_bytes=needed).partition_nodes(topology, 2).num_parts == 2
    monkeypatch.setattr(metis, "_run_metis_child", None)
    for budget in (0, needed - 1):
        with pytest.raises(InputError, match="METIS cannot") as caught:
            MetisPartitioner(memory_bytes=budget).partition_nodes(topology, 2)
        assert f"{budget:,} bytes" in caught.value.got
        assert "fennel" in caught.value.repair
    # A second weight of each node takes memory, too.
    with pytest.raises(InputError, match="METIS cannot"):
        MetisPartitioner(memory_bytes=needed).with_seeds(torch.arange(9)).partition_nodes(topology, 2)


def seed_balance(part: torch.Tensor, seeds: torch.Tensor, parts: int) -> float:
    counts = torch.bincount(part[seeds].long(), minlength=parts).double()
    return float(counts.max() / counts.mean())


@pytest.mark.parametrize("balance", ["nodes", "edges", "both"])
def test_seeds_are_balanced_too(balance: str) -> None:
    """All seeds are in one corner, so that parts that know nothing of them are uneven."""
    topology = grid(40, 50)
    seeds = torch.arange(400)
    plain = MetisPartitioner(balance=balance)
    without, made = (method.partition_nodes(topology, 5) for method in (plain, plain.with_seeds(seeds)))
    assert seed_balance(made.part, seeds, 5) <= 1.05
    assert seed_balance(without.part, seeds, 5) > 1.5
    quality = measure_quality(topology, made)
    assert {"nodes": quality.node_balance, "edges": quality.edge_balance}.get(balance, 1) <= 1.05
    assert quality.cut_share < 0.15


def test_seeds_of_a_real_graph_are_balanced_at_hardly_any_cost() -> None:
    graph = og.load("wordnet")
    plain = MetisPartitioner()
    without, made = (
        measure_quality(graph.topology, each.partition_nodes(graph.topology, 4))
        for each in (plain, plain.with_seeds(graph.split.train))
    )
    assert made.edge_cut < 1.1 * without.edge_cut
    assert made.node_balance <= 1.031


@settings(max_examples=8, deadline=None)
@given(st.integers(2, 30), st.integers(0, 90), st.integers(0, 5), st.data())
def test_any_seeds(num_nodes: int, num_edges: int, seed: int, data: st.DataObject) -> None:
    topology = random_topology(num_nodes, num_edges, seed=seed)
    num_parts = data.draw(st.integers(1, num_nodes))
    seeds = data.draw(st.sets(st.integers(0, num_nodes - 1)))
    method = MetisPartitioner().with_seeds(torch.tensor(sorted(seeds), dtype=torch.int64))
    first, again = (method.partition_nodes(topology, num_parts) for _ in range(2))
    assert torch.equal(first.part, again.part)
    assert int(first.part_sizes.min()) > 0
    assert int(first.part_sizes.sum()) == num_nodes


def test_no_seeds_are_the_partition_of_whole_graphs() -> None:
    plain = METHODS["metis"]
    assert plain.with_seeds(torch.empty(0, dtype=torch.int64)) == plain
    assert plain.cache_key == "metis-balance=nodes-imbalance=0.03-seed=0"
    keys = {plain.with_seeds(torch.arange(count)).cache_key for count in (1, 2)} | {plain.cache_key}
    assert len(keys) == 3
    # Stores keep both: neither is read in place of the other.
    assert plain.with_seeds(torch.arange(2)) != plain


@pytest.mark.parametrize("option", ["seeds", "signature"])
@pytest.mark.parametrize("method", ["metis", "fennel"])
def test_seeds_are_no_option_of_the_command_line(method: str, option: str) -> None:
    with pytest.raises(InputError, match=f"option of {method}"):
        make_partitioner(method, {option: "x"})


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("num_seeds", [0, 5000])
def test_the_estimate_holds_for_a_real_graph(num_seeds: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    topology, child, peak = og.load("wordnet").topology, tmp_path / "child.py", tmp_path / "peak"
    keep_status = f"import shutil\nshutil.copyfile('/proc/self/status', {str(peak)!r})\n"
    child.write_text(metis._CHILD.read_text("utf-8") + keep_status, "utf-8")
    monkeypatch.setattr(metis, "_CHILD", child)
    MetisPartitioner().with_seeds(torch.arange(num_seeds)).partition_nodes(topology, 16)
    neighbours, width = int(count_neighbours(symmetrize(topology)).sum()), pymetis.zero_copy_dtype().itemsize
    needed = metis.estimate_metis_bytes(topology.num_nodes, neighbours, width, 2 if num_seeds else 1)
    kilobytes = next(line.split()[1] for line in peak.read_text("utf-8").splitlines() if line.startswith("VmHWM"))
    assert needed / 3 < 1024 * int(kilobytes) < needed


def test_numbers_that_metis_does_not_have_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pymetis, "zero_copy_dtype", lambda: np.dtype(np.int8))
    with pytest.raises(InputError, match="METIS cannot") as caught:
        MetisPartitioner().partition_nodes(random_topology(600, 4000), 2)
    assert "8 bits" in caught.value.needed


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("print('Input Error: no.')\nraise RuntimeError('x')", "exit code 1; Input Error: no.; RuntimeError: x"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "SIGKILL, which is mostly memory"),
    ],
)
def test_a_failure_of_metis_names_the_fallback(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str, words: str
) -> None:
    child = tmp_path / "child.py"
    child.write_text(source, "utf-8")
    monkeypatch.setattr(metis, "_CHILD", child)
    with pytest.raises(InputError, match="METIS cannot") as caught:
        MetisPartitioner().partition_nodes(random_topology(60, 400), 2)
    assert words in caught.value.got
    assert "fennel" in caught.value.repair


@pytest.mark.skipif(sys.platform != "linux", reason="asks the system to be killed")
def test_metis_does_not_outlive_a_parent_that_is_gone_before_it_looks(tmp_path: Path) -> None:
    """It would hold a processor until it is done, which nobody waits for."""
    given = {"parent": os.getppid(), "file": -1, "lengths": []}
    command = [sys.executable, "-P", str(metis._CHILD), json.dumps(given)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (1, b"")


def test_no_process_for_metis_names_the_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "no-such-python")
    with pytest.raises(InputError, match="METIS cannot") as caught:
        MetisPartitioner().partition_nodes(random_topology(60, 400), 2)
    assert "no-such-python" in caught.value.got
    assert "fennel" in caught.value.repair
