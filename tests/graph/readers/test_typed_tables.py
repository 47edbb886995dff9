"""One table for each node type and edge type: in folders, described by a config, and in memory."""

import numpy as np
import pytest
import torch
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import outgrow as og
from graph.readers.typed_folders import dense, make_folder, named_edges, write
from outgrow.core.errors import InputError
from outgrow.core.user_warnings import DataWarning
from outgrow.graph.builders.in_memory import assemble_graph
from outgrow.graph.readers.heco import HecoSource

pa = pytest.importorskip("pyarrow")
pytestmark = pytest.mark.filterwarnings("ignore:edges have weights of some types only", "ignore:not read")


def test_a_folder_of_types(tmp_path):
    with pytest.warns(DataWarning, match="those of paper__cites__paper get weight 1"):
        graph = og.load(make_folder(tmp_path))
    assert [(kind.name, kind.first, kind.last, kind.num_columns) for kind in graph.node_types] == [
        ("author", 0, 2, 1),
        ("paper", 2, 5, 2),
    ]
    assert list(graph.ids) == ["a1", "a2", "p1", "p2", "p3"]
    assert graph.relation_names == ("author__writes__paper", "paper__cites__paper")
    assert named_edges(graph) == [
        ("a1", "author__writes__paper", "p1", 2.0),
        ("a1", "author__writes__paper", "p3", 1.0),
        ("a2", "author__writes__paper", "p3", 3.0),
        ("p2", "paper__cites__paper", "p1", 1.0),
        ("p3", "paper__cites__paper", "p1", 1.0),
    ]
    assert dense(graph).tolist() == [[10, 0, 0], [20, 0, 0], [0, 2001, 5], [0, 2003, 1], [0, 2002, 0]]
    assert graph.labels is None
    assert [part.tolist() for part in (graph.split.train, graph.split.val, graph.split.test)] == [[2], [3], [4]]
    assert ("ids of paper", "paper.csv, column id") in [
        (what, where.split("/")[-1]) for what, where in graph.origin.read
    ]
    assert [name.split(" ")[0] for name in graph.origin.unread] == ["paper.venue"]


def test_options_of_columns_apply_where_a_table_has_them(tmp_path):
    graph = og.load(make_folder(tmp_path), label="venue", features="h,year", split="0.67,0.33,0")
    assert graph.labels.tolist() == [-1, -1, 1, 0, 1]
    assert graph.class_names == ("db", "ml")
    assert (len(graph.split.train), len(graph.split.val)) == (2, 1)
    # The two types have as many features, so that they share the column.
    assert dense(graph).tolist() == [[10], [20], [2001], [2003], [2002]]
    with pytest.raises(InputError, match="no table of nodes has the column genre"):
        og.load(tmp_path, label="genre")
    with pytest.raises(InputError, match="does not take these options"):
        og.load(tmp_path, columns={"src": "author_id"})


def test_a_store_keeps_types_and_ids(tmp_path):
    graph = og.load(make_folder(tmp_path / "in"))
    og.convert(tmp_path / "in", tmp_path / "out.store")
    stored = og.load(tmp_path / "out.store")
    assert (stored.node_types, stored.relation_names, list(stored.ids)) == (
        graph.node_types,
        graph.relation_names,
        list(graph.ids),
    )
    assert named_edges(stored) == named_edges(graph)
    assert np.array_equal(dense(stored), dense(graph))
    assert stored.index_of(["p3"], node_type="paper").tolist() == [4]


def test_ids_are_those_of_their_types(tmp_path):
    write(tmp_path / "nodes/user.csv", "id,x\n7,1\n3,2\n")
    write(tmp_path / "nodes/item.csv", "id,x\n3,5\n9,6\n")
    write(tmp_path / "edges/user__buys__item.csv", "user,item\n3,3\n7,9\n")
    graph = og.load(tmp_path)
    assert list(graph.ids) == [3, 9, 7, 3]
    assert graph.edge_index.T.tolist() == [[3, 0], [2, 1]]
    assert graph.index_of([3], node_type="user").tolist() == [3]
    # Texts and integers: 3 is "3" then, and 03 another one.
    write(tmp_path / "nodes/item.csv", "id,x\n03,5\nn9,6\n")
    write(tmp_path / "edges/user__buys__item.csv", "user,item\n3,03\n7,n9\n")
    assert list(og.load(tmp_path).ids) == ["03", "n9", "7", "3"]


