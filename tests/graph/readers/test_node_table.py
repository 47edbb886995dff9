"""Node tables of random types and separators become the same graph in memory and as a store, with ids."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import outgrow as og
from outgrow.core.errors import InputError
from outgrow.core.user_warnings import DataWarning
from outgrow.graph.builders.to_store import convert_to_store
from outgrow.graph.readers.detect import detect_reader
from outgrow.graph.readers.tables.node_features import HASH_COLUMNS
from outgrow.graph.readers.tables.node_table import read_node_table
from outgrow.graph.readers.tables.options import TableOptions

WORDS = st.text("abcxyzÄß0123456789-_ ", min_size=1, max_size=8).map(str.strip).filter(bool)
DTYPES = ("int8", "int16", "int32", "int64", "uint8", "uint32", "float16", "float32", "float64", "bool")
IDS = st.one_of(
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=2, max_size=12, unique=True),
    st.lists(WORDS, min_size=2, max_size=12, unique=True),
)


def write(folder: Path, columns: dict[str, Any], ending: str) -> Path:
    """A folder with a node table of these columns, and edges from each node to the next."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    ids = columns["id"]
    separator = "\t" if ending == "tsv" else ","
    table = pa.table(columns)
    if ending == "parquet":
        parquet.write_table(table, folder / "nodes.parquet", row_group_size=5)
    else:
        csv.write_csv(table, folder / f"nodes.{ending}", csv.WriteOptions(delimiter=separator))
    edges = pa.table({"src": ids[:-1], "dst": ids[1:]})
    parquet.write_table(edges, folder / "edges.parquet")
    return folder


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(IDS, st.sampled_from(["csv", "tsv", "parquet"]), st.lists(st.sampled_from(DTYPES), max_size=4), st.data())
def test_round_trip(ids: list[Any], ending: str, dtypes: list[str], data: st.DataObject) -> None:
    count = len(ids)
    labels = data.draw(st.lists(st.sampled_from(["one", "two", "", "Ü"]), min_size=count, max_size=count))
    random = np.random.default_rng(count)
    columns: dict[str, Any] = {"id": ids, "label": labels}
    features = []
    for at, dtype in enumerate(dtypes):
        values = random.integers(0, 2 if dtype == "bool" else 100, count).astype(dtype)
        # Texts of float16 are not written by pyarrow.
        columns[f"x{at}"] = values.astype("float32") if dtype == "float16" and ending != "parquet" else values
        features.append(values.astype(np.float32))
    with tempfile.TemporaryDirectory() as name:
        folder = write(Path(name), columns, ending)
        graph = og.load(folder)
        stored = convert_to_store(detect_reader(folder), folder / "made.store")
        for each in (graph, stored):
            assert [str(value) for value in each.ids or ()] == [str(value) for value in ids]
            assert each.index_of(ids[::-1]).tolist() == list(range(count))[::-1]
            names = sorted({*labels} - {""})
            assert each.class_names == tuple(names)
            assert each.labels is not None
            assert each.labels.tolist() == [names.index(label) if label else -1 for label in labels]
            assert each.edge_index.tolist() == [list(range(count - 1)), list(range(1, count))]
            if features:
                assert np.array_equal(np.asarray(each.features), np.stack(features, 1))
            else:
                assert each.features is None


