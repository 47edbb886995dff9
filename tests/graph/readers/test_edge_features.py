"""Features of edges in the forms that readers take: objects, arrays, files and tables; and of appended edges."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import outgrow as og
from graph.readers.test_dgl import DGLGraph
from graph.readers.test_readers import ogb
from graph.readers.typed_folders import make_config, make_folder, write, write_config
from outgrow.app.graph_facts import describe_graph
from outgrow.core.errors import InputError
from outgrow.core.graph_schema import GraphSchema
from outgrow.graph.alignment import align_graph, describe_schema
from outgrow.graph.link_split import split_links
from outgrow.graph.store.verify import verify_graph

pytest.importorskip("pyarrow")
pytestmark = pytest.mark.filterwarnings("ignore:not read", "ignore:edges have weights of some types only")
EDGES = torch.tensor([[0, 1, 2, 0], [1, 2, 0, 2]])
ROWS = torch.tensor([[0.0, 5.0], [1.0, 6.0], [2.0, 7.0], [3.0, 8.0]])
IN_ORDER = [[2, 7], [0, 5], [3, 8], [1, 6]]


@pytest.fixture(name="pyg")
def find_pyg() -> Any:
    return pytest.importorskip("torch_geometric.data")


def test_edge_attr_of_rows_is_features_of_edges(pyg: Any) -> None:
    for rows, dtype in ((ROWS, torch.float32), (ROWS.half(), torch.float16), (ROWS.to(torch.bfloat16), torch.float32)):
        made = og.load(pyg.Data(edge_index=EDGES, edge_attr=rows, num_nodes=3))
        assert made.edge_attr.tolist() == IN_ORDER
        assert made.edge_attr.dtype == dtype
        assert made.topology.weight is None
    one = og.load(pyg.Data(edge_index=EDGES, edge_attr=ROWS[:, :1], edge_weight=ROWS[:, 1], num_nodes=3))
    assert one.edge_attr.tolist() == [[2], [0], [3], [1]]
    assert one.topology.weight.tolist() == [7, 5, 8, 6]
    with pytest.warns(UserWarning, match="which is read as its weight"):
        weighted = og.load(pyg.Data(edge_index=EDGES, edge_attr=ROWS[:, 1], num_nodes=3))
    assert weighted.topology.weight.tolist() == [7, 5, 8, 6]
    assert weighted.edge_attr is None
    both = og.load(pyg.Data(edge_index=EDGES, edge_attr=ROWS[:, 0], edge_weight=ROWS[:, 1], num_nodes=3))
    assert both.edge_attr.tolist() == [[2], [0], [3], [1]]


@pytest.mark.parametrize("name", ["adj_t", "edge_index"])
def test_features_beside_a_matrix_are_refused(pyg: Any, name: str) -> None:
    both = torch.cat([EDGES, EDGES.flip(0)], 1)
    matrix = torch.sparse_coo_tensor(both, torch.arange(8.0), (3, 3), check_invariants=True).coalesce()
    matrix = (matrix + matrix.t()).coalesce()
    data = pyg.Data(edge_attr=torch.zeros(len(matrix.values()), 2), num_nodes=3)
    data[name] = matrix
    with pytest.raises(InputError, match="edge_attr beside a sparse matrix"):
        og.load(data)


def hetero(pyg: Any, **features: torch.Tensor) -> Any:
    data = pyg.HeteroData()
    data["user"].num_nodes, data["item"].num_nodes = 2, 2
    for name, (src, dst) in {"buys": ("user", "item"), "of": ("item", "user"), "knows": ("user", "user")}.items():
        data[src, name, dst].edge_index = torch.tensor([[0, 1], [1, 0]])
        if name in features:
            data[src, name, dst].edge_attr = features[name]
    return data


def test_edge_types_share_the_columns_of_features(pyg: Any) -> None:
    rows = torch.arange(4.0).view(2, 2)
    every = og.load(hetero(pyg, buys=rows, of=(rows + 10).half(), knows=rows + 20))
    by_relation = dict(zip(every.topology.relation.tolist(), every.edge_attr.tolist(), strict=False))
    assert every.edge_attr.dtype == torch.float32
    assert sorted(every.edge_attr[:, 0].tolist()) == [0, 2, 10, 12, 20, 22]
    assert by_relation[every.relation_names.index("item__of__user")][0] in (10, 12)
    with pytest.warns(UserWarning, match="those of item__of__user, user__knows__user get zeros"):
        some = og.load(hetero(pyg, buys=rows + 1))
    assert sorted(some.edge_attr[:, 0].tolist()) == [0, 0, 0, 0, 1, 3]
    for wrong, what in (
        ({"buys": rows, "of": rows[:, :1]}, "edge_attr of several edge types cannot be used"),
        ({"buys": rows, "of": rows.long()}, "edge_attr of several edge types cannot be used"),
        ({"buys": rows.long()}, "features of edges item__of__user, user__knows__user cannot be used"),
        ({"buys": rows[:1], "of": rows, "knows": rows}, "features of edges user buys item have the wrong form"),
        ({"buys": rows[:, :0], "of": rows, "knows": rows}, "features of edges user buys item have the wrong form"),
    ):
        with pytest.raises(InputError, match=what):
            og.load(hetero(pyg, **wrong))


def test_graphs_of_dgl() -> None:
    for name in ("feat", "edge_attr"):
        data = {name: ROWS, "weight": ROWS[:, 1], "other": ROWS}
        made = og.load(DGLGraph({"_N": (3, {})}, {("_N", "_E", "_N"): (*EDGES, data)}))
        assert made.edge_features.tolist() == IN_ORDER
        assert made.topology.weight.tolist() == [7, 5, 8, 6]
    column = og.load(DGLGraph({"_N": (3, {})}, {("_N", "_E", "_N"): (*EDGES, {"feat": ROWS[:, 0]})}))
    assert column.edge_features.tolist() == [[2], [0], [3], [1]]


def test_graphs_of_networkx() -> None:
    nx = pytest.importorskip("networkx")
    given = nx.DiGraph()
    for (src, dst), row in zip(EDGES.t().tolist(), ROWS.tolist(), strict=True):
        given.add_edge(src, dst, edge_attr=row)
    assert og.load(given).edge_features.tolist() == IN_ORDER
    path = nx.Graph([(0, 1, {"edge_attr": 4.0}), (1, 2, {"edge_attr": 5.0}), (2, 2, {"edge_attr": 6.0})])
    assert og.load(path).edge_features.tolist() == [[4], [4], [5], [5], [6]]


def test_arrays_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "g.npz"
    for name in ("edge_features", "edge_attr"):
        np.savez(path, edge_index=EDGES.numpy(), num_nodes=3, **{name: ROWS.numpy()})
        assert og.load(path).edge_features.tolist() == IN_ORDER
        assert ("edge features", f"g.npz, key {name}") in og.load(path).origin.read
    codes = ROWS.numpy().astype(np.uint8)
    np.savez(path, edge_index=EDGES.numpy(), num_nodes=3, edge_features=codes, edge_feature_sizes=[4, 9])
    assert og.load(path).topology.feature_sizes == (4, 9)
    np.savez(path, edge_index=EDGES.numpy(), num_nodes=3, edge_features=codes, edge_feature_sizes=[[4, 9]])
    with pytest.raises(InputError, match="edge_feature_sizes cannot be read"):
        og.load(path)
    np.savez(path, edge_index=EDGES.numpy(), num_nodes=3, edge_features=codes[:3])
    with pytest.raises(InputError, match=r"shape \[4, De\]"):
        og.load(path)


def test_folders_of_ogb(tmp_path: Path) -> None:
    rows = "1,2\n3,4\n5,6\n7,8\n"
    made = og.load(ogb(tmp_path / "a", **{"raw/edge-feat.csv.gz": rows}))
    assert made.edge_features.tolist() == [[5, 6], [1, 2], [7, 8], [3, 4]]
    assert ("edge features", "raw/edge-feat.csv.gz") in made.origin.read
    with pytest.raises(InputError, match="does not fit the edges"):
        og.load(ogb(tmp_path / "b", **{"raw/edge-feat.csv.gz": rows[:-4]}))
    large = ogb(tmp_path / "c")
    for path in (large / "raw").glob("*.csv.gz"):
        path.unlink()
    np.savez(large / "raw" / "data.npz", edge_index=EDGES.numpy(), num_nodes_list=np.array([3]), edge_feat=ROWS.numpy())
    (large / "raw" / "node-label.csv.gz").write_bytes(gzip.compress(b"1\nnan\n0\n"))
    assert og.load(large).edge_features.tolist() == IN_ORDER


def test_tables_of_edge_types(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "typed")
    write(folder / "edges/author__writes__paper.csv", "author_id,paper_id,weight,kind\na1,p1,2,x\na2,p3,3,y\n")
    write(folder / "edges/paper__cites__paper.csv", "src,dst,weight,kind\np3,p1,5,y\n")
    made = og.load(folder, edge_features=["weight", "kind"])
    relations = dict(zip(made.topology.relation.tolist(), made.edge_features.tolist(), strict=False))
    # The same text is the same category in all tables.
    assert relations[made.relation_names.index("paper__cites__paper")] == [5, 0, 1]
    with pytest.raises(InputError, match="no table of edges has the column wight"):
        og.load(folder, edge_features="wight")
    write(folder / "edges/paper__cites__paper.csv", "src,dst,kind\np3,p1,y\n")
    with pytest.raises(InputError, match="weight"):
        og.load(folder, edge_features="weight,kind")
    write(folder / "edges/paper__cites__paper.csv", "src,dst\np3,p1\n")
    with pytest.warns(UserWarning, match="those of paper__cites__paper get zeros"):
        some = og.load(folder, edge_features="weight")
    assert sorted(some.edge_features.tolist()) == [[0], [2], [3]]
    with pytest.raises(InputError, match="features of edges paper__cites__paper cannot be used"):
        og.load(folder, edge_features="kind")


def test_features_of_edges_in_a_construction_config(tmp_path: Path) -> None:
    config = make_config()
    config["edges"] = config["edges"][:1]
    config["edges"][0]["features"] = [
        {"feature_col": "amount"},
        {"feature_col": "kind", "transform": {"name": "to_categorical"}},
    ]
    write_config(tmp_path, make_config())
    write(tmp_path / "edges/author__writes__paper.csv", "author_id,paper_id,amount,kind\na1,p1,2,7\na2,p3,3,8\n")
    write(tmp_path / "graph.json", json.dumps(config))
    made = og.load(tmp_path)
    assert made.edge_features.tolist() == [[2, 1, 0], [3, 0, 1]]


def test_edges_of_nodes_that_are_dropped_lose_their_features(tmp_path: Path) -> None:
    write(tmp_path / "nodes.csv", "id\na\nb\n")
    write(tmp_path / "edges.csv", "src,dst,w\na,b,1\na,zed,2\nb,a,3\n")
    with pytest.warns(UserWarning, match="dropped"):
        made = og.load(tmp_path, edge_features="w", unknown_nodes="drop")
    assert made.edge_features.tolist() == [[3], [1]]
    made = og.load(tmp_path, edge_features="w", unknown_nodes="add")
    assert made.edge_features.tolist() == [[3], [1], [2]]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_appended_edges_bring_their_features(tmp_path: Path, dtype: type) -> None:
    og.save_graph(og.from_arrays(EDGES, edge_features=ROWS.numpy().astype(dtype)), tmp_path / "store")
    table = write(tmp_path / "edges.csv", "src,dst,a,b,kind\n1,0,9,9.5,x\n")
    grown = og.append(tmp_path / "store", edges=table, edge_features="a,b", out=tmp_path / "new")
    assert grown.edge_features.tolist() == [[9, 9.5], *IN_ORDER]
    assert grown.edge_features.numpy().dtype == dtype
    for features, what in (
        ("", "edges have features in the graph"),
        ("a", "2 columns"),
        ("a,b:category", "categories"),
    ):
        with pytest.raises(InputError, match=what):
            og.append(tmp_path / "store", edges=table, edge_features=features or (), out=tmp_path / "other")
    undirected = og.append(tmp_path / "store", edges=table, edge_features="a,b", out=tmp_path / "both", undirected=True)
    assert undirected.edge_features.tolist() == [[9, 9.5], [2, 7], [0, 5], [1, 6], [3, 8], [1, 6]]


@pytest.mark.parametrize("features", ["kind", "amount,kind", "code:category,kind"])
def test_appended_categories_are_found_by_their_names(tmp_path: Path, features: str) -> None:
    rows = ["0,1,3,card,2", "1,0,4,cash,1", "1,1,5,card,0"]
    later = ["0,0,6,cash,1", "1,0,7,card,2"]
    head = "src,dst,amount,kind,code\n"
    whole = og.load(write(tmp_path / "e.csv", head + "\n".join([*rows, *later]) + "\n"), edge_features=features)
    og.convert(write(tmp_path / "e.csv", head + "\n".join(rows) + "\n"), tmp_path / "s", edge_features=features)
    # Columns in another order, and categories that occur in another one.
    turned = "kind,amount,dst,src,code\n"
    turned += "".join(f"{kind},{amount},{dst},{src},{code}\n" for src, dst, amount, kind, code in map(_cells, later))
    names = ",".join(reversed(features.split(",")))
    more = write(tmp_path / "more.csv", turned)
    grown = og.append(tmp_path / "s", edges=more, edge_features=names, undirected=False)
    assert grown.edge_features.tolist() == whole.edge_features.tolist()
    assert grown.topology.feature_sizes == whole.topology.feature_sizes
    assert grown.topology.feature_columns == whole.topology.feature_columns
    with pytest.raises(InputError, match="has categories that are not known") as refused:
        og.append(
            tmp_path / "s",
            edges=write(tmp_path / "more.csv", head + "0,1,8,cheque,1\n"),
            edge_features=features,
            undirected=False,
        )
    assert "'cheque'" in refused.value.got


def _cells(row: str) -> list[str]:
    return row.split(",")


def test_other_codes_of_categories_are_matched_by_their_names(tmp_path: Path) -> None:
    head = "src,dst,amount,kind,way\n"
    first = head + "0,1,3,card,in\n1,0,4,cash,out\n1,1,5,card,out\n"
    second = "way,kind,amount,src,dst\nout,cash,4,1,0\nout,card,5,1,1\nin,card,3,0,1\n"
    for features, other in (("kind,way", "way,kind"), ("amount,way,kind", "kind,way,amount")):
        one = og.load(write(tmp_path / "a.csv", first), edge_features=features)
        two = og.load(write(tmp_path / "b.csv", second), edge_features=other)
        assert one.edge_features.tolist() != two.edge_features.tolist()
        with pytest.warns(UserWarning, match="were matched by name"):
            aligned = align_graph(two, describe_schema(one), reads_relations=False)
        assert aligned.edge_features.tolist() == one.edge_features.tolist()
        assert aligned.topology.feature_sizes == one.topology.feature_sizes
        assert align_graph(one, describe_schema(one), reads_relations=False) is one
        again = GraphSchema.from_record(json.loads(json.dumps(describe_schema(one).as_record())))
        assert again == describe_schema(one)
    fewer = og.load(write(tmp_path / "c.csv", head + "0,1,3,cash,in\n"), edge_features="kind,way")
    wanted = describe_schema(og.load(write(tmp_path / "a.csv", first), edge_features="kind,way"))
    with pytest.warns(UserWarning, match="were matched by name"):
        assert align_graph(fewer, wanted, reads_relations=False).edge_features.tolist() == [[1, 0]]
    for text, features, what in (
        ("0,1,3,cheque,in\n", "kind,way", "categories that are not known"),
        ("0,1,3,card,in\n", "kind", "are not those of the graph"),
        ("0,1,3,card,in\n", "kind,amount", "are not those of the graph"),
        ("0,1,3,1,2\n", "kind,way", "are not those of the graph"),
    ):
        wrong = og.load(write(tmp_path / "d.csv", head + text), edge_features=features)
        with pytest.raises(InputError, match=what):
            align_graph(wrong, wanted, reads_relations=False)


def test_codes_without_names_cannot_be_appended_to(tmp_path: Path) -> None:
    og.save_graph(og.from_arrays(EDGES, edge_features=ROWS.int(), edge_feature_sizes=(4, 9)), tmp_path / "store")
    table = write(tmp_path / "edges.csv", "src,dst,a,b\n1,0,1,2\n")
    for options, what in (({}, "edges have features"), ({"edge_features": "a,b"}, "cannot be categories")):
        with pytest.raises(InputError, match=what):
            og.append(tmp_path / "store", edges=table, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_info_tells_what_edges_have(dtype: torch.dtype) -> None:
    facts = describe_graph(og.from_arrays(EDGES, edge_features=ROWS.to(dtype)))
    assert (facts["edge_features"], facts["edge_features_are"]) == (2, f"{str(dtype)[6:]} numbers")
    assert facts["edge_feature_range"] == [0, 8]
    assert facts["edge_feature_quantiles"]["0"] == [0, 5]
    assert facts["edge_feature_quantiles"]["100"] == [3, 8]
    coded = describe_graph(og.from_arrays(EDGES, edge_features=ROWS[:, :1].int(), edge_feature_sizes=(5,)))
    assert coded["edge_categories"] == [5]
    assert coded["edge_category_counts"] == {"0": [1, 1, 1, 1, 0]}
    assert describe_graph(og.from_arrays(EDGES))["edge_features_are"] == "none"
    many = og.from_arrays(np.arange(40_000).reshape(2, -1) % 90, edge_features=np.ones((20_000, 1)))
    assert describe_graph(many)["sampled_edge_features"] == ["edge_feature_quantiles"]
    assert describe_graph(many)["constant_edge_feature_columns"] == [0]


def parallel_graph(order: list[int]) -> og.Graph:
    """A graph of parallel edges, each with features that tell its ends and the name of its relation."""
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, 4, (2, 80))
    relation = rng.integers(0, 3, 80)
    named = np.stack([src, dst, relation], 1).astype(np.float32)
    made = og.from_arrays([src, dst], relation=np.array(order)[relation], edge_features=named)
    return og.Graph(name="g", topology=made.topology, relation_names=tuple("abc"[order.index(at)] for at in range(3)))


def tell_their_edges(graph: og.Graph) -> bool:
    src, dst = graph.edge_index
    names = torch.tensor([[ord(name) - ord("a") for name in graph.relation_names][r] for r in graph.topology.relation])
    return torch.equal(graph.edge_features, torch.stack([src, dst, names], 1).float())


def test_other_numbers_of_relations_move_features_with_their_edges() -> None:
    one, other = parallel_graph([0, 1, 2]), parallel_graph([2, 0, 1])
    assert tell_their_edges(one)
    with pytest.warns(UserWarning, match="matched by name"):
        aligned = align_graph(other, describe_schema(one), reads_relations=True)
    verify_graph(aligned)
    assert tell_their_edges(aligned)
    assert torch.equal(aligned.edge_features, one.edge_features)


def test_links_that_are_held_out_take_their_features_with_them() -> None:
    given = parallel_graph([0, 1, 2])
    split = split_links(given.topology, val=0.2, test=0.2, seed=1)
    assert 0 < split.topology.num_edges < given.num_edges
    assert tell_their_edges(og.Graph(name="g", topology=split.topology, relation_names=given.relation_names))