def test_tables_without_ids_are_numbered_by_rows(tmp_path):
    write(tmp_path / "nodes/user.csv", "x\n1\n2\n")
    write(tmp_path / "nodes/item.csv", "x\n5\n6\n")
    write(tmp_path / "edges/user__buys__item.csv", "user,item\n1,0\n0,1\n")
    graph = og.load(tmp_path)
    assert (graph.ids, graph.edge_index.T.tolist()) == (None, [[3, 0], [2, 1]])
    write(tmp_path / "edges/user__buys__item.csv", "user,item\n2,0\n0,1\n")
    with pytest.raises(InputError, match="lead to nodes that the node table does not name"):
        og.load(tmp_path)


def test_unknown_nodes_are_counted_dropped_or_added(tmp_path):
    make_folder(tmp_path)
    write(tmp_path / "edges/paper__cites__paper.csv", "src,dst\np3,p1\np9,p1\np2,p8\np7,p6\n")
    with pytest.raises(InputError, match=r"edges of \S*paper__cites__paper.csv lead to nodes") as refused:
        og.load(tmp_path)
    file = tmp_path / "edges/paper__cites__paper.csv"
    assert refused.value.got == (
        f"3 edges to other nodes, such as 'p9' ({file}, line 3), 'p8' ({file}, line 4), 'p7' ({file}, line 5)"
    )
    with pytest.warns(DataWarning, match="dropped of paper__cites__paper.csv: 3 edges"):
        assert og.load(tmp_path, unknown_nodes="drop").num_edges == 4
    added = og.load(tmp_path, unknown_nodes="add", label="venue")
    assert list(added.ids) == ["a1", "a2", "p1", "p2", "p3", "p9", "p8", "p7", "p6"]
    assert added.labels.tolist() == [-1, -1, 1, 0, 1, -1, -1, -1, -1]
    assert not dense(added)[5:].any()
    (tmp_path / "nodes/author.csv").unlink()
    with pytest.raises(InputError, match="edges author writes paper lead to a type of nodes without a table"):
        og.load(tmp_path)
    assert [kind.name for kind in og.load(tmp_path, unknown_nodes="add").node_types] == ["paper", "author"]


def test_bad_folders(tmp_path):
    make_folder(tmp_path)
    write(tmp_path / "nodes/author.csv", "author_id,h\na1,10\na1,20\n")
    with pytest.raises(InputError, match=r"author.csv, line 3: the id 'a1' occurs twice"):
        og.load(tmp_path)
    make_folder(tmp_path)
    write(tmp_path / "edges/likes.csv", "src,dst\n")
    with pytest.raises(InputError, match="does not tell the types of its nodes"):
        og.load(tmp_path)
    (tmp_path / "edges/likes.csv").unlink()
    write(tmp_path / "nodes/paper.tsv", "id\n")
    with pytest.raises(InputError, match="two tables of paper"):
        og.load(tmp_path)


IDS = st.lists(st.text("abcdé 0123456789-_", min_size=1, max_size=6).filter(lambda t: t == t.strip()), unique=True)


@st.composite
def typed_graphs(draw):
    """Ids of each type, texts or integers; edges between them by number."""
    types = draw(st.lists(st.sampled_from(["user", "item", "shop"]), min_size=1, max_size=3, unique=True))
    ids = {}
    for kind in types:
        numbers = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=6, unique=True)
        names = IDS.filter(lambda found: found and not all(each.lstrip("-").isdecimal() for each in found))
        ids[kind] = draw(st.one_of(numbers, names))
    relations = draw(
        st.lists(
            st.tuples(st.sampled_from(types), st.sampled_from(["r", "q"]), st.sampled_from(types)),
            min_size=1,
            max_size=4,
            unique=True,
        )
    )
    edges = {
        kind: draw(
            st.lists(
                st.tuples(st.integers(0, len(ids[kind[0]]) - 1), st.integers(0, len(ids[kind[2]]) - 1)),
                min_size=1,
                max_size=6,
            )
        )
        for kind in relations
    }
    return ids, edges


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(graph=typed_graphs(), parquet=st.booleans())
def test_tables_of_random_graphs(tmp_path_factory, graph, parquet):
    ids, edges = graph
    folder = tmp_path_factory.mktemp("typed")
    tables = {f"nodes/{kind}": pa.table({"id": names, "x": [*range(len(names))]}) for kind, names in ids.items()}
    for (src, name, dst), pairs in edges.items():
        ends = {"src": [ids[src][a] for a, _ in pairs], "dst": [ids[dst][b] for _, b in pairs]}
        tables[f"edges/{src}__{name}__{dst}"] = pa.table(ends)
    from pyarrow import csv
    from pyarrow import parquet as files

    for path, table in tables.items():
        (folder / path).parent.mkdir(exist_ok=True)
        if parquet:
            files.write_table(table, folder / f"{path}.parquet")
        else:
            csv.write_csv(table, folder / f"{path}.csv")
    for made in (
        og.load(folder),
        og.load(
            {
                "nodes": {path[6:]: table for path, table in tables.items() if path.startswith("nodes")},
                "edges": {path[6:]: table for path, table in tables.items() if path.startswith("edges")},
            }
        ),
    ):
        first = {kind.name: kind.first for kind in made.node_types}
        assert [str(each) for kind in first for each in ids[kind]] == [str(each) for each in made.ids]
        expected = sorted(
            (first[src] + a, first[dst] + b, "__".join((src, name, dst)))
            for (src, name, dst), pairs in edges.items()
            for a, b in pairs
        )
        found = zip(*made.edge_index.tolist(), made.topology.relation.tolist(), strict=True)
        assert sorted((src, dst, made.relation_names[r]) for src, dst, r in found) == expected
        assert made.features.view(-1).tolist() == [at for kind in first for at in range(len(ids[kind]))]


