"""Graphs of NetworkX and PyG."""

import numpy as np
import pytest
import torch

from graph.handmade import edges_of
from outgrow.core.errors import InputError
from outgrow.core.user_warnings import DataWarning
from outgrow.graph.builders.in_memory import assemble_graph
from outgrow.graph.readers.networkx import NetworkxSource
from outgrow.graph.readers.pyg import PygSource
from outgrow.ops.block_rows import BlockRows
from outgrow.ops.sparse import SparseRows


@pytest.fixture
def nx():
    return pytest.importorskip("networkx")


@pytest.fixture
def pyg():
    return pytest.importorskip("torch_geometric.data")


def test_networkx(nx):
    given = nx.MultiDiGraph(name="small")
    for node, split in (("b", "train"), ("a", "val"), ("c", None)):
        given.add_node(node, x=[1.0, ord(node)], y=ord(node) - 97, **({"split": split} if split else {}))
    given.add_edge("b", "a", weight=2.0, relation=1)
    given.add_edge("b", "a", weight=3.0, relation=0)
    given.add_edge("c", "c", weight=1.0, relation=0)
    made = assemble_graph(NetworkxSource(given))
    assert made.name == "small"
    assert edges_of(made) == [(0, 1, 0, 3.0), (0, 1, 1, 2.0), (2, 2, 0, 1.0)]
    assert made.features.tolist() == [[1, 98], [1, 97], [1, 99]]
    assert made.labels.tolist() == [1, 0, 2]
    assert made.split.train.tolist() == [0]
    assert made.split.val.tolist() == [1]


def test_undirected_networkx_goes_both_ways(nx):
    given = nx.Graph([(0, 1), (1, 1), (1, 2)])
    assert [edge[:2] for edge in edges_of(assemble_graph(NetworkxSource(given)))] == [
        (1, 0),
        (0, 1),
        (1, 1),
        (2, 1),
        (1, 2),
    ]


def test_bfloat16_of_pyg_is_widened(pyg):
    x = torch.arange(6.0).reshape(3, 2)
    edge_index = torch.tensor([[0, 1], [1, 2]])
    weight = torch.tensor([0.5, 2.0], dtype=torch.bfloat16)
    made = assemble_graph(PygSource(pyg.Data(x=x.bfloat16(), edge_index=edge_index, edge_weight=weight)))
    assert made.features.dtype == torch.float32
    assert torch.equal(made.features, x)
    assert made.topology.weight.tolist() == [0.5, 2.0]


def test_networkx_names_are_ids_and_texts_relations_and_classes(nx):
    given = nx.MultiGraph()
    given.add_node("ann", y="north")
    given.add_node("bob")
    given.add_node(("c", 1), y="east")
    given.add_edge("ann", "bob", key="knows")
    given.add_edge("ann", "bob", key="likes")
    given.add_edge("bob", ("c", 1), key="knows")
    made = assemble_graph(NetworkxSource(given))
    assert list(made.ids) == ["ann", "bob", "('c', 1)"]
    assert made.index_of(["bob", "ann"]).tolist() == [1, 0]
    assert made.relation_names == ("knows", "likes")
    assert [edge[:3] for edge in edges_of(made)] == [(1, 0, 0), (1, 0, 1), (0, 1, 0), (0, 1, 1), (2, 1, 0), (1, 2, 0)]
    assert (made.labels.tolist(), made.class_names) == ([1, -1, 0], ("east", "north"))
    plain = nx.MultiDiGraph([(0, 1), (0, 1)])
    assert assemble_graph(NetworkxSource(plain)).relation_names == ()
    assert assemble_graph(NetworkxSource(plain)).ids is None
    assert list(assemble_graph(NetworkxSource(nx.DiGraph([(7, 5), (5, -3)]))).ids) == [7, 5, -3]
    named = nx.DiGraph()
    named.add_edge("a", "b", relation="of")
    assert assemble_graph(NetworkxSource(named)).relation_names == ("of",)
    with pytest.raises(InputError, match="two nodes have the same name"):
        assemble_graph(NetworkxSource(nx.DiGraph([("1", 1)])))


