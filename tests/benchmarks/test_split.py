"""What the figures of split.py rest on: batches that add up, caches that hold what they should, and the script."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import split_counts
import torch
from split_counts import (
    DEALS,
    Cached,
    CrossingRow,
    Setting,
    around,
    caches,
    crossed,
    crossing_bytes,
    row_bytes,
    split_work,
    together,
    work,
)
from torch import Tensor

from outgrow.graph.graph import Graph, Split
from outgrow.nn import GAT, SAGE
from outgrow.ops.sparse import SparseRows
from support import topology_of

NODES, PARTS = 240, 4


def setting() -> Setting:
    """A circle with chords in both directions, so that every node has edges from it and to it."""
    pairs = [(v, (v + step * sign) % NODES) for v in range(NODES) for step in (1, 5, 31) for sign in (1, -1)]
    train = torch.arange(0, NODES, 2)
    split = Split(train=train, val=train[:0], test=train[:0])
    graph = Graph(name="circle", topology=topology_of(NODES, pairs), features=torch.ones(NODES, 3), split=split)
    return Setting(graph=graph, fanout=(3, 2), parts=PARTS)


def drawn(given: Setting, owner: Tensor, step: int, seeds: Tensor) -> list[list[split_counts.SampledSplitBlock]]:
    return together(given.split_samplers(owner), given.deal(seeds, "by part", owner), 1, step)


def test_workers_draw_together_what_one_would_draw() -> None:
    given = setting()
    owner = given.owner("hash", 50)
    for step, seeds in enumerate(given.steps(50)):
        blocks, hops = given.sampler().sample_blocks(seeds, 1, step), drawn(given, owner, step, seeds)
        assert sum(map(split_work, hops), Counter()) == work(blocks)
        for layer, block in enumerate(blocks):
            assert block.edge_ids is not None
            theirs = torch.cat([part for each in hops if (part := each[layer].block.edge_ids) is not None])
            assert theirs.sort().values.tolist() == block.edge_ids.sort().values.tolist()


@pytest.mark.parametrize("how", DEALS)
def test_every_seed_is_dealt_out_once(how: str) -> None:
    given = setting()
    for seeds in given.steps(50):
        dealt = given.deal(seeds, how, given.owner("hash", 50))
        assert len(dealt) == PARTS
        assert torch.cat(dealt).sort().values.tolist() == seeds.sort().values.tolist()


def test_steps_of_an_epoch_and_nodes_of_a_graph_that_names_none() -> None:
    given = setting()
    assert [len(seeds) for seeds in given.steps(50)] == [50, 50, 20]
    assert [len(seeds) for seeds in given.whole_steps(50)] == [50, 50]
    assert [len(seeds) for seeds in given.whole_steps(500)] == [120]
    nameless = Setting(graph=Graph(name="bare", topology=given.graph.topology), fanout=(2,))
    assert len(nameless.train.unique()) == int(0.08 * NODES)


def test_rows_come_from_the_own_cache_from_another_or_from_the_host() -> None:
    kept = torch.tensor([[True, True, False, False], [False, False, True, False]])
    inputs = [torch.tensor([0, 2, 3]), torch.tensor([1, 2])]
    assert Cached("a", "b", 0.5, kept).loads(inputs) == Counter(host_rows=3)
    assert Cached("a", "b", 0.5, kept, lends=True).loads(inputs) == Counter(host_rows=1, peer_rows=2)


def test_caches_of_a_quarter_hold_all_rows_but_where_workers_want_the_same() -> None:
    given = setting()
    owner, seeds = given.owner("hash", 50), given.steps(50)[0]
    found = caches(given, owner, [0.0, 0.25], torch.ones(NODES, dtype=torch.int64))
    inputs = {
        how: [given.sampler().sample_blocks(s, 1, 0)[0].src_nodes for s in given.deal(seeds, how, owner)]
        for how in DEALS
    }
    inputs["split"] = [hops[0].own_nodes for hops in drawn(given, owner, 0, seeds)]
    wanted = {how: sum(map(len, nodes)) for how, nodes in inputs.items()}
    assert wanted["split"] < min(wanted[how] for how in DEALS)
    assert {cached.seeds for cached in found} == {*DEALS, "split"}
    for cached in found:
        assert int(cached.kept.sum(1).max()) == int(cached.cache * NODES)
        loads = cached.loads(inputs[cached.seeds])
        if not cached.cache:
            assert loads == Counter(host_rows=wanted[cached.seeds])
        elif cached.system == "PaGraph":
            assert 0 < loads["host_rows"] < wanted[cached.seeds]
            assert not loads["peer_rows"]
        else:
            assert not loads["host_rows"]
            assert (loads["peer_rows"] > 0) == (cached.system == "Quiver")


def test_nodes_around_seeds_follow_edges_backwards() -> None:
    path = topology_of(5, [(0, 1), (1, 2), (2, 3), (4, 3)])
    assert around(path, torch.tensor([3]), 1).tolist() == [2, 3, 4]
    assert around(path, torch.tensor([3]), 2).tolist() == [1, 2, 3, 4]


def test_what_crosses_are_sources_or_fewer_bytes() -> None:
    given = setting()
    hops = drawn(given, given.owner("hash", 50), 0, given.steps(50)[0])
    wanted = sum(sum(hop.recv_counts) for each in hops for hop in each)
    narrow = sum((crossed(each, [CrossingRow(1)] * 2) for each in hops), Counter())
    assert narrow == Counter(crossing_sources=wanted, crossing_rows=wanted, crossing_bytes=wanted)
    wide = sum((crossed(each, [CrossingRow(10_000)] * 2) for each in hops), Counter())
    assert wide["crossing_rows"] < wide["crossing_sources"] == wanted
    assert wide["crossing_bytes"] < wanted * 10_000
    unsummed = sum((crossed(each, [CrossingRow(10_000, summed=False)] * 2) for each in hops), Counter())
    assert unsummed["crossing_bytes"] == wanted * 10_000


def test_rows_that_cross_are_those_of_the_model() -> None:
    """A layer of SAGE that projects first sends 4 columns, one of GAT 2 heads of 4 and their scores; with gradients."""
    features = torch.ones(NODES, 8)
    sage = crossing_bytes(SAGE(8, 4, 2, layers=2), features)
    assert [row.summed for row in sage] == [True, True]
    gat = crossing_bytes(GAT(8, 8, 3, layers=2, heads=2), features)
    assert gat == [CrossingRow(2 * 4 * (8 + 2), summed=False), CrossingRow(2 * 4 * (3 + 1), summed=False)]


def test_bytes_of_a_row() -> None:
    assert row_bytes(torch.zeros(2, 3)) == 12
    indptr, indices = torch.tensor([0, 2, 3]), torch.tensor([0, 4, 1], dtype=torch.int32)
    rows = SparseRows(indptr=indptr, indices=indices, values=torch.ones(3), num_columns=5)
    assert row_bytes(rows) == (24 + 12 + 12) / 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "options", "rows"),
    [
        ("loads", ["--batch-sizes", "64", "--models", "sage", "gat", "--caches", "0", "0.25"], 12),
        ("redundancy", ["--batch-size", "64"], 4),
        ("quality", ["--batch-sizes", "64", "128", "--partitions", "metis", "hash"], 4),
        ("sampling", ["--batch-sizes", "64", "--rounds", "2"], 5),
    ],
)
def test_every_table_is_made(table: str, options: list[str], rows: int, tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    script = Path(split_counts.__file__).with_name("split.py")
    common = ["--graphs", "products@0.0005", "--fanout", "3", "2", "--out", str(out)]
    done = subprocess.run(
        [sys.executable, script, table, *common, *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert found["benchmark"] == f"split_{table}"
    assert len(found["rows"]) == rows