def test_heco_by_tables_is_heco(tmp_path, data_dir):
    folder = data_dir / "heco_acm"
    if not folder.is_dir():
        pytest.skip(f"no folder {folder}")
    given = assemble_graph(HecoSource(folder, "acm"))
    make_heco_tables(folder, given, tmp_path)
    made = og.load(tmp_path / "graph.yaml")
    assert [(kind.name, kind.first, kind.last) for kind in made.node_types] == [
        (kind.name, kind.first, kind.last) for kind in given.node_types
    ]
    assert torch.equal(made.edge_index, given.edge_index)
    assert torch.equal(made.topology.relation.long(), given.topology.relation.long())
    assert np.array_equal(dense(made), dense(given).astype(np.float32))
    assert torch.equal(made.labels, given.labels)
    assert all(torch.equal(getattr(made.split, part), getattr(given.split, part)) for part in ("train", "val", "test"))
    curves = []
    for graph in (given, made):
        torch.manual_seed(0)
        model = og.nn.RGCN(graph.num_features, 8, graph.num_classes, num_relations=2, sparse_input=True)
        curves.append(og.train(graph, model, epochs=4, progress=False).loss)
    assert curves[0] == pytest.approx(curves[1], rel=1e-5)


def make_heco_tables(folder, given, out):
    """Write papers, authors and subjects, with ids of their own, and the edges between them."""
    from pyarrow import parquet

    rows, config = dense(given), {"nodes": [], "edges": []}
    form = {"name": "parquet"}
    first_column = 0
    for kind in given.node_types:
        table = {"name": [f"{kind.name}-{at}" for at in range(kind.last - kind.first)]}
        node = {"node_type": kind.name, "format": form, "files": f"{kind.name}.parquet", "node_id_col": "name"}
        if kind.name != "subject":
            block = rows[kind.first : kind.last, first_column : first_column + kind.num_columns].astype(np.float32)
            table["words"] = pa.FixedSizeListArray.from_arrays(pa.array(block.reshape(-1)), kind.num_columns)
            node["features"] = [{"feature_col": "words"}]
        if kind.name == "paper":
            table["class"] = given.labels[: kind.last].tolist()
            files = {}
            for part, name in (("train", "train"), ("valid", "val"), ("test", "test")):
                nodes = getattr(given.split, name).tolist()
                write(out / f"{name}.json", "".join(f'"paper-{node}"\n' for node in nodes))
                files[part] = f"{name}.json"
            label = {"label_col": "class", "task_type": "classification", "custom_split_filenames": files}
            node["labels"] = [label]
        parquet.write_table(pa.table(table), out / f"{kind.name}.parquet")
        config["nodes"].append(node)
        first_column += kind.num_columns
    for file, name, other in (("pa.txt", "written by", "author"), ("ps.txt", "about", "subject")):
        pairs = np.loadtxt(folder / file, dtype=np.int64)
        ends = {"a": [f"paper-{at}" for at in pairs[:, 0]], "b": [f"{other}-{at}" for at in pairs[:, 1]]}
        parquet.write_table(pa.table(ends), out / f"{other}_edges.parquet")
        config["edges"].append(
            {
                "relation": ["paper", name, other],
                "format": form,
                "files": f"{other}_edges.parquet",
                "source_id_col": "a",
                "dest_id_col": "b",
            }
        )
    write(out / "graph.yaml", yaml.safe_dump(config, sort_keys=False))