def test_bad_networkx(nx):
    for node, edge, what in (
        ({"x": [1.0]}, {}, "1 values"),
        ({"y": ("dog",)}, {}, "attribute y"),
        ({"split": "training"}, {}, "training"),
        ({}, {"weight": 1.0}, "1 values"),
        ({}, {"weight": "heavy"}, "1 values"),
    ):
        given = nx.DiGraph([(0, 1), (1, 2)])
        given.nodes[1].update(node)
        given.edges[0, 1].update(edge)
        with pytest.raises(InputError, match=what):
            assemble_graph(NetworkxSource(given))


def test_pyg(pyg):
    data = pyg.Data(
        x=torch.rand(3, 2),
        y=torch.tensor([0, 2, 1]),
        edge_index=torch.tensor([[0, 1, 2], [1, 2, 0]]),
        edge_weight=torch.tensor([[1.0], [2.0], [3.0]]),
        edge_attr=torch.tensor([[4.0], [5.0], [6.0]]),
        edge_type=torch.tensor([0, 1, 1]),
        train_mask=torch.tensor([True, False, False]),
        test_mask=torch.tensor([False, False, True]),
    )
    made = assemble_graph(PygSource(data))
    assert edges_of(made) == [(2, 0, 1, 3.0), (0, 1, 0, 1.0), (1, 2, 1, 2.0)]
    assert made.edge_features.tolist() == [[6.0], [4.0], [5.0]]
    assert torch.equal(made.features, data.x)
    assert made.labels.tolist() == [0, 2, 1]
    assert made.split.train.tolist() == [0]
    assert len(made.split.val) == 0
    assert made.split.test.tolist() == [2]


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_pyg_with_sparse_features_and_label_sets(pyg):
    data = pyg.Data(
        x=torch.eye(3, 8).to_sparse_csr(),
        y=torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]]),
        edge_index=torch.tensor([[0], [1]]),
    )
    made = assemble_graph(PygSource(data))
    assert isinstance(made.features, SparseRows)
    assert made.multi_label
    assert made.labels.dtype == torch.uint8


def hetero(pyg, width=2):
    data = pyg.HeteroData()
    data["paper"].x = torch.ones(3, 2)
    data["paper"].y = torch.tensor([1, 0, 1])
    data["paper"].train_mask = torch.tensor([False, True, False])
    data["author"].x = torch.full((2, width), 2.0)
    data["venue"].num_nodes = 1
    data["author", "writes", "paper"].edge_index = torch.tensor([[0, 1], [2, 0]])
    data["paper", "in", "venue"].edge_index = torch.tensor([[1], [0]])
    return data


def dense_of(made):
    return made.features.to_dense().numpy()


def test_hetero(pyg):
    made = assemble_graph(PygSource(hetero(pyg)))
    assert [(t.name, t.first, t.last) for t in made.node_types] == [("paper", 0, 3), ("author", 3, 5), ("venue", 5, 6)]
    assert made.relation_names == ("author__writes__paper", "paper__in__venue")
    assert [edge[:3] for edge in edges_of(made)] == [(4, 0, 0), (3, 2, 0), (1, 5, 1)]
    assert made.labels.tolist() == [1, 0, 1, -1, -1, -1]
    assert made.split.train.tolist() == [1]


def test_hetero_types_of_other_width_have_columns_of_their_own(pyg):
    made = assemble_graph(PygSource(hetero(pyg, width=1)))
    dense = dense_of(made)
    assert dense.tolist() == [[1, 1, 0]] * 3 + [[0, 0, 2]] * 2 + [[0, 0, 0]]
    assert isinstance(made.features, BlockRows)
    assert [kind.num_columns for kind in made.node_types] == [2, 1, 0]


