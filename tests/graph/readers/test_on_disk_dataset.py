"""Folders of GraphBolt's OnDiskDataset; GraphBolt 2.1 has read the one without types, too."""

from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import outgrow as og
from outgrow.core.errors import InputError

pytest.importorskip("pyarrow")
pytestmark = pytest.mark.filterwarnings("ignore:not read", "ignore:edges have weights of some types only")


def write_arrays(folder: Path, **arrays) -> None:
    for name, values in arrays.items():
        array = np.asarray(values)
        np.save(folder / f"{name}.npy", array)
        torch.save(torch.from_numpy(array), folder / f"{name}.pt")


def array(file, form="numpy", **more):
    return {"format": form, "path": f"{file}.{'npy' if form == 'numpy' else 'pt'}", **more}


def make_plain(folder: Path, form="numpy") -> dict:
    """Four nodes, three edges, labels of three nodes."""
    (folder / "edges.csv").write_text("0,1\n1,2\n2,3\n")
    write_arrays(
        folder,
        feat=np.arange(8, dtype=np.float32).reshape(4, 2),
        train=np.array([2, 0]),
        train_labels=np.array([1, 0]),
        val=np.array([3]),
        val_labels=np.array([2]),
    )
    return {
        "dataset_name": "small",
        "graph": {"nodes": [{"num": 4}], "edges": [{"format": "csv", "path": "edges.csv"}]},
        "feature_data": [{"domain": "node", "name": "feat", **array("feat", form)}],
        "tasks": [
            {
                "name": "classes",
                "num_classes": 3,
                "train_set": [
                    {"data": [array("train", form, name="seeds"), array("train_labels", form, name="labels")]}
                ],
                "validation_set": [
                    {"data": [array("val", form, name="seeds"), array("val_labels", form, name="labels")]}
                ],
            }
        ],
    }


def make_typed(folder: Path) -> dict:
    """Two types of nodes, two of edges; features of one, weights of one."""
    write_arrays(
        folder,
        words=np.eye(3, dtype=np.float32),
        years=np.array([[1.0], [2.0], [3.0]], dtype=np.float32),
        weight=np.array([0.5, 2.0], dtype=np.float32),
        writes=np.array([[0, 1], [2, 0]]),
        seeds=np.array([1, 2]),
        labels=np.array([1, 0]),
    )
    (folder / "cites.csv").write_text("2,1\n")
    return {
        "graph": {
            "nodes": [{"type": "author", "num": 2}, {"type": "paper", "num": 3}],
            "edges": [
                {"type": "author:writes:paper", **array("writes")},
                {"type": "paper:cites:paper", "format": "csv", "path": "cites.csv"},
            ],
        },
        "feature_data": [
            {"domain": "node", "type": "paper", "name": "feat", **array("words")},
            {"domain": "node", "type": "paper", "name": "year", **array("years")},
            {"domain": "edge", "type": "author:writes:paper", "name": "weight", **array("weight")},
        ],
        "tasks": [
            {"train_set": [{"type": "paper", "data": [array("seeds", name="seeds"), array("labels", name="labels")]}]}
        ],
    }


def write(folder: Path, metadata) -> Path:
    (folder / "metadata.yaml").write_text(yaml.safe_dump(metadata))
    return folder


@pytest.mark.parametrize("form", ["numpy", "torch"])
def test_a_folder_without_types(tmp_path, form):
    graph = og.load(write(tmp_path, make_plain(tmp_path, form)))
    assert (graph.name, graph.edge_index.tolist(), graph.node_types) == ("small", [[0, 1, 2], [1, 2, 3]], ())
    assert graph.features.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert graph.labels.tolist() == [0, -1, 1, 2]
    assert [part.tolist() for part in (graph.split.train, graph.split.val, graph.split.test)] == [[0, 2], [3], []]
    og.convert(tmp_path, tmp_path / "store")
    assert og.load(tmp_path / "store").labels.tolist() == [0, -1, 1, 2]


def test_a_folder_of_types(tmp_path):
    graph = og.load(write(tmp_path, make_typed(tmp_path)))
    assert [(kind.name, kind.first, kind.last) for kind in graph.node_types] == [("author", 0, 2), ("paper", 2, 5)]
    assert graph.relation_names == ("author__writes__paper", "paper__cites__paper")
    assert graph.edge_index.T.tolist() == [[1, 2], [4, 3], [0, 4]]
    assert graph.topology.weight.tolist() == [2.0, 1.0, 0.5]
    assert graph.labels.tolist() == [-1, -1, -1, 1, 0]
    assert graph.origin.unread == ("paper.year",)


def change(*place, to):
    def apply(metadata):
        *way, last = place
        for step in way:
            metadata = metadata[step]
        metadata[last] = to

    return apply


BAD = {
    "no graph": (change("graph", to=None), "graph of"),
    "no count": (change("graph", "nodes", 0, "num", to="four"), r"graph.nodes\[0\].num"),
    "missing file": (change("graph", "edges", 0, "path", to="gone.csv"), "gone.csv cannot be read"),
    "no path": (change("graph", "edges", 0, "path", to=3), r"graph.edges\[0\].path"),
    "edge type": (change("graph", "edges", 0, "type", to="a:b"), r"graph.edges\[0\].type"),
    "format": (change("feature_data", 0, "format", to="hdf5"), "numpy or torch"),
    "another array": (change("feature_data", 0, "path", to="edges.csv"), "edges.csv cannot be read"),
    "type": (change("feature_data", 0, "type", to="user"), r"feature_data\[0\].type"),
    "links": (change("tasks", 0, "train_set", 0, "data", 0, "path", to="feat.npy"), r"tasks\[0\].train_set\[0\]"),
    "labels": (change("tasks", 0, "train_set", 0, "data", 1, "path", to="val_labels.npy"), "a label for each"),
    "seeds": (change("graph", "nodes", 0, "num", to=2), "nodes from 0 to 1"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_folders(tmp_path, name):
    metadata = make_plain(tmp_path)
    apply, words = BAD[name]
    apply(metadata)
    with pytest.raises(InputError, match=words):
        og.load(write(tmp_path, metadata))


@pytest.mark.parametrize("text", ["[", "[]", "a", ""])
def test_files_that_describe_nothing(tmp_path, text):
    (tmp_path / "metadata.yaml").write_text(text)
    with pytest.raises(InputError):
        og.load(tmp_path)
