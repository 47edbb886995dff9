"""Features of edges: each edge of a graph has those that were given with it, however it is built, kept and read."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import outgrow as og
from graph.handmade import Edge, Listed, expected, same
from outgrow.core.errors import InputError, StoreError
from outgrow.graph.builders import edge_order
from outgrow.graph.builders.edge_order import DirectedPolicy, EdgeColumns, UndirectedPolicy
from outgrow.graph.builders.external_sort import ExternalSorter
from outgrow.graph.builders.in_memory import assemble_graph
from outgrow.graph.builders.to_store import convert_to_store
from outgrow.graph.readers.source import EdgeChunk, NodeTableSource
from outgrow.graph.readers.stored_edges import read_stored_edges
from outgrow.graph.store.reader import open_store, write_store
from outgrow.graph.synthetic.rmat import RMat
from outgrow.graph.topology import Topology

ids = st.integers(0, 5)
edge_lists = st.lists(st.builds(Edge, ids, ids, st.integers(0, 1)), min_size=1, max_size=120)
KINDS = {
    "half": (np.float16, ()),
    "float": (np.float32, ()),
    "double": (np.float64, ()),
    "codes": (np.int64, (256, 300)),
    "unsigned codes": (np.uint8, (256, 256)),
    "both": (np.float32, (0, 300)),
}


def rows_of(count: int, kind: str) -> np.ndarray:
    """Features that tell the number of the edge."""
    numbers = np.arange(count) % 250
    return np.stack([numbers, numbers[::-1]], 1).astype(KINDS[kind][0])


def as_kept(rows: np.ndarray, kind: str) -> list[list[float]]:
    """Rows as a graph has them: categories beside numbers become columns."""
    if kind != "both":
        return rows.tolist()
    size = KINDS[kind][1][1]
    return [[number, *(float(at == code) for at in range(size))] for number, code in rows.tolist()]


@given(
    edges=edge_lists,
    undirected=st.booleans(),
    typed=st.booleans(),
    kind=st.sampled_from([*KINDS]),
    at_once=st.integers(1, 90),
)
@settings(deadline=None, max_examples=40)
def test_edges_keep_their_features(tmp_path_factory, edges, undirected, typed, kind, at_once):
    """In memory, in a store that is built where sixteen edges fit, in one written of the graph, and read once more."""
    names, (_, sizes) = ("p", "q") if typed else (), KINDS[kind]
    tables = NodeTableSource(num_nodes=9, relation_names=names, edge_feature_sizes=sizes)
    rows = rows_of(len(edges), kind)
    listed = Listed(edges, tables, typed=typed, at_once=at_once, features=rows)
    folder = tmp_path_factory.mktemp("built")
    built = convert_to_store(listed, folder / "store", undirected=undirected, memory_bytes=1024)
    made = assemble_graph(listed, undirected=undirected)
    same(built, made)
    # The weight of an edge is its number, by which the definition tells the edges apart.
    numbered = [edge._replace(weight=at) for at, edge in enumerate(edges)]
    wanted = expected(numbered, undirected=undirected, num_relations=len(names))
    assert made.edge_features.tolist() == as_kept(rows[[int(edge.weight) for edge in wanted]], kind)
    assert made.topology.feature_sizes == (sizes if kind.endswith("codes") else ())
    write_store(made, folder / "copy")
    same(open_store(folder / "copy", verify=True), made)
    again = [chunk.features for chunk in read_stored_edges(made.topology)]
    assert np.concatenate(again).tolist() == made.edge_features.tolist()


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("half", torch.float16), ("float", torch.float32), ("double", torch.float64), ("codes", torch.int16)],
)
def test_types_are_kept_and_codes_are_narrow(kind, dtype):
    made = og.from_arrays(
        [[0, 1, 1], [1, 0, 0]], edge_features=rows_of(3, kind), edge_feature_sizes=KINDS[kind][1], num_nodes=2
    )
    assert made.edge_features.dtype == dtype
    assert made.num_edge_features == (sum(KINDS[kind][1]) or 2)


def test_bfloat16_is_kept_in_arrays_and_stores(tmp_path):
    rows = torch.arange(6).view(3, 2).to(torch.bfloat16)
    made = og.from_arrays([[0, 1, 1], [1, 0, 0]], edge_features=rows, num_nodes=2)
    kept = og.save_graph(made, tmp_path / "store")
    assert kept.edge_features.dtype == torch.bfloat16
    assert torch.equal(kept.edge_features, rows[[1, 2, 0]])


@pytest.mark.parametrize("rule", [DirectedPolicy(), UndirectedPolicy()], ids=["directed", "undirected"])
@pytest.mark.parametrize("width", [1, 40])
def test_memory_of_the_sort_stays_below_its_bound(tmp_path, rule, width):
    """Most bytes that NumPy holds while features of 5 to 40 times its memory are sorted."""
    bound, total = 1 << 22, 0

    def chunks() -> Iterator[EdgeChunk]:
        for seed in range(20):
            rng = np.random.default_rng(seed)
            src, dst = rng.integers(0, 2000, (2, 20_000))
            rows = np.repeat((src * 2000 + dst).astype(np.float64)[:, None], width, 1)
            yield from edge_order.split_chunk(EdgeChunk(src, dst, features=rows))

    tracemalloc.start()
    with ExternalSorter(tmp_path, rule, bound) as spill:
        for piece in chunks():
            spill.add_edges(rule.make_columns(piece))
        del piece
        tracemalloc.reset_peak()
        for piece in spill.iter_sorted_ranges():
            total += len(piece)
            src, dst = piece.key & np.uint64(2**32 - 1), piece.key >> np.uint64(32)
            one, back = (src * 2000 + dst).astype(float), (dst * 2000 + src).astype(float)
            found = piece.features[:, -1]
            assert ((found == one) | ((piece.rank is not None) & (found == back))).all()
        peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # Beside the arrays of the sort the test compares numbers of its own.
    assert peak < bound + (1 << 20)
    assert total == 400_000 if rule.keeps_parallel_edges else total > 400_000


NAN, INF = float("nan"), float("inf")
BAD = {
    "too few": (np.zeros((3, 2)), (), "shape [4, De]", "shape [3, 2]"),
    "one dimension": (np.zeros(4), (), "shape [4, De]", "shape [4]"),
    "no columns": (np.zeros((4, 0)), (), "at least one column", "shape [4, 0]"),
    "booleans": (np.zeros((4, 2), bool), (), "floating numbers", "bool"),
    "texts": (np.full((4, 1), "x"), (), "floating numbers", "<U1"),
    "objects": (np.full((4, 1), None), (), "floating numbers", "object"),
    "complex": (np.zeros((4, 1), complex), (), "floating numbers", "complex128"),
    "NaN": (np.array([[0, NAN], [0, 0], [INF, 0], [0, 0]]), (), "finite", "2 NaN or infinite values, the first is nan"),
    "negative": (np.array([[0], [-1], [-2], [0]]), (), "codes from 0", "2 others, the first is -1 at edge 1, column 0"),
    "too large": (np.array([[0], [3], [2], [9]]), (3,), "below", "2 others, the first is 3 at edge 1"),
    "fraction": (np.array([[0.5], [1], [1], [1]]), (3,), "codes from 0", "1 others, the first is 0.5 at edge 0"),
    "no codes": (np.array([[0], [10**9], [1], [2]]), (), "below the number of edges (4)", "1000000000"),
    "other sizes": (np.zeros((4, 2), int), (3,), "for each column", "2 columns and the sizes 3"),
    "negative sizes": (np.zeros((4, 1), int), (-3,), "for each column", "sizes -3"),
    "many beside numbers": (np.zeros((4, 2)), (0, 5000), "at most 1000 categories", "5000"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("into", ["memory", "store"])
def test_bad_features_are_one_error_with_counts(tmp_path, name, into):
    rows, sizes, needed, got = BAD[name]
    listed = Listed([Edge(0, 1)] * 4, NodeTableSource(num_nodes=2, edge_feature_sizes=sizes), features=rows, at_once=9)

    def make() -> object:
        if into == "store":
            return convert_to_store(listed, tmp_path / "store")
        return og.from_arrays([[0] * 4, [1] * 4], edge_features=rows, edge_feature_sizes=sizes)

    with pytest.raises(InputError) as refused:
        make()
    assert "features of edges" in str(refused.value)
    assert needed in refused.value.needed
    assert got in refused.value.got
    assert not list(tmp_path.iterdir())


def test_wrong_values_of_all_chunks_are_counted():
    rows = np.zeros((20, 1))
    rows[3:, 0] = NAN
    listed = Listed([Edge(0, 1)] * 20, NodeTableSource(num_nodes=2), features=rows, at_once=3)
    with pytest.raises(InputError) as refused:
        assemble_graph(listed)
    assert refused.value.got == "17 NaN or infinite values, the first is nan at edge 3, column 0"


@pytest.mark.parametrize("change", ["width", "type", "none"])
def test_chunks_of_another_form_are_refused(change):
    class Changing(Listed):
        def read_edges(self):
            first, second = super().read_edges()
            rows = {"width": np.zeros((2, 3)), "type": np.zeros((2, 2), np.float32), "none": None}[change]
            yield first
            yield second._replace(features=rows)

    listed = Changing([Edge(0, 1)] * 4, NodeTableSource(num_nodes=2), features=np.zeros((4, 2)), at_once=2)
    with pytest.raises(InputError, match="features of edges have the wrong form"):
        assemble_graph(listed)


def test_integers_are_codes_with_a_warning():
    with pytest.warns(UserWarning, match="codes of categories, of 3, 8 categories"):
        made = og.from_arrays([[0, 1], [1, 0]], edge_features=[[0, 7], [2, 1]])
    assert made.topology.feature_sizes == (3, 8)


def graph_with(features: torch.Tensor, sizes: tuple[int, ...] = ()) -> og.Graph:
    topology = Topology(
        indptr=torch.tensor([0, 1, 3]),
        indices=torch.tensor([1, 0, 0], dtype=torch.int32),
        edge_features=features,
        feature_sizes=sizes,
    )
    return og.Graph(name="made", topology=topology)


@pytest.mark.parametrize(
    ("features", "sizes", "what"),
    [
        (torch.zeros(2, 1), (), "do not fit the edges"),
        (torch.zeros(3), (), "do not fit the edges"),
        (torch.zeros(3, 0), (), "do not fit the edges"),
        (torch.zeros(3, 2, dtype=torch.int8), (), "unclear"),
        (torch.zeros(3, 2), (3, 3), "unclear"),
        (torch.zeros(3, 1, dtype=torch.bool), (2,), "unclear"),
        (torch.zeros(3, 2, dtype=torch.int8), (3,), "do not fit the edges"),
        (torch.tensor([[0.0], [NAN], [1.0]]), (), "not finite"),
        (torch.tensor([[0.0], [NAN], [1.0]]).to(torch.bfloat16), (), "not finite"),
        (torch.tensor([[0], [3], [-1]]), (3,), "out of range"),
    ],
)
def test_a_graph_made_by_hand_is_checked_before_it_is_written(tmp_path, features, sizes, what):
    with pytest.raises(InputError, match=what):
        og.save_graph(graph_with(features, sizes), tmp_path / "store")
    assert not list(tmp_path.iterdir())


def test_a_store_that_is_broken_is_refused(tmp_path):
    og.save_graph(graph_with(torch.tensor([[0.0], [1.0], [2.0]])), tmp_path / "store")
    path = tmp_path / "store" / "edge_features.npy"
    data = bytearray(path.read_bytes())
    data[-4:] = np.float32(NAN).tobytes()
    path.write_bytes(data)
    assert open_store(tmp_path / "store").num_edge_features == 1
    with pytest.raises(StoreError, match="edge_features"):
        open_store(tmp_path / "store", verify=True)
    path.unlink()
    with pytest.raises(StoreError, match="edge_features"):
        open_store(tmp_path / "store")


def leave_features_in_input_order() -> AbstractContextManager[object]:
    """Features of edges stay where they were read, while the edges are sorted."""
    select = EdgeColumns.select_rows_inplace

    def select_others(edges: EdgeColumns, rows: Any) -> EdgeColumns:
        features = None if edges.features is None else edges.features.copy()
        made = select(edges, rows)
        if features is None:
            return made
        return EdgeColumns(made.key, made.rank, made.weight, features[: len(made)])

    return patch.object(EdgeColumns, "select_rows_inplace", select_others)


def give_reverses_zeros() -> AbstractContextManager[object]:
    """A reverse that is added has zeros, and not the features of its edge."""

    def repeat(values: np.ndarray | None) -> np.ndarray | None:
        if values is None:
            return None
        return np.concatenate([values, np.zeros_like(values) if values.ndim == 2 else values])

    return patch.object(edge_order, "repeat_column", repeat)


MUTANTS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "features_in_input_order": leave_features_in_input_order,
    "reverses_without_features": give_reverses_zeros,
}


@pytest.mark.mutant
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name):
    edges = [Edge(0, 2), Edge(2, 1), Edge(0, 1)]
    rows = rows_of(3, "float") + 1
    listed = Listed(edges, NodeTableSource(num_nodes=3), features=rows)
    with MUTANTS[name]():
        made = assemble_graph(listed, undirected=True)
    numbered = [edge._replace(weight=at) for at, edge in enumerate(edges)]
    wanted = expected(numbered, undirected=True, num_relations=0)
    assert made.edge_features.tolist() != rows[[int(edge.weight) for edge in wanted]].tolist()


_BUILD = """
import resource, sys
from pathlib import Path
from outgrow.graph.builders.to_store import build_store
from outgrow.graph.synthetic.rmat import RMat

