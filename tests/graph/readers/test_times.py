"""Times of nodes and edges: of PyG's objects, arrays and tables, through builders, stores and appended rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import outgrow as og
from outgrow.app.append_tables import append_to_store
from outgrow.core.errors import InputError
from outgrow.graph.builders.in_memory import assemble_graph
from outgrow.graph.builders.to_store import convert_to_store
from outgrow.graph.graph import Graph
from outgrow.graph.readers.arrays import ArraySource
from outgrow.graph.readers.source import NodeTableSource
from outgrow.graph.readers.tables.options import TableOptions
from outgrow.graph.readers.times import to_times
from outgrow.graph.store.reader import open_store, write_store
from outgrow.graph.topology import NO_TIME
from outgrow.ops.sampling.time_order import iterate_time_order, order_by_time

DAY = 86_400_000_000
FIRST_OF_MAY = 19_844 * DAY
EDGES = torch.tensor([[0, 1, 2, 2], [1, 2, 0, 1]])


def edges_of(graph: Graph) -> list[tuple[int, int, int]]:
    assert graph.edge_time is not None
    return [tuple(edge) for edge in torch.cat([graph.edge_index, graph.edge_time[None]]).T.tolist()]  # type: ignore[misc]


def node_times(graph: Graph) -> list[int]:
    assert graph.node_time is not None
    found: list[int] = graph.node_time.tolist()
    return found


@pytest.fixture
def pyg() -> Any:
    return pytest.importorskip("torch_geometric.data")


def test_times_of_data(pyg: Any) -> None:
    data = pyg.Data(x=torch.zeros(3, 1), edge_index=EDGES, time=torch.tensor([5, 6, 7]), edge_time=torch.arange(4))
    graph = og.load(data)
    assert node_times(graph) == [5, 6, 7]
    assert edges_of(graph) == [(2, 0, 2), (0, 1, 0), (2, 1, 3), (1, 2, 1)]
    # As many as there are edges: those of edges.
    graph = og.load(pyg.Data(x=torch.zeros(3, 1), edge_index=EDGES, time=torch.arange(4)))
    assert graph.node_time is None
    assert [time for *_, time in edges_of(graph)] == [2, 0, 3, 1]


def test_times_of_hetero_data(pyg: Any) -> None:
    data = pyg.HeteroData()
    data["user"].x, data["user"].time = torch.zeros(2, 1), torch.tensor([8, 9])
    data["item"].x = torch.zeros(1, 1)
    data["user", "buys", "item"].edge_index = torch.tensor([[0, 1], [0, 0]])
    data["user", "buys", "item"].time = torch.tensor([3, 4])
    data["item", "of", "user"].edge_index = torch.tensor([[0], [1]])
    graph = og.load(data)
    assert node_times(graph) == [8, 9, NO_TIME]
    assert edges_of(graph) == [(2, 1, NO_TIME), (0, 2, 3), (1, 2, 4)]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (np.array([3, 1], np.uint8), [3, 1]),
        (np.array([3.0, np.nan]), [3, NO_TIME]),
        (np.array(["2024-05-01", "NaT"], "datetime64[D]"), [FIRST_OF_MAY, NO_TIME]),
        (np.array(["2024-05-01T00:00:00.000001"], "datetime64[ns]"), [FIRST_OF_MAY + 1]),
        (np.array([[4], [5]]), [4, 5]),
    ],
)
def test_arrays_of_times(given: Any, expected: list[int]) -> None:
    assert to_times(given, "times").tolist() == expected


@pytest.mark.parametrize("given", [np.array([0.5]), np.array(["a"]), np.zeros((2, 2)), np.array([2**63], np.uint64)])
def test_other_arrays_are_refused(given: Any) -> None:
    with pytest.raises(InputError, match="cannot be read as times"):
        to_times(given, "times")


@pytest.mark.parametrize("name", ["edge_time", "node_time"])
def test_a_time_for_each(name: str) -> None:
    with pytest.raises(InputError, match="times do not fit"):
        og.from_arrays(EDGES, num_nodes=3, **{name: [1, 2]})


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 60), st.integers(0, 99), st.booleans(), st.booleans())
def test_times_stay_with_their_edges(
    tmp_path_factory: Any, count: int, seed: int, weighted: bool, undirected: bool
) -> None:
    """In memory and in a store, whatever memory the sort has."""
    random = np.random.default_rng(seed)
    index, times = random.integers(0, 7, (2, count)), random.integers(-5, 5, count)
    source = ArraySource(
        index,
        NodeTableSource(num_nodes=7, node_time=np.arange(7)),
        weight=times.astype(np.float32) if weighted else None,
        edge_time=times,
    )
    graph = assemble_graph(source, undirected=undirected)
    store = tmp_path_factory.mktemp("times") / "store"
    stored = convert_to_store(source, store, undirected=undirected, memory_bytes=1 << 11)
    assert node_times(stored) == node_times(graph) == [*range(7)]
    # The order of the in-edges by time comes with the store, made in pieces, and is what one sort gives.
    order, known = graph.topology.time_order, stored.topology.known_time_order
    assert known is not None
    assert (known.edges.tolist(), known.times.tolist()) == (order.edges.tolist(), order.times.tolist())
    assert stored.topology.without_edge_features.known_time_order is known
    open_store(store, verify=True)
    if count:
        assert edges_of(stored) == edges_of(graph)
    pairs = [*zip(*index.tolist(), times.tolist(), strict=True)]
    if not undirected and count:
        assert sorted(edges_of(graph)) == sorted(pairs)
    elif count:
        assert {*edges_of(graph)} <= {*pairs} | {(dst, src, time) for src, dst, time in pairs}
    if weighted and count:
        assert graph.topology.weight is not None
        assert graph.topology.weight.tolist() == [float(time) for *_, time in edges_of(graph)]
    og.load(store)


def frames(node_times: Any, edge_times: Any) -> dict[str, pd.DataFrame]:
    nodes = pd.DataFrame({"id": ["a", "b", "c"], "x": [1.0, 2.0, 3.0]})
    edges = pd.DataFrame({"src": ["a", "c"], "dst": ["b", "b"]})
    nodes = nodes if node_times is None else nodes.assign(t=node_times)
    return {"nodes": nodes, "edges": edges if edge_times is None else edges.assign(t=edge_times)}


@pytest.mark.parametrize(
    ("nodes", "edges", "node_expected", "edge_expected"),
    [
        ([1, 2, 3], [5, 4], [1, 2, 3], [5, 4]),
        ([1.0, None, 3.0], None, [1, NO_TIME, 3], None),
        (None, [5, 4], None, [5, 4]),
        (["2024-05-01", "", "2024-05-02"], ["2024-05-01 00:00:01", None], [0, None, DAY], [1_000_000, None]),
        (pd.to_datetime(["2024-05-01"] * 3), ["2024-05-01T02:00:00+02:00"] * 2, [0, 0, 0], [0, 0]),
        (["7", "8", " 9 "], [1, 2], [7, 8, 9], [1, 2]),
    ],
)
def test_columns_of_times(nodes: Any, edges: Any, node_expected: Any, edge_expected: Any) -> None:
    graph = og.load(frames(nodes, edges), time_column="t")
    dates = not isinstance(edge_expected or node_expected, list) or "2024" in str(nodes)
    shift = FIRST_OF_MAY if dates else 0

    def plain(times: Any) -> Any:
        return None if times is None else [NO_TIME if time in (None, NO_TIME) else time + shift for time in times]

    assert (None if graph.node_time is None else graph.node_time.tolist()) == plain(node_expected)
    assert (None if graph.edge_time is None else graph.edge_time.tolist()) == plain(edge_expected)
    # A column of times is no feature.
    assert graph.num_features == 1


def test_times_of_typed_tables() -> None:
    nodes = {"user": pd.DataFrame({"id": [1, 2], "t": [4, 5]}), "item": pd.DataFrame({"id": [1]})}
    edges = {
        ("user", "buys", "item"): pd.DataFrame({"src": [1, 2], "dst": [1, 1], "t": [7, 8]}),
        ("item", "of", "user"): pd.DataFrame({"src": [1], "dst": [2]}),
    }
    graph = og.load({"nodes": nodes, "edges": edges}, time_column="t")
    assert node_times(graph) == [4, 5, NO_TIME]
    assert edges_of(graph) == [(2, 1, NO_TIME), (0, 2, 7), (1, 2, 8)]
    with pytest.raises(InputError, match="has no column when of times"):
        og.load({"nodes": nodes, "edges": edges}, time_column="when")


@pytest.mark.parametrize(
    ("nodes", "edges", "part"),
    [
        ([1, 2, 3], ["2024-05-01", "2024-05-02"], "cannot be compared"),
        ([1.5, 2, 3], None, "has no time"),
        (None, ["2024-05-01", "then"], "row 1"),
        (None, [True, False], None),
        (None, None, "no column t of times"),
    ],
)
def test_columns_that_are_no_times(nodes: Any, edges: Any, part: str | None) -> None:
    if part is None:
        assert og.load(frames(nodes, edges), time_column="t").edge_time is not None
        return
    with pytest.raises(InputError) as error:
        og.load(frames(nodes, edges), time_column="t")
    assert part in str(error.value)


def append(store: Path, nodes: str, edges: str, **options: Any) -> Graph:
    folder = store.parent
    (folder / "nodes.csv").write_text(nodes)
    (folder / "edges.csv").write_text(edges)
    return append_to_store(store, [folder / "edges.csv"], [folder / "nodes.csv"], TableOptions(**options))


def test_appended_rows_have_times(tmp_path: Path) -> None:
    og.save_graph(og.load(frames([1, 2, 3], [5, 4]), time_column="t"), tmp_path / "store")
    graph = append(tmp_path / "store", "id,x,t\nd,4,9\n", "src,dst,t\nd,a,6\n", time_column="t")
    assert node_times(graph) == [1, 2, 3, 9]
    assert edges_of(graph) == [(3, 0, 6), (0, 1, 5), (2, 1, 4)]
    for nodes, edges, options, part in (
        ("id,x\ne,4\n", "src,dst,t\ne,a,6\n", {"time_column": "t"}, "nodes have times"),
        ("id,x,t\ne,4,1\n", "src,dst\ne,a\n", {"time_column": "t"}, "edges have times"),
        ("id,x\ne,4\n", "src,dst\ne,a\n", {}, "nodes have times"),
    ):
        with pytest.raises(InputError) as error:
            append(tmp_path / "store", nodes, edges, **options)
        assert part in error.value.what
    og.save_graph(og.load(frames(None, None)), tmp_path / "plain")
    with pytest.raises(InputError, match="has no times"):
        append(tmp_path / "plain", "id,x,t\nd,4,9\n", "src,dst,t\nd,a,6\n", time_column="t")


def test_appended_times_are_of_the_unit_of_the_graph(tmp_path: Path) -> None:
    """Dates of any precision and form are microseconds; numbers are never compared with dates."""
    days = ["2024-05-01", "2024-05-02", "2024-05-03"]
    for kind, times in (("dates", days), ("numbers", [19844, 19845, 19846])):
        folder = tmp_path / kind
        folder.mkdir()
        for name, frame in frames(times, times[:2]).items():
            frame.to_csv(folder / f"{name}.csv", index=False)
        made = og.convert(folder, tmp_path / f"{kind}.store", time_column="t")
        assert made.topology.times_are_dates is (kind == "dates")
    store = tmp_path / "dates.store"
    for number, unit in enumerate(("s", "ms", "us", "ns")):
        stamps = np.array(["2024-05-04"], f"datetime64[{unit}]")
        pd.DataFrame({"id": [f"n{number}"], "x": [1.0], "t": stamps}).to_parquet(tmp_path / "nodes.parquet")
        pd.DataFrame({"src": ["a"], "dst": [f"n{number}"], "t": stamps}).to_parquet(tmp_path / "edges.parquet")
        paths = [tmp_path / "edges.parquet"], [tmp_path / "nodes.parquet"]
        graph = append_to_store(store, *paths, TableOptions(time_column="t"))
        assert graph.topology.times_are_dates
        assert node_times(graph)[-1] == FIRST_OF_MAY + 3 * DAY
        assert edges_of(graph)[-1] == (0, 3 + number, FIRST_OF_MAY + 3 * DAY)
    rows = "id,x,t\nlast,4,2024-05-04\n", "src,dst,t\na,last,2024-05-04\n"
    assert edges_of(append(store, *rows, time_column="t"))[-1] == (0, 7, FIRST_OF_MAY + 3 * DAY)
    for kind, time in (("dates", "19847"), ("numbers", "2024-05-04")):
        before = og.load(tmp_path / f"{kind}.store").num_edges
        for node, edge in ((time, ""), ("", time)):
            with pytest.raises(InputError, match=f"cannot be compared with those of {kind}") as error:
                append(tmp_path / f"{kind}.store", f"id,x,t\nz,4,{node}\n", f"src,dst,t\na,z,{edge}\n", time_column="t")
            assert error.value.needed == f"{kind} in both"
        assert og.load(tmp_path / f"{kind}.store").num_edges == before


def test_arrays_of_dates_are_known_as_dates_and_not_mixed_with_numbers() -> None:
    days = np.array(["2024-05-01"] * 4, "datetime64[D]")
    assert og.from_arrays(EDGES, num_nodes=3, edge_time=days).topology.times_are_dates
    assert not og.from_arrays(EDGES, num_nodes=3, edge_time=[1, 2, 3, 4]).topology.times_are_dates
    with pytest.raises(InputError, match="edge_time cannot be compared with node_time"):
        og.from_arrays(EDGES, num_nodes=3, edge_time=days, node_time=[1, 2, 3])


@pytest.mark.parametrize("most", [1, 3, 1000])
def test_in_edges_are_sorted_by_time_in_pieces(most: int) -> None:
    random = np.random.default_rng(most)
    index, times = random.integers(0, 9, (2, 40)), random.integers(0, 6, 40)
    graph = assemble_graph(ArraySource(index, NodeTableSource(num_nodes=12), edge_time=times)).topology
    assert graph.edge_time is not None
    arrays = (graph.indptr.numpy(), graph.indices.numpy()), graph.edge_time.numpy(), None
    whole, pieces = order_by_time(*arrays, leave_out_loops=False), [*iterate_time_order(*arrays, most)]
    assert (len(pieces) > 1) == (most < 40)
    assert np.concatenate([each.edges for each in pieces]).tolist() == whole.edges.tolist()
    assert np.concatenate([each.times for each in pieces]).tolist() == whole.times.tolist()


def test_the_order_of_times_in_a_store(tmp_path: Path) -> None:
    """A graph in memory is written with it; one that was changed does not keep it, nor one of another order passes."""
    graph = og.from_arrays(EDGES, num_nodes=3, edge_time=[4, 3, 2, 1])
    write_store(graph, tmp_path / "store")
    stored = open_store(tmp_path / "store", verify=True)
    assert stored.topology.known_time_order is not None
    assert stored.topology.edge_time is not None
    later = replace(stored.topology, edge_time=stored.topology.edge_time.flip(0))
    assert later.known_time_order is None
    order = stored.topology.known_time_order
    stored.topology.adopt_time_order(order._replace(edges=order.edges[::-1].copy()))
    with pytest.raises(InputError, match="not in the order of their times"):
        write_store(stored, tmp_path / "other")
