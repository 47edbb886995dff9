"""Graphs of DGL: files that it has written, and objects that look like its own."""

import contextlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import outgrow as og
from graph.readers.dgl_files import NAMES, bytes_of, write_dgl_file
from outgrow.core.errors import InputError
from outgrow.graph.builders.in_memory import assemble_graph
from outgrow.graph.readers.dgl_file import read_dgl_file

pytestmark = pytest.mark.filterwarnings(
    "ignore:not read", "ignore:edges have weights of some types only", "ignore:labels of"
)


class Frame(dict):
    """Data of the nodes or edges of a type."""

    @property
    def data(self):
        return self


class DGLGraph:
    """The part of DGL's class that is read."""

    __module__ = "dgl.heterograph"
    is_block = False

    def __init__(self, nodes, edges):
        self._counts = {name: count for name, (count, _) in nodes.items()}
        self.nodes = {name: Frame(data) for name, (_, data) in nodes.items()}
        self._ends = {relation: (src, dst) for relation, (src, dst, _) in edges.items()}
        self._data = {relation: Frame(data) for relation, (*_, data) in edges.items()}
        self.ntypes, self.canonical_etypes = list(nodes), list(edges)

    def num_nodes(self, name):
        return self._counts[name]

    @property
    def edges(self):
        ends, data = self._ends, self._data

        class Edges:
            def __call__(self, etype, order):
                assert order == "eid"
                return ends[etype]

            def __getitem__(self, relation):
                return data[relation]

        return Edges()


def plain():
    data = {
        "feat": torch.arange(10.0).reshape(5, 2),
        "label": torch.tensor([0, 1, 2, 0, 1]),
        "train_mask": torch.tensor([1, 1, 0, 0, 0]).bool(),
        "val_mask": torch.tensor([0, 0, 1, 0, 0]).byte(),
        "other": torch.ones(5),
    }
    ends = (torch.tensor([0, 1, 2, 2]), torch.tensor([1, 2, 0, 3]))
    return DGLGraph({"_N": (5, data)}, {("_N", "_E", "_N"): (*ends, {"weight": torch.tensor([0.5, 1, 2, 3])})})


def typed():
    none = torch.tensor([], dtype=torch.int64)
    papers = {
        "feat": torch.arange(8.0).reshape(4, 2).half(),
        "label": torch.tensor([0, 1, 1, 0]),
        "train_mask": torch.tensor([True, False, True, False]),
    }
    weight = {"weight": torch.tensor([1.0, 2.0, 3.0])}
    return DGLGraph(
        {"author": (3, {"feat": torch.ones(3, 3).half()}), "paper": (4, papers), "venue": (1, {})},
        {
            ("author", "writes", "paper"): (torch.tensor([1, 0, 0]), torch.tensor([0, 2, 1]), weight),
            ("paper", "cites", "paper"): (torch.tensor([2]), torch.tensor([0]), {}),
            ("paper", "in", "venue"): (none, none, {}),
        },
    )


def rows_of(graph):
    """All that a graph holds, as lists."""
    topology = graph.topology
    features = graph.features
    return {
        "edges": graph.edge_index.tolist(),
        "relation": None if topology.relation is None else topology.relation.tolist(),
        "weight": None if topology.weight is None else topology.weight.tolist(),
        "features": (features.to_dense() if graph.sparse else features).tolist(),
        "labels": graph.labels.tolist(),
        "split": [part.tolist() for part in (graph.split.train, graph.split.val, graph.split.test)],
        "types": graph.node_types,
        "names": graph.relation_names,
    }


@pytest.mark.parametrize("name", ["plain", "csc", "csr32"])
def test_a_file_is_the_graph_that_was_saved(tmp_path, name):
    graph = og.load(write_dgl_file(tmp_path, name))
    assert graph.name == name
    assert rows_of(graph) == {
        "edges": [[2, 0, 1, 2], [0, 1, 2, 3]],
        "relation": None,
        "weight": [2.0, 0.5, 1.0, 3.0],
        "features": [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]],
        "labels": [0, 1, 2, 0, 1],
        "split": [[0, 1], [2], []],
        "types": (),
        "names": (),
    }
    assert graph.origin.unread == ("ndata.other",)
    assert rows_of(og.load(plain())) == rows_of(graph)


def test_a_file_of_several_types(tmp_path):
    graph = og.load(write_dgl_file(tmp_path, "typed"))
    assert [(kind.name, kind.first, kind.last, kind.num_columns) for kind in graph.node_types] == [
        ("author", 0, 3, 3),
        ("paper", 3, 7, 2),
        ("venue", 7, 8, 0),
    ]
    assert graph.relation_names == ("author__writes__paper", "paper__cites__paper", "paper__in__venue")
    assert graph.edge_index.T.tolist() == [[1, 3], [5, 3], [0, 4], [0, 5]]
    assert graph.topology.weight.tolist() == [1, 1, 3, 2]
    assert graph.labels.tolist() == [-1, -1, -1, 0, 1, 1, 0, -1]
    assert graph.split.train.tolist() == [3, 5]
    assert rows_of(og.load(typed())) == rows_of(graph)


def test_relations_of_a_joined_graph(tmp_path):
    graph = og.load(write_dgl_file(tmp_path, "joined"))
    assert (graph.num_nodes, graph.topology.relation.tolist()) == (8, [0, 1, 0, 0])


def test_files_and_objects_that_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"two.bin cannot be read") as refused:
        og.load(write_dgl_file(tmp_path, "two"))
    assert refused.value.got == "2 graphs"
    for content in (b"", bytes(5000), b"x" * 9000):
        (tmp_path / "broken.bin").write_bytes(content)
        with pytest.raises(InputError, match=r"broken.bin cannot be read"):
            og.load(tmp_path / "broken.bin")
    block = plain()
    block.is_block = True
    with pytest.raises(InputError, match="a block of DGL"):
        og.load(block)
    assert og.load([plain()]).num_nodes == 5


@pytest.mark.parametrize("name", ["plain", "typed"])
def test_files_that_are_cut_off(tmp_path, name):
    held = bytes_of(name)
    path = tmp_path / "cut.bin"
    # The table of positions at the end is not needed.
    for length in range(0, len(held) - 32, 7):
        path.write_bytes(held[:length])
        with pytest.raises(InputError, match=r"cut.bin cannot be read"):
            read_dgl_file(path)


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(NAMES), changes=st.lists(st.tuples(st.integers(0, 9999), st.integers(0, 255)), max_size=4))
def test_changed_bytes_are_refused_or_read(tmp_path_factory, name, changes):
    held = np.frombuffer(bytes_of(name), np.uint8).copy()
    for at, value in changes:
        held[4096 + at % (len(held) - 4096)] = value
    path = tmp_path_factory.mktemp("dgl") / "changed.bin"
    path.write_bytes(held.tobytes())
    with contextlib.suppress(InputError):
        assemble_graph(read_dgl_file(path))