def build(scale, name):
    source = RMat(scale=scale, edge_factor=16, edge_features=64)
    options = {"undirected": True, "memory_bytes": 32 << 20, "overwrite": False, "progress": None}
    build_store(source, Path(sys.argv[1]) / name, **options)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10

before = build(8, "little")
print(build(16, "much") - before)
"""


@pytest.mark.slow
def test_a_store_of_features_larger_than_memory_is_built_within_its_bound(tmp_path):
    """A process of its own, whose memory grows by little more than the 32 MiB of the sort; features take 444."""
    done = subprocess.run([sys.executable, "-c", _BUILD, str(tmp_path)], capture_output=True, text=True, check=True)
    grown = int(done.stdout)
    size = (tmp_path / "much" / "edge_features.npy").stat().st_size
    assert size > 400 << 20
    assert grown < 80 << 20
    made = open_store(tmp_path / "much")
    # Reverses that were added have the features of their edges: equal pairs are many, and are where they should be.
    source = RMat(scale=16, edge_factor=16, edge_features=64)
    read = {}
    for chunk in source.read_edges():
        for at in range(0, len(chunk.src), 500):
            pair = int(chunk.src[at]), int(chunk.dst[at])
            read.setdefault(pair, chunk.features[at].copy())
    found = 0
    for (src, dst), row in list(read.items())[:300]:
        for one, other in ((src, dst), (dst, src)):
            first, last = made.topology.indptr[other : other + 2].tolist()
            at = first + int(torch.searchsorted(made.topology.indices[first:last], torch.tensor(one)))
            assert int(made.topology.indices[at]) == one
            found += bool((made.edge_features[at].numpy() == row).all())
    assert found > 400