def test_hetero_types_of_one_width_share_columns(pyg):
    data = hetero(pyg)
    data["venue"].x = torch.full((1, 2), 3.0)
    assert assemble_graph(PygSource(data)).features.tolist() == [[1, 1]] * 3 + [[2, 2]] * 2 + [[3, 3]]


def test_bad_pyg(pyg):
    index = torch.tensor([[0, 1], [1, 2]])
    for changes, what in (
        ({"edge_index": None}, "edge_index cannot be used"),
        ({"edge_index": index.T.repeat(2, 2)}, "wrong form"),
        ({"edge_attr": torch.rand(3, 2)}, "features of edges have the wrong form"),
        ({"train_mask": torch.ones(4, 2, dtype=torch.bool)}, "train of the graph has the wrong form"),
        ({"y": torch.tensor([0.5, torch.inf, 2])}, "labels cannot be used"),
    ):
        with pytest.raises(InputError, match=what):
            assemble_graph(PygSource(pyg.Data(**{"edge_index": index, "num_nodes": 3, **changes})))
    two = hetero(pyg)
    two["author"].y = torch.tensor([0, 2])
    made = assemble_graph(PygSource(two))
    assert [(each.name, each.num_classes) for each in made.type_labels] == [("paper", 2), ("author", 3)]
    outside = hetero(pyg)
    outside["paper", "in", "venue"].edge_index = torch.tensor([[1], [1]])
    with pytest.raises(InputError, match="ids of venue from 0 to 0"):
        assemble_graph(PygSource(outside))


def test_masks_become_ids_in_order(pyg):
    mask = torch.from_numpy(np.random.default_rng(0).random(100) < 0.3)
    data = pyg.Data(edge_index=torch.tensor([[0], [1]]), num_nodes=100, y=torch.zeros(100).long(), val_mask=mask)
    assert torch.equal(assemble_graph(PygSource(data)).split.val, mask.nonzero().view(-1))


def test_types_whose_number_of_nodes_nothing_tells_have_as_many_as_their_edges(pyg):
    uncounted = hetero(pyg)
    del uncounted["venue"].num_nodes
    uncounted["paper", "in", "venue"].edge_index = torch.tensor([[1, 2], [3, 0]])
    only_named = hetero(pyg)
    only_named["paper", "of", "shop"].edge_index = torch.tensor([[1], [1]])
    for data, name, count in ((uncounted, "venue", 4), (only_named, "shop", 2)):
        with pytest.warns(DataWarning, match=f"nodes of {name} is taken from the largest id in the edges: {count}"):
            made = assemble_graph(PygSource(data))
        assert (made.node_types[-1].name, made.node_types[-1].last) == (name, made.num_nodes)
        assert made.num_nodes - made.node_types[-1].first == count


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_coordinates_of_sparse_features_add_up_and_other_sparse_tensors_are_refused(pyg):
    edge_index = torch.tensor([[0, 1], [1, 2]])
    x = torch.sparse_coo_tensor(torch.tensor([[0, 2, 2], [1, 0, 0]]), torch.tensor([1.0, 2.0, 3.0]), (3, 2))
    made = assemble_graph(PygSource(pyg.Data(x=x, edge_index=edge_index)))
    assert dense_of(made).tolist() == [[0, 1], [0, 0], [5, 0]]
    for changes in (
        {"edge_index": torch.ones(3, 3).triu().to_sparse()},
        {"y": torch.eye(3).to_sparse()},
        {"y": [0, 1, 0]},
    ):
        with pytest.raises(InputError, match=f"{next(iter(changes))} cannot be used"):
            assemble_graph(PygSource(pyg.Data(**{"edge_index": edge_index, "num_nodes": 3, **changes})))


def test_a_target_that_is_not_known_is_no_number(nx):
    club = nx.path_graph(4)
    nx.set_node_attributes(club, {0: 0.25, 2: 1.5}, "y")
    labels = assemble_graph(NetworkxSource(club)).labels
    assert labels is not None
    assert labels.isnan().tolist() == [False, True, False, True]
    assert labels[[0, 2]].tolist() == [0.25, 1.5]