def make_nodes(folder: Path, text: str, name: str = "nodes.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_many_categories_are_sparse(tmp_path: Path) -> None:
    rows = "".join(f"n{at},w{at % 700:03},{at}\n" for at in range(1400))
    path = make_nodes(tmp_path, f"id,word,x\n{rows}")
    options = TableOptions(categorical="onehot", features=("word", "x"))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    found = [read_node_table(path, options, scratch=each).features for each in (None, scratch)]
    for made in found:
        assert made is not None
        assert made.shape == (1400, 701)
        rows_dense = made.toarray()  # type: ignore[union-attr]
        assert (rows_dense[np.arange(1400), np.arange(1400) % 700] == 1).all()
        assert (rows_dense[:, 700] == np.arange(1400)).all()
        assert made.nnz == 2 * 1400 - 1  # type: ignore[union-attr]
    with pytest.raises(InputError, match="too many categories"):
        read_node_table(
            make_nodes(tmp_path, "id,w\n" + "".join(f"{a},{a}w\n" for a in range(66000)), "m.csv"), options_of()
        )


def options_of() -> TableOptions:
    return TableOptions(categorical="onehot")


def test_a_hash_depends_on_text_and_column_alone(tmp_path: Path) -> None:
    options = TableOptions(categorical="hash")
    one = read_node_table(make_nodes(tmp_path, "id,a,b\n1,p,q\n2,q,p\n3,,q\n"), options).features
    other = read_node_table(make_nodes(tmp_path, "id,a,b\n3,,q\n9,z,z\n1,p,q\n", "other.csv"), options).features
    assert one is not None
    assert other is not None
    assert one.shape[1] == other.shape[1] == HASH_COLUMNS
    assert (one[0] == other[2]).all()
    assert (one[2] == other[0]).all()
    assert np.abs(one).sum(1).tolist() == [2, 2, 1]
    assert (one[0] != one[1]).any()


def test_what_edges_add_and_drop(tmp_path: Path) -> None:
    folder = tmp_path / "given"
    folder.mkdir()
    make_nodes(folder, "id,label,x\na,0,1\nb,1,2\n")
    make_nodes(folder, "src,dst\na,b\nb,c\nd,a\n", "edges.csv")
    added = og.load(folder, unknown_nodes="add")
    assert list(added.ids or ()) == ["a", "b", "c", "d"]
    assert added.labels is not None
    assert added.labels.tolist() == [0, 1, -1, -1]
    assert np.asarray(added.features).tolist() == [[1], [2], [0], [0]]
    stored = convert_to_store(detect_reader(folder, TableOptions(unknown_nodes="add")), tmp_path / "store")
    assert list(stored.ids or ()) == ["a", "b", "c", "d"]
    with pytest.warns(DataWarning, match="dropped of edges.csv: 2 edges"):
        dropped = og.load(folder, unknown_nodes="drop")
    assert (dropped.num_nodes, dropped.num_edges) == (2, 1)
    with pytest.raises(InputError, match="'c'"):
        og.load(folder)


def test_a_split_does_not_depend_on_the_order_of_rows(tmp_path: Path) -> None:
    rows = [f"n{at},{at % 3}\n" for at in range(60)]
    options = TableOptions(split="0.5,0.25,0.25")
    drawn = []
    for name, order in (("one.csv", rows), ("two.csv", rows[::-1])):
        table = read_node_table(make_nodes(tmp_path, "id,y\n" + "".join(order), name), options)
        assert table.encoder is not None
        ids = [*table.encoder.finish()]
        drawn.append([{ids[node] for node in part} for part in table.split if part is not None])
    assert drawn[0] == drawn[1]
    assert [len(part) for part in drawn[0]] == [30, 15, 15]


def test_unknown_labels_are_told(tmp_path: Path) -> None:
    path = make_nodes(tmp_path, "id,label\na,yes\nb,Unknown\nc,no\n")
    with pytest.warns(DataWarning, match="'Unknown' of 1 nodes"):
        table = read_node_table(path, TableOptions())
    assert table.class_names == ("no", "yes")
    assert table.labels is not None
    assert table.labels.tolist() == [1, -1, 0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("id,x,x\na,1,2\n", "two columns of one name"),
        ("id,x\n1.5,2\n2.5,3\n", "used as id"),
        ("id,x\na,inf\n", "a finite number"),
        ("id,x\na,1e39\n", "float32 holds"),
        ("id,label,other,x\na,b,1,1\n", None),
        ("id,type,x\na,,1\nb,u,2\n", "has no type"),
    ],
)
def test_tables_that_cannot_be_used(tmp_path: Path, text: str, words: str | None) -> None:
    path = make_nodes(tmp_path, text)
    if words is None:
        with pytest.raises(InputError, match="for another purpose"):
            read_node_table(path, TableOptions(label=("label",), features=("label",)))
        return
    with pytest.raises(InputError, match=words):
        read_node_table(path, TableOptions())


def test_large_tables_lie_in_scratch_files(tmp_path: Path) -> None:
    path = make_nodes(tmp_path, "id,x\n" + "".join(f"{at},{at}\n" for at in range(100)))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    table = read_node_table(path, TableOptions(), scratch=scratch, memory_bytes=1 << 20)
    assert isinstance(table.features, np.memmap)
    assert np.array_equal(np.asarray(table.features)[:, 0], np.arange(100, dtype=np.float32))
