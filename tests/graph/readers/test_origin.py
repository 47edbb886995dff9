"""What readers say that they read, and where from."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import outgrow as og

EDGES = np.array([[0, 1, 2], [1, 2, 0]])


def test_arrays_are_named_by_their_arguments() -> None:
    graph = og.from_arrays(EDGES, features=np.eye(3), split={"train": [0], "val": [1]}, weight=np.ones(3))
    assert dict(graph.origin.read) == {
        "edges": "argument edge_index",
        "weights": "argument weight",
        "features": "argument features",
        "train": "argument split['train']",
        "val": "argument split['val']",
    }


def test_keys_of_npz_files_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "g.npz", edge_index=EDGES, features=np.eye(3), label=[0, 1, 1], train_idx=[0], other=[1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", og.DataWarning)
        graph = og.load(tmp_path / "g.npz")
        og.convert(tmp_path / "g.npz", tmp_path / "g.store")
    assert list(graph.origin.read) == [
        ("edges", "g.npz, key edge_index"),
        ("features", "g.npz, key features"),
        ("labels", "g.npz, key label"),
        ("train", "g.npz, key train_idx"),
    ]
    assert graph.origin.unread == ("other",)
    assert og.load(tmp_path / "g.store").origin == graph.origin


def test_attributes_of_networkx_are_named() -> None:
    nx = pytest.importorskip("networkx")
    graph = nx.DiGraph([(0, 1, {"weight": 2.0, "when": 5})])
    nx.set_node_attributes(graph, {0: [1.0], 1: [2.0]}, "x")
    with pytest.warns(og.DataWarning, match="not read"):
        origin = og.load(graph).origin
    assert dict(origin.read)["features"] == "nodes, attribute x"
    assert dict(origin.read)["weights"] == "edges, attribute weight"
    assert "edges.when" in origin.unread


def test_types_of_pyg_are_named() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = pytest.importorskip("torch_geometric.data")
    plain = og.load(data.Data(x=torch.eye(3), edge_index=torch.tensor(EDGES), y=torch.tensor([0, 1, 1])))
    assert dict(plain.origin.read) == {"edges": "edges", "features": "the object", "labels": "the object"}
    typed = data.HeteroData()
    typed["paper"].x, typed["paper"].y = torch.eye(3), torch.tensor([0, 1, 1])
    typed["author"].x = torch.ones(2, 3)
    typed["author", "writes", "paper"].edge_index = torch.tensor([[0, 1], [2, 1]])
    read = dict(og.load(typed).origin.read)
    assert read == {"edges": "author__writes__paper", "features": "paper, author", "labels": "paper"}


def test_data_sets_say_what_they_are_made_of() -> None:
    assert ("labels", "wordnet.npz, key label") in og.load("wordnet").origin.read
