"""What a file or an object holds and is not read is named in one warning."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outgrow as og
from outgrow.core.user_warnings import DataWarning
from outgrow.graph.builders.to_store import convert_to_store
from outgrow.graph.readers.detect import detect_reader
from outgrow.graph.readers.tables.options import TableOptions

BUNDLE = {"edge_index": np.array([[0, 1], [1, 0]]), "label": np.array([0, 1])}


def said_of(source: Any) -> list[str]:
    """Warnings on data that loading causes."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", DataWarning)
        og.load(source)
    assert all(warning.filename == __file__ for warning in said)  # not a line of the package
    return [str(warning.message) for warning in said]


def test_keys_of_npz(tmp_path: Path) -> None:
    path = tmp_path / "bundle.npz"
    np.savez(path, node_attr=np.ones((2, 3)), edge_attr=np.ones(2), **BUNDLE)
    assert said_of(path) == ["not read: node_attr, of bundle"]
    np.savez(path, num_nodes=2, **BUNDLE)
    assert said_of(path) == []


def test_dense_features_beside_sparse_ones(tmp_path: Path) -> None:
    sparse = {"feat_data": np.ones(1), "feat_indices": [0], "feat_indptr": [0, 1, 1], "feat_shape": [2, 3]}
    np.savez(tmp_path / "both.npz", features=np.ones((2, 2)), **sparse, **BUNDLE)
    assert said_of(tmp_path / "both.npz") == ["not read: features, of both"]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_columns_of_edges(tmp_path: Path, ending: str) -> None:
    columns = {"source": [0, 1], "target": [1, 0], "rating": [9, -4], "time": [5, 6]}
    path = tmp_path / f"rated.{ending}"
    if ending == "csv":
        rows = zip(*columns.values(), strict=True)
        path.write_text("\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]))
    else:
        import pyarrow as pa
        from pyarrow import parquet

        parquet.write_table(pa.table(columns), path)
    assert said_of(path) == ["not read: rating (--columns weight=rating reads it), time, of rated"]
    with pytest.warns(DataWarning, match="not read: rating .*, time, of rated"):
        convert_to_store(detect_reader(path, TableOptions(relabel=True)), tmp_path / "store")


def test_columns_without_names_are_numbered(tmp_path: Path) -> None:
    path = tmp_path / "rated.csv"
    path.write_text("0,1,9,5\n1,0,-4,6\n")
    columns = {"src": "0", "dst": "1", "weight": "2"}
    assert detect_reader(path, TableOptions(columns=columns)).list_unread() == ("column 3",)


def test_a_folder_names_both(tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text("src,dst,rating\n0,1,9\n1,0,-4\n")
    np.savez(tmp_path / "nodes.npz", label=[0, 1], node_attr=np.ones((2, 3)))
    assert said_of(tmp_path) == [f"not read: node_attr, rating (--columns weight=rating reads it), of {tmp_path.name}"]


def test_many_names_are_cut_short(tmp_path: Path) -> None:
    np.savez(tmp_path / "wide.npz", **{f"extra{at}": np.ones(1) for at in range(25)}, **BUNDLE)
    assert said_of(tmp_path / "wide.npz")[0].endswith("extra19 and 5 more, of wide")


def test_attributes_of_networkx() -> None:
    nx = pytest.importorskip("networkx")
    graph = nx.Graph(name="club", year=1977)
    graph.add_node(0, x=[1.0], club="a")
    graph.add_edge(0, 0, weight=2.0, kind="friend")
    assert said_of(graph) == ["not read: nodes.club, edges.kind, graph.year, of club"]
    del graph.nodes[0]["club"], graph.edges[0, 0]["kind"], graph.graph["year"]
    assert said_of(graph) == []


def test_attributes_of_pyg() -> None:
    data = pytest.importorskip("torch_geometric.data")
    import torch

    one = data.Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [1]]), weight=torch.ones(1), club=["a", "b"])
    assert said_of(one) == ["not read: club, weight, of pyg"]
    one = data.Data(edge_index=torch.tensor([[0], [1]]), edge_attr=torch.ones(1), num_nodes=2)
    assert [line.partition(",")[0] for line in said_of(one)] == ["edge_attr has one number for each edge"]
    one.edge_weight = torch.ones(1)
    assert said_of(one) == []
    typed = data.HeteroData(year=1977)
    typed["item"].x, typed["item"].price = torch.ones(2, 1), torch.ones(2)
    typed["item", "like", "item"].edge_index, typed["item", "like", "item"].stamp = one.edge_index, torch.ones(1)
    assert said_of(typed) == ["not read: item.price, item__like__item.stamp, year, of pyg"]
